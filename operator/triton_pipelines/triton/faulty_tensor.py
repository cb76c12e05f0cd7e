"""Identify the tensor that made a test inference fail."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# Triton has no codes for these errors (core: infer_request.cc) about an input that an ensemble
# passes to a model. Like errors.classify, this is where Triton's wording ends.
_REJECTED_INPUT: Final = (
    re.compile(
        r"inference input '(?P<input>[^']+)' data-type is '\w+', but model "
        r"'(?P<model>[^']+)' expects"
    ),
    re.compile(r"unexpected shape for input '(?P<input>[^']+)' for model '(?P<model>[^']+)'"),
    re.compile(
        r"input byte size mismatch for input '(?P<input>[^']+)' for model '(?P<model>[^']+)'"
    ),
    re.compile(
        r"input '(?P<input>[^']+)' has no shape but model requires batch dimension for "
        r"'(?P<model>[^']+)'"
    ),
    re.compile(
        r"for model '(?P<model>[^']+)'\. Got input\(s\) .* missing required input\(s\) "
        r"\['(?P<input>[^']+)'"
    ),
)


@dataclass(frozen=True, slots=True)
class FaultyTensor:
    """A tensor of the wrong type or shape, or one that is missing."""

    name: str
    """Name of the tensor in the model that reads it, or in the ensemble's response."""
    reader: str = ""
    """The model that rejects the tensor as an input; empty for an output of the ensemble."""


def rejected_input(detail: str) -> FaultyTensor | None:
    """Return the input that Triton rejects with this message; ``None`` for any other message."""
    found = next((match for one in _REJECTED_INPUT if (match := one.search(detail))), None)
    return FaultyTensor(found["input"], found["model"]) if found is not None else None
