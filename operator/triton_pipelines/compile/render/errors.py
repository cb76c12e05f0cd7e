"""Errors of rendering."""

from __future__ import annotations

from collections.abc import Sequence

from triton_pipelines.api.base import Finding


class RenderError(Exception):
    """Triton would reject the rendered files: a defect of the renderer, never of the resource."""


class RefusedError(RenderError):
    """Triton would reject the settings of the resource; ``findings`` name the fields."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.findings = list(findings)
