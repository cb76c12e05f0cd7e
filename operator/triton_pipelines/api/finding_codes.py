"""The machine-readable codes of findings.

A program that reacts to a finding reads its code and its path, never its message. Errors of the
same kind share a code; every warning has a code of its own. A finding about something that Triton
would reject in a rendered model repository has the id of the violated rule instead
(:class:`triton_pipelines.compile.validation.RuleId`).
"""

from __future__ import annotations

from enum import StrEnum


class FindingCode(StrEnum):
    """What kind of problem a finding reports."""

    # --- errors: one field ---
    REQUIRED = "required"
    UNKNOWN_FIELD = "unknown-field"
    WRONG_TYPE = "wrong-type"
    INVALID_FORMAT = "invalid-format"
    VALUE_NOT_ALLOWED = "value-not-allowed"
    OUT_OF_RANGE = "out-of-range"
    WRONG_LENGTH = "wrong-length"
    DUPLICATE = "duplicate"
    TOO_LARGE = "too-large"

    # --- errors: fields that exclude or need each other ---
    FIELD_COMBINATION = "field-combination"
    RESERVED = "reserved"
    """The operator sets this itself."""
    FORBIDDEN = "forbidden-by-operator"
    """The operator's own configuration forbids this."""
    UNSUPPORTED_RELEASE = "unsupported-release"
    """The Triton release does not have this."""

    # --- errors: steps and tensors ---
    UNKNOWN_STEP = "unknown-step"
    UNKNOWN_TENSOR = "unknown-tensor"
    UNKNOWN_PROFILE = "unknown-profile"
    UNKNOWN_VOLUME = "unknown-volume"
    NOT_CONNECTED = "not-connected"
    UNUSED = "unused"
    CYCLE = "cycle"
    DATA_TYPE_MISMATCH = "data-type-mismatch"
    SHAPE_MISMATCH = "shape-mismatch"
    OPTIONAL_MISMATCH = "optional-mismatch"
    """A required input reads one that requests may omit."""
    BATCH_SIZE_MISMATCH = "batch-size-mismatch"
    LABEL_COUNT = "label-count"
    LENGTH_NOT_COVERED = "length-not-covered"
    PADDING_UNSUPPORTED = "padding-unsupported"
    NOT_SCALABLE = "not-scalable"
    GPU_UNAVAILABLE = "gpu-unavailable"
    INVALID_EXAMPLE = "invalid-example"

    # --- errors: sources and files ---
    INVALID_SOURCE = "invalid-source"
    CREDENTIALS_IN_URI = "credentials-in-uri"
    VERSION_MISMATCH = "version-mismatch"
    FILE_CONFLICT = "file-conflict"

    # --- errors: defects of the operator ---
    RENDER_FAILED = "render-failed"

    # --- warnings: batching, padding and latency ---
    LATENCY_BUDGET_EXHAUSTED = "latency-budget-exhausted"
    BATCHING_DISABLED = "batching-disabled"
    DELAY_EXCEEDS_BUDGET = "delay-exceeds-budget"
    QUEUE_UNBOUNDED = "queue-unbounded"
    PADDING_PREVENTS_BATCHING = "padding-prevents-batching"
    PADDING_COSTS_COMPUTE = "padding-costs-compute"
    SHAPES_PREVENT_BATCHING = "shapes-prevent-batching"
    LENGTH_OUT_OF_RANGE = "length-out-of-range"
    BATCH_STRATEGY_NEEDS_DELAY = "batch-strategy-needs-delay"

    # --- warnings: tensors ---
    ALL_INPUTS_OPTIONAL = "all-inputs-optional"

    # --- warnings: names and sources ---
    SOURCE_PLACEHOLDER = "source-placeholder"
    TORCHSCRIPT_NAMES = "torchscript-names"
    NAME_NEEDS_ESCAPING = "name-needs-escaping"
    DUPLICATE_LABEL = "duplicate-label"

    # --- warnings: instances, GPUs and pods ---
    IDLE_CORES = "idle-cores"
    GPU_INSTANCES_OF_PYTHON = "gpu-instances-of-python"
    UNUSED_GPU = "unused-gpu"
    PLAN_NEEDS_GPU_PRODUCT = "plan-needs-gpu-product"
    PLAN_NEEDS_IMAGE = "plan-needs-image"
    REPLICAS_IGNORED = "replicas-ignored"
    POD_SCALING_WITHOUT_STEP = "pod-scaling-without-step"
    POD_SCALING_DISABLED = "pod-scaling-disabled"
    CPU_RESIZE_BLOCKED = "cpu-resize-blocked"

    # --- warnings: the server ---
    SERVER_ADVISORY = "server-advisory"
    """NVIDIA's security bulletins name the Triton release."""
    FATAL_REQUEST = "fatal-request"
    """A client's request can end a server of this release."""

    SERVER_CERTIFICATE_EXPIRES = "server-certificate-expires"

    # --- warnings: clients ---
    DRAIN_TOO_SHORT = "drain-too-short"

    # --- warnings: sequences ---
    SEQUENCES_NEED_AFFINITY = "sequences-need-affinity"
    SEQUENCE_ID_UNSUPPORTED = "sequence-id-unsupported"
    SEQUENCE_STATE_NOT_STORED = "sequence-state-not-stored"

    # --- warnings and errors: fields without effect ---
    NO_EFFECT = "no-effect"
    INFERENCE_PROBE_UNAVAILABLE = "inference-probe-unavailable"

    # --- warnings: custom code ---
    CUSTOM_CODE = "custom-code"
    """Triton cannot load or run the inline code."""

    # --- warnings: what running pods and the cluster report ---
    LOADER_WARNING = "loader-warning"
    """The loader of a pod reports it, with a reason of its own in the message."""
    OUTPUT_MISMATCH = "output-mismatch"
    LATENCY_UNKNOWN = "latency-unknown"
    TUNING_STALE = "tuning-stale"
    MONITORING_NOT_APPLIED = "monitoring-not-applied"
    """A PodMonitor or PrometheusRule cannot be applied."""
    OBJECT_CONFLICT = "object-conflict"
    """Another field manager changes an object of the pipeline again after each correction."""
