"""Errors of rendering."""

from __future__ import annotations

from collections.abc import Sequence

from triton_pipelines.api.base import Finding


class RenderError(Exception):
    """What was rendered is not what Triton takes: a defect of the renderer, never of the resource."""


class RefusedError(RenderError):
    """Triton would refuse what the resource asks for; ``findings`` name the fields."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.findings = list(findings)
