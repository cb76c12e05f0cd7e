"""C7-direct: CPU of the live scaling loop that reads the pods themselves, for 1 000 pipelines.

Pages come from a process of its own. Measured is the CPU of this process alone: reading all pods
once, and one decision for each pipeline.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection as Pipe
from typing import Final

from bench.results import thresholds, write
from tests.support.prometheus import page
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics.direct_reader import INTERVAL_SECONDS, DirectReader
from triton_pipelines.autoscaling.metrics.samples import ExpectedPods, PipelineSample
from triton_pipelines.autoscaling.types import PipelineLimits, ScalingState, StepLimits

PIPELINES: Final = 1000
STEPS: Final = ("tokenizer", "model", "postprocess")
RUNS: Final = 7
GOAL_PERCENT: Final = 50.0
_QUANTILES: Final = (0.5, 0.9, 0.95, 0.99, 0.999)
_SUMMARIES: Final = ("request", "queue", "compute_input", "compute_infer", "compute_output")


def run() -> None:
    """Measure, print and write the result; takes a minute."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    pages = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    pages.start()
    try:
        asyncio.run(_measure(ours.recv()))
    finally:
        pages.terminate()
        pages.join(10)


def _page(success: int) -> str:
    """Return a page with the summaries that the rendered arguments of Triton turn on."""
    models = (*STEPS, "pipeline")
    lines = [page(success, models, pending=1)]
    for model in models:
        labels = f'model="{model}",version="1"'
        for summary in _SUMMARIES:
            name = f"nv_inference_{summary}_summary_us"
            lines += [f'{name}{{{labels},quantile="{quantile}"}} 123.5' for quantile in _QUANTILES]
            lines += [f"{name}_count{{{labels}}} 5", f"{name}_sum{{{labels}}} 617.5"]
    return "\n".join(lines) + "\n"


def _serve(pipe: Pipe) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                body = _page(round(50 * (time.time() % 1e6))).encode()
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        pipe.send(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await server.serve_forever()

    asyncio.run(main())


async def _measure(address: str) -> None:
    keys = [(f"team-{index % 100:03}", f"pipeline-{index:04}") for index in range(PIPELINES)]
    wanted = {
        key: ExpectedPods(key[0], {f"{key[1]}-pod": address}, frozenset(STEPS), 60.0)
        for key in keys
    }
    limits = PipelineLimits(
        steps=(StepLimits(name="tokenizer", model_name="tokenizer", low=1, high=8, initial=2),),
        gpu_steps=("model",),
        cpu_limit=8.0,
    )
    states = dict.fromkeys(keys, ScalingState())
    collecting, deciding = list[float](), list[float]()
    async with DirectReader() as reader:
        for number in range(1 + RUNS):
            before = time.process_time()
            found = await reader.collect(wanted)
            between, now = time.process_time(), time.time()
            for key, sample in found.items():
                pod = f"{key[1]}-pod"
                counts = {"tokenizer": {pod: 2}}
                states[key] = decide(limits, states[key], sample, counts, (pod,), now).state
            after = time.process_time()
            missing = sum(not isinstance(sample, PipelineSample) for sample in found.values())
            print(f"reading {between - before:5.2f} s, decisions {after - between:5.2f} s of CPU")
            if missing:
                raise SystemExit(f"{missing} of {PIPELINES} pods were not read")
            if number:
                collecting.append(between - before)
                deciding.append(after - between)
    both = [first + second for first, second in zip(collecting, deciding, strict=True)]
    percent = [100 * seconds / INTERVAL_SECONDS for seconds in both]
    path = write(
        "C7-direct",
        percent,
        unit="percent of a core",
        goal=thresholds()["C7-direct"]["goal"],
        met=statistics.median(percent) <= GOAL_PERCENT,
        workload=(
            f"{PIPELINES} pipelines of one pod and three steps, read every {INTERVAL_SECONDS:g} s;"
            f" pages of {len(_page(0))} bytes"
        ),
        stand_ins=["1 000 Triton servers: replaced by metrics pages in Triton's format"],
        detail={
            "readingSeconds": [round(x, 3) for x in collecting],
            "decisionSeconds": [round(x, 3) for x in deciding],
        },
    )
    print(f"C7-direct: {statistics.median(percent):.0f} % of a core; {path.name} written")
