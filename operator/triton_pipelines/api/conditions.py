"""Conditions of the resource, the closed list of their reasons, and what each reason means for waiting and retrying.

Shape and meaning follow kstatus (``Ready`` plus abnormal-true ``Reconciling`` and ``Stalled``), so that kubectl wait, Helm, Flux and
Argo CD work unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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


class Kind(StrEnum):
    """What a reason asks of the controller."""

    FINE = "Fine"
    WAITING = "Waiting"  # something outside is not there yet: watch, poll slowly
    STALLED = "Stalled"  # only a change of the spec (or of what it names) helps
    TRANSIENT = "Transient"  # try again with growing pauses


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
    DRAINING = "Draining"
    WAITING_FOR_GPU = "WaitingForGPU"
    WAITING_FOR_RESOURCES = "WaitingForResources"
    WAITING_FOR_PODS = "WaitingForPods"
    LOADING = "Loading"
    SOURCE_UNAVAILABLE = "SourceUnavailable"
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
    NO_SPACE = "NoSpace"
    SERVER_CRASHED = "ServerCrashed"
    ACTUATION_FAILED = "ActuationFailed"
    INTERNAL_ERROR = "InternalError"


KIND_OF: Mapping[Reason, Kind] = {
    Reason.SUCCEEDED: Kind.FINE,
    Reason.SERVING: Kind.FINE,
    Reason.SUSPENDED: Kind.FINE,
    Reason.ADVISORY: Kind.FINE,
    Reason.BOUNDS_REACHED: Kind.FINE,
    Reason.TOKENIZER_BOUND: Kind.FINE,
    Reason.STEP_BOUND: Kind.FINE,
    Reason.CPU_BOUND: Kind.FINE,
    Reason.GPU_BOUND: Kind.FINE,
    Reason.CPU_CONTENDED: Kind.FINE,
    Reason.NO_PROGRESS: Kind.FINE,
    Reason.BATCHING_INEFFECTIVE: Kind.FINE,
    Reason.REPLICAS_OWNER_CONFLICT: Kind.WAITING,
    Reason.CPU_OWNER_CONFLICT: Kind.WAITING,
    Reason.METRICS_MISSING: Kind.WAITING,
    Reason.METRICS_STALE: Kind.WAITING,
    Reason.METRICS_PARTIAL: Kind.WAITING,
    Reason.PROMETHEUS_ERROR: Kind.WAITING,
    Reason.ACTUATION_FAILED: Kind.TRANSIENT,
    Reason.PROGRESSING: Kind.WAITING,
    Reason.DRAINING: Kind.WAITING,
    Reason.WAITING_FOR_GPU: Kind.WAITING,
    Reason.WAITING_FOR_RESOURCES: Kind.WAITING,
    Reason.WAITING_FOR_PODS: Kind.WAITING,
    Reason.LOADING: Kind.WAITING,
    Reason.SOURCE_UNAVAILABLE: Kind.WAITING,
    Reason.IMAGE_UNAVAILABLE: Kind.WAITING,
    Reason.NO_PODS: Kind.WAITING,
    Reason.PAUSED: Kind.WAITING,
    Reason.INVALID_SPEC: Kind.STALLED,
    Reason.ROLLOUT_FAILED: Kind.STALLED,
    Reason.ROLLED_BACK: Kind.STALLED,
    Reason.SLO_VIOLATED: Kind.STALLED,
    Reason.TUNING_STALE: Kind.STALLED,
    Reason.MODEL_MISMATCH: Kind.STALLED,
    Reason.SOURCE_CHANGED: Kind.STALLED,
    Reason.CHECKSUM_MISMATCH: Kind.STALLED,
    Reason.INVALID_TOKENIZER: Kind.STALLED,
    Reason.RAGGED_UNSUPPORTED: Kind.STALLED,
    Reason.MODEL_FAILED: Kind.STALLED,
    Reason.NAME_CONFLICT: Kind.STALLED,
    Reason.INFERENCE_FAILED: Kind.TRANSIENT,
    Reason.API_ERROR: Kind.TRANSIENT,
    Reason.NO_SPACE: Kind.TRANSIENT,
    Reason.SERVER_CRASHED: Kind.TRANSIENT,
    Reason.INTERNAL_ERROR: Kind.TRANSIENT,
}

MESSAGE_MAX = 4096


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as decided, without its times."""

    type: ConditionType
    status: bool | None
    reason: Reason
    message: str


def merge(
    previous: Iterable[Mapping[str, Any]], decided: Iterable[Condition], generation: int, now: str
) -> list[dict[str, Any]]:
    """The conditions to write: ``lastTransitionTime`` moves only with the status value.

    ``previous`` is ``status.conditions`` as observed, ``now`` an RFC 3339 time. Abnormal-true conditions that are not true are left out.
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
                "message": condition.message[:MESSAGE_MAX],
                "observedGeneration": generation,
                "lastTransitionTime": old.get("lastTransitionTime", now)
                if old.get("status") == status
                else now,
            }
        )
    return result
