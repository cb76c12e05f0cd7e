"""Build the report of a tuning run. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .acceptance import BudgetCheck, SettingDecision, SettingMeasurement
from .bottleneck_advice import BottleneckAdvice, advise
from .calibration import StepExecutions
from .padding_cost import describe as describe_padding
from .prediction import MAX_UTILIZATION
from .report import LatencyCurve, PointOutcome, ReportPoint, StepProfile, TuningReport
from .report_findings import TuningFindings
from .report_notes import load_notes, report_notes
from .selection import PredictedSetting, candidates, curve, extreme_points, predict_setting
from .settings import BatchingSetting, setting_patch, tuned_step


def build_report(found: TuningFindings) -> TuningReport:
    """Return the report of a run; its duration and failed requests are added by the run itself."""
    if found.noise:
        return _inconclusive_report(found)
    decision, current = found.decision, found.current
    recommended = _prediction(found, decision.setting)
    at = _representative(found, decision.setting)
    seen = found.executed[at] if at is not None else {}
    advice = _advice(found, recommended, seen)
    rates = [one.rate for one in found.predictions]
    reference = found.options.rate or 0.5 * max(rates, default=0.0)
    return TuningReport(
        pipeline=found.pipeline.name,
        mode=found.options.mode,
        slo=found.slo,
        latency_budget=found.latency_budget,
        workload=found.work.description,
        current=current,
        recommended=decision.setting,
        points=tuple(_point(one, found) for one in found.measured),
        ends=extreme_points(found.pipe, found.grid, reference),
        curves=(*_predicted_curves(found, recommended), *_measured_curves(found)),
        steps=_steps(found, seen),
        patch=setting_patch(found.pipeline, current, decision.setting)
        if decision.is_better
        else {},
        gain=decision.gain,
        message=_message(found),
        bound=advice.bound.value,
        advice=" ".join((advice.text, *_padding_advice(found))),
        padding=_padding_costs(found),
        notes=(*found.notes, *report_notes(found, recommended)),
    )


def _inconclusive_report(found: TuningFindings) -> TuningReport:
    """Return the report of a run that allows no conclusion: the measurements only."""
    unchanged = SettingDecision(found.current, 0.0, 0.0, found.noise)
    found = replace(found, decision=unchanged)
    return TuningReport(
        pipeline=found.pipeline.name,
        mode=found.options.mode,
        slo=found.slo,
        latency_budget=found.latency_budget,
        workload=found.work.description,
        current=found.current,
        recommended=found.current,
        points=tuple(_point(one, found) for one in found.measured),
        ends=(),
        curves=tuple(_measured_curves(found)),
        steps=(),
        patch={},
        gain=0.0,
        message=(
            f"INCONCLUSIVE: {found.noise}. Other work on the machine disturbed the "
            "measurements, so no recommendation is made. Measure again when the machine is "
            "idle."
        ),
        bound="",
        advice="",
        notes=(*found.notes, *load_notes(found.measured)),
        inconclusive=found.noise,
    )


def _prediction(found: TuningFindings, setting: BatchingSetting) -> PredictedSetting:
    known = next((one for one in found.predictions if one.setting == setting), None)
    return known or predict_setting(found.pipe, setting, found.latency_budget)


def _representative(found: TuningFindings, setting: BatchingSetting) -> int | None:
    """Return the index of the measurement that stands for a setting.

    It is the one at the highest rate that met the budget; else that at the highest rate of the
    setting; else that at the highest rate of all.
    """
    own = [index for index, one in enumerate(found.measured) if one.setting == setting]
    met = [
        index
        for index in own
        if found.measured[index].check_budget(found.latency_budget) is BudgetCheck.MET
    ]
    return max(
        met or own or range(len(found.measured)),
        key=lambda index: found.measured[index].rate,
        default=None,
    )


def _advice(
    found: TuningFindings, recommended: PredictedSetting, seen: Mapping[str, StepExecutions]
) -> BottleneckAdvice:
    model = tuned_step(found.graph)
    return advise(
        found.pipe.with_setting(found.decision.setting),
        seen,
        recommended.rate >= 0.98 * MAX_UTILIZATION * recommended.capacity,
        found.options.cores,
        model.instances.on_cpu and model.platform != "python",
    )


def _padding_advice(found: TuningFindings) -> list[str]:
    """Return the ranking of the padding modes as text, if there is one."""
    if found.padding is None:
        return []
    is_better = found.decision.is_better
    verified = found.decision.setting.padding if is_better else PaddingSetting()
    return [describe_padding(found.padding, verified, found.padding_refused)]


def _padding_costs(found: TuningFindings) -> str:
    if found.padding is None:
        return ""
    cheapest = found.padding.best.candidate.padding
    return f"{cheapest} is cheapest: {found.padding.figures} for {found.padding.rows} rows"


def _name(setting: BatchingSetting, found: TuningFindings) -> str:
    if setting == found.decision.setting and found.decision.is_better:
        return "recommended"
    return "current" if setting == found.current else "candidate"


def _point(one: SettingMeasurement, found: TuningFindings) -> ReportPoint:
    is_within = one.is_within(found.latency_budget)
    return ReportPoint(
        name=_name(one.setting, found),
        setting=one.setting,
        rate=one.rate,
        carried=one.load.rate,
        p50=one.load.p50,
        p99=one.load.p99,
        predicted_p99=one.predicted_p99,
        failed=one.load.failed,
        outcome=PointOutcome.WITHIN if is_within else PointOutcome.BREAKS,
    )


def _predicted_curves(found: TuningFindings, recommended: PredictedSetting) -> list[LatencyCurve]:
    current = _prediction(found, found.current)
    shown = [
        one
        for one in (recommended, current, *candidates(found.predictions, found.current))
        if one.capacity > 0
    ]
    curves = {
        one.setting: curve(_name(one.setting, found), found.pipe, one)
        for one in reversed(shown[:3])
    }
    return list(reversed(curves.values()))


def _measured_curves(found: TuningFindings) -> list[LatencyCurve]:
    result = []
    for setting in dict.fromkeys(one.setting for one in found.measured):
        own = [one for one in found.measured if one.setting == setting]
        points = tuple(sorted((one.load.rate, one.load.p99) for one in own))
        result.append(LatencyCurve(_name(setting, found), setting, points, measured=True))
    return result


def _steps(found: TuningFindings, seen: Mapping[str, StepExecutions]) -> tuple[StepProfile, ...]:
    result = []
    for stage in found.pipe.with_setting(found.decision.setting).stages:
        cost = stage.cost
        busy = seen[stage.name].busy / stage.instances if stage.name in seen else 0.0
        result.append(
            StepProfile(
                step=stage.name,
                fixed=cost.fixed,
                per_row=cost.per_row + cost.per_request / found.work.rows,
                per_token=cost.per_token,
                residual=cost.residual,
                fitted=cost.fitted,
                table=cost.table,
                busy=busy,
            )
        )
    return tuple(result)


def _message(found: TuningFindings) -> str:
    decision, budget = found.decision, found.latency_budget * 1e3
    if decision.is_better:
        return (
            f"{decision.setting}: {decision.gain:+.0%} requests/s within the latency budget of"
            f" {budget:.0f} ms; it {decision.reason}."
        )
    if not any(one.is_within(found.latency_budget) for one in found.measured):
        return _nothing_met_message(found)
    return f"Keep the current setting ({found.current}): {decision.reason}."


def _rates(lowest: float, highest: float) -> str:
    """Return ``Between 10 and 20 requests/s``, or ``At 10 requests/s`` if both are shown equal."""
    low, high = _rate(lowest), _rate(highest)
    return f"At {low} requests/s" if low == high else f"Between {low} and {high} requests/s"


def _nothing_met_message(found: TuningFindings) -> str:
    """Return the message for a run in which every measurement exceeded the latency budget."""
    rates = [one.rate for one in found.measured]
    best = min(found.measured, key=lambda one: (one.load.p99, one.rate))
    # A p99 does not contain the time that failed requests took.
    backlog = ", but with a growing backlog" if best.load.p99 <= found.latency_budget else ""
    p99 = (
        (
            f"the best p99 was {best.load.p99 * 1000.0:.0f} ms"
            f"{_at(best.rate, min(rates), max(rates))}{backlog}"
        )
        if math.isfinite(best.load.p99)
        else "no p99 could be computed, because too many requests failed"
    )
    return (
        f"No setting met the SLO of {found.slo * 1000.0:g} ms (latency budget "
        f"{found.latency_budget * 1000.0:g} ms). {_rates(min(rates), max(rates))}, {p99}. "
        f"Keep the current setting ({found.current}): no "
        "other setting was verified to meet the SLO. Raise spec.slo.p99Milliseconds, or give the "
        "pod the resources that the advice recommends. If this pipeline serves fewer "
        "requests/s than were measured, start a thorough run, which measures lower rates "
        "(--thorough, spec.tuning.mode: Thorough)."
    )


def _at(rate: float, lowest: float, highest: float) -> str:
    """Return ``, at 10 requests/s``; empty if the text names only this rate."""
    return "" if _rate(lowest) == _rate(highest) else f", at {rate:.0f} requests/s"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
