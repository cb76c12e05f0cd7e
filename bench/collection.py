"""C7.

CPU of one collection from a real Prometheus and of all decisions that follow, for 1 000 pipelines.

Each pipeline is one pod whose page is that of an ensemble of three steps, 5 s between scrapes.
Pages come from a process of its own, and so does Prometheus: what is measured is the CPU of this
process alone, which is what the operator would spend.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection as Pipe

from bench.results import thresholds, write
from tests.support.prometheus import PrometheusServer, Target, page
from tests.support.web import LoopbackServer, Request, Response
from triton_pipelines.autoscaling.decide import decide
from triton_pipelines.autoscaling.metrics.collector import PrometheusCollector
from triton_pipelines.autoscaling.metrics.connection import Connection
from triton_pipelines.autoscaling.metrics.samples import ExpectedPods, PipelineSample
from triton_pipelines.autoscaling.types import PipelineLimits, ScalingState, StepLimits

PIPELINES = 1000
NAMESPACES = 100
INTERVAL = 5.0
WARM, RUNS = 14, 7
GOAL_SECONDS = 1.0
STEPS = ("tokenizer", "model", "postprocess")
RATE = 50.0

Key = tuple[str, str]


def run() -> None:
    """Measure, print and write the result; takes two minutes."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    pages = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    pages.start()
    try:
        address = ours.recv()
        with PrometheusServer(
            [_target(address, key) for key in _keys()], interval=INTERVAL
        ) as prometheus:
            asyncio.run(_measure(prometheus))
    finally:
        pages.terminate()
        pages.join(10)


def _serve(pipe: Pipe) -> None:
    """Serves the same growing page for every pod."""

    def answer(_: Request) -> Response:
        text = page(round(RATE * (time.time() % 1e6)), (*STEPS, "pipeline"), pending=1)
        return Response(200, {"Content-Type": "text/plain; version=0.0.4"}, text.encode())

    with LoopbackServer(answer) as server:
        pipe.send(f"127.0.0.1:{server.port}")
        pipe.recv()


def _keys() -> list[Key]:
    return [(f"team-{index % NAMESPACES:03}", f"pipeline-{index:04}") for index in range(PIPELINES)]


def _pod(key: Key) -> str:
    return f"{key[1]}-6c7b8d5f9d-abcde"


def _target(address: str, key: Key) -> Target:
    labels = {
        "namespace": key[0],
        "pod": _pod(key),
        "container": "triton",
        "endpoint": "metrics",
        "__metrics_path__": f"/{key[1]}",
    }
    return Target(address, labels, "triton-pipelines/pipelines")


async def _measure(prometheus: PrometheusServer) -> None:
    wanted = {key: ExpectedPods(key[0], {_pod(key): ""}, frozenset(STEPS), 60.0) for key in _keys()}
    limits = PipelineLimits(
        steps=(StepLimits(name="tokenizer", model_name="tokenizer", low=1, high=8, initial=2),),
        gpu_steps=("model",),
        cpu_limit=8.0,
    )
    states = dict.fromkeys(wanted, ScalingState())
    collecting: list[float] = []
    deciding: list[float] = []
    failed: set[str] = set()
    async with PrometheusCollector(Connection(url=prometheus.url)) as collector:
        began = time.monotonic()
        for number in range(WARM + RUNS):
            await asyncio.sleep(max(0.0, began + number * INTERVAL - time.monotonic()))
            before = time.process_time()
            found = await collector.collect(wanted)
            between = time.process_time()
            now = time.time()
            for key, sample in found.items():
                pod = _pod(key)
                states[key] = decide(
                    limits, states[key], sample, {"tokenizer": {pod: 2}}, (pod,), now
                ).state
            after = time.process_time()
            failed |= (
                {
                    sample.message
                    for sample in found.values()
                    if not isinstance(sample, PipelineSample)
                }
                if number >= WARM
                else set()
            )
            usable = sum(isinstance(sample, PipelineSample) for sample in found.values())
            counted = number >= WARM and usable == PIPELINES
            print(
                f"collection {between - before:5.2f} s, decisions {after - between:5.2f} s "
                f"of CPU; {usable} samples{'' if counted else ' (not counted)'}"
            )
            if counted:
                collecting.append(between - before)
                deciding.append(after - between)
    if len(collecting) < RUNS - 2:
        raise SystemExit(
            f"only {len(collecting)} of {RUNS} collections brought all samples: "
            f"{sorted(failed)[:3]}"
        )
    both = [first + second for first, second in zip(collecting, deciding, strict=True)]
    goal = thresholds()["C7"]["goal"]
    path = write(
        "C7",
        both,
        unit="s",
        goal=goal,
        met=max(both) <= GOAL_SECONDS,
        workload=(
            f"{PIPELINES} pipelines of one pod and three steps in {NAMESPACES} namespaces, 5 s "
            "between scrapes, one minute of history"
        ),
        stand_ins=[
            "1 000 Triton servers: replaced by metrics pages in Triton's format; Prometheus is real"
        ],
        detail={
            "collectionSeconds": [round(x, 3) for x in collecting],
            "decisionSeconds": [round(x, 3) for x in deciding],
        },
    )
    print(
        f"C7: {statistics.median(both):.2f} s of CPU per interval (goal {goal}); {path.name} "
        "written"
    )
