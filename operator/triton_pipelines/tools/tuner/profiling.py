"""Measure how long each step takes, by rows and tokens, with a few short loads on the server.

Times are those of executions (``batch_stats``: input, compute and output), never a client's. There
are four kinds of loads, each of a fraction of a second:

- single requests of 1, 2, 4, … rows at three lengths: the cost model;
- bursts of small requests of one length: the cost of a request besides its rows;
- the same of mixed lengths: whether rows are padded to the longest;
- two and more large requests at once: whether instances share a device.

Bursts meet an idle server: batches form as they do under load, and only the batch is timed. Clients
that never pause (a closed loop) keep client, server and every step busy on the same cores at once:
that makes each execution longer, and the fit would take it for the cost of a request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.compile.graph.defaults import TOKENIZER
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.resource_patch import PaddingSetting
from triton_pipelines.tools.loadgen import LoadResult

from .calibration import StepExecutions
from .errors import TuneError
from .measured_server import MeasuredServer
from .padding_candidates import longest_row, padding_effect
from .prediction import PaddingEffect, PipelineModel, StepModel
from .profile_fit import contention, pipeline_model, token_length, with_spread
from .profile_loads import (
    MIN_SAMPLES,
    apply_largest_accepted,
    burst_spec,
    closed_loop,
    request_sizes,
    timed_load,
)
from .settings import BatchingSetting, tuned_step
from .step_time_fit import TimingSample, fit
from .workload import Workload

CELL_SECONDS = 0.3
PROFILE_SECONDS = 15.0
CROWD_SECONDS = 0.6


@dataclass(frozen=True, slots=True)
class PipelineProfile:
    """Execution times of all steps at low load."""

    pipe: PipelineModel
    """The model of the pipeline that was fitted to them."""
    samples: Mapping[str, tuple[TimingSample, ...]]
    """The measurements, by step."""
    largest: int
    """Largest batch size that the server accepted."""
    model_instances: int
    """Most model instances that the server accepted."""
    notes: tuple[str, ...] = ()
    """Settings that could not be tried, with reasons."""
    token_lengths: tuple[int, ...] = ()
    """Lengths of the rows with which the model was timed; one length alone does not tell what a
    token costs.
    """


def executions_by_step(result: LoadResult, graph: Graph) -> dict[str, StepExecutions]:
    """Return the executions of each step during a load, by step name."""
    found = {}
    for step in graph.steps:
        figures = result.steps.get(step.model_name)
        if figures is not None and figures.executions:
            found[step.name] = StepExecutions(
                figures.batches, figures.execution_s, figures.busy, figures.batch_seconds
            )
    return found


async def profile(
    server: MeasuredServer,
    graph: Graph,
    work: Workload,
    compared: Sequence[BatchingSetting],
    latency_budget: float,
    on_progress: Callable[[float], None] = lambda _: None,
    seconds: float = PROFILE_SECONDS,
    timing: PaddingEffect | None = None,
) -> PipelineProfile:
    """Time every step.

    Args:
        server: The server.
        graph: What it runs.
        work: The requests.
        compared: The settings that will be compared.
        latency_budget: Seconds beyond which no time needs to be known.
        on_progress: Called with the share that is done.
        seconds: After this time only one point of each further length is timed.
        timing: The padding under which steps are timed, if the pipeline's own would make all rows
            equally long.

    Raises:
        TuneError: The server fails, or a single request exceeds the latency budget.
    """
    padding = (
        PaddingSetting()
        if timing is None
        else PaddingSetting(Padding.BUCKETED.value, timing.buckets)
    )
    largest = BatchingSetting(
        max(setting.max_batch_size for setting in compared),
        0,
        max(setting.model_instances for setting in compared),
        max(setting.tokenizer_instances for setting in compared),
        padding,
    )
    setting, notes = await apply_largest_accepted(server, largest, work)
    timing = timing if setting.padding.mode else None
    profiler = _Profiler(server, graph, work, setting, timing, on_progress)
    await profiler.time_single_requests(latency_budget, seconds)
    await profiler.time_bursts()
    on_progress(0.8)
    pipe = profiler.fitted()
    mixed = await profiler.mixed_executions()
    on_progress(0.9)
    model = tuned_step(graph)
    pipe = with_spread(pipe, model.name, mixed, work)
    pipe = await _with_contention(server, graph, work, pipe, setting, profiler.most_rows)
    on_progress(1.0)
    return PipelineProfile(
        pipe,
        {name: tuple(found) for name, found in profiler.samples.items()},
        setting.max_batch_size,
        setting.model_instances,
        tuple(notes),
        tuple(sorted({int(sample.tokens) for sample in profiler.samples[model.name]})),
    )


class _Profiler:
    """Times the steps under one setting."""

    def __init__(
        self,
        server: MeasuredServer,
        graph: Graph,
        work: Workload,
        setting: BatchingSetting,
        timing: PaddingEffect | None,
        on_progress: Callable[[float], None],
    ) -> None:
        self._server = server
        self._graph = graph
        self._work = work
        self._setting = setting
        self._timing = timing
        self._on_progress = on_progress
        self._usual = work.usual_length
        self._effect = timing or padding_effect(graph, longest_row(graph) or max(work.lengths))
        # A request has at most the rows that the ensemble accepts: further steps may keep that
        # below the batch size of the model.
        self.most_rows = min(setting.max_batch_size, server.most_rows)
        self.samples: dict[str, list[TimingSample]] = {step.name: [] for step in graph.steps}
        self._overhead: list[float] = []
        # Rows → seconds of a lone request of the usual length.
        self._alone: dict[int, float] = {}

    async def time_single_requests(self, latency_budget: float, seconds: float) -> None:
        """Time single requests of all sizes and lengths.

        Raises:
            TuneError: The smallest one of the usual length exceeds the latency budget.
        """
        sizes = request_sizes(self._work.rows, self.most_rows)
        few_sizes = sizes[:: max(1, len(sizes) // MIN_SAMPLES)]
        # The usual length first: if time runs out, the last points of the others are skipped.
        lengths = sorted(self._work.profile_lengths, key=lambda length: length != self._usual)
        cells = [(length, size) for length in lengths for size in sizes]
        begun = time.monotonic()
        # Length → rows from which a request exceeds the latency budget.
        slow: dict[int, int] = {}
        for number, (length, size) in enumerate(cells):
            self._on_progress(0.7 * number / len(cells))
            is_late = time.monotonic() - begun > seconds and size != sizes[0]
            is_skipped = length != self._usual and size not in few_sizes
            if is_late or is_skipped or size > slow.get(length, size):
                continue
            fastest = await self._time_cell(length, size, is_smallest=size == sizes[0])
            if fastest > latency_budget:
                slow[length] = size
        if slow.get(self._usual) == sizes[0]:
            raise TuneError(
                "a single request of the usual length exceeds the latency budget of "
                f"{latency_budget * 1000.0:.0f} ms, so no batching setting can meet it; "
                "raise spec.slo"
            )

    async def _time_cell(self, length: int, size: int, *, is_smallest: bool) -> float:
        """Time single requests of one size and length; return the fastest in seconds."""
        spec = closed_loop(1, CELL_SECONDS)
        result = await timed_load(self._server, [self._work.uniform(length, size)], spec)
        for name, seen in executions_by_step(result, self._graph).items():
            tokens = length if name == TOKENIZER else token_length(self._effect, length)
            self.samples[name] += [
                TimingSample(1, rows, tokens, seen.seconds, count)
                for rows, count in seen.batches.items()
                if rows == size
            ]
        if not len(result.latencies):
            return float("inf")
        fastest = float(result.latencies.min())
        if length == self._usual:
            self._alone[size] = fastest
            if is_smallest:
                inside = sum(
                    figures.execution_s
                    for name, figures in result.steps.items()
                    if name != self._graph.model_name
                )
                self._overhead = [max(0.0, float(value) - inside) for value in result.latencies]
        return fastest

    async def time_bursts(self) -> None:
        """Time batches of several small requests of the usual length."""
        rows = self._work.rows
        small = self._work.uniform(self._usual, rows)
        result = await timed_load(self._server, [small], burst_spec(self._alone, rows))
        for name, seen in executions_by_step(result, self._graph).items():
            tokens = self._usual if name == TOKENIZER else token_length(self._effect, self._usual)
            self.samples[name] += [
                TimingSample(max(1.0, size / rows), size, tokens, seen.times[size], count)
                for size, count in seen.batches.items()
                if count >= MIN_SAMPLES
            ]

    def fitted(self) -> PipelineModel:
        """Return the model of the pipeline.

        Raises:
            TuneError: The server reported no times of a step.
        """
        costs = {}
        for step in self._graph.steps:
            if not self.samples[step.name]:
                raise TuneError(
                    f"{step.name}: the server reports no batch statistics for this step"
                )
            costs[step.name] = fit(self.samples[step.name])
        pipe = pipeline_model(self._graph, self._work, costs, self._overhead)
        if self._timing is None:
            return pipe
        return replace(
            pipe,
            padding_effects={**pipe.padding_effects, self._setting.padding: self._timing},
            padding=self._timing.padding,
            buckets=self._timing.buckets,
        )

    async def mixed_executions(self) -> dict[str, StepExecutions]:
        """Return the executions during bursts of requests of the real mix."""
        spec = burst_spec(self._alone, self._work.rows)
        result = await timed_load(self._server, self._work.requests, spec)
        return executions_by_step(result, self._graph)


async def _with_contention(
    server: MeasuredServer,
    graph: Graph,
    work: Workload,
    pipe: PipelineModel,
    setting: BatchingSetting,
    rows: int,
) -> PipelineModel:
    """Add by how much executions slow down when several instances of a step compute at once.

    Args:
        server: The server.
        graph: What it runs.
        work: The requests.
        pipe: The model of the pipeline.
        setting: The setting that is applied.
        rows: Most rows of a request.
    """
    usual = work.usual_length
    counts = {pipe.model: setting.model_instances, pipe.tokenizer: setting.tokenizer_instances}
    most = max(counts.values())
    if most < 2:
        return pipe
    size = min(8 * work.rows, rows)
    found = executions_by_step(
        await timed_load(server, [work.uniform(usual, size)], closed_loop(2 * most, CROWD_SECONDS)),
        graph,
    )

    def stretched(stage: StepModel) -> StepModel:
        copies, seen = counts.get(stage.name, 1), found.get(stage.name)
        if copies < 2 or seen is None:
            return stage
        law = stage.cost.seconds(seen.rows / size, seen.rows, usual)
        return replace(
            stage,
            cost=replace(stage.cost, contention=contention(seen.seconds / law, seen.busy, copies)),
        )

    return replace(pipe, stages=tuple(map(stretched, pipe.stages)))
