"""Types that the load plan and the load report share."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


def _below(path: str) -> str:
    """``path`` when it is relative, normal and stays below its root; :class:`ValueError` otherwise."""
    pure = PurePosixPath(path)
    if (
        not path
        or pure.is_absolute()
        or ".." in pure.parts
        or str(pure) != path
        or path == "."
        or "\x00" in path
        or "\\" in path
    ):
        raise ValueError(f"{path!r} is not a normal relative path below the model repository")
    return path


RelativePath = Annotated[str, AfterValidator(_below)]
"""A normal relative POSIX path: not empty, no ``..``, no ``.``, no leading slash, no doubled slash.
"""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 digest, 64 lower-case hexadecimal digits."""

Key = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]{1,253}$")]
"""A ConfigMap key."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A step's name: a DNS label (it names mount folders)."""


Slot = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")]
"""Which of a step's sources: empty for the only or main one, else a DNS label."""

Version = Annotated[int, Field(ge=1)]
"""A model version: what Triton takes as a version folder's name (digits, no leading zero)."""


def source_key(step: str, slot: str) -> str:
    """What one source of a step goes by.

    The name of its mount folders and its key in ``resolved.json``. No label holds a dot.
    """
    return f"{step}.{slot}" if slot else step


class LoadModel(BaseModel):
    """Frozen and strict; camelCase in JSON; refuses what it does not know."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )
