"""Violations and the ids of the violated rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from triton_pipelines.api.wording import first_of


class RuleId(StrEnum):
    """Ids of rules, grouped by the modules that check them.

    Those of ``stricter_rules.LIMITS`` are this project's own, the others Triton's.
    """

    # models.py
    MODEL_NAME = "model-name"
    DIRECTORY_NAME = "directory-name"
    BACKEND = "backend"
    BACKEND_PLATFORM = "backend-platform"
    BACKEND_UNKNOWN = "backend-unknown"
    RUNTIME = "runtime"
    MAX_BATCH_SIZE = "max-batch-size"
    VERSION_POLICY = "version-policy"
    FIELD_VERSION = "field-version"
    METRICS = "metrics"
    METRIC_TAG = "metric-tag"
    RESPONSE_CACHE = "response-cache"
    BATCH_STRATEGY = "batch-strategy"
    BATCH_STRATEGY_FOLDER = "batch-strategy-folder"
    LABELS = "labels"
    LABELS_FOLDER = "labels-folder"
    ENUM_VALUE = "enum-value"
    # tensors.py
    TENSOR_NAME = "tensor-name"
    TENSOR_NAME_TWICE = "tensor-name-twice"
    DATA_TYPE = "data-type"
    DIMS = "dims"
    DIMS_SIZE = "dims-size"
    RESHAPE = "reshape"
    FORMAT = "format"
    SHAPE_TENSOR = "shape-tensor"
    NON_LINEAR_FORMAT = "non-linear-format"
    BATCH_INPUT = "batch-input"
    BATCH_OUTPUT = "batch-output"
    # batching.py
    PREFERRED_BATCH_SIZE = "preferred-batch-size"
    PRIORITY = "priority"
    PRESERVE_ORDERING = "preserve-ordering"
    # sequences.py
    SEQUENCE_CONTROL = "sequence-control"
    SEQUENCE_CONTROL_TWICE = "sequence-control-twice"
    CORRELATION_ID = "correlation-id"
    SLOT_UTILIZATION = "slot-utilization"
    SEQUENCE_SLOTS = "sequence-slots"
    STATE_TWICE = "state-twice"
    STATE_TENSOR = "state-tensor"
    INITIAL_STATE = "initial-state"
    # instances.py
    INSTANCE_GPUS = "instance-gpus"
    INSTANCE_NO_GPU = "instance-no-gpu"
    INSTANCE_PROFILE = "instance-profile"
    INSTANCE_PROFILE_NUMBER = "instance-profile-number"
    INSTANCE_COUNT = "instance-count"
    RATE_LIMITER = "rate-limiter"
    # warmup.py
    WARMUP = "warmup"
    WARMUP_REQUIRED = "warmup-required"
    WARMUP_SIZE = "warmup-size"
    # flow.py and ensembles.py
    ENSEMBLE_PLATFORM = "ensemble-platform"
    ENSEMBLE_FIELD = "ensemble-field"
    ENSEMBLE_STEP = "ensemble-step"
    TENSOR_WRITTEN_TWICE = "tensor-written-twice"
    TENSOR_INPUT_WRITTEN = "tensor-input-written"
    TENSOR_NOT_WRITTEN = "tensor-not-written"
    TENSOR_UNUSED = "tensor-unused"
    ENSEMBLE_CYCLE = "ensemble-cycle"
    STEP_MODEL = "step-model"
    STEP_VERSION = "step-version"
    STEP_BATCH_SIZE = "step-batch-size"
    STEP_TENSOR = "step-tensor"
    STEP_INPUT_UNMAPPED = "step-input-unmapped"
    STEP_DATA_TYPE = "step-data-type"
    STEP_SHAPE = "step-shape"
    STEP_SHAPE_BETWEEN = "step-shape-between"
    DECOUPLED_JOIN = "decoupled-join"


@dataclass(frozen=True, order=True, slots=True)
class Violation:
    """One reason why a model of a repository would not load."""

    model: str
    """Name of the model (its folder in the repository)."""
    field: str
    """Path in its config; "" for the whole config.

    Such as ``input[0].dims[1]`` or ``ensemble_scheduling.step[1].input_map["x"]``.
    """
    rule: RuleId
    """The broken rule."""
    message: str
    """What is wrong and what to write instead, in one sentence or two."""

    def __str__(self) -> str:
        return (
            f"{self.model}: {self.field}: {self.message}"
            if self.field
            else f"{self.model}: {self.message}"
        )


class ViolationCollector:
    """Collects the violations of one model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.found: list[Violation] = []

    def add(self, field: str, rule: RuleId, message: str) -> None:
        """Add one violation."""
        self.found.append(Violation(self.model, field, rule, message))


def keyed(path: str, key: object) -> str:
    """Return the path of one entry of a map field: ``input_map["x"]``."""
    return f"{path}[{json.dumps(key, ensure_ascii=False)}]"


def listed(words: Iterable[object]) -> str:
    """Return ``a, b, c`` with at most eight words, or ``none`` if there are none."""
    return first_of([str(word) for word in words], 8) or "none"


def shape(dims: Sequence[int]) -> str:
    """Return dims as text: ``[3, -1]``."""
    return "[" + ", ".join(str(dim) for dim in dims) + "]"
