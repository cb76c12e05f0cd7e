"""List the rules that are stricter than Triton, each with its reason.

A differential test compares the validation with a real server. It accepts a difference only under
these rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .violations import RuleId

MAX_ELEMENTS: Final = 2**31
"""Most elements that one tensor of fixed shape may have.

One gRPC message carries at most 2 GiB.
"""
MAX_SLOTS: Final = 65536
"""Most sequences that one instance may hold: Triton creates a queue for each at load."""
MAX_INSTANCES: Final = 1024
"""Most instances of one group: each is a thread or, of a Python model, a process."""
MAX_WARMUP_REQUESTS: Final = 65536
"""Most requests of one warm-up sample.

Triton creates ``batch_size`` requests at once and runs them ``count`` times.
"""


@dataclass(frozen=True, slots=True)
class Limit:
    """One rule of this project that Triton does not have."""

    reason: str
    """What happens if the model is loaded anyway."""
    deadly: bool = False
    """Whether the server may exit, or run out of memory, on loading the model.

    Tests therefore do not load it.
    """


LIMITS: Final[Mapping[RuleId, Limit]] = {
    RuleId.TENSOR_NAME_TWICE: Limit(
        "Triton keeps the first of two tensors with the same name and silently drops the other."
    ),
    RuleId.ENUM_VALUE: Limit(
        "Triton accepts a number that is not a value of the enum, but no backend understands it."
    ),
    RuleId.DIMS_SIZE: Limit(
        "There are more elements than a request can contain; releases before 26.03 "
        "overflow, and later releases reject sizes beyond 64 bits."
    ),
    RuleId.BATCH_STRATEGY_FOLDER: Limit(
        "Triton 26.06 and later reject a library outside the model's directory, so the "
        "model would not survive an upgrade."
    ),
    RuleId.LABELS_FOLDER: Limit(
        "Triton 26.02 and later reject a label file outside the model's directory, so the "
        "model would not survive an upgrade."
    ),
    RuleId.SEQUENCE_SLOTS: Limit(
        "Triton creates a queue for every sequence slot at load and runs out of memory.",
        deadly=True,
    ),
    RuleId.STATE_TWICE: Limit(
        "Triton keeps the first of two states with the same output and silently drops the other."
    ),
    RuleId.STATE_TENSOR: Limit(
        "Triton checks a state's names, type and dims only at the first request, and then fails"
        " every sequence.",
        deadly=True,
    ),
    RuleId.INSTANCE_PROFILE_NUMBER: Limit(
        "Triton reads the leading digits of a profile and ignores the rest; a number beyond 32"
        " bits crashes the server.",
        deadly=True,
    ),
    RuleId.INSTANCE_COUNT: Limit(
        "Each instance is a thread or a process, and the server runs out of them.", deadly=True
    ),
    RuleId.WARMUP_REQUIRED: Limit(
        "Triton counts the inputs of a warm-up without checking their names; the backend fails on"
        " the missing one."
    ),
    RuleId.WARMUP_SIZE: Limit(
        "Triton creates all requests of a warm-up sample at once and runs out of memory or time.",
        deadly=True,
    ),
    RuleId.TENSOR_INPUT_WRITTEN: Limit(
        "A step that writes an input of the ensemble competes with the client's own value."
    ),
    RuleId.STEP_SHAPE_BETWEEN: Limit(
        "Triton compares each use of a tensor only with the first one; if that has -1, a writer and"
        " a reader that never match are accepted, and every request fails."
    ),
}

FATAL: Final = frozenset({RuleId.INITIAL_STATE, RuleId.METRIC_TAG})
"""Triton's own rules whose violation makes the server exit instead of refusing the model.

Measured with 2.51.0: with a wrong initial state, the scheduler is destroyed before its threads are
created. A wrong label of a metric is an exception that nothing catches.
"""

DEADLY: Final = FATAL | {rule for rule, limit in LIMITS.items() if limit.deadly}
"""Rules that a test must not try on a server that it shares with other models."""
