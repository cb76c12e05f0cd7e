"""Decide the conditions of serving: Ready, Available, ModelsReady, Stalled, Reconciling. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triton_pipelines.api.base import Switch
from triton_pipelines.api.conditions import (
    Condition,
    ConditionType,
    Reason,
)
from triton_pipelines.api.health import InferenceHealth
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import counted
from triton_pipelines.compile.graph.example_request import probe_blocker
from triton_pipelines.compile.graph.graph import Graph

from .deployment_progress import deadline_exceeded
from .pod_problems import Problem, most_severe
from .policies.replicas import Replicas
from .policies.rollout import Rollout
from .snapshot import Pod, Probe, Snapshot


def conditions_of(
    pipeline: InferencePipeline,
    graph: Graph,
    snapshot: Snapshot,
    rollout: Rollout,
    desired: str,
    problems: Sequence[Problem],
    number: Replicas,
) -> list[Condition]:
    """Return the conditions of serving, ``Ready`` first. The first case that applies decides."""
    serving = [pod for pod in snapshot.pods if pod.serving]
    if pipeline.spec.suspend is Switch.ENABLED:
        return _suspended(snapshot, serving)
    updated = [pod for pod in serving if pod.revision == desired]
    is_probed = pipeline.spec.health.inference is InferenceHealth.AUTO and not probe_blocker(
        pipeline, graph
    )
    case = _ServingCase(
        snapshot=snapshot,
        rollout=rollout,
        desired=desired,
        number=number,
        updated=updated,
        unverified=[
            pod for pod in updated if _needs_verification(snapshot.probes.get(pod.uid), is_probed)
        ],
        leading=_leading(problems, snapshot, desired),
        restored=_leading(problems, snapshot, rollout.target),
        overdue=(
            deadline_exceeded(desired, snapshot, problems)
            if rollout.deadline_counts_in is None
            else None
        ),
        available=available(serving, snapshot),
        models=_models(snapshot, desired, updated, problems, number.number),
    )
    for conditions in (
        _rolled_back,
        _preflight,
        _pods_failed,
        _scaled_to_zero,
        _inference_failed,
        _complete,
    ):
        found = conditions(case)
        if found is not None:
            return found
    return _progressing(case)


@dataclass(frozen=True, slots=True)
class _ServingCase:
    """What the conditions of serving are decided from."""

    snapshot: Snapshot
    rollout: Rollout
    desired: str
    """The desired revision."""
    number: Replicas
    updated: list[Pod]
    """Pods of the desired revision that serve."""
    unverified: list[Pod]
    """Those of them whose test inference has not succeeded yet."""
    leading: Problem | None
    """The worst problem of the desired revision's pods."""
    restored: Problem | None
    """The same of the revision to run, which is another one after a rollback."""
    overdue: tuple[Reason, str] | None
    """Why the progress deadline passed; ``None`` while it has not."""
    available: Condition
    models: Condition

    @property
    def replicas(self) -> int:
        return self.number.number

    @property
    def other_pods(self) -> list[Pod]:
        """Pods of other revisions that are not being deleted."""
        return [
            pod for pod in self.snapshot.pods if pod.revision != self.desired and not pod.deleting
        ]

    @property
    def surplus(self) -> int:
        """How many pods there are beyond the desired number."""
        return sum(not pod.deleting for pod in self.snapshot.pods) - self.replicas

    @property
    def progress(self) -> str:
        count = len(self.updated)
        serving = (
            f"{count} of {self.replicas} pods serve"
            if count <= self.replicas
            else counted(count, "pod serves", "pods serve")
        )
        return f"{serving} revision {self.desired}"

    def ready(self, text: str) -> list[Condition]:
        ready = Condition(ConditionType.READY, True, Reason.SUCCEEDED, text)
        return [ready, self.available, self.models]

    def not_ready(self, kind: ConditionType, reason: Reason, text: str) -> list[Condition]:
        """Return Ready False with ``kind`` (Stalled or Reconciling) True for the same reason."""
        return [
            Condition(ConditionType.READY, False, reason, text),
            self.available,
            self.models,
            Condition(kind, True, reason, text),
        ]


def _leading(problems: Sequence[Problem], snapshot: Snapshot, revision: str) -> Problem | None:
    """Return the worst problem of a revision's pods."""
    pod_names = {pod.name for pod in snapshot.pods if pod.revision == revision}
    return most_severe([problem for problem in problems if problem.pod in pod_names])


def _suspended(snapshot: Snapshot, serving: Sequence[Pod]) -> list[Condition]:
    remaining = sum(not pod.deleting for pod in snapshot.pods)
    if remaining:
        return _draining(
            f"suspending: waiting for {counted(remaining, 'pod')} to be deleted",
            available(serving, snapshot),
        )
    text = (
        "suspended: no pods run, and all other objects are kept; set suspend to Disabled to "
        "serve requests"
    )
    return [
        Condition(ConditionType.READY, True, Reason.SUSPENDED, text),
        Condition(ConditionType.AVAILABLE, False, Reason.SUSPENDED, text),
    ]


def _rolled_back(case: _ServingCase) -> list[Condition] | None:
    """Another revision than the desired one is to run."""
    target, state = case.rollout.target, case.rollout.state
    if target == case.desired:
        return None
    why = Reason(state.failed_reason)
    text = (
        f"revision {case.desired} failed and was rolled back to revision {target} "
        f"({why.value}): {state.failed_message}; change the spec to retry"
    )
    if why is Reason.SLO_VIOLATED:
        text = (
            f"revision {case.desired} serves, but violates the SLO that revision {target} "
            f"met, and was rolled back to it: {state.failed_message}; change the spec to "
            "retry"
        )
    restored = case.restored
    if restored is not None and restored.reason not in (Reason.LOADING, Reason.PROGRESSING):
        text += f"; revision {target} has a problem too: {restored.message}"
    return case.not_ready(ConditionType.STALLED, Reason.ROLLED_BACK, text)


def _preflight(case: _ServingCase) -> list[Condition] | None:
    """A check of the desired revision keeps a serving pod from being removed for it."""
    preflight, rollout = case.rollout.preflight, case.rollout
    if not preflight.is_holding:
        return None
    problem, keeps = (
        preflight.problem,
        f"revision {serving_revision(case.snapshot.pods, '')} keeps serving",
    )
    if problem is not None:
        kind = ConditionType.STALLED if problem.is_final else ConditionType.RECONCILING
        text = f"{case.progress}; preflight: {problem.message}; {keeps}"
        return case.not_ready(kind, problem.reason, text)
    text = (
        f"{case.progress}; a preflight is checking this revision, and {keeps} until the "
        "preflight has passed"
    )
    if rollout.downtime:
        text += f"; {rollout.downtime}"
    return case.not_ready(ConditionType.RECONCILING, Reason.PREFLIGHT, text)


def _pods_failed(case: _ServingCase) -> list[Condition] | None:
    """Some pods of the desired revision cannot come to serve."""
    failure, leading = case.overdue, case.leading
    if leading is not None and leading.is_final:
        failure = (leading.reason, leading.message)
    if failure is None or len(case.updated) >= case.replicas:
        return None
    text = f"{case.progress}; {failure[1]}"
    if case.available.status:
        text += f"; revision {serving_revision(case.snapshot.pods, '')} keeps serving"
    return case.not_ready(ConditionType.STALLED, failure[0], text)


def _scaled_to_zero(case: _ServingCase) -> list[Condition] | None:
    if case.replicas == 0 and all(pod.deleting for pod in case.snapshot.pods):
        return case.ready("replicas is 0, so no pods are desired")
    return None


def _inference_failed(case: _ServingCase) -> list[Condition] | None:
    leading = case.leading
    if leading is None or leading.reason is not Reason.INFERENCE_FAILED:
        return None
    return case.not_ready(ConditionType.RECONCILING, leading.reason, leading.message)


def _complete(case: _ServingCase) -> list[Condition] | None:
    """The desired revision serves, and no other."""
    if case.other_pods or case.snapshot.deployed_revision() != case.desired:
        return None
    verified = len(case.updated) - len(case.unverified)
    if case.number.is_autoscaled and verified >= min(case.number.minimum, case.replicas):
        # Pods that scaling adds or removes are not a rollout.
        leading = case.leading
        return case.ready(f"{case.progress}; {leading.message}" if leading else case.progress)
    if len(case.updated) >= case.replicas and not case.unverified and case.surplus <= 0:
        return case.ready(case.progress)
    return None


def _progressing(case: _ServingCase) -> list[Condition]:
    reason, text = _waiting_for(case)
    if case.rollout.downtime:
        text += f"; {case.rollout.downtime}"
    return case.not_ready(ConditionType.RECONCILING, reason, text)


def _waiting_for(case: _ServingCase) -> tuple[Reason, str]:
    """Return what a rollout waits for."""
    leading, progress = case.leading, case.progress
    complete = len(case.updated) >= case.replicas
    if leading is None and complete and case.unverified and not case.other_pods:
        probes = (case.snapshot.probes.get(pod.uid) for pod in case.unverified)
        error = next((probe.error for probe in probes if probe is not None and probe.error), "")
        count = counted(len(case.unverified), "pod has", "pods have")
        return Reason.PROGRESSING, (
            f"{progress}; {count} not passed a test inference yet{f': {error}' if error else ''}"
        )
    if leading is None and case.surplus > 0 and not case.other_pods:
        count = counted(case.surplus, "surplus pod has", "surplus pods have")
        return Reason.DRAINING, f"{progress}; {count} not been deleted yet"
    if leading is None and case.other_pods and complete:
        older = len(case.other_pods)
        count = counted(older, "pod of an older revision is", "pods of older revisions are")
        return Reason.DRAINING, f"{progress}; {count} still running"
    rejected = case.snapshot.pods_rejected
    if (
        rejected
        and not complete
        and (leading is None or leading.reason in (Reason.LOADING, Reason.PROGRESSING))
    ):
        # There is no pod to report a problem, or the existing ones are making progress.
        return Reason.API_ERROR, f"{progress}; the API server rejects further pods: {rejected}"
    if leading is not None:
        return leading.reason, f"{progress}; {leading.message}"
    return Reason.PROGRESSING, progress


def _needs_verification(probe: Probe | None, is_probed: bool) -> bool:
    """Return whether a ready pod still has to be verified.

    It could not be probed, or has not run a test inference yet.
    """
    if probe is None:
        return is_probed
    return bool(probe.error) or (is_probed and probe.inference_error is None)


def _draining(text: str, available: Condition) -> list[Condition]:
    """Return the conditions while pods that are no longer desired still exist."""
    return [
        Condition(ConditionType.READY, False, Reason.DRAINING, text),
        available,
        Condition(ConditionType.RECONCILING, True, Reason.DRAINING, text),
    ]


def available(serving: Sequence[Pod], snapshot: Snapshot) -> Condition:
    """Return the Available condition: whether some revision answers requests."""
    failing = [
        pod for pod in serving if (probe := snapshot.probes.get(pod.uid)) and probe.inference_error
    ]
    if serving and len(failing) < len(serving):
        revisions = ", ".join(sorted({pod.revision for pod in serving}))
        number = len(serving) - len(failing)
        text = f"{counted(number, 'pod serves', 'pods serve')} requests (revision {revisions})"
        return Condition(ConditionType.AVAILABLE, True, Reason.SERVING, text)
    if failing:
        return Condition(
            ConditionType.AVAILABLE,
            False,
            Reason.INFERENCE_FAILED,
            "every ready pod fails a test inference",
        )
    return Condition(ConditionType.AVAILABLE, False, Reason.NO_PODS, "no pod is ready")


def _models(
    snapshot: Snapshot,
    desired: str,
    updated: Sequence[Pod],
    problems: Sequence[Problem],
    replicas: int,
) -> Condition:
    pods = [pod for pod in snapshot.pods if pod.revision == desired and not pod.deleting]
    own_problems = [
        item
        for item in problems
        if item.pod in {pod.name for pod in pods} and item.reason is not Reason.INFERENCE_FAILED
    ]
    leading = most_severe(own_problems)
    if pods and len(updated) == len(pods) >= replicas:
        return Condition(
            ConditionType.MODELS_READY,
            True,
            Reason.SUCCEEDED,
            f"all models are ready in {len(pods)} of {len(pods)} pods",
        )
    model_reasons = (
        Reason.MODEL_MISMATCH,
        Reason.MODEL_FAILED,
        Reason.SOURCE_UNAVAILABLE,
        Reason.SOURCE_CHANGED,
        Reason.CHECKSUM_MISMATCH,
        Reason.INVALID_TOKENIZER,
        Reason.RAGGED_UNSUPPORTED,
        Reason.NO_SPACE,
        Reason.SERVER_CRASHED,
        Reason.INTERNAL_ERROR,
    )
    if leading is not None and leading.reason in model_reasons:
        return Condition(
            ConditionType.MODELS_READY,
            False,
            leading.reason,
            f"{len(updated)} of {len(pods)} pods; {leading.message}",
        )
    text = f"{len(updated)} of {len(pods)} pods of revision {desired} have all models ready"
    return Condition(ConditionType.MODELS_READY, None, Reason.WAITING_FOR_PODS, text)


def serving_revision(pods: Sequence[Pod], preferred: str) -> str:
    """Return the revision that serves: ``preferred``, else that of most pods; empty without one."""
    revisions = [pod.revision for pod in pods if pod.serving]
    if preferred in revisions:
        return preferred
    return max(set(revisions), key=lambda item: (revisions.count(item), item)) if revisions else ""
