"""Read a local Triton model repository: models, configs, versions and files."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from tritonclient.grpc import model_config_pb2

from triton_pipelines.api.wording import first_of

from .config_defaults import complete, fill_defaults
from .import_notes import ImportNote, ModelRepositoryError, NoteSeverity
from .repository import BrokenModel, ModelRepository, RepositoryModel
from .repository_layout import (
    CONFIG,
    CONFIGS,
    config_in_wrong_place,
    is_template,
    model_folders,
    no_model_message,
    version_of,
)
from .textproto import read_config

_LEFT_OUT: Final = ("__pycache__", ".git", ".ipynb_checkpoints")
_SHOWN: Final = 6
# Fields of a config that cannot be parsed.
_ENSEMBLE: Final = re.compile(r"""ensemble_scheduling|platform\s*:\s*["']ensemble["']""")
_CALLED: Final = re.compile(r"""model_name\s*:\s*["']([^"']+)["']""")


def read_repository(
    folder: Path,
    values: Mapping[str, str] | None = None,
    config_name: str | None = None,
    without: Collection[str] = (),
) -> ModelRepository:
    """Read every model of a repository.

    A model that cannot be read is kept as a :class:`BrokenModel`, since the pipeline may not need
    it.

    Args:
        folder: the model repository.
        values: values of templates (``${NAME}``) in configs.
        config_name: the config in ``configs/`` to use, as Triton's ``--model-config-name``.
        without: names of models that are not read at all.

    Raises:
        ModelRepositoryError: the folder is not a model repository; says what it is instead.
    """
    if not folder.is_dir():
        raise ModelRepositoryError(
            "the path is not a directory; specify a Triton model repository, which has "
            "one directory per model"
        )
    models: dict[str, RepositoryModel] = {}
    broken: dict[str, BrokenModel] = {}
    notes: list[ImportNote] = []
    templates: list[tuple[str, str]] = []
    paths = [path for path in sorted(folder.iterdir()) if _may_be_model(path)]
    for path in paths:
        if path.name in without:
            continue
        found: list[ImportNote] = []
        unfilled: list[tuple[str, str]] = []
        try:
            model = _model(path, values or {}, config_name, found, unfilled)
        except ModelRepositoryError as error:
            broken[path.name] = _broken(path, config_name, error)
            continue
        notes += found
        templates += unfilled
        if model is not None:
            models[model.name] = model
    left_out = frozenset(path.name for path in paths if path.name in without)
    if not (models or broken or left_out):
        raise ModelRepositoryError(no_model_message(folder))
    if templates:
        notes.append(_unfilled_note(templates))
    return ModelRepository(models, tuple(notes), broken, left_out)


def _may_be_model(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".") and path.name not in _LEFT_OUT


def _broken(path: Path, config_name: str | None, error: ModelRepositoryError) -> BrokenModel:
    """Return a broken model with what its config says in spite of the defect."""
    try:
        file, _ = _config_file(path, config_name, [])
        text = file.read_text(encoding="utf-8", errors="replace") if file is not None else ""
    except (OSError, ModelRepositoryError):
        text = ""
    text = re.sub(r"#[^\n]*", "", text)
    ensemble = _ENSEMBLE.search(text) is not None
    called = tuple(dict.fromkeys(_CALLED.findall(text))) if ensemble else ()
    return BrokenModel(path.name, error, ensemble, called)


def _unfilled_note(templates: list[tuple[str, str]]) -> ImportNote:
    """Return one note on all placeholders that stay in strings."""
    names = list(dict.fromkeys(name for name, _ in templates))
    first = dict(reversed(templates))
    shown = first_of([f"${{{name}}} ({first[name]})" for name in names], _SHOWN)
    return ImportNote(
        templates[0][1],
        f"placeholders without a value were left unchanged: {shown}; to set values, "
        f"use {' '.join(f'--set {name}=VALUE' for name in names[:_SHOWN])}",
        NoteSeverity.INFO,
    )


def _model(
    path: Path,
    values: Mapping[str, str],
    config_name: str | None,
    notes: list[ImportNote],
    templates: list[tuple[str, str]],
) -> RepositoryModel | None:
    """Return a model; ``None`` if the folder is not one.

    Args:
        path: the model's folder.
        values: values of templates.
        config_name: the config in ``configs/`` to use.
        notes: gets notes on what was read.
        templates: gets the templates that stay in strings.

    Raises:
        ModelRepositoryError: the model cannot be read.
    """
    try:
        versions = {
            number: _files(entry)
            for entry in sorted(path.iterdir())
            if entry.is_dir() and (number := version_of(entry.name))
        }
        file, origin = _config_file(path, config_name, notes)
        wrong = config_in_wrong_place(path) if file is None else None
        if file is None and not versions and wrong is None:
            notes.append(_not_a_model(path))
            return None
        config, misplaced = model_config_pb2.ModelConfig(), None
        if file is not None:
            read = read_config(file.read_text(encoding="utf-8"), origin, values)
            config, misplaced = read.config, read.misplaced
            notes += read.notes
            templates += read.templates
        other_files = _other_files(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ModelRepositoryError(
            f"{_place(path, error)}: the file cannot be read: {error}"
        ) from error
    if config.name and config.name != path.name:
        raise ModelRepositoryError(
            f"{origin}: name: {config.name!r} differs from the directory's name "
            f"{path.name!r}; change name, or rename the directory"
        )
    config.name = path.name
    model = RepositoryModel(path.name, path, config, origin, versions, other_files, misplaced)
    _complete_model(model, wrong, notes)
    return model


def _place(path: Path, error: Exception) -> str:
    """Return the file that cannot be read, for messages."""
    name = getattr(error, "filename", None)
    return str(Path(name).relative_to(path.parent)) if name else f"{path.name}/{CONFIG}"


def _complete_model(
    model: RepositoryModel, wrong: ImportNote | None, notes: list[ImportNote]
) -> None:
    """Complete the config; if that fails, a config in the wrong place is the reason to name."""
    try:
        if not model.ensemble:
            complete(model, notes)
    except ModelRepositoryError as error:
        if wrong is None:
            raise
        raise ModelRepositoryError(f"{wrong.where}: {wrong.text}") from error
    if wrong is not None:
        notes.insert(0, wrong)
    fill_defaults(model, notes)


def _not_a_model(path: Path) -> ImportNote:
    if inner := model_folders(path):
        return ImportNote(
            path.name,
            "skipped, because it is itself a model repository "
            f"({first_of(inner, _SHOWN)}), which Triton does not read from here; import "
            "that directory separately",
            NoteSeverity.INFO,
        )
    return ImportNote(
        path.name,
        f"skipped, because it is not a model: it contains neither {CONFIG} nor a numbered version",
        NoteSeverity.INFO,
    )


def _other_files(path: Path) -> tuple[str, ...]:
    """Return the files of a model's folder outside of versions and configs."""
    return tuple(
        name
        for name in _files(path)
        if (top := name.split("/")[0]) not in (CONFIG, CONFIGS)
        and not (top != name and version_of(top))
        and not is_template(name)
    )


def _files(folder: Path) -> tuple[str, ...]:
    found = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return tuple(
        str(path)
        for path in found
        if not set(path.parts) & set(_LEFT_OUT) and path.suffix != ".pyc"
    )


def _config_file(
    path: Path, config_name: str | None, notes: list[ImportNote]
) -> tuple[Path | None, str]:
    """Return the config that Triton uses and its name for messages."""
    plain = path / CONFIG
    named = sorted((path / CONFIGS).glob("*.pbtxt")) if (path / CONFIGS).is_dir() else []
    chosen = next((file for file in named if file.stem == config_name), None)
    if chosen is None and plain.is_file():
        if named:
            others = ", ".join(file.name for file in named)
            notes.append(
                ImportNote(
                    f"{path.name}/{CONFIGS}",
                    f"{CONFIG} is used; ignored: {others} (--config-name chooses one)",
                    NoteSeverity.INFO,
                )
            )
        chosen = plain
    if chosen is None and len(named) == 1:
        chosen = named[0]
    if chosen is None and named:
        listed = ", ".join(file.stem for file in named)
        raise ModelRepositoryError(
            f"{path.name}: the directory has no {CONFIG}, but {CONFIGS}/ contains the configs "
            f"{listed}; choose a config with --config-name"
        )
    return chosen, str(chosen.relative_to(path.parent)) if chosen is not None else path.name
