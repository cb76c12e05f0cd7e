"""How long each step takes, by rows and tokens, on the real server: a few short runs, timed by Triton's own statistics.

Times are those of executions (``batch_stats``: input, compute and output), never a client's. Four kinds of runs, each of a fraction of a
second: single requests of 1, 2, 4, … rows at three lengths (the law); bursts of small requests of one length (what a request costs beside its
rows); the same of mixed lengths (whether rows are padded to the longest); two and more large requests at once (whether instances share).

Bursts meet an idle server: batches form as they do under load, and what is timed is the batch. Clients that never pause (a closed loop) keep
client, server and every step on the same cores at once: each execution takes longer then for the company, and the fit would take that for
the price of a request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.compile.graph.defaults import TOKENIZER
from triton_pipelines.compile.graph.graph import Graph, Implementation, Step
from triton_pipelines.compile.graph.resource_patch import PaddingSetting
from triton_pipelines.tools.loadgen import LoadResult, LoadSpec
from triton_pipelines.tools.loadgen.summary import turned_away

from .calibration import Executed, padded_lengths, spread_of
from .contract import Knobs, TuneError
from .knobs import equal_shapes, model_of
from .measured_server import Server, SettingRefusedError
from .padding_candidates import longest_of, shape_of
from .prediction import Pipe, Shape, Stage
from .step_time_fit import Cost, Sample, fit
from .workload import Request, Workload

CELL_SECONDS = 0.3
PROFILE_SECONDS = 15.0
BURSTS_SECONDS = 1.2
# Requests of a burst: the first is taken alone, the rest together.
BURSTS = (2, 3, 5, 9, 17)
# Time for a burst: so often that of one request with all its rows, and so many seconds for each request.
_BURST_TIMES = 2.0
_BURST_REQUEST = 0.001
CROWD_SECONDS = 0.6
_LONGEST_CELL = 4.0
_FEW = 3


@dataclass(frozen=True, slots=True)
class Profile:
    """The pipe as profiled at low load, the executions it was made from, and what could not be tried. ``token_lengths``: lengths of the
    rows that the model was timed with; one alone says nothing of what a token costs."""

    pipe: Pipe
    samples: Mapping[str, tuple[Sample, ...]]
    largest: int
    model_instances: int
    notes: tuple[str, ...] = ()
    token_lengths: tuple[int, ...] = ()


def executed(result: LoadResult, graph: Graph) -> dict[str, Executed]:
    """What each step did in a load, by step name."""
    found = {}
    for step in graph.steps:
        figures = result.steps.get(step.model_name)
        if figures is not None and figures.executions:
            found[step.name] = Executed(
                figures.batches, figures.execution_s, figures.busy, figures.batch_seconds
            )
    return found


async def profile(
    server: Server,
    graph: Graph,
    work: Workload,
    wanted: Sequence[Knobs],
    wall: float,
    tell: Callable[[float], None] = lambda _: None,
    seconds: float = PROFILE_SECONDS,
    timing: Shape | None = None,
) -> Profile:
    """Time every step. ``wanted``: settings that will be compared; ``wall``: seconds beyond which nothing needs to be known; ``seconds``:
    after these only one point of each further length is timed. ``timing``: the padding under which steps are timed, where the pipeline's own
    would make all rows equally long.

    Raises:
        TuneError: the server fails, or a single request takes longer than the wall.
    """
    largest = max(knobs.max_batch_size for knobs in wanted)
    copies = max(knobs.model_instances for knobs in wanted)
    tokenizers = max(knobs.tokenizer_instances for knobs in wanted)
    padded = (
        PaddingSetting()
        if timing is None
        else PaddingSetting(Padding.BUCKETED.value, timing.buckets)
    )
    knobs, notes = await _most(server, Knobs(largest, 0, copies, tokenizers, padded), work)
    usual = work.profile_lengths[len(work.profile_lengths) // 2]
    pads = (
        timing
        if timing is not None and knobs.padding.mode
        else shape_of(graph, longest_of(graph) or max(work.lengths))
    )
    samples: dict[str, list[Sample]] = {step.name: [] for step in graph.steps}
    overhead: list[float] = []
    # One request has no more rows than the ensemble lets in: further steps may keep that below the model's own batch size.
    most = min(knobs.max_batch_size, server.most_rows)
    sizes = _sizes(work.rows, most)
    # The usual length first: where time is over, the others' last points are done without.
    plan = [
        (length, size)
        for length in sorted(work.profile_lengths, key=lambda length: length != usual)
        for size in sizes
    ]
    begun = time.monotonic()
    too_long = False
    alone: dict[int, float] = {}  # rows → seconds of a lone request of usual length
    slow: dict[int, int] = {}  # length → rows from which it takes longer than the wall
    for number, (length, size) in enumerate(plan):
        tell(0.7 * number / len(plan))
        late = time.monotonic() - begun > seconds and size != sizes[0]
        if (
            late
            or size > slow.get(length, size)
            or (length != usual and size not in sizes[:: max(1, len(sizes) // _FEW)])
        ):
            continue
        result = await _cell(server, [work.uniform(length, size)], _closed(1, CELL_SECONDS))
        for name, seen in executed(result, graph).items():
            tokens = length if name == TOKENIZER else _tokens(pads, length)
            samples[name] += [
                Sample(1, rows, tokens, seen.seconds, count)
                for rows, count in seen.batches.items()
                if rows == size
            ]
        took = float(result.latencies.min()) if len(result.latencies) else float("inf")
        if length == usual and len(result.latencies):
            alone[size] = took
        if took > wall:
            slow[length] = size
            too_long |= size == sizes[0] and length == usual
        if size == sizes[0] and length == usual and len(result.latencies):
            inside = sum(
                figures.execution_s
                for name, figures in result.steps.items()
                if name != graph.model_name
            )
            overhead = [max(0.0, float(value) - inside) for value in result.latencies]
    if too_long:
        raise TuneError(
            f"one request of usual length alone takes longer than the wall of {wall * 1e3:.0f} ms: no batching can keep it; raise spec.slo"
        )
    small = work.uniform(usual, work.rows)
    alike = await _cell(server, [small], burst_spec(alone, work.rows))
    tell(0.8)
    for name, seen in executed(alike, graph).items():
        tokens = usual if name == TOKENIZER else _tokens(pads, usual)
        samples[name] += [
            Sample(max(1.0, rows / work.rows), rows, tokens, seen.times[rows], count)
            for rows, count in seen.batches.items()
            if count >= _FEW
        ]
    stages = {}
    for step in graph.steps:
        if not samples[step.name]:
            raise TuneError(f"{step.name}: the server tells no batch statistics of it")
        stages[step.name] = fit(samples[step.name])
    pipe = _pipe(graph, work, stages, overhead)
    if knobs.padding.mode and timing is not None:
        pipe = replace(
            pipe,
            shapes={**pipe.shapes, knobs.padding: timing},
            padding=timing.padding,
            buckets=timing.buckets,
        )
    mixed = executed(await _cell(server, work.requests, burst_spec(alone, work.rows)), graph)
    tell(0.9)
    model = model_of(graph)
    pipe = _spread(pipe, model.name, mixed, work)
    pipe = await _contention(server, graph, work, pipe, knobs, usual, most)
    tell(1.0)
    taken = tuple(sorted({int(sample.tokens) for sample in samples[model.name]}))
    return Profile(
        pipe,
        {name: tuple(found) for name, found in samples.items()},
        knobs.max_batch_size,
        knobs.model_instances,
        tuple(notes),
        taken,
    )


def _tokens(shape: Shape, length: int) -> int:
    """Tokens of a lone request's rows behind the tokenizer."""
    return padded_lengths(Pipe((), (length,), padding=shape.padding, buckets=shape.buckets))[0]


async def _most(server: Server, knobs: Knobs, work: Workload) -> tuple[Knobs, list[str]]:
    """The largest setting that the server takes: first as wished, then with fewer instances, then with the batch size as it is."""
    bare = replace(knobs, padding=PaddingSetting())
    tries = [
        (knobs, ""),
        *(
            [(bare, f"padding {knobs.padding}, to time rows of several lengths, is refused: {{}}")]
            if knobs.padding.mode
            else []
        ),
        (
            replace(bare, model_instances=server.current.model_instances),
            f"{knobs.model_instances} model instances are refused: {{}}",
        ),
        (
            replace(server.current, queue_delay=0),
            f"batch size {knobs.max_batch_size} is refused: {{}}",
        ),
    ]
    notes: list[str] = []
    reason = ""
    for one, note in tries:
        try:
            await server.put(one, [work.uniform(work.profile_lengths[0], work.rows)] * 4)
        except SettingRefusedError as error:
            reason = str(error)
            continue
        if note:
            notes.append(note.format(reason))
        return one, notes
    raise TuneError(f"the server refuses its own setting: {reason}")


async def _cell(server: Server, requests: Sequence[Request], spec: LoadSpec) -> LoadResult:
    """One short run; longer where nothing ended in it."""
    while True:
        result = await server.run(requests, spec)
        if len(result.latencies) >= max(_FEW, spec.concurrency) or spec.duration_s > _LONGEST_CELL:
            # A burst may be more than a queue takes: what came through tells the times all the same.
            few = len(result.latencies) < _FEW
            if bad := next((said for said in result.errors if few or not turned_away(said)), ""):
                raise TuneError(f"requests fail while the steps are timed: {bad}")
            return result
        spec = replace(
            spec,
            duration_s=3 * spec.duration_s,
            warmup_s=3 * spec.warmup_s,
            schedule=[3 * due for due in spec.schedule],
        )


def _closed(concurrency: int, seconds: float) -> LoadSpec:
    return LoadSpec(concurrency=concurrency, duration_s=seconds, warmup_s=seconds / 4)


def burst_spec(alone: Mapping[int, float], rows: int) -> LoadSpec:
    """Bursts in turn of all sizes, each with time to be done with before the next. ``alone``: rows → seconds of one request of so many;
    ``rows``: of a request of a burst."""
    due: list[float] = []
    at = 0.0
    while at < BURSTS_SECONDS:
        for count in BURSTS:
            due += [at] * count
            fits = [seconds for size, seconds in alone.items() if size >= count * rows]
            at += _BURST_TIMES * min(fits, default=max(alone.values())) + _BURST_REQUEST * count
            if at > _LONGEST_CELL:  # a slow step is asked for small bursts alone
                break
    # Else a whole number of turns: every size is seen.
    return LoadSpec(schedule=due, duration_s=at, warmup_s=0.0)


def _sizes(rows: int, largest: int) -> list[int]:
    """Rows of the requests: powers of two times those of a request, and the largest."""
    sizes = [rows]
    while sizes[-1] * 2 <= largest:
        sizes.append(sizes[-1] * 2)
    return sizes


def _pipe(
    graph: Graph, work: Workload, costs: Mapping[str, Cost], overhead: Sequence[float]
) -> Pipe:
    model, tokenizer = model_of(graph), graph.tokenizer
    shape = shape_of(graph, longest_of(graph) or max(work.lengths))
    return Pipe(
        stages=tuple(_stage(step, costs[step.name], tokenizer) for step in graph.steps),
        lengths=work.lengths,
        rows=work.rows,
        tokenizer=tokenizer.name if tokenizer is not None else "",
        model=model.name,
        padding=shape.padding,
        buckets=shape.buckets,
        overhead=tuple(sorted(overhead)) or (0.0,),
        shapes={PaddingSetting(): shape},
    )


def _stage(step: Step, cost: Cost, tokenizer: Step | None) -> Stage:
    delay = (step.batching.max_queue_delay_microseconds if step.batching is not None else None) or 0
    own = step is tokenizer and step.implementation is Implementation.TOKENIZER
    return Stage(
        name=step.name,
        # The project's tokenizer computes each row at its own length.
        cost=replace(cost, spread=0.0) if own or step.name == TOKENIZER else cost,
        batch=max(1, step.max_batch_size) if step.batching is not None else 1,
        delay=delay / 1e6,
        instances=step.instances.counts.initial,
        equal=equal_shapes(step),
    )


def _spread(pipe: Pipe, model: str, mixed: Mapping[str, Executed], work: Workload) -> Pipe:
    """How rows of different length share a batch of the model, from the run of mixed lengths."""

    def told(stage: Stage) -> Stage:
        if stage.name != model or stage.name not in mixed or stage.equal:
            return stage
        return replace(
            stage,
            cost=replace(
                stage.cost,
                spread=spread_of(stage.cost, mixed[stage.name], padded_lengths(pipe), work.rows),
            ),
        )

    return replace(pipe, stages=tuple(map(told, pipe.stages)))


async def _contention(
    server: Server, graph: Graph, work: Workload, pipe: Pipe, knobs: Knobs, usual: int, rows: int
) -> Pipe:
    """By how much executions are stretched when several instances of a step compute at once."""
    counts = {pipe.model: knobs.model_instances, pipe.tokenizer: knobs.tokenizer_instances}
    most = max(counts.values())
    if most < 2:
        return pipe
    size = min(8 * work.rows, rows)
    found = executed(
        await _cell(server, [work.uniform(usual, size)], _closed(2 * most, CROWD_SECONDS)), graph
    )

    def stretched(stage: Stage) -> Stage:
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
    """Stretch of an execution for each number of instances that compute, from the ``factor`` seen while ``busy`` of ``copies`` did.

    Never more than instances that take turns on one device: what goes beyond is the company of client and server, which real load has less of.
    """
    # Busy instances are fewer than there are where another step is the bottleneck: what was not seen is not claimed.
    seen = max(1.0, min(float(copies), busy))
    per = min(1.0, (max(1.0, factor) - 1.0) / (seen - 1.0)) if seen > 1.2 else 0.0
    return tuple(1.0 + per * number for number in range(copies))
