"""The spec that an iteration reconciles: the current one, or the last good one if it is blocked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Graph
from triton_pipelines.compile.render import Revision

from .compiled_pipeline import CompiledPipeline, LazyRevision


@dataclass(frozen=True, slots=True)
class Blocked:
    """The current spec cannot be acted on: the deployed revision stays, and the status says why."""

    revision: str
    """The revision that stays desired."""
    status: Mapping[str, Any]
    invalid: bool = False
    """Whether the spec is invalid, so that a tuning run that has begun ends. A missing source may
    come back."""


@dataclass(frozen=True, slots=True)
class ReconciledSpec:
    """The spec that an iteration reconciles, compiled."""

    compiled: CompiledPipeline
    blocked: Blocked | None = None
    """``None``: it is the current spec."""
    mismatches: Sequence[str] = ()
    """How outputs differ from their declaration without blocking a revision."""

    @property
    def pipeline(self) -> InferencePipeline:
        """The pipeline, parsed."""
        return self.compiled.pipeline

    @property
    def graph(self) -> Graph:
        """Its graph."""
        return self.compiled.graph

    @property
    def revision(self) -> Revision | LazyRevision:
        """Its revision."""
        return self.compiled.revision
