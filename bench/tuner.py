"""U1, U2: the tuner's predictions against measurements, and its choice against brute force.

Measured on a real Triton. The model step is the simulated GPU (``gpu-step.yaml``).

U1: each point is predicted before it is measured, over settings and shares that are fixed here. The
tuner predicts from the profile, one calibration with the first setting, and the results of lower
rates of the same setting, but never from the point itself. Predictions are for exactly the arrivals
that are then sent, so that differences are due to the prediction and not to the random draw.

U2: the highest rate within the latency budget is measured for every setting of a grid that is fixed
here. Then a quick tuning run on the same server chooses a setting, whose highest rate is found in
the same way.

``SECONDS`` sets the length of a point (U1 10, U2 6; U1 takes about 3 minutes, U2 about 10). Below 5
it only tries out the parts; the figures mean nothing and are not written.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import plots
from bench.results import thresholds, write
from e2e.local import native
from e2e.models import tree
from e2e.models.__main__ import source_map
from triton_pipelines.cli.local_pipeline import LocalPipeline, serve_locally
from triton_pipelines.tools.loadgen import (
    Array,
    LoadSpec,
    TextLengths,
    due_times,
    precise_event_loop,
)
from triton_pipelines.tools.tuner import BatchingSetting, TuningOptions, TuningTarget, tune
from triton_pipelines.tools.tuner.calibration import StepExecutions, calibrate
from triton_pipelines.tools.tuner.load_measurement import (
    CARRIED_SHARE,
    LoadMeasurement,
    measurement_of,
)
from triton_pipelines.tools.tuner.measured_points import CALIBRATION_SHARE
from triton_pipelines.tools.tuner.measured_server import MeasuredServer
from triton_pipelines.tools.tuner.plot import chart
from triton_pipelines.tools.tuner.prediction import MAX_UTILIZATION, PipelineModel, simulate
from triton_pipelines.tools.tuner.profiling import executions_by_step, profile
from triton_pipelines.tools.tuner.selection import predict_setting
from triton_pipelines.tools.tuner.workload import Workload, workload

PIPELINE = Path(__file__).with_name("gpu-step.yaml")
SECONDS = float(os.environ.get("SECONDS", "0"))
PREDICTED_SECONDS = SECONDS or 10.0
SEARCHED_SECONDS = SECONDS or 6.0
TRIAL = 0 < SECONDS < 5
"""Whether this only tries the parts: nothing is written."""
WARM_SECONDS = 1.0
LATENCY_BUDGET = 0.035
LENGTHS = TextLengths(median=200, sigma=0.6, cap=512)
STAND_INS = [
    (
        "simulated GPU step: waits 2 ms plus 1.5 µs per token it would compute; its instances "
        "take turns"
    )
]
WORKLOAD = (
    f"gpu-step, {LENGTHS} tokens, 1 row per request, Poisson arrivals;"
    " SLO 40 ms, latency budget 35 ms"
)

# Written down before anything was measured: batch sizes on both sides of what is sensible, delays,
# instances.
GRID = (
    BatchingSetting(2, 0, 1, 1),
    BatchingSetting(8, 0, 1, 1),
    BatchingSetting(32, 0, 1, 1),
    BatchingSetting(128, 0, 1, 1),
    BatchingSetting(8, 0, 1, 2),
    BatchingSetting(32, 0, 1, 2),
    BatchingSetting(128, 0, 1, 2),
    BatchingSetting(32, 2000, 1, 2),
    BatchingSetting(32, 8000, 1, 2),
    BatchingSetting(32, 0, 2, 2),
)
# Settings and shares of what each is predicted to carry within the latency budget.
PREDICTED = tuple(
    (setting, share)
    for setting in (GRID[0], GRID[1], GRID[5], GRID[7])
    for share in (0.5, 0.8, 1.0)
)
STEP = 1.1  # between the rates of a search
_MOST_STEPS = 6


@dataclass
class Ready:
    """A server with its workload and the calibrated prediction."""

    server: MeasuredServer
    work: Workload
    running: LocalPipeline
    pipe: PipelineModel
    seed: int = 0

    async def measure(
        self, setting: BatchingSetting, spec: LoadSpec
    ) -> tuple[LoadMeasurement, Mapping[str, StepExecutions]]:
        """What a load gave, and what the steps did in it."""
        await self.server.apply(setting, self.work.requests)
        result = await self.server.run(self.work.requests, spec)
        return measurement_of(result), executions_by_step(result, self.running.graph)

    def load(self, rate: float, seconds: float) -> LoadSpec:
        """A load with arrivals of its own."""
        self.seed += 1
        return LoadSpec(rate=rate, duration_s=seconds, warmup_s=WARM_SECONDS, seed=self.seed)


def carried(load: LoadMeasurement, spec: LoadSpec) -> bool:
    """Whether all that was asked was answered, without a failure."""
    return load.failed == 0 and load.rate >= CARRIED_SHARE * spec.rate


def arrivals(spec: LoadSpec) -> Array:
    """Seconds at which the requests of a load are due."""
    return np.array(
        list(
            itertools.takewhile(lambda due: due < spec.warmup_s + spec.duration_s, due_times(spec))
        )
    )


def _target(running: LocalPipeline) -> TuningTarget:
    return TuningTarget(running.server.grpc_address, running.rebuild, url=running.server.http_url)


async def _ready(running: LocalPipeline, server: MeasuredServer, seconds: float) -> Ready:
    options = TuningOptions(lengths=LENGTHS, cores=float(os.cpu_count() or 1))
    work = await workload(server.client, running.pipeline, running.graph, options)
    found = await profile(server, running.graph, work, GRID, LATENCY_BUDGET)
    current = predict_setting(found.pipe, server.current, LATENCY_BUDGET)
    rate = CALIBRATION_SHARE * (current.rate or current.capacity)
    await server.apply(server.current, work.requests)
    result = await server.run(
        work.requests, LoadSpec(rate=rate, duration_s=seconds, warmup_s=WARM_SECONDS)
    )
    load = measurement_of(result)
    pipe = calibrate(
        found.pipe.with_setting(server.current),
        executions_by_step(result, running.graph),
        load.arrivals,
        load.latencies,
    )
    return Ready(server, work, running, pipe)


def predictions() -> None:
    """U1: measure, print and write the result."""
    native.install()
    with (
        serve_locally(PIPELINE, _sources()) as running,
        asyncio.Runner(loop_factory=precise_event_loop) as runner,
    ):
        points = runner.run(_predictions(running))
    errors = [100 * abs(predicted / measured - 1) for _, _, predicted, measured in points]
    _write(
        "U1",
        errors,
        unit="% error of the predicted p99, per point",
        met=max(errors) <= 15,
        detail={
            "points": [
                {
                    "setting": str(k),
                    "rate": round(r, 1),
                    "predictedMs": round(p * 1e3, 2),
                    "measuredMs": round(m * 1e3, 2),
                }
                for k, r, p, m in points
            ]
        },
    )
    print(
        f"U1: predicted p99 off by {statistics.median(errors):.0f} % (median), "
        f"{max(errors):.0f} % (worst) over {len(errors)} points"
    )


async def _predictions(running: LocalPipeline) -> list[tuple[BatchingSetting, float, float, float]]:
    async with MeasuredServer(_target(running), running.pipeline, running.graph) as server:
        ready = await _ready(running, server, PREDICTED_SECONDS)
        points = []
        pipe, before = ready.pipe, PREDICTED[0][0]
        for setting, share in PREDICTED:
            pipe, before = (pipe if setting == before else ready.pipe), setting
            found = predict_setting(pipe, setting, LATENCY_BUDGET)
            rate = share * (found.rate or MAX_UTILIZATION * found.capacity)
            spec = ready.load(rate, PREDICTED_SECONDS)
            predicted = simulate(pipe.with_setting(setting), arrivals(spec), 77).p99
            load, seen = await ready.measure(setting, spec)
            points.append((setting, rate, predicted, load.p99))
            print(
                (
                    f"{setting} at {rate:.0f}/s: predicted {predicted * 1e3:.1f} ms, measured "
                    f"{load.p99 * 1e3:.1f} ms"
                ),
                flush=True,
            )
            pipe = calibrate(
                pipe.with_setting(setting),
                seen,
                load.arrivals,
                load.latencies if carried(load, spec) else None,
            )
        return points


def choice() -> None:
    """U2: measure, print and write the result and the plot."""
    native.install()
    with (
        serve_locally(PIPELINE, _sources()) as running,
        asyncio.Runner(loop_factory=precise_event_loop) as runner,
    ):
        runner.run(_choice(running))


async def _choice(running: LocalPipeline) -> None:
    async with MeasuredServer(_target(running), running.pipeline, running.graph) as server:
        ready = await _ready(running, server, SEARCHED_SECONDS)
        brute = {setting: await _highest(ready, setting) for setting in GRID}
    made = await tune(
        _target(running),
        running.pipeline,
        running.graph,
        TuningOptions(
            lengths=LENGTHS, cores=float(os.cpu_count() or 1), seconds=SECONDS if TRIAL else None
        ),
        lambda done, text: print(f"{done:4.0%} {text}", flush=True) if done in (0.0, 1.0) else None,
    )
    async with MeasuredServer(_target(running), running.pipeline, running.graph) as server:
        ready.server = server
        best = max(brute, key=lambda setting: brute[setting])
        # Both again, one after the other: what was measured minutes apart differs by the machine's
        # mood.
        again = {
            setting: [await _highest(ready, setting) for _ in range(2)]
            for setting in dict.fromkeys((made.recommended, best))
        }
    most = statistics.mean(again[best])
    regrets = [100 * (1 - rate / most) for rate in again[made.recommended]]
    measured = len(made.points)
    if not TRIAL:
        plots.save("U2", chart(replace(made, simulated_steps=("GPU step",))))
    _write(
        "U2",
        regrets,
        unit="% fewer requests/s within the latency budget than the best of the grid",
        met=statistics.median(regrets) <= 3 and measured <= 6 and made.failed_requests == 0,
        detail={
            "chosen": str(made.recommended),
            "best": str(best),
            "measuredPoints": measured,
            "failedRequests": made.failed_requests,
            "lateRequests": made.late_requests,
            "seconds": round(made.seconds),
            "message": made.message,
            "grid": {str(setting): round(rate) for setting, rate in brute.items()},
            "again": {
                str(setting): [round(rate) for rate in rates] for setting, rates in again.items()
            },
        },
    )
    print(made.message)
    print(
        f"U2: chosen {made.recommended}, best of the grid {best}: "
        f"{statistics.median(regrets):.1f} % less; {measured} points,"
        f" {made.failed_requests} failed, {made.late_requests} timed out or rejected"
    )


def _write(
    identity: str, samples: Sequence[float], *, unit: str, met: bool, detail: dict[str, Any]
) -> None:
    if TRIAL:
        print(f"{identity}: a trial of {SECONDS:g} s a point, not written")
        return
    goal = thresholds()[identity]["goal"]
    write(
        identity,
        samples,
        unit=unit,
        goal=goal,
        met=met,
        workload=WORKLOAD,
        stand_ins=STAND_INS,
        detail=detail,
    )


async def _highest(ready: Ready, setting: BatchingSetting) -> float:
    """Return the highest rate within the latency budget.

    The search moves up or down from the predicted rate by tenths until two rates enclose the
    latency budget, and then interpolates.
    """
    rate = predict_setting(ready.pipe, setting, LATENCY_BUDGET).rate or 50.0
    kept: tuple[float, float] | None = None
    broken: tuple[float, float] | None = None
    for _ in range(_MOST_STEPS):
        spec = ready.load(rate, SEARCHED_SECONDS)
        load, _ = await ready.measure(setting, spec)
        p99 = load.p99
        print(f"{setting} at {rate:.0f}/s: p99 {p99 * 1e3:.1f} ms", flush=True)
        if p99 <= LATENCY_BUDGET and carried(load, spec):
            kept = (rate, p99)
        else:
            broken = (rate, max(p99, LATENCY_BUDGET * 1.001))
        if kept and broken:
            share = np.log(LATENCY_BUDGET / kept[1]) / np.log(broken[1] / kept[1])
            return float(kept[0] + min(1.0, share) * (broken[0] - kept[0]))
        rate = rate * STEP if kept else rate / STEP
    return kept[0] if kept else 0.0


def _sources() -> list[str]:
    return [rule.removeprefix("--source-map=") for rule in source_map(tree.build())]
