"""Conditions of the resource and the closed list of their reasons.

Shape and meaning follow kstatus (``Ready`` plus abnormal-true ``Reconciling`` and ``Stalled``), so
that kubectl wait, Helm, Flux and Argo CD work unchanged.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from triton_pipelines.redaction import redact_url


class ConditionType(StrEnum):
    """Types of conditions."""

    READY = "Ready"
    AVAILABLE = "Available"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    MODELS_READY = "ModelsReady"
    METRICS_AVAILABLE = "MetricsAvailable"
    SCALING_ACTIVE = "ScalingActive"
    SCALING_LIMITED = "ScalingLimited"


# Abnormal-true conditions exist only while they are true.
ABNORMAL = frozenset(
    {ConditionType.RECONCILING, ConditionType.STALLED, ConditionType.SCALING_LIMITED}
)


class ReasonKind(StrEnum):
    """How the controller reacts to a reason."""

    FINE = "Fine"
    WAITING = "Waiting"  # something external is missing: watch it, poll slowly
    STALLED = "Stalled"  # only a change of the spec, or of an object it names, helps
    TRANSIENT = "Transient"  # retry with exponential back-off


class Reason(StrEnum):
    """Why a condition has its value. One reason per cause."""

    # fine
    SUCCEEDED = "Succeeded"
    SERVING = "Serving"
    SUSPENDED = "Suspended"
    ADVISORY = "Advisory"
    BOUNDS_REACHED = "BoundsReached"
    TOKENIZER_BOUND = "TokenizerBound"
    STEP_BOUND = "StepBound"
    CPU_BOUND = "CPUBound"
    GPU_BOUND = "GPUBound"
    CPU_CONTENDED = "CPUContended"
    NO_PROGRESS = "NoProgress"
    BATCHING_INEFFECTIVE = "BatchingIneffective"
    REPLICAS_OWNER_CONFLICT = "ReplicasOwnerConflict"
    CPU_OWNER_CONFLICT = "CPUOwnerConflict"
    # waiting
    METRICS_MISSING = "MetricsMissing"
    METRICS_STALE = "MetricsStale"
    METRICS_PARTIAL = "MetricsPartial"
    PROMETHEUS_ERROR = "PrometheusError"
    PROGRESSING = "Progressing"
    PREFLIGHT = "Preflight"
    DRAINING = "Draining"
    WAITING_FOR_GPU = "WaitingForGPU"
    WAITING_FOR_RESOURCES = "WaitingForResources"
    WAITING_FOR_PODS = "WaitingForPods"
    LOADING = "Loading"
    SOURCE_UNAVAILABLE = "SourceUnavailable"
    INVALID_CERTIFICATE = "InvalidCertificate"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    NO_PODS = "NoPods"
    PAUSED = "Paused"
    # stalled
    INVALID_SPEC = "InvalidSpec"
    ROLLOUT_FAILED = "RolloutFailed"
    ROLLED_BACK = "RolledBack"
    SLO_VIOLATED = "SLOViolated"
    TUNING_STALE = "TuningStale"
    MODEL_MISMATCH = "ModelMismatch"
    SOURCE_CHANGED = "SourceChanged"
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    INVALID_TOKENIZER = "InvalidTokenizer"
    RAGGED_UNSUPPORTED = "RaggedUnsupported"
    MODEL_FAILED = "ModelFailed"
    NAME_CONFLICT = "NameConflict"
    # transient
    INFERENCE_FAILED = "InferenceFailed"
    API_ERROR = "APIError"
    PERMISSION_DENIED = "PermissionDenied"
    NO_SPACE = "NoSpace"
    SERVER_CRASHED = "ServerCrashed"
    ACTUATION_FAILED = "ActuationFailed"
    INTERNAL_ERROR = "InternalError"


KIND_OF: Mapping[Reason, ReasonKind] = {
    Reason.SUCCEEDED: ReasonKind.FINE,
    Reason.SERVING: ReasonKind.FINE,
    Reason.SUSPENDED: ReasonKind.FINE,
    Reason.ADVISORY: ReasonKind.FINE,
    Reason.BOUNDS_REACHED: ReasonKind.FINE,
    Reason.TOKENIZER_BOUND: ReasonKind.FINE,
    Reason.STEP_BOUND: ReasonKind.FINE,
    Reason.CPU_BOUND: ReasonKind.FINE,
    Reason.GPU_BOUND: ReasonKind.FINE,
    Reason.CPU_CONTENDED: ReasonKind.FINE,
    Reason.NO_PROGRESS: ReasonKind.FINE,
    Reason.BATCHING_INEFFECTIVE: ReasonKind.FINE,
    Reason.REPLICAS_OWNER_CONFLICT: ReasonKind.WAITING,
    Reason.CPU_OWNER_CONFLICT: ReasonKind.WAITING,
    Reason.METRICS_MISSING: ReasonKind.WAITING,
    Reason.METRICS_STALE: ReasonKind.WAITING,
    Reason.METRICS_PARTIAL: ReasonKind.WAITING,
    Reason.PROMETHEUS_ERROR: ReasonKind.WAITING,
    Reason.ACTUATION_FAILED: ReasonKind.TRANSIENT,
    Reason.PROGRESSING: ReasonKind.WAITING,
    Reason.PREFLIGHT: ReasonKind.WAITING,
    Reason.DRAINING: ReasonKind.WAITING,
    Reason.WAITING_FOR_GPU: ReasonKind.WAITING,
    Reason.WAITING_FOR_RESOURCES: ReasonKind.WAITING,
    Reason.WAITING_FOR_PODS: ReasonKind.WAITING,
    Reason.LOADING: ReasonKind.WAITING,
    Reason.SOURCE_UNAVAILABLE: ReasonKind.WAITING,
    Reason.INVALID_CERTIFICATE: ReasonKind.WAITING,
    Reason.IMAGE_UNAVAILABLE: ReasonKind.WAITING,
    Reason.NO_PODS: ReasonKind.WAITING,
    Reason.PAUSED: ReasonKind.WAITING,
    Reason.INVALID_SPEC: ReasonKind.STALLED,
    Reason.ROLLOUT_FAILED: ReasonKind.STALLED,
    Reason.ROLLED_BACK: ReasonKind.STALLED,
    Reason.SLO_VIOLATED: ReasonKind.STALLED,
    Reason.TUNING_STALE: ReasonKind.STALLED,
    Reason.MODEL_MISMATCH: ReasonKind.STALLED,
    Reason.SOURCE_CHANGED: ReasonKind.STALLED,
    Reason.CHECKSUM_MISMATCH: ReasonKind.STALLED,
    Reason.INVALID_TOKENIZER: ReasonKind.STALLED,
    Reason.RAGGED_UNSUPPORTED: ReasonKind.STALLED,
    Reason.MODEL_FAILED: ReasonKind.STALLED,
    Reason.NAME_CONFLICT: ReasonKind.STALLED,
    Reason.INFERENCE_FAILED: ReasonKind.TRANSIENT,
    Reason.API_ERROR: ReasonKind.TRANSIENT,
    Reason.PERMISSION_DENIED: ReasonKind.TRANSIENT,
    Reason.NO_SPACE: ReasonKind.TRANSIENT,
    Reason.SERVER_CRASHED: ReasonKind.TRANSIENT,
    Reason.INTERNAL_ERROR: ReasonKind.TRANSIENT,
}

MESSAGE_MAX = 4096
# How far the clocks of two operator processes may differ.
CLOCK_SKEW: Final = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition to report, without its times."""

    type: ConditionType
    """Type of the condition."""
    status: bool | None
    """Its status; ``None`` for ``Unknown``."""
    reason: Reason
    """Reason of the status, in one word."""
    message: str
    """Explanation for people."""


def condition_of(status: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any]:
    """Return the condition of a type in a status, as reported; an empty one if there is none.

    Args:
        status: The status of any Kubernetes object; ``None`` without one.
        kind: Type of the condition, such as ``Ready``.
    """
    conditions = (status or {}).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == kind), {})


def merge(
    previous: Iterable[Mapping[str, Any]], decided: Iterable[Condition], generation: int, now: str
) -> list[dict[str, Any]]:
    """Return the conditions to write.

    ``lastTransitionTime`` changes only with the status value, and if it is in the future, as only
    other field managers report it. Abnormal-true conditions that are not true are left out.

    Args:
        previous: ``status.conditions`` as observed.
        decided: The conditions to report.
        generation: Generation of the spec that they describe.
        now: The current time, RFC 3339.
    """
    before = {condition.get("type"): condition for condition in previous}
    result = []
    for condition in decided:
        if condition.type in ABNORMAL and condition.status is not True:
            continue
        status = {True: "True", False: "False", None: "Unknown"}[condition.status]
        old = before.get(condition.type.value, {})
        result.append(
            {
                "type": condition.type.value,
                "status": status,
                "reason": condition.reason.value,
                "message": redact_url(condition.message)[:MESSAGE_MAX],
                "observedGeneration": generation,
                "lastTransitionTime": _transition(old, now) if old.get("status") == status else now,
            }
        )
    return result


def _transition(condition: Mapping[str, Any], now: str) -> str:
    """Return when a condition got its status: as it reports, unless that is not a past time."""
    reported = str(condition.get("lastTransitionTime") or "")
    try:
        ahead = dt.datetime.fromisoformat(reported) - dt.datetime.fromisoformat(now)
    except (ValueError, TypeError, OverflowError):
        return now
    return now if ahead > CLOCK_SKEW else reported
