"""Entries of a server's repository index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INDEX_ENTRIES_MAX: Final = 2000
"""Most entries of a repository index: it has one per version of each model of the pipeline."""


@dataclass(frozen=True)
class ModelIndexEntry:
    """One entry of a pod's repository index."""

    name: str
    """Model."""
    version: str
    """"" for a model that has never been loaded."""
    state: str
    """READY, LOADING, UNLOADING, UNAVAILABLE, or "" for a model that has never been loaded."""
    reason: str
    """Why it is not ready; also set on a READY model whose last change failed."""

    @property
    def ready(self) -> bool:
        """Return whether this version serves."""
        return self.state == "READY"
