"""Tune a pipeline: profile, calibrate, predict, choose, verify and report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.tools.loadgen import Array

from .errors import TuneError
from .measured_points import TuningRun
from .measured_server import MeasuredServer
from .noise import NOISE_SECONDS, NoiseSamples, noise_reason
from .options import (
    ProgressCallback,
    TuningOptions,
    TuningTarget,
    silent,
    slo_and_latency_budget,
)
from .profile_loads import closed_loop, timed_load
from .report import TuningReport
from .report_builder import build_report
from .report_findings import TuningFindings
from .verification import GainVerification
from .workload import Workload, workload


async def tune(
    target: TuningTarget,
    pipeline: InferencePipeline,
    graph: Graph,
    options: TuningOptions,
    progress: ProgressCallback = silent,
    on_not_restored: Callable[[str], None] | None = None,
) -> TuningReport:
    """Tune a pipeline on a server without other clients; the server's own setting is restored.

    Args:
        target: The server.
        pipeline: The resource that it runs.
        graph: The compiled graph of the resource.
        options: What to tune for.
        progress: Called with the progress.
        on_not_restored: Called with a message if the run is stopped and the setting of the server
            could not be restored.

    Raises:
        TuneError: The pipeline cannot be tuned, or the server failed before there was anything to
            compare; the message says what to do. A later failure leaves a report of what was
            measured, with ``ended``.
    """
    began, budget = time.monotonic(), slo_and_latency_budget(pipeline, options)
    made: TuningReport | None = None
    try:
        async with MeasuredServer(target, pipeline, graph, on_not_restored) as server:
            made = await _measured_report(server, pipeline, graph, options, budget, progress)
    except TuneError as error:
        if made is None or not made.ended:
            raise
        # The setting of the server could not be restored after the run had ended early.
        made = replace(made, ended=f"{made.ended}; {error}")
    progress(1.0, "done")
    return replace(made, seconds=time.monotonic() - began)


async def _measured_report(
    server: MeasuredServer,
    pipeline: InferencePipeline,
    graph: Graph,
    options: TuningOptions,
    slo_and_budget: tuple[float, float],
    progress: ProgressCallback,
) -> TuningReport:
    slo, latency_budget = slo_and_budget
    progress(0.0, "checking the server")
    work = await workload(server.client, pipeline, graph, options)
    run = TuningRun(server, pipeline, graph, options, progress, work, latency_budget)
    ended = ""
    start, end = await _single_request_latencies(server, work), np.empty(0)
    try:
        await run.prepare()
        await GainVerification(run).verify()
        end = await _single_request_latencies(server, work)
    except TuneError as error:
        if not run.can_report:
            raise
        ended = str(error)
    found = TuningFindings(
        pipeline=pipeline,
        graph=graph,
        options=options,
        slo=slo,
        latency_budget=latency_budget,
        work=work,
        pipe=run.pipe,
        predictions=run.predictions,
        grid=run.grid,
        measured=run.measured,
        executed=run.executed,
        decision=run.decision,
        current=server.current,
        notes=(*server.notes, *run.notes),
        padding=run.padding,
        padding_refused=run.padding_refused,
        noise=noise_reason(
            NoiseSamples(start, end),
            run.measured,
            {one.setting: one.rate for one in run.predictions},
            latency_budget,
        ),
    )
    made = await asyncio.to_thread(build_report, found)
    return replace(made, failed_requests=server.failed, late_requests=server.late, ended=ended)


async def _single_request_latencies(server: MeasuredServer, work: Workload) -> Array:
    """Return the latencies of single requests with the current setting, in seconds."""
    await server.apply(server.current, work.requests)
    request = work.uniform(work.usual_length, work.rows)
    result = await timed_load(server, [request], closed_loop(1, NOISE_SECONDS))
    return result.latencies
