"""Compute the status of a pipeline from the snapshot and the decisions. Pure.

The clock is passed in.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding, Switch
from triton_pipelines.api.conditions import (
    KIND_OF,
    MESSAGE_MAX,
    Condition,
    ConditionType,
    Reason,
    ReasonKind,
    merge,
)
from triton_pipelines.api.health import InferenceHealth
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cluster.diff import covers, needs_apply
from triton_pipelines.compile.graph.example_request import probe_blocker, public_shape, wire_type
from triton_pipelines.compile.graph.graph import Graph, Tensor
from triton_pipelines.controllers.timestamps import rfc3339

from .deployment_progress import deadline_exceeded
from .pod_problems import Problem, worst
from .policies.cpu_resize import CpuResizeDecision
from .policies.replicas import Replicas
from .policies.rollout import Rollout
from .scaling_status import kept_conditions, live_conditions, live_parts
from .snapshot import Pod, Probe, Snapshot

WARNINGS_MAX = 20
# Longest short string of the schema: messages of pods are not trusted.
SHORT_MAX = 512
# The same of a URI; masking the secrets in one may make it longer than it was written.
URI_MAX = 1024
CLUSTER_SUFFIX = "svc"
# Merge keys of the status' own lists, as in its schema.
_LIST_KEYS = {"steps": ("name",), "sources": ("step",)}


def differs(pipeline: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Return whether writing a status would change anything.

    It would if the object lacks a field of it, or still has a field of the previous one. Fields
    that other managers added are theirs: an apply keeps them, so they must not cause one in each
    iteration.
    """
    before = dict(pipeline.get("status") or {})
    if pipeline["metadata"].get("managedFields"):
        live = {"metadata": pipeline["metadata"], "status": before}
        return bool(
            needs_apply(
                live,
                {"status": status},
                names.MANAGER_STATUS,
                subresource="status",
                list_keys=_LIST_KEYS,
            )
        )
    return bool(
        covers(before, status, list_keys=_LIST_KEYS) or covers(status, before, list_keys=_LIST_KEYS)
    )


def stalled(
    snapshot: Snapshot,
    reason: Reason,
    findings: Sequence[Finding] | str,
    now: dt.datetime,
    *,
    final: bool | None = None,
) -> dict[str, Any]:
    """Return the status of a resource that cannot be acted on.

    All other fields stay as they were, and the running revision keeps serving.

    Args:
        snapshot: What is observed.
        reason: Why the resource cannot be acted on.
        findings: The findings, or a message.
        now: The current time.
        final: Whether only the user can help, which is reported as ``Stalled``; otherwise there is
            something to wait for, which is reported as ``Reconciling``. Follows from ``reason`` by
            default.
    """
    final = KIND_OF[reason] is ReasonKind.STALLED if final is None else final
    message = findings if isinstance(findings, str) else _listed(findings)
    available = _available([pod for pod in snapshot.pods if pod.serving], snapshot)
    conditions = [
        Condition(ConditionType.READY, False, reason, message),
        available,
        Condition(
            ConditionType.STALLED if final else ConditionType.RECONCILING, True, reason, message
        ),
    ]
    kept = {
        key: value
        for key, value in snapshot.status.items()
        if key not in ("conditions", "observedGeneration")
    }
    previous = snapshot.status.get("conditions") or ()
    models = [item for item in previous if item.get("type") == ConditionType.MODELS_READY]
    return {
        **kept,
        "observedGeneration": snapshot.generation
        if final
        else int(snapshot.status.get("observedGeneration") or 0),
        "conditions": [*merge(previous, conditions, snapshot.generation, rfc3339(now)), *models],
        **_counts(snapshot, str(snapshot.status.get("revision", ""))),
    }


def _listed(findings: Sequence[Finding]) -> str:
    if len(findings) == 1:
        return str(findings[0])
    text = "; ".join(f"({index}) {finding}" for index, finding in enumerate(findings, 1))
    return f"{len(findings)} findings: {text}"[:MESSAGE_MAX]


def compute(
    pipeline: InferencePipeline,
    graph: Graph,
    snapshot: Snapshot,
    rollout: Rollout,
    wanted: str,
    warnings: Sequence[Finding],
    problems: Sequence[Problem],
    counts: Mapping[str, int],
    diverged: Mapping[str, str],
    number: Replicas,
    now: dt.datetime,
    cpu: CpuResizeDecision,
) -> dict[str, Any]:
    """Return the whole status of a resource that is acted on."""
    conditions = conditions_of(pipeline, graph, snapshot, rollout, wanted, problems, number)
    conditions += live_conditions(pipeline, graph, snapshot, number, cpu)
    settled = any(item.type is ConditionType.STALLED and item.status for item in conditions) or (
        conditions[0].type is ConditionType.READY and conditions[0].status is True
    )
    generation = snapshot.generation
    status: dict[str, Any] = {
        "observedGeneration": generation
        if settled
        else int(snapshot.status.get("observedGeneration") or 0),
        "conditions": [
            *merge(snapshot.status.get("conditions") or (), conditions, generation, rfc3339(now)),
            *kept_conditions(pipeline, graph, snapshot, {item.type.value for item in conditions}),
        ],
        "revision": wanted,
        "servingRevision": _serving_revision(snapshot.pods, rollout.target),
        **_counts(snapshot, wanted),
        "selector": ",".join(
            f"{key}={value}" for key, value in names.selector(pipeline.name).items()
        ),
        "endpoints": _endpoints(pipeline),
        "ensemble": _ensemble(graph),
        **live_parts(pipeline, graph, snapshot, wanted, counts, diverged),
        "sources": _sources(snapshot, wanted),
        "warnings": [
            {"path": item.path[:SHORT_MAX], "message": item.message[:MESSAGE_MAX]}
            for item in warnings[:WARNINGS_MAX]
        ],
    }
    return {key: value for key, value in status.items() if value not in ([], {}, "")}


def _counts(snapshot: Snapshot, wanted: str) -> dict[str, int]:
    pods = [pod for pod in snapshot.pods if not pod.deleting]
    return {
        "replicas": len(pods),
        "readyReplicas": sum(pod.ready for pod in pods),
        "updatedReplicas": sum(pod.revision == wanted for pod in pods),
    }


def conditions_of(
    pipeline: InferencePipeline,
    graph: Graph,
    snapshot: Snapshot,
    rollout: Rollout,
    wanted: str,
    problems: Sequence[Problem],
    number: Replicas,
) -> list[Condition]:
    """Return the conditions of serving, ``Ready`` first. The first case that applies decides."""
    serving = [pod for pod in snapshot.pods if pod.serving]
    if pipeline.spec.suspend is Switch.ENABLED:
        return _suspended(snapshot, serving)
    updated = [pod for pod in serving if pod.revision == wanted]
    probed = pipeline.spec.health.inference is InferenceHealth.AUTO and not probe_blocker(
        pipeline, graph
    )
    mine = {pod.name for pod in snapshot.pods if pod.revision == wanted}
    case = _Case(
        snapshot=snapshot,
        rollout=rollout,
        wanted=wanted,
        number=number,
        updated=updated,
        unverified=[pod for pod in updated if _unproven(snapshot.probes.get(pod.uid), probed)],
        leading=worst([problem for problem in problems if problem.pod in mine]),
        overdue=deadline_exceeded(wanted, snapshot, problems),
        available=_available(serving, snapshot),
        models=_models(snapshot, wanted, updated, problems, number.number),
    )
    for conditions in (_rolled_back, _failed, _scaled_to_zero, _inference_failed, _served):
        found = conditions(case)
        if found is not None:
            return found
    return _progressing(case)


@dataclass(frozen=True, slots=True)
class _Case:
    """What the conditions of serving are decided from."""

    snapshot: Snapshot
    rollout: Rollout
    wanted: str
    """The desired revision."""
    number: Replicas
    updated: list[Pod]
    """Pods of the desired revision that serve."""
    unverified: list[Pod]
    """Those of them whose test inference has not succeeded yet."""
    leading: Problem | None
    """The worst problem of the desired revision's pods."""
    overdue: tuple[Reason, str] | None
    """Why the progress deadline passed; ``None`` while it has not."""
    available: Condition
    models: Condition

    @property
    def replicas(self) -> int:
        return self.number.number

    @property
    def rest(self) -> list[Pod]:
        """Pods of other revisions that are not being deleted."""
        return [
            pod for pod in self.snapshot.pods if pod.revision != self.wanted and not pod.deleting
        ]

    @property
    def surplus(self) -> int:
        """How many pods there are beyond the desired number."""
        return sum(not pod.deleting for pod in self.snapshot.pods) - self.replicas

    @property
    def progress(self) -> str:
        return f"{len(self.updated)} of {self.replicas} pods serve revision {self.wanted}"

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


def _suspended(snapshot: Snapshot, serving: Sequence[Pod]) -> list[Condition]:
    staying = sum(not pod.deleting for pod in snapshot.pods)
    if staying:
        return _leaving(
            f"being suspended: {staying} pods have to go", _available(serving, snapshot)
        )
    text = "suspended: no pods, everything else is kept; set suspend to Disabled to serve"
    return [
        Condition(ConditionType.READY, True, Reason.SUSPENDED, text),
        Condition(ConditionType.AVAILABLE, False, Reason.SUSPENDED, text),
    ]


def _rolled_back(case: _Case) -> list[Condition] | None:
    """Another revision than the desired one is to run."""
    target, state = case.rollout.target, case.rollout.state
    if target == case.wanted:
        return None
    why = Reason(state.failed_reason)
    text = (
        f"revision {case.wanted} failed and revision {target} was taken back ({why.value}):"
        f" {state.failed_message};"
        " it is tried again when the spec changes"
    )
    if why is Reason.SLO_VIOLATED:
        text = (
            f"revision {case.wanted} serves, but breaks the SLO that revision {target} kept,"
            " which is taken back:"
            f" {state.failed_message}; it is tried again when the spec changes"
        )
    return case.not_ready(ConditionType.STALLED, Reason.ROLLED_BACK, text)


def _failed(case: _Case) -> list[Condition] | None:
    """Some pods of the desired revision cannot come to serve."""
    failure, leading = case.overdue, case.leading
    if leading is not None and leading.final:
        failure = (leading.reason, leading.message)
    if failure is None or len(case.updated) >= case.replicas:
        return None
    text = f"{case.progress}; {failure[1]}"
    if case.available.status:
        text += f"; revision {_serving_revision(case.snapshot.pods, '')} keeps serving"
    return case.not_ready(ConditionType.STALLED, failure[0], text)


def _scaled_to_zero(case: _Case) -> list[Condition] | None:
    if case.replicas == 0 and all(pod.deleting for pod in case.snapshot.pods):
        return case.ready("replicas is 0: no pods are wanted")
    return None


def _inference_failed(case: _Case) -> list[Condition] | None:
    leading = case.leading
    if leading is None or leading.reason is not Reason.INFERENCE_FAILED:
        return None
    return case.not_ready(ConditionType.RECONCILING, leading.reason, leading.message)


def _served(case: _Case) -> list[Condition] | None:
    """The desired revision serves, and no other."""
    if case.rest or case.snapshot.deployed_revision() != case.wanted:
        return None
    verified = len(case.updated) - len(case.unverified)
    if case.number.floating and verified >= min(case.number.least, case.replicas):
        # Pods that scaling adds or removes are not a rollout.
        leading = case.leading
        return case.ready(f"{case.progress}; {leading.message}" if leading else case.progress)
    if len(case.updated) >= case.replicas and not case.unverified and case.surplus <= 0:
        return case.ready(case.progress)
    return None


def _progressing(case: _Case) -> list[Condition]:
    reason, text = _waiting_for(case)
    if case.rollout.gap:
        text += f"; {case.rollout.gap}"
    return case.not_ready(ConditionType.RECONCILING, reason, text)


def _waiting_for(case: _Case) -> tuple[Reason, str]:
    """Return what a rollout waits for."""
    leading, progress = case.leading, case.progress
    complete = len(case.updated) >= case.replicas
    if leading is None and complete and case.unverified and not case.rest:
        probes = (case.snapshot.probes.get(pod.uid) for pod in case.unverified)
        error = next((probe.error for probe in probes if probe is not None and probe.error), "")
        return Reason.PROGRESSING, (
            f"{progress}; waiting for a test inference on {len(case.unverified)} of them"
            f"{f': {error}' if error else ''}"
        )
    if leading is None and case.surplus > 0 and not case.rest:
        return Reason.DRAINING, f"{progress}; {case.surplus} pods more than that have to go"
    if leading is None and case.rest and complete:
        return (
            Reason.DRAINING,
            f"{progress}; {len(case.rest)} pods of older revisions are leaving",
        )
    refused = case.snapshot.pods_refused
    if (
        refused
        and not complete
        and (leading is None or leading.reason in (Reason.LOADING, Reason.PROGRESSING))
    ):
        # There is no pod to report a problem, or the existing ones are making progress.
        return Reason.API_ERROR, f"{progress}; the API server takes no further pod: {refused}"
    if leading is not None:
        return leading.reason, f"{progress}; {leading.message}"
    return Reason.PROGRESSING, progress


def _unproven(probe: Probe | None, asked: bool) -> bool:
    """Return whether a ready pod still has to be verified.

    It could not be probed, or has not run a test inference yet.
    """
    if probe is None:
        return asked
    return bool(probe.error) or (asked and probe.inference_error is None)


def _leaving(text: str, available: Condition) -> list[Condition]:
    """Return the conditions while pods that are no longer desired still exist."""
    return [
        Condition(ConditionType.READY, False, Reason.DRAINING, text),
        available,
        Condition(ConditionType.RECONCILING, True, Reason.DRAINING, text),
    ]


def _available(serving: Sequence[Pod], snapshot: Snapshot) -> Condition:
    """Return the Available condition: whether some revision answers requests."""
    failing = [
        pod for pod in serving if (probe := snapshot.probes.get(pod.uid)) and probe.inference_error
    ]
    if serving and len(failing) < len(serving):
        revisions = ", ".join(sorted({pod.revision for pod in serving}))
        number = len(serving) - len(failing)
        text = (
            f"{number} pod{'s answer' if number > 1 else ' answers'} requests"
            f" (revision {revisions})"
        )
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
    wanted: str,
    updated: Sequence[Pod],
    problems: Sequence[Problem],
    replicas: int,
) -> Condition:
    pods = [pod for pod in snapshot.pods if pod.revision == wanted and not pod.deleting]
    mine = [
        item
        for item in problems
        if item.pod in {pod.name for pod in pods} and item.reason is not Reason.INFERENCE_FAILED
    ]
    leading = worst(mine)
    if pods and len(updated) == len(pods) >= replicas:
        return Condition(
            ConditionType.MODELS_READY,
            True,
            Reason.SUCCEEDED,
            f"all models are ready in {len(pods)} of {len(pods)} pods",
        )
    told = (
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
    if leading is not None and leading.reason in told:
        return Condition(
            ConditionType.MODELS_READY,
            False,
            leading.reason,
            f"{len(updated)} of {len(pods)} pods; {leading.message}",
        )
    text = f"{len(updated)} of {len(pods)} pods of revision {wanted} have all models ready"
    return Condition(ConditionType.MODELS_READY, None, Reason.WAITING_FOR_PODS, text)


def _serving_revision(pods: Sequence[Pod], preferred: str) -> str:
    revisions = [pod.revision for pod in pods if pod.serving]
    if preferred in revisions:
        return preferred
    return max(set(revisions), key=lambda item: (revisions.count(item), item)) if revisions else ""


def _endpoints(pipeline: InferencePipeline) -> dict[str, str]:
    host = f"{pipeline.name}.{pipeline.namespace}.{CLUSTER_SUFFIX}"
    return {
        "http": f"http://{host}:{names.PORT_HTTP}",
        "grpc": f"{host}:{names.PORT_GRPC}",
        "metrics": f"http://{host}:{names.PORT_METRICS}/metrics",
    }


def _tensor(tensor: Tensor, graph: Graph) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dataType": wire_type(tensor.data_type),
        "shape": list(public_shape(tensor, graph)),
        **({"optional": Switch.ENABLED.value} if tensor.name in graph.optional_inputs else {}),
    }


def _ensemble(graph: Graph) -> dict[str, Any]:
    return {
        "modelName": graph.model_name,
        "inputs": [_tensor(tensor, graph) for tensor in graph.inputs],
        "outputs": [_tensor(output.tensor, graph) for output in graph.outputs],
    }


def _sources(snapshot: Snapshot, wanted: str) -> list[dict[str, str]]:
    for pod in snapshot.pods:
        report = pod.load_report() if pod.revision == wanted else None
        if report is not None and report.ok:
            return [
                {
                    # A step with several sources has an entry for each, such as model.code.
                    "step": item.key,
                    "uri": item.uri[:URI_MAX],
                    **(
                        {"resolvedRevision": item.resolved_revision[:SHORT_MAX]}
                        if item.resolved_revision
                        else {}
                    ),
                    **({"sha256": item.sha256} if item.sha256 else {}),
                }
                for item in report.sources
            ]
    return (
        list(snapshot.status.get("sources") or ())
        if snapshot.status.get("revision") == wanted
        else []
    )


def kind_of(status: Mapping[str, Any]) -> ReasonKind:
    """Return the kind of the Ready condition's reason."""
    for item in status.get("conditions") or ():
        if item.get("type") == ConditionType.READY:
            return KIND_OF[Reason(item["reason"])]
    return ReasonKind.WAITING
