"""Copy the built-in tokenizer, a backend library of Triton, into the model repository."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Final

from triton_pipelines.api.loadplan import LoadReason, PlanLibrary
from triton_pipelines.api.names import NATIVE_TOKENIZER_LIBRARY
from triton_pipelines.loader.errors import LoaderError

_FOLDER: Final = Path(__file__).resolve().parent.parent / "native"
_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


def machine() -> str:
    """Return the processor architecture of this machine, as Linux names it."""
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


def path() -> Path:
    """Return where the package has the library for this machine, whether it exists or not."""
    return _FOLDER / machine() / NATIVE_TOKENIZER_LIBRARY


def is_available() -> bool:
    """Return whether the package has the library for this machine."""
    return path().is_file()


def copy_library(target: Path, library: PlanLibrary) -> None:
    """Copy the library to ``target``, complete or not at all.

    Args:
        target: its place in the model repository.
        library: what the plan says of it.

    Raises:
        LoaderError: this loader has no library for its machine.
    """
    if not is_available():
        raise LoaderError(
            LoadReason.INTERNAL_ERROR,
            f"this installation has no built-in tokenizer for {machine()}; use an operator image "
            "or a wheel of a release, or run `make native` in a checkout",
            step=library.step,
            field=library.field,
        )
    temporary = target.with_name(f".{target.name}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path(), temporary)
    temporary.replace(target)
