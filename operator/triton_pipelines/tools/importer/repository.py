"""A Triton model repository that was read: models, configs, versions and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .import_notes import ImportNote, ModelRepositoryError


@dataclass
class RepositoryModel:
    """One model: its config with Triton's defaults filled in, and its files."""

    name: str
    """Name of the model and of its folder."""
    folder: Path
    """Its folder."""
    config: Any
    """The ModelConfig."""
    origin: str
    """The config file, for messages."""
    versions: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Version → files in the version's folder, relative to it."""
    other_files: tuple[str, ...] = ()
    """Files of the model's folder outside of versions and configs."""
    misplaced: Any = None
    """Batching of an ensemble, which Triton refuses."""

    @property
    def ensemble(self) -> bool:
        """Return whether it is an ensemble."""
        return bool(
            self.config.platform == "ensemble"
            or self.config.WhichOneof("scheduling_choice") == "ensemble_scheduling"
        )

    @property
    def backend(self) -> str:
        """Return the backend that runs it."""
        return str(self.config.backend)

    @property
    def latest(self) -> int | None:
        """Return the highest version; ``None`` if there is none."""
        return max(self.versions, default=None)

    def file(self, name: str) -> Path | None:
        """Return a file of the latest version; ``None`` if it is missing."""
        if self.latest is None or name not in self.versions[self.latest]:
            return None
        return self.folder / str(self.latest) / name

    def text(self, name: str) -> str | None:
        """Return the text of a file of the latest version; ``None`` if missing or not UTF-8."""
        path = self.file(name)
        try:
            return path.read_text(encoding="utf-8") if path is not None else None
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True)
class BrokenModel:
    """A model that cannot be imported; it only matters if the pipeline needs it."""

    name: str
    """Name of the model's folder."""
    error: ModelRepositoryError
    """What is wrong with it."""
    ensemble: bool = False
    """Whether it is an ensemble, as far as its config can be read."""
    calls: tuple[str, ...] = ()
    """Names of the models that its steps call, as far as its config can be read."""


@dataclass(frozen=True)
class ModelRepository:
    """The models of a repository."""

    models: Mapping[str, RepositoryModel]
    """Models by name."""
    notes: tuple[ImportNote, ...]
    """Notes from reading them."""
    broken: Mapping[str, BrokenModel] = field(default_factory=dict)
    """Models that cannot be read, by name."""
    left_out: frozenset[str] = frozenset()
    """Names of the models that were left out unread (``--without``)."""

    @property
    def names(self) -> list[str]:
        """Return the names of all models, the broken ones included."""
        return sorted({*self.models, *self.broken})
