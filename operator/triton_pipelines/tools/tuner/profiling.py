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
from triton_pipelines.compile.graph.graph import Graph, Implementation, Step
from triton_pipelines.compile.graph.resource_patch import PaddingSetting
from triton_pipelines.tools.loadgen import LoadResult, LoadSpec, is_rejected

from .calibration import StepExecutions, estimate_spread, padded_lengths
from .errors import SettingRefusedError, TuneError
from .measured_server import MeasuredServer
from .padding_candidates import longest_row, padding_effect
from .prediction import PaddingEffect, PipelineModel, StepModel
from .settings import BatchingSetting, needs_equal_lengths, tuned_step
from .step_time_fit import StepCost, TimingSample, fit
from .workload import RequestTensors, Workload

CELL_SECONDS = 0.3
PROFILE_SECONDS = 15.0
BURSTS_SECONDS = 1.2
# Requests of a burst: the first is taken alone, the rest together.
BURSTS = (2, 3, 5, 9, 17)
# Time for a burst: this multiple of the time of one request with all its rows, plus seconds for
# each request.
_BURST_TIMES = 2.0
_BURST_REQUEST = 0.001
CROWD_SECONDS = 0.6
_LONGEST_CELL = 4.0
_MIN_SAMPLES = 3


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
    wanted: Sequence[BatchingSetting],
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
        wanted: The settings that will be compared.
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
        max(setting.max_batch_size for setting in wanted),
        0,
        max(setting.model_instances for setting in wanted),
        max(setting.tokenizer_instances for setting in wanted),
        padding,
    )
    setting, notes = await _largest_accepted(server, largest, work)
    timing = timing if setting.padding.mode else None
    profiler = _Profiler(server, graph, work, setting, timing, on_progress)
    await profiler.time_single_requests(latency_budget, seconds)
    await profiler.time_bursts()
    on_progress(0.8)
    pipe = profiler.fitted()
    mixed = await profiler.mixed_executions()
    on_progress(0.9)
    model = tuned_step(graph)
    pipe = _with_spread(pipe, model.name, mixed, work)
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


def _usual_length(work: Workload) -> int:
    return work.profile_lengths[len(work.profile_lengths) // 2]


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
        self._usual = _usual_length(work)
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
        sizes = _sizes(self._work.rows, self.most_rows)
        few_sizes = sizes[:: max(1, len(sizes) // _MIN_SAMPLES)]
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
                "a single request of the usual length exceeds the latency budget of"
                f" {latency_budget * 1e3:.0f} ms: no batching can meet it; raise spec.slo"
            )

    async def _time_cell(self, length: int, size: int, *, is_smallest: bool) -> float:
        """Time single requests of one size and length; return the fastest in seconds."""
        spec = _closed_loop(1, CELL_SECONDS)
        result = await _timed_load(self._server, [self._work.uniform(length, size)], spec)
        for name, seen in executions_by_step(result, self._graph).items():
            tokens = length if name == TOKENIZER else _tokens(self._effect, length)
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
        result = await _timed_load(self._server, [small], burst_spec(self._alone, rows))
        for name, seen in executions_by_step(result, self._graph).items():
            tokens = self._usual if name == TOKENIZER else _tokens(self._effect, self._usual)
            self.samples[name] += [
                TimingSample(max(1.0, size / rows), size, tokens, seen.times[size], count)
                for size, count in seen.batches.items()
                if count >= _MIN_SAMPLES
            ]

    def fitted(self) -> PipelineModel:
        """Return the model of the pipeline.

        Raises:
            TuneError: The server reported no times of a step.
        """
        costs = {}
        for step in self._graph.steps:
            if not self.samples[step.name]:
                raise TuneError(f"{step.name}: the server reports no batch statistics of it")
            costs[step.name] = fit(self.samples[step.name])
        pipe = _pipe(self._graph, self._work, costs, self._overhead)
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
        result = await _timed_load(self._server, self._work.requests, spec)
        return executions_by_step(result, self._graph)


def _tokens(effect: PaddingEffect, length: int) -> int:
    """Return the tokens of a lone request's rows after the tokenizer."""
    return padded_lengths(
        PipelineModel((), (length,), padding=effect.padding, buckets=effect.buckets)
    )[0]


async def _largest_accepted(
    server: MeasuredServer, setting: BatchingSetting, work: Workload
) -> tuple[BatchingSetting, list[str]]:
    """Apply the largest setting that the server accepts, and return it with notes.

    First the setting as given, then with fewer instances, then with the current batch size.
    """
    bare = replace(setting, padding=PaddingSetting())
    tries = [
        (setting, ""),
        *(
            [
                (
                    bare,
                    f"padding {setting.padding}, to time rows of several lengths, is refused: {{}}",
                )
            ]
            if setting.padding.mode
            else []
        ),
        (
            replace(bare, model_instances=server.current.model_instances),
            f"{setting.model_instances} model instances are refused: {{}}",
        ),
        (
            replace(server.current, queue_delay=0),
            f"batch size {setting.max_batch_size} is refused: {{}}",
        ),
    ]
    notes: list[str] = []
    reason = ""
    for one, note in tries:
        try:
            await server.apply(one, [work.uniform(work.profile_lengths[0], work.rows)] * 4)
        except SettingRefusedError as error:
            reason = str(error)
            continue
        if note:
            notes.append(note.format(reason))
        return one, notes
    raise TuneError(f"the server refuses its own setting: {reason}")


async def _timed_load(
    server: MeasuredServer, requests: Sequence[RequestTensors], spec: LoadSpec
) -> LoadResult:
    """Put a short load on the server; a longer one if too few requests were answered."""
    while True:
        result = await server.run(requests, spec)
        if (
            len(result.latencies) >= max(_MIN_SAMPLES, spec.concurrency)
            or spec.duration_s > _LONGEST_CELL
        ):
            # A burst may be more than a queue accepts: the requests that were answered suffice.
            few = len(result.latencies) < _MIN_SAMPLES
            if bad := next((text for text in result.errors if few or not is_rejected(text)), ""):
                raise TuneError(f"requests fail while the steps are timed: {bad}")
            return result
        spec = replace(
            spec,
            duration_s=3 * spec.duration_s,
            warmup_s=3 * spec.warmup_s,
            schedule=[3 * due for due in spec.schedule],
        )


def _closed_loop(concurrency: int, seconds: float) -> LoadSpec:
    return LoadSpec(concurrency=concurrency, duration_s=seconds, warmup_s=seconds / 4)


def burst_spec(alone: Mapping[int, float], rows: int) -> LoadSpec:
    """Return bursts of all sizes in turn, each with time to be finished before the next.

    Args:
        alone: Rows → seconds of one request with that number of rows.
        rows: Rows of a request of a burst.
    """
    due: list[float] = []
    at = 0.0
    while at < BURSTS_SECONDS:
        for count in BURSTS:
            due += [at] * count
            fits = [seconds for size, seconds in alone.items() if size >= count * rows]
            at += _BURST_TIMES * min(fits, default=max(alone.values())) + _BURST_REQUEST * count
            if at > _LONGEST_CELL:  # a slow step gets small bursts only
                break
    # Otherwise a whole number of turns, so that every size is measured.
    return LoadSpec(schedule=due, duration_s=at, warmup_s=0.0)


def _sizes(rows: int, largest: int) -> list[int]:
    """Return the rows of the requests: those of a request times powers of two."""
    sizes = [rows]
    while sizes[-1] * 2 <= largest:
        sizes.append(sizes[-1] * 2)
    return sizes


def _pipe(
    graph: Graph, work: Workload, costs: Mapping[str, StepCost], overhead: Sequence[float]
) -> PipelineModel:
    model, tokenizer = tuned_step(graph), graph.tokenizer
    effect = padding_effect(graph, longest_row(graph) or max(work.lengths))
    return PipelineModel(
        stages=tuple(_stage(step, costs[step.name], tokenizer) for step in graph.steps),
        lengths=work.lengths,
        rows=work.rows,
        tokenizer=tokenizer.name if tokenizer is not None else "",
        model=model.name,
        padding=effect.padding,
        buckets=effect.buckets,
        overhead=tuple(sorted(overhead)) or (0.0,),
        padding_effects={PaddingSetting(): effect},
    )


def _stage(step: Step, cost: StepCost, tokenizer: Step | None) -> StepModel:
    delay = (step.batching.max_queue_delay_microseconds if step.batching is not None else None) or 0
    own = step is tokenizer and step.implementation is Implementation.TOKENIZER
    return StepModel(
        name=step.name,
        # The built-in tokenizer computes each row at its own length.
        cost=replace(cost, spread=0.0) if own or step.name == TOKENIZER else cost,
        batch=max(1, step.max_batch_size) if step.batching is not None else 1,
        delay=delay / 1e6,
        instances=step.instances.counts.initial,
        equal_lengths=needs_equal_lengths(step),
    )


def _with_spread(
    pipe: PipelineModel, model: str, mixed: Mapping[str, StepExecutions], work: Workload
) -> PipelineModel:
    """Add how rows of different length share a batch of the model, from the mixed load."""

    def with_spread(stage: StepModel) -> StepModel:
        if stage.name != model or stage.name not in mixed or stage.equal_lengths:
            return stage
        return replace(
            stage,
            cost=replace(
                stage.cost,
                spread=estimate_spread(
                    stage.cost, mixed[stage.name], padded_lengths(pipe), work.rows
                ),
            ),
        )

    return replace(pipe, stages=tuple(map(with_spread, pipe.stages)))


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
    usual = _usual_length(work)
    counts = {pipe.model: setting.model_instances, pipe.tokenizer: setting.tokenizer_instances}
    most = max(counts.values())
    if most < 2:
        return pipe
    size = min(8 * work.rows, rows)
    found = executions_by_step(
        await _timed_load(
            server, [work.uniform(usual, size)], _closed_loop(2 * most, CROWD_SECONDS)
        ),
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


def contention(factor: float, busy: float, copies: int) -> tuple[float, ...]:
    """Return the slowdown of an execution for each number of instances that compute at once.

    It is at most that of instances that take turns on one device: more comes from the client and
    the server on the same cores, which real load has less of.

    Args:
        factor: Slowdown that was measured.
        busy: Instances that were busy meanwhile.
        copies: Number of instances.
    """
    # If another step is the bottleneck, not all instances are busy: claim only what was measured.
    seen = max(1.0, min(float(copies), busy))
    per = min(1.0, (max(1.0, factor) - 1.0) / (seen - 1.0)) if seen > 1.2 else 0.0
    return tuple(1.0 + per * number for number in range(copies))
