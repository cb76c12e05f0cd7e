"""Compute the status of a pipeline from the snapshot and the decisions. Pure.

The clock is passed in.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
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
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import numbered
from triton_pipelines.cluster.diff import covers, needs_apply
from triton_pipelines.compile.graph.example_request import public_shape, wire_type
from triton_pipelines.compile.graph.graph import Graph, Tensor
from triton_pipelines.controllers.timestamps import rfc3339
from triton_pipelines.redaction import redact_url

from .foreign_status import LIST_KEYS, foreign_fields
from .pod_problems import Problem
from .policies.cpu_resize import CpuResizeDecision
from .policies.replicas import Replicas
from .policies.rollout import Rollout
from .serving_conditions import available, conditions_of, serving_revision
from .snapshot import Snapshot
from .step_status import kept_conditions, live_conditions, live_fields

WARNINGS_MAX = 20
# Longest short string of the schema: messages of pods are not trusted.
SHORT_MAX = 512
# The same of a URI; masking the secrets in one may make it longer than it was written.
URI_MAX = 1024
CLUSTER_SUFFIX = "svc"
_LIST_KEYS = {name: (key,) for name, key in LIST_KEYS.items()}


def differs(pipeline: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Return whether writing a status would change anything.

    It would if the object lacks a field of it, still has a field of the previous one, or has
    :func:`~.foreign_status.foreign_fields`.
    """
    before = dict(pipeline.get("status") or {})
    if pipeline["metadata"].get("managedFields"):
        live = {"metadata": pipeline["metadata"], "status": before}
        return bool(
            foreign_fields(before, status)
            or needs_apply(
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
    is_available = available([pod for pod in snapshot.pods if pod.serving], snapshot)
    conditions = [
        Condition(ConditionType.READY, False, reason, message),
        is_available,
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
        "observedGeneration": snapshot.generation if final else _reported_generation(snapshot),
        "conditions": [*merge(previous, conditions, snapshot.generation, rfc3339(now)), *models],
        **_counts(snapshot, str(snapshot.status.get("revision", ""))),
    }


def _reported_generation(snapshot: Snapshot) -> int:
    """Return the generation that the status reports; 0 if no such one has been."""
    reported = int(snapshot.status.get("observedGeneration") or 0)
    return reported if reported <= snapshot.generation else 0


def _listed(findings: Sequence[Finding]) -> str:
    if len(findings) == 1:
        return str(findings[0])
    text = numbered([str(finding) for finding in findings])
    return f"{len(findings)} findings: {text}"[:MESSAGE_MAX]


def compute(
    pipeline: InferencePipeline,
    graph: Graph,
    snapshot: Snapshot,
    rollout: Rollout,
    desired: str,
    warnings: Sequence[Finding],
    problems: Sequence[Problem],
    counts: Mapping[str, int],
    diverged: Mapping[str, str],
    number: Replicas,
    now: dt.datetime,
    cpu: CpuResizeDecision,
) -> dict[str, Any]:
    """Return the whole status of a resource that is acted on."""
    conditions = conditions_of(pipeline, graph, snapshot, rollout, desired, problems, number)
    conditions += live_conditions(pipeline, graph, snapshot, number, cpu)
    settled = any(item.type is ConditionType.STALLED and item.status for item in conditions) or (
        conditions[0].type is ConditionType.READY and conditions[0].status is True
    )
    generation = snapshot.generation
    status: dict[str, Any] = {
        "observedGeneration": generation if settled else _reported_generation(snapshot),
        "conditions": [
            *merge(snapshot.status.get("conditions") or (), conditions, generation, rfc3339(now)),
            *kept_conditions(pipeline, graph, snapshot, {item.type.value for item in conditions}),
        ],
        "revision": desired,
        "servingRevision": serving_revision(snapshot.pods, rollout.target),
        **_counts(snapshot, desired),
        "selector": ",".join(
            f"{key}={value}" for key, value in names.selector(pipeline.name).items()
        ),
        "endpoints": _endpoints(pipeline),
        "ensemble": _ensemble(graph),
        **live_fields(pipeline, graph, snapshot, desired, counts, diverged),
        "sources": _sources(graph, snapshot, desired),
        "warnings": [
            {"path": item.path[:SHORT_MAX], "message": redact_url(item.message)[:MESSAGE_MAX]}
            for item in warnings[:WARNINGS_MAX]
        ],
    }
    return {key: value for key, value in status.items() if value not in ([], {}, "")}


def _counts(snapshot: Snapshot, desired: str) -> dict[str, int]:
    pods = [pod for pod in snapshot.pods if not pod.deleting]
    return {
        "replicas": len(pods),
        "readyReplicas": sum(pod.ready for pod in pods),
        "updatedReplicas": sum(pod.revision == desired for pod in pods),
    }


def _endpoints(pipeline: InferencePipeline) -> dict[str, str]:
    host = f"{pipeline.name}.{pipeline.namespace}.{CLUSTER_SUFFIX}"
    plaintext = pipeline.spec.server.tls is None
    return {
        **({"http": f"http://{host}:{names.PORT_HTTP}"} if plaintext else {}),
        "grpc": f"{host}:{names.PORT_GRPC}",
        "metrics": f"http://{host}:{names.PORT_METRICS}/metrics",
    }


def _tensor(tensor: Tensor, graph: Graph) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dataType": wire_type(tensor.data_type),
        "shape": list(public_shape(tensor, graph)),
    }


def _ensemble(graph: Graph) -> dict[str, Any]:
    return {
        "modelName": graph.model_name,
        "inputs": [
            _tensor(tensor, graph)
            | ({"optional": Switch.ENABLED.value} if tensor.name in graph.optional_inputs else {})
            for tensor in graph.inputs
        ],
        "outputs": [_tensor(output.tensor, graph) for output in graph.outputs],
    }


def _sources(graph: Graph, snapshot: Snapshot, desired: str) -> list[dict[str, str]]:
    """Return what the sources resolved to; until a pod reports it, what the status reports."""
    for pod in snapshot.pods:
        report = pod.load_report() if pod.revision == desired else None
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
    if snapshot.status.get("revision") != desired:
        return []
    keys = {fetch.key for fetch in graph.fetches}
    return [item for item in snapshot.status.get("sources") or () if item.get("step") in keys]
