"""Recognize folders that are not what they seem: no repository, or a config in the wrong place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from triton_pipelines.api.wording import first_of

from .import_notes import ImportNote, NoteSeverity

CONFIG: Final = "config.pbtxt"
CONFIGS: Final = "configs"
_SHOWN: Final = 6
# Triton ignores folders with a leading zero; the resource has 32 bits for a version.
_VERSION: Final = re.compile(r"[1-9][0-9]{0,8}")
_TEMPLATE_SUFFIXES: Final = (
    ".template",
    ".tmpl",
    ".tpl",
    ".j2",
    ".jinja",
    ".jinja2",
    ".in",
    ".example",
    ".sample",
    ".dist",
)


def version_of(name: str) -> int | None:
    """Return the version that a folder of this name has; ``None`` if it is not a version."""
    return int(name) if _VERSION.fullmatch(name) else None


def is_template(name: str) -> bool:
    """Return whether a file next to the version folders is a template of a config."""
    return name.lower().startswith("config.") and name.lower().endswith(_TEMPLATE_SUFFIXES)


def model_folders(folder: Path) -> list[str]:
    """Return the names of the folders that are models: with a config or a numbered version."""
    try:
        return sorted(
            path.name for path in folder.iterdir() if path.is_dir() and _looks_like_model(path)
        )
    except OSError:
        return []


def _looks_like_model(path: Path) -> bool:
    if (path / CONFIG).is_file() or (path / CONFIGS).is_dir():
        return True
    try:
        return any(entry.is_dir() and version_of(entry.name) for entry in path.iterdir())
    except OSError:
        return False


def no_model_message(folder: Path) -> str:
    """Return what a folder without any model is, and what to give instead."""
    if (folder / CONFIG).is_file() or any(
        path.is_dir() and version_of(path.name) for path in folder.iterdir()
    ):
        return (
            "the directory is a single model, not a model repository; use its parent "
            f"directory, {folder.resolve().parent}"
        )
    inner = sorted(path.name for path in folder.iterdir() if path.is_dir() and model_folders(path))
    if len(inner) == 1:
        return (
            "the directory contains no model; use its subdirectory "
            f"{folder / inner[0]}, which is a model repository"
        )
    if inner:
        return (
            f"the directory contains {len(inner)} model repositories "
            f"({first_of(inner, _SHOWN)}); import one at a time, for example "
            f"{folder / inner[0]}"
        )
    return (
        "the directory contains no model; specify a directory that contains models "
        f"(subdirectories with a {CONFIG} file or a numbered version directory)"
    )


def config_in_wrong_place(path: Path) -> ImportNote | None:
    """Return where the config of a model without ``config.pbtxt`` is, and what to do."""
    for file in sorted(path.iterdir()):
        if file.is_file() and is_template(file.name):
            return ImportNote(
                f"{path.name}/{file.name}",
                "the file is a template, which Triton does not read; fill in the template "
                f"and save it as {path.name}/{CONFIG}",
                NoteSeverity.LOST,
            )
    for file in sorted(path.glob(f"*/{CONFIG}")):
        if version_of(file.parent.name):
            return ImportNote(
                f"{path.name}/{file.parent.name}/{CONFIG}",
                "Triton does not read a config inside a version directory; move the file to "
                f"{path.name}/{CONFIG}",
                NoteSeverity.LOST,
            )
    for file in sorted(path.iterdir()):
        if file.is_dir() and file.name == CONFIG:
            return ImportNote(
                f"{path.name}/{CONFIG}",
                ("the path is a directory; replace the directory with the model's config file"),
                NoteSeverity.LOST,
            )
        if file.is_file() and file.name.lower().startswith("config.p"):
            return ImportNote(
                f"{path.name}/{file.name}",
                (
                    "Triton does not read a file with this name; rename the file to "
                    f"{path.name}/{CONFIG}"
                ),
                NoteSeverity.LOST,
            )
    return None
