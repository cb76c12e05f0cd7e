"""The padding that a pipeline runs with, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from triton_pipelines.api.tokenizer import Padding


@dataclass(frozen=True, slots=True)
class MeasuredPadding:
    """A padding that measured better than the one chosen by rule, for exactly this pipeline."""

    mode: Padding
    """The padding mode."""
    buckets: tuple[int, ...]
    """The buckets of mode Bucketed."""
    reason: str
    """The measured figures, as text."""


@dataclass(frozen=True, slots=True)
class PaddingChoice:
    """The effective padding and the reason for it."""

    chosen: Padding
    """The padding mode."""
    reason: str
    """Why it was chosen."""
    buckets: tuple[int, ...] = ()
    """The buckets of mode Bucketed."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """The loader's message for each file that it could not adapt to ragged batches, by key."""
    fixed_length: Mapping[str, str] = field(default_factory=dict)
    """Steps that still need rows of one length, by their field, each with the reason."""
    automatic: bool = False
    """Whether ``Auto`` chose it."""
    measured: bool = False
    """Whether it was chosen by measurement and not by rule."""

    def __str__(self) -> str:
        return f"{self.chosen.value} ({self.reason})"
