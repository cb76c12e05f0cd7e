"""A model repository that is being changed at random."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from google.protobuf import text_format


@dataclass
class MutatedRepository:
    """A repository that is being changed: configs by model, and its folder."""

    folder: Path
    """The repository on disk; configs are written to it last."""
    configs: dict[str, Any]
    """Configs by folder."""
    texts: dict[str, str] = field(default_factory=dict)
    """Configs that are written as text, by folder."""
    applied: list[str] = field(default_factory=list)
    """Names of the mutations that were applied."""

    @property
    def ensembles(self) -> list[Any]:
        """Return the configs of ensembles."""
        return [config for config in self.configs.values() if config.ensemble_scheduling.step]

    def write(self) -> None:
        """Write every config to its folder."""
        for name, config in self.configs.items():
            path = self.folder / name
            path.mkdir(exist_ok=True)
            shutil.rmtree(path / "configs", ignore_errors=True)
            text = self.texts.get(name) or text_format.MessageToString(config, as_utf8=True)
            (path / "config.pbtxt").write_text(text, encoding="utf-8")


def a_model(random: Random, repository: MutatedRepository) -> Any:
    models = [one for one in repository.configs.values() if not one.ensemble_scheduling.step]
    return random.choice(models)


def any_config(random: Random, repository: MutatedRepository) -> Any:
    return random.choice(list(repository.configs.values()))
