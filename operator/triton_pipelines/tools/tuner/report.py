"""What was found, as a report. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .acceptance import ENOUGH, Kept, Measured, Verdict
from .bottleneck_advice import advise
from .calibration import Executed
from .contract import Curve, Knobs, Outcome, Point, Report, Settings, StepProfile
from .knobs import model_of, patch_of
from .padding_cost import Verdict as PaddingVerdict
from .padding_cost import words as padding_words
from .prediction import MOST_BUSY, Pipe, bursty, simulate
from .profiling import Profile
from .selection import CLOSE, Planned, candidates, curve, ends
from .selection import planned as expected
from .workload import Workload

# Prediction error beyond which the report says so.
DOUBTFUL = 0.20


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that a run knows at its end."""

    pipeline: InferencePipeline
    graph: Graph
    settings: Settings
    slo: float
    wall: float
    work: Workload
    profile: Profile
    pipe: Pipe
    planned: Sequence[Planned]
    grid: Sequence[Knobs]
    measured: Sequence[Measured]
    executed: Sequence[Mapping[str, Executed]]
    verdict: Verdict
    current: Knobs
    notes: tuple[str, ...]
    padding: PaddingVerdict | None = None
    padding_refused: str = ""


def report(found: Findings) -> Report:
    """The report of a run (its length and failed requests are added by the run itself)."""
    verdict, current = found.verdict, found.current
    reference = found.settings.rate or 0.5 * max((one.rate for one in found.planned), default=0.0)
    planned = {one.knobs: one for one in found.planned}
    recommended = planned.get(verdict.knobs) or expected(
        found.pipe, verdict.knobs, found.wall, seed=found.settings.seed
    )
    at = _last(found, verdict.knobs)
    seen = found.executed[at] if at is not None else {}
    turned = found.pipe.with_knobs(verdict.knobs)
    model = model_of(found.graph)
    at_limit = recommended.rate >= 0.98 * MOST_BUSY * recommended.capacity
    advice = advise(
        turned,
        seen,
        at_limit,
        found.settings.cores,
        model.instances.kind == "KIND_CPU" and model.platform != "python",
    )
    shown = [
        one
        for one in (recommended, planned[current], *candidates(found.planned, current))
        if one.capacity > 0
    ]
    curves = {
        one.knobs: curve(_name(one.knobs, found), found.pipe, one, found.settings.seed)
        for one in reversed(shown[:3])
    }
    return Report(
        pipeline=found.pipeline.name,
        mode=found.settings.mode,
        slo=found.slo,
        wall=found.wall,
        workload=found.work.said,
        current=current,
        recommended=verdict.knobs,
        points=tuple(_point(one, found) for one in found.measured),
        ends=ends(found.pipe, found.grid, reference, found.wall, found.settings.seed),
        curves=(*reversed(curves.values()), *_measured_curves(found)),
        steps=_steps(found, seen),
        patch=patch_of(found.pipeline, current, verdict.knobs) if verdict.better else {},
        gain=verdict.gain,
        message=_message(found),
        bound=advice.bound.value,
        advice=" ".join((advice.words, *_padding(found))),
        padding=f"{found.padding.best.way.padded} is cheapest: {found.padding.figures} for {found.padding.rows} rows"
        if found.padding
        else "",
        notes=(*found.notes, *_notes(found, recommended)),
    )


def _last(found: Findings, knobs: Knobs) -> int | None:
    """The measurement of a setting at its highest kept rate; else the last of it; else the last of all."""
    mine = [index for index, one in enumerate(found.measured) if one.knobs == knobs]
    kept = [index for index in mine if found.measured[index].kept(found.wall) is Kept.YES]
    return max(
        kept or mine or range(len(found.measured)),
        key=lambda index: found.measured[index].rate,
        default=None,
    )


def _padding(found: Findings) -> list[str]:
    """The verdict on padding, where there is one."""
    proven = found.verdict.knobs.padding if found.verdict.better else PaddingSetting()
    return (
        [padding_words(found.padding, proven, found.padding_refused)]
        if found.padding is not None
        else []
    )


def _name(knobs: Knobs, found: Findings) -> str:
    if knobs == found.verdict.knobs and found.verdict.better:
        return "recommended"
    return "current" if knobs == found.current else "candidate"


def _point(one: Measured, found: Findings) -> Point:
    return Point(
        name=_name(one.knobs, found),
        knobs=one.knobs,
        rate=one.rate,
        carried=one.load.rate,
        p50=one.load.p50,
        p99=one.load.p99,
        predicted_p99=one.predicted_p99,
        failed=one.load.failed,
        outcome=Outcome.WITHIN if one.within(found.wall) else Outcome.BREAKS,
    )


def _measured_curves(found: Findings) -> list[Curve]:
    result = []
    for knobs in dict.fromkeys(one.knobs for one in found.measured):
        points = tuple(
            sorted((one.load.rate, one.load.p99) for one in found.measured if one.knobs == knobs)
        )
        result.append(Curve(_name(knobs, found), knobs, points, measured=True))
    return result


def _steps(found: Findings, seen: Mapping[str, Executed]) -> tuple[StepProfile, ...]:
    result = []
    for stage in found.pipe.with_knobs(found.verdict.knobs).stages:
        cost = stage.cost
        busy = seen[stage.name].busy / stage.instances if stage.name in seen else 0.0
        per_row = cost.per_row + cost.per_request / found.work.rows
        result.append(
            StepProfile(
                stage.name,
                cost.fixed,
                per_row,
                cost.per_token,
                cost.residual,
                cost.fitted,
                cost.table,
                busy,
            )
        )
    return tuple(result)


def _message(found: Findings) -> str:
    verdict, wall = found.verdict, found.wall * 1e3
    if verdict.better:
        return f"{verdict.knobs}: {verdict.gain:+.0%} requests/s within {wall:.0f} ms; it {verdict.reason}."
    if not any(one.within(found.wall) for one in found.measured):
        return _unkept(found)
    return f"The current setting ({found.current}) stays: {verdict.reason}."


def _unkept(found: Findings) -> str:
    """That no measurement was within the wall, with figures, and what to do."""
    rates = [one.rate for one in found.measured]
    soonest = min(found.measured, key=lambda one: (one.load.p99, one.rate))
    # What fails is in no p99, and the time that it took all the same.
    behind = ", where answers fell behind requests" if soonest.load.p99 <= found.wall else ""
    p99 = (
        f"p99 was {soonest.load.p99 * 1e3:.0f} ms at best, at {soonest.rate:.0f} requests/s{behind}"
        if math.isfinite(soonest.load.p99)
        else "no p99 was seen, so many requests were lost"
    )
    return (
        f"Nothing kept the SLO of {found.slo * 1e3:g} ms: at every rate that was measured ({_rate(min(rates))} to {_rate(max(rates))} requests/s) {p99}; the wall is"
        f" {found.wall * 1e3:g} ms. The current setting ({found.current}) stays, since no other is proven to keep it. Raise spec.slo.p99Milliseconds, give the pod"
        " what the advice names, or, if this pipeline is to carry fewer requests/s than that, measure lower rates with a thorough run"
        " (--thorough, spec.tuning.mode: Thorough)."
    )


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def _notes(found: Findings, recommended: Planned) -> list[str]:
    notes = []
    for stage in found.pipe.stages:
        if not stage.cost.fitted:
            notes.append(
                f"{stage.name}: its times are no line ({stage.cost.residual:.0%} off): the measured table is used instead"
            )
    for one in found.measured:
        if one.load.faults:
            notes.append(
                f"{one.load.faults} of {one.load.sent} requests failed at {one.rate:.0f} requests/s with {one.knobs}: {one.load.first_error}"
            )
        if one.load.late and one.carried and not one.load.ended:
            notes.append(
                f"{one.load.late} of {one.load.sent} requests were turned away at {one.rate:.0f} requests/s with {one.knobs}, which carries so many"
                f" but not all that come at once: {one.load.first_error if not one.load.faults else 'its queue was full'}"
            )
        elif one.load.late or one.load.ended:
            late = (
                f"; {one.load.late} of {one.load.sent} requests waited too long and were given up or turned away"
                if one.load.late
                else ""
            )
            early = f", ended after {one.load.ended:.1f} s" if one.load.ended else ""
            notes.append(
                f"{one.rate:.0f} requests/s were far beyond what {one.knobs} carries{early}{late}"
            )
    for knobs in dict.fromkeys(one.knobs for one in found.measured):
        points = [_point(one, found) for one in found.measured if one.knobs == knobs]
        kept = max((point.rate for point in points if point.outcome is Outcome.WITHIN), default=0.0)
        broke = min(
            (point.rate for point in points if point.outcome is Outcome.BREAKS), default=math.inf
        )
        if broke < kept:
            notes.append(
                f"{knobs} kept the wall at {kept:.0f} requests/s and broke it at {broke:.0f}: the machine does something else, too; measure when it is quiet"
            )
    rate = found.verdict.rate or recommended.rate
    least = found.pipeline.spec.slo.min_throughput_per_second
    if least is not None:
        enough = found.verdict.rate >= least
        said = (
            "is met"
            if enough
            else "is NOT met; more replicas, or what the advice names, are needed"
        )
        notes.append(
            f"spec.slo.minThroughputPerSecond {least} {said}: {found.verdict.rate:.0f} requests/s are proven in one pod"
        )
    if found.settings.rate:
        notes.append(
            f"{found.settings.rate:g} requests/s are asked for; {rate / found.settings.rate:.1f} times as many are carried"
        )
    if rate > 0:
        bursts = simulate(
            found.pipe.with_knobs(recommended.knobs),
            bursty(rate, 12_000, found.settings.seed),
            found.settings.seed,
        ).p99
        notes.append(
            f"in bursts (seconds at 1.5 and at 0.5 times {rate:.0f} requests/s) its p99 is predicted to be {bursts * 1e3:.0f} ms"
        )
    errors = [
        one.predicted_p99 / one.load.p99 - 1
        for one in found.measured[1:]
        if one.kept(found.wall) is Kept.YES
    ]
    if errors and max(map(abs, errors)) > DOUBTFUL:
        notes.append(
            f"predicted and measured p99 differ by up to {max(map(abs, errors)):.0%}: trust what was measured; --thorough measures more"
        )
    # The first point is the calibration, whose p99 decides nothing.
    fewest = min(
        (point for point in found.measured[1:] if len(point.load.latencies)),
        key=lambda point: len(point.load.latencies),
        default=None,
    )
    if fewest is not None and (answers := len(fewest.load.latencies)) < ENOUGH:
        longer = math.ceil(fewest.load.seconds * ENOUGH / answers)
        notes.append(
            f"a point has {answers} answers only, too few for a p99: it may be later than measured; --seconds {longer} measures enough"
        )
    if found.verdict.better and found.verdict.knobs.max_batch_size < found.current.max_batch_size:
        notes.append(
            f"with it a client's request may have at most {found.verdict.knobs.max_batch_size} rows, before {found.current.max_batch_size}"
        )
    close = [
        one for one in found.planned if one.rate >= (1 - CLOSE) * recommended.rate and one.rate > 0
    ]
    if len(close) > 1:
        notes.append(
            f"{len(close)} of {len(found.grid)} settings are expected to carry the same within 3 %; the highest batch size of these is preferred"
        )
    return notes
