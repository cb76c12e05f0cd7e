"""What an import has to say: what it could not carry over, what it changed, and what is only worth knowing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class Weight(StrEnum):
    """How much a note weighs; all but INFO make ``--strict`` fail."""

    LOST = "not carried over"
    CHANGED = "changed"
    INFO = "note"


@dataclass(frozen=True)
class Note:
    """One thing to say: where in the repository (file and field), what, and the field of the resource that it concerns, if one."""

    where: str
    text: str
    weight: Weight = Weight.LOST
    path: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.weight.value}: {self.text}"


class ConfigError(Exception):
    """The repository cannot be imported as it is: file and field, what is wrong, what to do."""


@dataclass
class Report:
    """Notes in the order in which they were made, each once."""

    notes: list[Note] = field(default_factory=list)

    def lost(self, where: str, text: str, path: str = "") -> None:
        """Something of the repository has no place in the resource."""
        self._add(Note(where, text, Weight.LOST, path))

    def changed(self, where: str, text: str, path: str = "") -> None:
        """Something is said in another way than the repository says it."""
        self._add(Note(where, text, Weight.CHANGED, path))

    def info(self, where: str, text: str, path: str = "") -> None:
        """Something worth knowing that changes nothing."""
        self._add(Note(where, text, Weight.INFO, path))

    def extend(self, notes: Iterable[Note]) -> None:
        """Take over notes made elsewhere."""
        for note in notes:
            self._add(note)

    def _add(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)

    @property
    def strictly_wrong(self) -> bool:
        """Whether anything was lost or changed."""
        return any(note.weight is not Weight.INFO for note in self.notes)
