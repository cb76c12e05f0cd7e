"""Goodput at three times the capacity, with queues limited by time, by length, and not at all.

The capacity is the throughput of a closed loop. The overload is an open loop with Poisson arrivals:
clients do not wait for one another. Goodput counts answers within the clients' deadline. The step
is simulated and takes 200 ms for a batch of up to 8, so that two cores easily sustain three times
its capacity.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench import plots
from bench.results import thresholds, write
from bench.variants import Variant, described, measured, served, workload
from triton_pipelines.tools.loadgen import LoadResult, LoadSpec, summarize
from triton_pipelines.tools.loadgen.plots import Chart, LimitLine, Point, Series

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SECONDS = float(os.environ.get("SECONDS", "10"))
WARM_SECONDS = 2.0
CLIENTS = 24
"""Of the capacity: the batch that is computed, the next one, and one more."""
FACTOR = 3.0
DEADLINE_SECONDS = 1.0
GIVEN_UP_SECONDS = 3.0
LEAST = 90.0
SIMULATED = "simulated model step: waits 200 ms for a batch of up to 8 rows"
STEP = {"launch_us": "200000", "token_us": "0"}
BATCH = 8
CAPACITY = "capacity"
TIME = "timeout_action: REJECT default_timeout_microseconds: 400000"
LIMITS = {
    "time": dict.fromkeys(
        ("tokenizer", "model"), f"default_queue_policy {{ max_queue_size: 256 {TIME} }}"
    ),
    "length": {
        "tokenizer": "default_queue_policy { max_queue_size: 256 }",
        "model": "default_queue_policy { max_queue_size: 16 }",
    },
    "none": {},
}
MEANINGS = {
    "time": "at most 400 ms in a queue, then REJECT; at most 256 requests as a safeguard",
    "length": "max_queue_size: two batches for the model step, 256 requests for the tokenizer",
    "none": "no limit, Triton's default",
}


def run() -> None:
    """Measure, print and write the result; 5 minutes."""
    texts = workload()
    variants = [
        Variant(name, parameters=STEP, ragged=True, max_batch=BATCH) for name in (CAPACITY, *LIMITS)
    ]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in LIMITS}
    capacities = []
    with served(
        variants,
        batching={
            f"{name}-{step}": policy
            for name, limits in LIMITS.items()
            for step, policy in limits.items()
        },
    ) as server:
        for number in range(ROUNDS):
            spec = LoadSpec(concurrency=CLIENTS, duration_s=SECONDS, warmup_s=WARM_SECONDS)
            capacities.append(summarize(measured(server, CAPACITY, spec, texts)).requests_per_s)
            for name in LIMITS:
                over = LoadSpec(
                    rate=FACTOR * capacities[-1],
                    duration_s=SECONDS,
                    warmup_s=WARM_SECONDS,
                    timeout_s=GIVEN_UP_SECONDS,
                    connections=4096,
                    seed=number,
                )
                one = figures(measured(server, name, over, texts), capacities[-1], f"{name}-model")
                found[name].append(one)
                print(
                    f"round {number + 1} capacity {capacities[-1]:.0f}/s, limit {name}: {one}",
                    flush=True,
                )
    _write(found, capacities)
    _plot(found)


def figures(result: LoadResult, capacity: float, model: str) -> dict[str, Any]:
    """Goodput and what became of the rest."""
    summary, late = summarize(result), result.latencies
    good = float(np.count_nonzero(late <= DEADLINE_SECONDS)) / result.duration_s
    refused = result.measured() & (result.error >= 0)
    waited = (result.end - result.due)[refused]
    return {
        "goodputPercent": round(100 * good / capacity, 1),
        "goodPerSecond": round(good, 1),
        "answeredPerSecond": round(len(late) / result.duration_s, 1),
        "p99Milliseconds": round(summary.p99_s * 1000, 1) if len(late) else None,
        "modelBusy": round(result.steps[model].busy, 2) if model in result.steps else None,
        "refused": int(np.count_nonzero(refused)),
        "refusedAfterMilliseconds": round(float(np.median(waited)) * 1000, 1)
        if len(waited)
        else None,
        "errors": dict(list(summary.errors.items())[:3]),
    }


def _write(found: Mapping[str, Sequence[Mapping[str, Any]]], capacities: Sequence[float]) -> None:
    shares = [one["goodputPercent"] for one in found["time"]]
    write(
        "overload",
        shares,
        unit="percent of capacity",
        goal=thresholds()["overload"]["goal"],
        met=statistics.median(shares) >= LEAST,
        workload=(
            f"{described()}; {FACTOR:g} times the capacity, open loop, {ROUNDS} rounds of "
            f"{SECONDS:g} s; deadline {DEADLINE_SECONDS * 1000:g} ms"
        ),
        stand_ins=[SIMULATED],
        detail={
            "capacityPerSecond": [round(value, 1) for value in capacities],
            "limits": {
                name: {"meaning": MEANINGS[name], "rounds": list(rounds)}
                for name, rounds in found.items()
            },
        },
    )
    print(f"overload: {statistics.median(shares):.1f} % of the capacity (goal {LEAST:g} %)")


def _plot(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    series = [
        Series(
            f"{name}: {MEANINGS[name]}",
            [Point(one["goodPerSecond"], one["p99Milliseconds"] or float("nan")) for one in rounds],
            marks_only=True,
        )
        for name, rounds in found.items()
    ]
    chart = Chart(
        f"Overload at {FACTOR:g} times the capacity (simulated model step)",
        series,
        throughput="goodput",
        unit="answers/s within the deadline",
        latency="p99 latency of the answered requests",
        note=f"{SIMULATED}; {len(found['time'])} rounds per limit, one point each",
        limits=(LimitLine("deadline of the clients", DEADLINE_SECONDS * 1000),),
    )
    plots.save("overload", chart)
