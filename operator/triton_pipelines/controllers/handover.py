"""Where live scaling and reconciling meet: what bounds a pipeline, what scaling intends, and what the status says of it. Pure.

The reconcile pass stays the only writer of the live ConfigMap and of the status: scaling hands its intent and its view over, and
the next pass writes them.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from triton_pipelines.api.conditions import Condition, ConditionType, Reason
from triton_pipelines.api.scaling import Scaling, ScalingMode
from triton_pipelines.api.server import InferenceHealth
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.autoscaling.types import (
    REASON_MAX,
    Decision,
    Fallback,
    Law,
    PipelineLimits,
    StepLimits,
    Verdict,
    cut,
)
from triton_pipelines.compile.graph.example_request import why_unasked
from triton_pipelines.compile.graph.graph import Graph, Implementation, Role, Step
from triton_pipelines.compile.graph.server_settings import (
    SHARED_MEMORY_PER_INSTANCE,
    bytes_of,
    millis,
    sizes,
)

from .timestamps import rfc3339

HISTORY_MAX = 5
# Where the pods themselves are read, every 2 s, growth need not wait for as many seconds as with scrapes of Prometheus.
DIRECT_FAST_SECONDS = 6.0
# A number, or an address, whose digits are no figures.
_NUMBER = re.compile(r"(?P<address>https?://[^\s)]+)|\d[\d.]*(e[+-]\d+)?")
_READ, _FROM = "metrics of every ready pod are read", " from "
# A figure of the status moves only when it changed by more than this share.
FIGURE_CHANGE = 0.10


@dataclass(frozen=True, slots=True)
class Intent:
    """Counts that scaling wants recorded, and its memory (JSON); recorded before any pod is changed. ``pods``: how many; ``cpu``: the
    limit of each in thousandths of a core; ``None``: as it is recorded."""

    counts: Mapping[str, int]
    memory: str
    pods: int | None = None
    cpu: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What scaling says of a pipeline: its last decision, the counts that pods report, and the last failure of an action.

    ``counts``: step → pod → instances; ``trouble``: metrics' reason (MetricsMissing …), "" where they are usable; ``failed``: why the
    last action failed, "" where it did not.
    """

    decision: Decision
    mode: ScalingMode
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    source: str = ""
    trouble: str = ""
    failed: str = ""


def scaled_steps(graph: Graph) -> list[Step]:
    """Steps whose count may change live."""
    if graph.auto_complete:
        return []
    return [
        step
        for step in graph.models
        if step.instances.scaled and step.sequences is None and step.instances.kind == "KIND_CPU"
    ]


def law_of(scaling: Scaling, *, direct: bool = False) -> Law:
    """The control law's constants as the resource writes them. ``direct``: pods are read directly, which makes the default fast window shorter."""
    target = scaling.target / 100
    up = scaling.scale_up_threshold_percent
    return Law(
        target=target,
        up_threshold=max(0.80, target) if up is None else up / 100,
        fast=DIRECT_FAST_SECONDS
        if direct and scaling.windows.fast_seconds is None
        else float(scaling.windows.fast),
        slow=float(scaling.windows.slow),
        cooldown_up=None
        if scaling.scale_up.cooldown_seconds is None
        else float(scaling.scale_up.cooldown_seconds),
        stabilization=float(scaling.scale_down.stabilization_seconds),
        down_step=scaling.scale_down.max_step_percent / 100,
        drain=float(scaling.backlog_drain_seconds),
        stale_after=float(scaling.stale_after_seconds),
        fallback=Fallback(scaling.fallback.value),
        flaps_per_hour=scaling.max_direction_changes_per_hour,
    )


def limits_of(
    pipeline: InferencePipeline,
    graph: Graph,
    revision: str,
    applied: Mapping[str, Any] | None = None,
    *,
    direct: bool = False,
) -> PipelineLimits:
    """What bounds the pods.

    ``applied``: ``resources`` of the container's status, where the kubelet tells them (after a resize); ``direct``: as in :func:`law_of`.
    """
    size = sizes(pipeline, graph)
    limits = (applied or {}).get("limits") or {}
    scaled = scaled_steps(graph)
    health = pipeline.spec.health
    asked = health.inference is InferenceHealth.AUTO and not why_unasked(pipeline, graph)
    fed = [
        step
        for step in graph.steps
        if step not in scaled and step.role not in (Role.POSTPROCESS, Role.TOKENIZER)
    ]
    return PipelineLimits(
        steps=tuple(_step(step) for step in scaled),
        gpu_steps=tuple(step.model_name for step in fed),
        on_cpu=frozenset(step.model_name for step in fed if _on_cpu(pipeline, step)),
        cpu_limit=millis(str(limits.get("cpu", size.cpu_limit))) / 1000,
        memory_limit=float(bytes_of(str(limits.get("memory", size.memory_limit)))),
        shared_memory=float(bytes_of(size.shared_memory)),
        gpu_instances={step.model_name: step.instances.counts.initial for step in fed},
        gpu_batches={
            step.model_name: step.max_batch_size for step in fed if step.batching is not None
        },
        revision=revision,
        active=pipeline.spec.scaling.mode is ScalingMode.ACTIVE,
        own_requests=1 / health.period_seconds if asked else 0.0,
        law=law_of(pipeline.spec.scaling, direct=direct),
    )


def _on_cpu(pipeline: InferencePipeline, step: Step) -> bool:
    """Whether no GPU works for the step. One that the runner stands in for, by the operator's choice, is still meant for the GPU."""
    gpu = pipeline.spec.server.gpu
    if gpu.count == 0 and gpu.claim_template is None:
        return True
    spec = pipeline.spec
    fields = {
        "spec.model": spec.model,
        **{f"spec.steps[{index}]": one for index, one in enumerate(spec.steps)},
    }.get(step.path)
    substituted = (
        step.implementation is Implementation.ONNX_RUNNER
        and fields is not None
        and fields.python is None
    )
    if substituted and fields is not None and fields.instances.kind is None:
        return False
    return step.instances.kind == "KIND_CPU"


def _step(step: Step) -> StepLimits:
    return StepLimits(
        name=step.name,
        model_name=step.model_name,
        low=step.instances.counts.min,
        high=step.instances.counts.max,
        initial=step.instances.counts.initial,
        cores=millis(step.resources.cpu) / 1000,
        memory_bytes=float(bytes_of(step.resources.memory)),
        shared_memory_bytes=float(SHARED_MEMORY_PER_INSTANCE),
        tokenizer=step.role is Role.TOKENIZER,
    )


# Conditions that scaling alone decides: until it has looked, as after a start of the operator, they stay as they were.
CONDITION_TYPES = (
    ConditionType.METRICS_AVAILABLE,
    ConditionType.SCALING_ACTIVE,
    ConditionType.SCALING_LIMITED,
)


def conditions(
    view: View | None, mode: ScalingMode, scaled: bool, status: Mapping[str, Any]
) -> list[Condition]:
    """MetricsAvailable, ScalingActive and ScalingLimited; none without a step to scale or before the first decision.

    ``status``: as it stands; its words stay where there is no news.
    """
    if view is None or not scaled or mode is ScalingMode.DISABLED:
        return []
    decided = _decided(view, mode)
    if view.failed or not steady(view, status):
        return decided
    said = {
        (item.get("type"), item.get("status"), item.get("reason")): str(item.get("message", ""))
        for item in status.get("conditions") or ()
    }
    # That metrics are usable has no digits that change: where they come from is told as it is.
    usable = (ConditionType.METRICS_AVAILABLE, True)
    known = {
        item: item.message
        if (item.type, item.status) == usable
        else said.get((item.type.value, str(item.status), item.reason.value), item.message)
        for item in decided
    }
    news = {
        item
        for item, old in known.items()
        if item.type is ConditionType.SCALING_LIMITED and subjects(old) != subjects(item.message)
    }
    return [item if item in news else replace(item, message=old) for item, old in known.items()]


def subjects(limited: str) -> tuple[str, ...]:
    """What the parts of a limitation are about: steps, pods, cpu."""
    return tuple(part.partition(":")[0] for part in limited.split("; "))


def metrics_in(status: Mapping[str, Any]) -> tuple[str, str]:
    """What a status says of metrics: why they are not usable, "" where they are; where they are read from, "" where that is not said."""
    for item in status.get("conditions") or ():
        if item.get("type") == ConditionType.METRICS_AVAILABLE.value:
            trouble = "" if item.get("status") == "True" else str(item.get("reason", ""))
            return trouble, "" if trouble else str(item.get("message", "")).partition(
                f"{_READ}{_FROM}"
            )[2]
    return "", ""


def _decided(view: View, mode: ScalingMode) -> list[Condition]:
    decision, message = view.decision, _message(view)
    read = f"{_FROM}{view.source}" if view.source else ""
    metrics = Condition(ConditionType.METRICS_AVAILABLE, True, Reason.SUCCEEDED, f"{_READ}{read}")
    if view.trouble:
        known = {reason.value for reason in Reason}
        reason = Reason(view.trouble) if view.trouble in known else Reason.METRICS_MISSING
        metrics = Condition(ConditionType.METRICS_AVAILABLE, False, reason, message)
    if view.failed:
        active = Condition(
            ConditionType.SCALING_ACTIVE, False, Reason.ACTUATION_FAILED, view.failed
        )
    elif mode is ScalingMode.ADVISORY:
        active = Condition(
            ConditionType.SCALING_ACTIVE,
            False,
            Reason.ADVISORY,
            f"mode Advisory: {_advice(view)}; {decision.message}",
        )
    else:
        active = Condition(
            ConditionType.SCALING_ACTIVE,
            not view.trouble,
            metrics.reason,
            message or "counts follow the load",
        )
    result = [metrics, active]
    if decision.limited:
        result.append(
            Condition(
                ConditionType.SCALING_LIMITED,
                True,
                Reason(_limited_reason(decision)),
                decision.limited,
            )
        )
    return result


# Reasons of ScalingLimited that come with the pass that finds somebody else's writes, and go with it.
OWNER_CONFLICTS = (Reason.REPLICAS_OWNER_CONFLICT, Reason.CPU_OWNER_CONFLICT)


def with_limits(
    conditions: Sequence[Condition], pods: str, cpu: str, refused: Sequence[str]
) -> list[Condition]:
    """The conditions with what comes before the load: another owner of the number of ``pods`` or of their ``cpu``, and pods whose CPU the
    API server does not change."""
    said = [text for text in (pods, cpu, *refused) if text]
    if not said:
        return list(conditions)
    reason = (
        Reason.REPLICAS_OWNER_CONFLICT
        if pods
        else Reason.CPU_OWNER_CONFLICT
        if cpu
        else Reason.ACTUATION_FAILED
    )
    others = [item for item in conditions if item.type is not ConditionType.SCALING_LIMITED]
    return [*others, Condition(ConditionType.SCALING_LIMITED, True, reason, "; ".join(said))]


def _advice(view: View) -> str:
    """What mode Active would change."""
    present = {step: max(pods.values()) for step, pods in view.counts.items() if pods}
    changes = [
        f"{item.step} would go from {present[item.step]} to {item.count}"
        for item in view.decision.steps
        if item.step in present and present[item.step] != item.count
    ]
    return ", ".join(changes) or "no count would change"


def _limited_reason(decision: Decision) -> str:
    """The verdict as a reason where it is one, else that bounds are reached."""
    known = {reason.value for reason in Reason}
    return (
        decision.verdict.value if decision.verdict.value in known else Reason.BOUNDS_REACHED.value
    )


def status_of(view: View, before: Mapping[str, Any]) -> dict[str, Any]:
    """``status.scaling``: verdict, why, history, and figures, which move only by more than a tenth so that nothing is written for noise,
    and of which there are none while nothing is known."""
    decision = view.decision
    history = [
        {
            "time": _time(item.at),
            "step": item.step,
            "from": item.before,
            "to": item.after,
            "reason": cut(item.reason, REASON_MAX),
        }
        for item in decision.memory.history[:HISTORY_MAX]
    ]
    known = list(before.get("history") or ())
    if (
        view.mode is ScalingMode.ADVISORY
        and before.get("mode") == view.mode.value
        and _same_advice(history, known)
    ):
        history = known  # advice is not recorded: after a start of the operator the same comes again, and is no news
    figures = {
        item.step: {
            "requestsPerSecond": _steady(
                item.figures.arrivals, _figure(before, item.step, "requestsPerSecond")
            ),
            "busyPercent": _steady(
                100 * item.figures.busy, _figure(before, item.step, "busyPercent")
            ),
            "waitMilliseconds": _steady(
                1000 * item.figures.wait, _figure(before, item.step, "waitMilliseconds")
            ),
        }
        for item in decision.steps
        if item.verdict is not Verdict.UNKNOWN  # a load that nobody measures is not one of zero
    }
    result: dict[str, Any] = {"bottleneck": decision.verdict.value, "mode": view.mode.value}
    if history:
        result["history"] = history
    if history and view.mode is ScalingMode.ACTIVE:
        result["lastScaleTime"] = history[0]["time"]
    if figures:
        result["figures"] = [{"step": step, **values} for step, values in figures.items()]
    return result


def _same_advice(history: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]) -> bool:
    """Whether nothing else is advised than before."""
    if not history or not known:
        return not history
    return all(history[0].get(name) == known[0].get(name) for name in ("step", "from", "to"))


def steady(view: View, status: Mapping[str, Any]) -> bool:
    """Whether the status says all that the view has to say but for the last digits: then its words stay, too."""
    before: Mapping[str, Any] = status.get("scaling") or {}
    verdicts = {item.get("name"): item.get("verdict") for item in status.get("steps") or ()}
    now = status_of(view, before)
    same = all(
        now.get(name) == before.get(name) for name in ("bottleneck", "mode", "figures", "history")
    )
    return (
        same
        and all(verdicts.get(item.step) == item.verdict.value for item in view.decision.steps)
        and _same_words(view, status)
    )


def _same_words(view: View, status: Mapping[str, Any]) -> bool:
    """Whether a condition tells all that the decision says, whatever its numbers: a note that is new, as on a GPU that disagrees, is news."""
    message = _without_figures(_message(view))
    said = [
        _without_figures(str(item.get("message", ""))) for item in status.get("conditions") or ()
    ]
    # Advisory says before it what would change.
    return any(one == message or one.endswith(f"; {message}") for one in said)


def _message(view: View) -> str:
    """The decision's message for a condition, whose reason already names the trouble."""
    return (
        view.decision.message.removeprefix(f"{view.trouble}: ")
        if view.trouble
        else view.decision.message
    )


def _without_figures(text: str) -> str:
    """The text without its figures."""
    return _NUMBER.sub(lambda found: found["address"] or "", text)


def verdicts_of(view: View | None) -> Mapping[str, tuple[Verdict, str, int]]:
    """Step → verdict, reason, wanted count."""
    return (
        {}
        if view is None
        else {item.step: (item.verdict, item.reason, item.count) for item in view.decision.steps}
    )


def _figure(before: Mapping[str, Any], step: str, name: str) -> int | None:
    items = before.get("figures") or ()
    return next(
        (
            item.get(name)
            for item in items
            if isinstance(item, Mapping) and item.get("step") == step
        ),
        None,
    )


def _steady(value: float, before: int | None) -> int:
    """A whole number, the one before where the new one is within a tenth of it (or within 1)."""
    rounded = round(value)
    if isinstance(before, int) and abs(rounded - before) <= max(
        1.0, FIGURE_CHANGE * max(abs(before), abs(rounded))
    ):
        return before
    return rounded


def _time(at: float) -> str:
    return rfc3339(dt.datetime.fromtimestamp(at, dt.UTC))
