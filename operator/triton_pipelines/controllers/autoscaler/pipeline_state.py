"""State of one scaled pipeline between the autoscaler's ticks, and what follows from it. No I/O."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from google.protobuf import json_format

from triton_pipelines.api import names
from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.loadplan import LoadPlan
from triton_pipelines.api.scaling import ScalingMode
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.autoscaling.backoff import ScalingBackoff
from triton_pipelines.autoscaling.metrics.connection import DEFAULT
from triton_pipelines.autoscaling.metrics.connection_messages import unused_connection_note
from triton_pipelines.autoscaling.metrics.samples import (
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
)
from triton_pipelines.autoscaling.types import ScalingDecision, ScalingState, Verdict
from triton_pipelines.cluster.client import Object
from triton_pipelines.compile.graph.graph import Graph, Step
from triton_pipelines.compile.render.model_config import parse as parse_config
from triton_pipelines.compile.render.model_config import with_count
from triton_pipelines.controllers.handover import ScalingOutput, ScalingView
from triton_pipelines.controllers.pipeline.scaling_observation import bounds_of
from triton_pipelines.controllers.pipeline.snapshot import Pod
from triton_pipelines.controllers.scaling_conditions import reported_metrics_failure
from triton_pipelines.controllers.scaling_limits import scaled_steps

# Rates need two samples: for this time (seconds) a new process does not report an unknown load.
SETTLING_SECONDS: Final = 30.0
# A new process contradicts the reported verdict only after this many slow windows.
_SETTLING_WINDOWS: Final = 1.5
_CALM: Final = frozenset({Verdict.UNKNOWN, Verdict.IDLE, Verdict.BALANCED, Verdict.OVERPROVISIONED})


@dataclass(frozen=True, slots=True)
class PodCounts:
    """Instance counts that a pod reported."""

    at: float
    """Time of the report (Unix seconds)."""
    start: str
    """Start of the pod's server that they belong to (:func:`server_start_id`)."""
    counts: Mapping[str, int]
    """Instances by step."""


@dataclass(frozen=True, slots=True)
class ReportedStatus:
    """What a status reported about scaling when this process first saw the pipeline."""

    verdict: str = ""
    """The pipeline's verdict; empty if there was none."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Instances by step."""
    metrics_failure: str = ""
    """Reason why metrics were not usable; empty if they were."""
    metrics_source: str = ""
    """Where metrics were read from; empty if unknown."""

    @classmethod
    def of(cls, status: Mapping[str, Any], metrics_source: str = "") -> ReportedStatus:
        """Read a status; the source of metrics is recorded in the live ConfigMap."""
        steps = status.get("steps") or ()
        counts = {str(item.get("name")): item.get("instances", 0) for item in steps}
        verdict = str((status.get("scaling") or {}).get("bottleneck", ""))
        return cls(verdict, counts, reported_metrics_failure(status), metrics_source)


@dataclass(frozen=True, slots=True)
class StepChange:
    """A change of a step's count in the pods."""

    task: asyncio.Task[None]
    """The task that carries it out."""
    began: float
    """When it began (Unix seconds)."""


@dataclass(slots=True)
class PipelineScalingState:
    """One scaled pipeline. Changed in place, since a running change reads it, too."""

    pipeline: InferencePipeline
    """The pipeline with its effective spec."""
    graph: Graph
    """The graph of that spec."""
    since: float
    """When this process first saw the pipeline (Unix seconds)."""
    reported: ReportedStatus = field(default_factory=ReportedStatus)
    """What the status reported at that time."""
    output: ScalingOutput = field(default_factory=ScalingOutput)
    """What is published for the pipeline controller."""
    scaling_state: ScalingState | None = None
    """The control law's state; ``None`` before the first decision."""
    waited_for: frozenset[str] = frozenset()
    """Steps for which requests wait, by the last decision with usable metrics."""
    last_waited: dict[str, float] = field(default_factory=dict)
    """When requests last waited for a step (Unix seconds)."""
    pods: tuple[Pod, ...] = ()
    """Pods that serve and whose configs are known."""
    all_pods: tuple[Pod, ...] = ()
    """All pods that exist."""
    pod_counts: dict[str, PodCounts] = field(default_factory=dict)
    """Reported counts by pod uid."""
    unanswered: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Pods (by uid) that did not report counts: start of the server, and time of the query."""
    changes: dict[str, StepChange] = field(default_factory=dict)
    """The running change of counts of each step, or the last one."""
    backoffs: dict[str, ScalingBackoff] = field(default_factory=dict)
    """Back-off after failed changes, by step."""
    view_key: Hashable = ()
    """:func:`change_key` of the published view."""
    view_at: float = 0.0
    """When it was published (Unix seconds)."""
    configs: dict[str, tuple[Object | None, Mapping[str, str] | None]] = field(default_factory=dict)
    """Revision → its ConfigMap as it was last parsed, and :func:`configs_of` it."""
    steps: list[Step] = field(init=False)
    """The scaled steps; none in mode Disabled. Kept, because each tick reads them for every
    pipeline."""

    def __post_init__(self) -> None:
        self._find_steps()

    def _find_steps(self) -> None:
        is_disabled = self.pipeline.spec.scaling.mode is ScalingMode.DISABLED
        self.steps = [] if is_disabled else scaled_steps(self.graph)

    def set_spec(self, pipeline: InferencePipeline, graph: Graph) -> None:
        """Use another effective spec from now on.

        An intent for what the spec no longer gives to scaling is dropped: if a later spec gives it
        back, it may have been changed in between.
        """
        self.pipeline, self.graph = pipeline, graph
        self._find_steps()
        if self.output.intent is not None:
            owned = bounds_of(pipeline, graph)
            self.output.intent = replace(
                self.output.intent,
                pods=self.output.intent.pods if owned.pods else None,
                cpu=self.output.intent.cpu if owned.cpu else None,
            )

    @property
    def is_active(self) -> bool:
        """Return whether counts are changed, not only recommended."""
        return self.pipeline.spec.scaling.mode is ScalingMode.ACTIVE

    def is_unscaled(self, graph: Graph) -> bool:
        """Return whether this graph is the known one and none of its steps is scaled."""
        return graph is self.graph and not self.steps

    @property
    def changing_steps(self) -> set[str]:
        """Return the steps whose counts are being changed."""
        return {name for name, change in self.changes.items() if not change.task.done()}

    @property
    def is_changing(self) -> bool:
        """Return whether a change of counts is running."""
        return bool(self.changing_steps)

    def has_recent_change(self, seconds: float, now: float) -> bool:
        """Return whether a change is running that began less than this long ago."""
        running = (self.changes[name] for name in self.changing_steps)
        return any(now - change.began < seconds for change in running)

    def cancel_changes(self) -> None:
        """Cancel what is running."""
        for change in self.changes.values():
            change.task.cancel()
        self.changes = {}

    def observe_waits(self, decision: ScalingDecision, now: float) -> None:
        """Record for which steps requests wait; without metrics, it is as before."""
        if decision.problem in (None, MetricsProblem.PARTIAL):
            waits = (item.step for item in decision.steps if item.figures.wait > 0)
            self.waited_for = frozenset(waits)
        self.last_waited |= dict.fromkeys(self.waited_for, now)

    def fail(self, step: str, reason: str, now: float) -> None:
        """Record one more failed change of a step."""
        self.backoffs[step] = self.backoffs.get(step, ScalingBackoff()).failed(now, reason)

    def clear_failures(self, steps: Iterable[str]) -> None:
        """Report failures of these steps no more; their next pauses stay longer."""
        for step in self.backoffs.keys() & set(steps):
            self.backoffs[step] = replace(self.backoffs[step], reason="")

    def waiting_steps(self, first: float, now: float) -> set[str]:
        """Return the steps that wait for their next attempt.

        Args:
            first: The pause (seconds) that doubles with each failure.
            now: Unix seconds.
        """
        return {name for name, one in self.backoffs.items() if one.wait(first, now) > 0}

    @property
    def action_failure(self) -> str:
        """Return why the last change of a step failed; empty if none failed."""
        found = (self.backoffs.get(step.name, ScalingBackoff()) for step in self.steps)
        return next((backoff.reason for backoff in found if backoff.reason), "")

    @property
    def revision(self) -> str:
        """Return the revision that most serving pods run; on a tie the first by name."""
        revisions = [pod.revision for pod in self.pods]
        return min(set(revisions), key=lambda one: (-revisions.count(one), one), default="")

    def counts(self) -> dict[str, dict[str, int]]:
        """Return step → pod → instances, as far as pods have reported them."""
        known = {
            pod.name: self.pod_counts[pod.uid].counts
            for pod in self.pods
            if pod.uid in self.pod_counts
        }
        return {
            step.name: {
                pod: counts[step.name] for pod, counts in known.items() if step.name in counts
            }
            for step in self.steps
        }

    def set_count(self, pod_name: str, step: str, count: int) -> None:
        """Record a pod's count after a change."""
        for pod in self.pods:
            known = self.pod_counts.get(pod.uid)
            if pod.name == pod_name and known is not None:
                counts = {**known.counts, step: count}
                self.pod_counts[pod.uid] = replace(known, counts=counts)

    def forget_deleted_pods(self) -> None:
        """Drop what is known of pods that no longer serve."""
        uids = {pod.uid for pod in self.pods}
        self.pod_counts = {uid: known for uid, known in self.pod_counts.items() if uid in uids}
        self.unanswered = {uid: known for uid, known in self.unanswered.items() if uid in uids}


def server_start_id(pod: Pod) -> str:
    """Identify the start of the pod's server.

    A restarted server has the counts of its files again.
    """
    status = pod.container(names.CONTAINER_SERVER)
    return f"{status.get('containerID', '')}/{status.get('restartCount', 0)}"


def metrics_address(pod: Pod) -> str:
    """Return ``host:port`` of the pod's metrics endpoint."""
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return f"{host}:{names.PORT_METRICS}"


def configs_of(record: Object | None) -> Mapping[str, str] | None:
    """Return step → config.pbtxt of a revision's pods, from the revision's ConfigMap.

    ``None`` if the ConfigMap is missing or not readable.
    """
    data = (record or {}).get("data") or {}
    try:
        plan = LoadPlan.model_validate_json(data[names.KEY_PLAN])
        files = {item.path: item.key for item in plan.files}
        return {count.step: data[files[count.path]] for count in plan.counts}
    except (KeyError, ValueError):
        return None


def config_with(text: str) -> Callable[[int], str]:
    """Return a function: count → the given config as JSON, with only the count changed."""
    parsed = parse_config(text)
    return lambda count: json_format.MessageToJson(
        with_count(parsed, count), preserving_proto_field_name=True
    )


def metrics_failure_of(decision: ScalingDecision, *, has_pods: bool) -> str:
    """Return the reason why metrics are not usable; empty if they are."""
    if not has_pods:
        return Reason.NO_PODS.value
    return decision.problem.value if decision.problem is not None else ""


def with_missing_connection(
    pipeline: InferencePipeline, sample: PipelineSample | MetricsFailure
) -> PipelineSample | MetricsFailure:
    """Return a sample read from the pods because the operator has no connection.

    If the pipeline names a connection, the sample's source says that it does not exist.
    """
    name = pipeline.spec.scaling.prometheus_ref
    if not sample.source or name == DEFAULT:
        return sample
    return replace(sample, source=f"{sample.source}{unused_connection_note(name)}")


def is_settling(
    state: PipelineScalingState,
    verdict: Verdict,
    now: float,
    metrics_failure: str = "",
    metrics_source: str = "",
) -> bool:
    """Return whether nothing is to be reported yet after a start of the operator.

    The start is not a change of the pipeline, and the first rates cover a few seconds only. Until
    its windows are full, the process does not replace one calm verdict by another unless counts
    changed. At first it reports neither an unknown load nor unusable metrics, nor missing samples
    for another reason than the status does: this process may not have read the pods yet. What the
    status says about metrics is replaced at once if their source changed or a failure is over: else
    it would name a connection that is no longer used.

    Args:
        state: The pipeline.
        verdict: The present verdict.
        now: Unix seconds.
        metrics_failure: As in :class:`~.handover.ScalingView`.
        metrics_source: As in :class:`~.handover.ScalingView`.
    """
    output, reported = state.output, state.reported
    if output.view is not None or output.intent is not None or verdict not in _CALM:
        return False
    has_both = bool(metrics_source and reported.metrics_source)
    source_changed = has_both and metrics_source != reported.metrics_source
    if source_changed or (reported.metrics_failure and not metrics_failure):
        return False
    elapsed = now - state.since
    if reported.verdict not in _CALM:
        return verdict is Verdict.UNKNOWN and elapsed < SETTLING_SECONDS
    if any(
        pods and min(pods.values()) != reported.counts.get(step)
        for step, pods in state.counts().items()
    ):
        return False
    slow = state.pipeline.spec.scaling.windows.slow
    full = max(SETTLING_SECONDS, _SETTLING_WINDOWS * slow)
    is_unread = metrics_failure == Reason.METRICS_MISSING
    return (verdict.value != reported.verdict or is_unread) and elapsed < (
        SETTLING_SECONDS if metrics_failure else full
    )


def change_key(view: ScalingView) -> Hashable:
    """Return the parts of a view whose change is reported at once."""
    decision = view.decision
    return (
        view.mode,
        decision.verdict,
        decision.state.history[:1],
        tuple((item.step, item.count, item.verdict) for item in decision.steps),
        view.metrics_failure,
        view.metrics_source,
        view.action_failure,
        decision.limited_subjects,
        json.dumps(view.counts, sort_keys=True),
    )
