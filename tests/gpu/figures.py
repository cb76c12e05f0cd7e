"""Figures that the tier measures.

They are closed-loop load, step times, Triton's GPU metrics, and the record of all.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from tests.gpu.nvml import Gpu
from tests.gpu.serving import MODEL, PIPELINE
from tests.support.python_backend import texts
from triton_pipelines.triton.client import TritonClient

ROOT: Final = Path(__file__).resolve().parents[2]
WARM_UP: Final = 3
"""Requests of each shape before a step time counts.

The first requests choose kernels and grow PyTorch's memory pool.
"""


@dataclass
class Load:
    """Outcome of a closed-loop run.

    Attributes:
        seconds: length of each window.
        windows: requests answered in each window.
        latencies_ms: of every request of all windows, at the client.
        mean_rows: rows in an execution of the model step, on average.
    """

    seconds: float
    windows: list[int] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    mean_rows: float = 0.0

    def summary(self) -> dict[str, Any]:
        """Median over the windows, their extremes, and percentiles over all requests."""
        rates = sorted(round(count / self.seconds, 1) for count in self.windows)
        p50, p99 = (round(float(np.percentile(self.latencies_ms, q)), 2) for q in (50, 99))
        return {
            "requests_per_second": statistics.median(rates),
            "spread": [rates[0], rates[-1]],
            "p50_ms": p50,
            "p99_ms": p99,
            "mean_batch_rows": round(self.mean_rows, 2),
        }


async def closed_loop(
    address: str, requests: Sequence[Sequence[str]], clients: int, windows: int, seconds: float
) -> Load:
    """Run a closed loop of ``clients`` clients for ``windows`` windows of ``seconds``.

    Each client has its own connection and always one request in flight.

    A window of warm-up comes first and is not counted. A failed request raises.
    """
    load = Load(seconds, [0] * windows)
    tensors = [texts(*rows) for rows in requests]
    async with TritonClient(address, deadline_s=60) as control:
        begin = time.perf_counter() + seconds
        end = begin + windows * seconds

        async def client(number: int) -> None:
            async with TritonClient(address, deadline_s=60) as connection:
                turn = number
                while (sent := time.perf_counter()) < end:
                    await connection.infer(PIPELINE, {"TEXT": tensors[turn % len(tensors)]})
                    turn += clients
                    done = time.perf_counter()
                    if begin <= done < end:
                        load.windows[min(int((done - begin) / seconds), windows - 1)] += 1
                        load.latencies_ms.append((done - sent) * 1e3)

        (before,) = await control.statistics(MODEL)
        await asyncio.gather(*(client(number) for number in range(clients)))
        (after,) = await control.statistics(MODEL)
    load.mean_rows = (after.inference_count - before.inference_count) / (
        after.execution_count - before.execution_count
    )
    return load


async def step_times(
    address: str, rows: Sequence[int], tokens: Sequence[int], blocks: int = 5, repeats: int = 5
) -> list[dict[str, Any]]:
    """Measure the time of one execution of the model step by batch and length.

    The times come from Triton's own statistics and include copies to and from the GPU.

    Each point is the median over ``blocks`` means of ``repeats`` requests sent one after the other,
    in milliseconds, with the extremes.
    """
    points = []
    async with TritonClient(address, deadline_s=120) as client:

        async def spent() -> tuple[int, int]:
            (model,) = await client.statistics(MODEL)
            return model.inference_stats.compute_infer.ns, model.execution_count

        for count in rows:
            for length in tokens:
                request = {
                    "input_ids": np.full((count, length), 5, np.int64),
                    "attention_mask": np.ones((count, length), np.int64),
                }
                for _ in range(WARM_UP):
                    await client.infer(MODEL, request)
                means = []
                for _ in range(blocks):
                    begun, earlier = await spent()
                    for _ in range(repeats):
                        await client.infer(MODEL, request)
                    ended, later = await spent()
                    means.append((ended - begun) / (later - earlier) / 1e6)
                point = {
                    "rows": count,
                    "tokens": length,
                    "ms": statistics.median(means),
                    "spread": [min(means), max(means)],
                }
                points.append({key: np.round(value, 3).tolist() for key, value in point.items()})
    return points


GPU_METRICS_UNAVAILABLE: Final = "GPUMetricsUnavailable"
UNREADABLE: Final = "Unable to get GPU utilization"
"""What Triton logs when DCGM runs but cannot read the GPU; the metric stays at 0 then."""


def gpu_metrics(text: str, uuid: str, log: str = "") -> dict[str, float] | str:
    """Return Triton's metrics of one GPU by name.

    Returns ``GPUMetricsUnavailable`` if this Triton has none (its DCGM does not start, or its log
    says that DCGM cannot read the GPU). An absent metric is never 0.
    """
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("nv_gpu_") and sample.labels.get("gpu_uuid") == uuid
    }
    utilization = found.get("nv_gpu_utilization")
    is_unreadable = utilization == 0 and UNREADABLE in log
    return GPU_METRICS_UNAVAILABLE if utilization is None or is_unreadable else found


def scrape(url: str) -> str:
    """The text of a metrics endpoint."""
    with httpx.Client(trust_env=False) as client:
        return client.get(url).raise_for_status().text


def record(measured: dict[str, Any], gpu: Gpu | None, workload: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a run.

    The value is requests per second; the other figures are in additional fields. It has no target.
    """
    load = dict(measured.get("load", {}))
    return {
        "id": "gpu-tier",
        "value": load.pop("requests_per_second", None),
        "unit": "requests/s",
        "spread": load.pop("spread", None),
        "goal": None,
        "met": None,
        "workload": workload,
        "stand_ins": [] if gpu else ["CPU in the place of the GPU: a rehearsal, no result"],
        "command": "make gpu" if gpu else "pytest tests/gpu --gpu-rehearsal",
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {
            "gpu": gpu
            and {
                "name": gpu.name,
                "memory_mib": gpu.memory_mib,
                "driver": gpu.driver,
                "cuda": gpu.cuda,
            },
            "cpu": _cpu(),
            "cores": os.cpu_count(),
        },
        **measured,
        "load": load,
    }


def _commit() -> str:
    """The checkout's commit; empty where there is no git."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
