"""Build the warnings of lint."""

from __future__ import annotations

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode


def warning(path: str, message: str, *, code: FindingCode) -> Finding:
    """Return a finding that does not prevent a revision."""
    return Finding(path, message, Severity.WARNING, code=code)
