"""Notes of an import: what was not carried over, what was changed, and what is good to know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from triton_pipelines.api.wording import first_of

_SHOWN = 12


class NoteSeverity(StrEnum):
    """Severity of a note; all but INFO make ``--strict`` fail."""

    LOST = "not imported"
    CHANGED = "changed"
    INFO = "note"


# Most important first: what a user has to act on comes before what is good to know.
_ORDER = (NoteSeverity.LOST, NoteSeverity.CHANGED, NoteSeverity.INFO)


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


class UnfilledTemplateError(ModelRepositoryError):
    """A config has placeholders where values are required."""

    def __init__(self, places: Sequence[tuple[str, str]]) -> None:
        """Build one message for all placeholders.

        Args:
            places: name of each placeholder, and the file and line where it is.
        """
        self.places = tuple(places)
        """Name of each placeholder, and the file and line where it is."""
        names = list(dict.fromkeys(name for name, _ in places))
        first = dict(reversed(places))
        shown = first_of([f"{name} ({first[name]})" for name in names], _SHOWN)
        options = " ".join(f"--set {name}=VALUE" for name in names)
        super().__init__(
            f"the configs contain placeholders without a value: {shown}; replace the "
            f"placeholders, or use {options}"
        )


class InexpressibleRepositoryError(ModelRepositoryError):
    """Triton loads the repository, but no valid resource can express it."""


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

    def sorted(self) -> list[ImportNote]:
        """Return the notes, the most important first."""
        return sorted(self.notes, key=lambda note: _ORDER.index(note.severity))

    @property
    def has_changes_or_losses(self) -> bool:
        """Return whether anything was changed or not carried over."""
        return any(note.severity is not NoteSeverity.INFO for note in self.notes)
