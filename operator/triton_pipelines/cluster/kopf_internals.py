"""Isolate the parts of Kopf that it does not export. No other module imports ``kopf._…``.

Kopf exports neither what it watches at present nor the type of an operator's identity. After an
upgrade of Kopf, the unit test of this module shows whether both are still there.
"""

from __future__ import annotations

from kopf._cogs.structs.references import Insights
from kopf._core.engines import peering

__all__ = ["Insights", "identity", "watched_kinds"]


def identity(name: str) -> peering.Identity:
    """Return the identity of an operator for ``kopf.operator``.

    Kopf's default contains the user's name, which the numeric user of the image does not have.
    """
    return peering.Identity(name)


def watched_kinds(insights: Insights) -> set[tuple[str, str, str]]:
    """Return group, version and plural of each kind that Kopf watches."""
    return {(kind.group, kind.version, kind.plural) for kind in insights.watched_resources}
