"""The notes of a tuning report: what a reader should know besides the result. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from triton_pipelines.api.wording import counted

from .acceptance import MIN_ANSWERS, BudgetCheck, SettingMeasurement
from .prediction import bursty, simulate
from .report_findings import TuningFindings
from .selection import RATE_TOLERANCE, PredictedSetting

# Prediction error beyond which a note says so, and predictions are corrected during the run.
MAX_PREDICTION_ERROR = 0.20


def report_notes(found: TuningFindings, recommended: PredictedSetting) -> list[str]:
    """Return the notes on a run, in the order of the report."""
    rate = found.decision.rate or recommended.rate
    return [
        *_fit_notes(found),
        *load_notes(found.measured),
        *_noise_notes(found),
        *_throughput_notes(found, rate),
        *_burst_notes(found, recommended, rate),
        *_accuracy_notes(found.measured, found.latency_budget),
        *_change_notes(found, recommended),
    ]


def _fit_notes(found: TuningFindings) -> Iterator[str]:
    for stage in found.pipe.stages:
        if not stage.cost.fitted:
            yield (
                f"{stage.name}: timings do not fit a linear model"
                f" ({stage.cost.residual:.0%} error); using the measured values"
            )


def load_notes(measured: Sequence[SettingMeasurement]) -> Iterator[str]:
    """Yield which requests failed, were rejected, or came too late."""
    for one in measured:
        load = one.load
        point = f"{one.rate:.0f} requests/s with {one.setting}"
        if load.faults:
            yield f"{load.faults} of {load.sent} requests failed at {point}: {load.first_error}"
        if load.late and one.carried and not load.ended:
            reason = "its queue was full" if load.faults else load.first_error
            yield (
                f"{load.late} of {load.sent} requests were rejected at {point}, which sustains "
                f"the rate but not the bursts: {reason}"
            )
        elif load.late or load.ended:
            early = f", ended after {load.ended:.1f} s" if load.ended else ""
            late = (
                f"; {load.late} of {load.sent} requests timed out or were rejected"
                if load.late
                else ""
            )
            yield (
                f"{one.rate:.0f} requests/s were far beyond the capacity of {one.setting}"
                f"{early}{late}"
            )


def _noise_notes(found: TuningFindings) -> Iterator[str]:
    """Yield settings that met the latency budget at a rate above one that exceeded it."""
    for setting in dict.fromkeys(one.setting for one in found.measured):
        points = [one for one in found.measured if one.setting == setting]
        within = [one.rate for one in points if one.is_within(found.latency_budget)]
        exceeded = [one.rate for one in points if not one.is_within(found.latency_budget)]
        met, least = max(within, default=0.0), min(exceeded, default=math.inf)
        if least < met:
            yield (
                f"{setting} met the latency budget at {met:.0f} requests/s and exceeded it "
                f"at {least:.0f}, because the machine is busy with other work; measure "
                "again when it is idle"
            )


def _throughput_notes(found: TuningFindings, rate: float) -> Iterator[str]:
    least = found.pipeline.spec.slo.min_throughput_per_second
    if least is not None:
        is_met = found.decision.rate >= least
        comparison = "is met" if is_met else "is NOT met; add replicas, or follow the advice"
        yield (
            f"spec.slo.minThroughputPerSecond {least} {comparison}:"
            f" {found.decision.rate:.0f} requests/s are verified for one pod"
        )
    if found.options.rate:
        yield (
            f"{found.options.rate:g} requests/s are required;"
            f" the pipeline serves {rate / found.options.rate:.1f} times as many"
        )


def _burst_notes(
    found: TuningFindings, recommended: PredictedSetting, rate: float
) -> Iterator[str]:
    if rate > 0:
        bursts = simulate(found.pipe.with_setting(recommended.setting), bursty(rate, 12_000)).p99
        yield (
            f"in bursts (alternating seconds at 1.5 and 0.5 times {rate:.0f} requests/s) the"
            f" predicted p99 is {bursts * 1e3:.0f} ms"
        )


def _accuracy_notes(measured: Sequence[SettingMeasurement], latency_budget: float) -> Iterator[str]:
    # The first point is the calibration, whose p99 decides nothing.
    points = measured[1:]
    errors = [
        abs(one.predicted_p99 / one.load.p99 - 1)
        for one in points
        if one.check_budget(latency_budget) is BudgetCheck.MET
    ]
    if errors and max(errors) > MAX_PREDICTION_ERROR:
        yield (
            f"predicted and measured p99 differ by up to {max(errors):.0%}; rely on the "
            "measurements, and use --thorough for more of them"
        )
    fewest = min(
        (one for one in points if len(one.load.latencies)),
        key=lambda one: len(one.load.latencies),
        default=None,
    )
    if fewest is not None and (answers := len(fewest.load.latencies)) < MIN_ANSWERS:
        seconds = math.ceil(fewest.load.seconds * MIN_ANSWERS / answers)
        yield (
            f"a point has only {counted(answers, 'response')}, too few for a p99, so the actual "
            f"p99 might be higher; use --seconds {seconds} to get enough responses"
        )


def _change_notes(found: TuningFindings, recommended: PredictedSetting) -> Iterator[str]:
    rows = found.decision.setting.max_batch_size
    if found.decision.is_better and rows < found.current.max_batch_size:
        yield (
            f"with this setting, a request can have at most {rows} rows, down from "
            f"{found.current.max_batch_size}"
        )
    least = (1 - RATE_TOLERANCE) * recommended.rate
    close = [one for one in found.predictions if one.rate >= least and one.rate > 0]
    if len(close) > 1:
        yield (
            f"{len(close)} of {len(found.grid)} settings are expected to sustain the same "
            "rate to within 3%; the one with the largest batch size is preferred"
        )
