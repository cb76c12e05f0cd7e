"""Notes of an import: what was not carried over, what was changed, and what is good to know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class NoteSeverity(StrEnum):
    """Severity of a note; all but INFO make ``--strict`` fail."""

    LOST = "not carried over"
    CHANGED = "changed"
    INFO = "note"


@dataclass(frozen=True)
class ImportNote:
    """One note on an import."""

    where: str
    """File and field of the repository."""
    text: str
    """What is wrong, and what to do."""
    severity: NoteSeverity = NoteSeverity.LOST
    """Whether something was lost or changed."""
    path: str = ""
    """Field of the resource that it concerns; empty if there is none."""

    def __str__(self) -> str:
        return f"{self.where}: {self.severity.value}: {self.text}"


class ModelRepositoryError(Exception):
    """The repository cannot be imported; the message has file, field, problem and solution."""


@dataclass
class ImportReport:
    """Notes in the order of their creation, without duplicates."""

    notes: list[ImportNote] = field(default_factory=list)

    def lost(self, where: str, text: str, path: str = "") -> None:
        """Add a note on something that the resource cannot express."""
        self._add(ImportNote(where, text, NoteSeverity.LOST, path))

    def changed(self, where: str, text: str, path: str = "") -> None:
        """Add a note on something that the resource expresses differently."""
        self._add(ImportNote(where, text, NoteSeverity.CHANGED, path))

    def info(self, where: str, text: str, path: str = "") -> None:
        """Add a note that changes nothing."""
        self._add(ImportNote(where, text, NoteSeverity.INFO, path))

    def extend(self, notes: Iterable[ImportNote]) -> None:
        """Add existing notes."""
        for note in notes:
            self._add(note)

    def _add(self, note: ImportNote) -> None:
        if note not in self.notes:
            self.notes.append(note)

    @property
    def has_changes_or_losses(self) -> bool:
        """Return whether anything was changed or not carried over."""
        return any(note.severity is not NoteSeverity.INFO for note in self.notes)
