"""Report scaling in a pipeline's status: conditions, verdict, history and figures. No I/O.

Figures change with every sample, and so do messages that contain them. To avoid a status write for
each change, the reported message stays while the verdicts and the topics of the decision are the
same and no figure changed by more than a tenth.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from triton_pipelines.api.conditions import Condition, ConditionType, Reason, condition_of
from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.api.status_types import COUNT_MAX
from triton_pipelines.api.wording import truncate
from triton_pipelines.autoscaling.types import REASON_MAX, ScalingDecision, Verdict

from .handover import ScalingView
from .timestamps import rfc3339

HISTORY_MAX: Final = 5
# A figure of the status changes only if the new value differs by more than this share.
FIGURE_CHANGE: Final = 0.10
_READ: Final = "metrics of every ready pod are read"
_FROM: Final = " from "
_REASONS: Final = frozenset(reason.value for reason in Reason)

# Conditions that only scaling decides. Until its first decision after a start of the operator they
# stay as they were.
CONDITION_TYPES: Final = (
    ConditionType.METRICS_AVAILABLE,
    ConditionType.SCALING_ACTIVE,
    ConditionType.SCALING_LIMITED,
)
# Reasons of ScalingLimited that hold only while another manager writes the same field.
OWNER_CONFLICTS: Final = (Reason.REPLICAS_OWNER_CONFLICT, Reason.CPU_OWNER_CONFLICT)


class ScalingReport(Protocol):
    """What the present status reports about scaling."""

    @property
    def topics(self) -> Sequence[str]:
        """Topics of the decision (:attr:`ScalingDecision.topics`)."""

    @property
    def limited(self) -> Sequence[str]:
        """What the limitations are about: steps, pods, cpu."""


def scaling_conditions(
    view: ScalingView | None,
    mode: ScalingMode,
    scaled: bool,
    status: Mapping[str, Any],
    reported: ScalingReport,
) -> list[Condition]:
    """Return MetricsAvailable, ScalingActive and ScalingLimited.

    Empty if no step is scaled and before the first decision.

    Args:
        view: What the autoscaler published.
        mode: ``spec.scaling.mode``.
        scaled: Whether the pipeline has a step to scale.
        status: The present status; its messages stay if only figures changed.
        reported: What that status is about.
    """
    if view is None or not scaled or mode is ScalingMode.DISABLED:
        return []
    decided = _conditions_of(view, mode)
    if view.action_failure or not is_unchanged(view, status, reported.topics):
        return decided
    messages = {
        (item.get("type"), item.get("status"), item.get("reason")): str(item.get("message", ""))
        for item in status.get("conditions") or ()
    }
    same_limits = tuple(reported.limited) == view.decision.limited_subjects
    return [
        item
        if item.type is ConditionType.SCALING_LIMITED and not same_limits
        else _with_reported_message(item, messages)
        for item in decided
    ]


def _with_reported_message(
    condition: Condition, reported: Mapping[tuple[Any, Any, Any], str]
) -> Condition:
    """Return the condition with the message that the status has, unless more than figures changed.

    Args:
        condition: As it was just decided.
        reported: Messages of the status by type, status and reason.
    """
    if condition.type is ConditionType.METRICS_AVAILABLE and condition.status:
        return condition  # no figures in it: where metrics come from is always reported
    key = (condition.type.value, str(condition.status), condition.reason.value)
    return replace(condition, message=reported.get(key, condition.message))


def reported_metrics_failure(status: Mapping[str, Any]) -> str:
    """Return the reason why metrics are not usable, as a status reports it; empty if they are."""
    item = condition_of(status, ConditionType.METRICS_AVAILABLE)
    return "" if item.get("status") == "True" else str(item.get("reason", ""))


def _conditions_of(view: ScalingView, mode: ScalingMode) -> list[Condition]:
    decision, metrics = view.decision, _metrics_available(view)
    result = [metrics, _scaling_active(view, mode, metrics.reason)]
    if decision.limited:
        reason = Reason(_limited_reason(decision))
        result.append(Condition(ConditionType.SCALING_LIMITED, True, reason, decision.limited))
    return result


def _metrics_available(view: ScalingView) -> Condition:
    type_ = ConditionType.METRICS_AVAILABLE
    if not view.metrics_failure:
        source = f"{_FROM}{view.metrics_source}" if view.metrics_source else ""
        return Condition(type_, True, Reason.SUCCEEDED, f"{_READ}{source}")
    known = view.metrics_failure in _REASONS
    reason = Reason(view.metrics_failure) if known else Reason.METRICS_MISSING
    return Condition(type_, False, reason, view.decision.message)


def _scaling_active(view: ScalingView, mode: ScalingMode, metrics: Reason) -> Condition:
    type_ = ConditionType.SCALING_ACTIVE
    if view.action_failure:
        return Condition(type_, False, Reason.ACTUATION_FAILED, view.action_failure)
    if mode is ScalingMode.ADVISORY:
        message = f"mode Advisory: {_advice(view)}; {view.decision.message}"
        return Condition(type_, False, Reason.ADVISORY, message)
    message = view.decision.message or "instance counts follow the load"
    return Condition(type_, not view.metrics_failure, metrics, message)


def with_owner_conflicts(
    conditions: Sequence[Condition], pods: str, cpu: str, rejected: Sequence[str]
) -> list[Condition]:
    """Return the conditions with what limits scaling before the load does.

    Args:
        conditions: Those of :func:`scaling_conditions`.
        pods: Message about another manager of the number of pods, or "".
        cpu: Message about another manager of the pods' CPU, or "".
        rejected: Messages about pods that the API server does not resize.
    """
    messages = [text for text in (pods, cpu, *rejected) if text]
    if not messages:
        return list(conditions)
    reason = Reason.ACTUATION_FAILED
    if pods:
        reason = Reason.REPLICAS_OWNER_CONFLICT
    elif cpu:
        reason = Reason.CPU_OWNER_CONFLICT
    others = [item for item in conditions if item.type is not ConditionType.SCALING_LIMITED]
    return [*others, Condition(ConditionType.SCALING_LIMITED, True, reason, "; ".join(messages))]


def _advice(view: ScalingView) -> str:
    """Return what mode Active would change."""
    present = {step: max(pods.values()) for step, pods in view.counts.items() if pods}
    changes = [
        f"{item.step} would be scaled from {present[item.step]} to {item.count}"
        for item in view.decision.steps
        if item.step in present and present[item.step] != item.count
    ]
    return ", ".join(changes) or "no count would change"


def _limited_reason(decision: ScalingDecision) -> str:
    """Return the verdict if it is a condition reason, else BoundsReached."""
    verdict = decision.verdict.value
    return verdict if verdict in _REASONS else Reason.BOUNDS_REACHED.value


def scaling_status(view: ScalingView, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``status.scaling``: verdict, mode, history and figures.

    A figure keeps its previous value unless it changed by more than a tenth. A step whose load is
    unknown has no figures.

    Args:
        view: What the autoscaler published.
        before: The present ``status.scaling``.
    """
    decision = view.decision
    history = [
        {
            "time": _time(item.at),
            "step": item.step,
            "from": item.before,
            "to": item.after,
            "reason": truncate(item.reason, REASON_MAX),
        }
        for item in decision.state.history[:HISTORY_MAX]
    ]
    known = list(before.get("history") or ())
    if (
        view.mode is ScalingMode.ADVISORY
        and before.get("mode") == view.mode.value
        and _is_same_advice(history, known)
    ):
        # Advice is not recorded: after a start of the operator the same advice is given again.
        history = known
    figures = {
        item.step: {
            "requestsPerSecond": _steady_figure(
                item.figures.arrivals, _figure(before, item.step, "requestsPerSecond")
            ),
            "busyPercent": _steady_figure(
                100 * item.figures.busy, _figure(before, item.step, "busyPercent")
            ),
            "waitMilliseconds": _steady_figure(
                1000 * item.figures.wait, _figure(before, item.step, "waitMilliseconds")
            ),
        }
        for item in decision.steps
        if item.verdict is not Verdict.UNKNOWN  # an unknown load is not a load of zero
    }
    result: dict[str, Any] = {"bottleneck": decision.verdict.value, "mode": view.mode.value}
    if history:
        result["history"] = history
    if history and view.mode is ScalingMode.ACTIVE:
        result["lastScaleTime"] = history[0]["time"]
    if figures:
        result["figures"] = [{"step": step, **values} for step, values in figures.items()]
        changed = result["figures"] != before.get("figures")
        at = _time(view.at) if changed and view.at is not None else before.get("figuresTime")
        if at is not None:
            result["figuresTime"] = at
    return result


def _is_same_advice(
    history: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]
) -> bool:
    """Return whether the newest advice is the one that the status already has."""
    if not history or not known:
        return not history
    return all(history[0].get(name) == known[0].get(name) for name in ("step", "from", "to"))


def is_unchanged(view: ScalingView, status: Mapping[str, Any], topics: Sequence[str]) -> bool:
    """Return whether the status already reports the view, apart from small changes of figures.

    Args:
        view: What the autoscaler published.
        status: The present status.
        topics: Topics of the decision that it reports.
    """
    before: Mapping[str, Any] = status.get("scaling") or {}
    verdicts = {item.get("name"): item.get("verdict") for item in status.get("steps") or ()}
    now = scaling_status(view, before)
    same = all(
        now.get(name) == before.get(name) for name in ("bottleneck", "mode", "figures", "history")
    )
    return (
        same
        and all(verdicts.get(item.step) == item.verdict.value for item in view.decision.steps)
        and tuple(topics) == view.decision.topics
    )


def step_verdicts(view: ScalingView | None) -> Mapping[str, tuple[Verdict, str, int]]:
    """Return step → verdict, reason and desired count."""
    if view is None:
        return {}
    return {item.step: (item.verdict, item.reason, item.count) for item in view.decision.steps}


def _figure(before: Mapping[str, Any], step: str, name: str) -> int | None:
    for item in before.get("figures") or ():
        if isinstance(item, Mapping) and item.get("step") == step:
            return item.get(name)
    return None


def _steady_figure(value: float, before: int | None) -> int:
    """Return the rounded value, or the previous one if they differ by at most a tenth, or 1.

    A value that the field does not hold becomes the field's maximum.
    """
    rounded = min(round(value), COUNT_MAX)
    if not isinstance(before, int):
        return rounded
    tolerance = max(1.0, FIGURE_CHANGE * max(abs(before), abs(rounded)))
    return before if abs(rounded - before) <= tolerance else rounded


def _time(at: float) -> str:
    return rfc3339(dt.datetime.fromtimestamp(at, dt.UTC))
