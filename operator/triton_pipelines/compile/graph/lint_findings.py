"""Build the warnings of lint."""

from __future__ import annotations

from collections.abc import Sequence

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode


def warning(path: str, message: str, *, code: FindingCode) -> Finding:
    """Return a finding that does not prevent a revision."""
    return Finding(path, message, Severity.WARNING, code=code)


def listed(words: Sequence[str]) -> str:
    """Return an enumeration: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)
