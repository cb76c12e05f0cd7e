"""Types that the load plan and the load report share."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


def _below(path: str) -> str:
    """Return ``path`` if it is relative, normalized and below its root.

    Raises:
        ValueError: The path is absolute, empty, not normalized, or leaves its root.
    """
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
        raise ValueError(
            f"{path!r} is not a relative path inside the model repository; remove '.', '..',"
            " backslashes and extra slashes"
        )
    return path


RelativePath = Annotated[str, AfterValidator(_below)]
"""A normalized relative POSIX path: not empty, no ``..``, no ``.``, no leading or double slash."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 digest, 64 lower-case hexadecimal digits."""

Key = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]{1,253}$")]
"""A ConfigMap key."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A step's name: a DNS label, because it becomes part of the names of mount folders."""


Slot = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")]
"""Which of a step's sources: empty for the only or main one, otherwise a DNS label."""

Version = Annotated[int, Field(ge=1)]
"""A model version, as Triton accepts it in a version folder's name (digits, no leading zero)."""


def source_key(step: str, slot: str) -> str:
    """Return the key of one source of a step: ``STEP`` or ``STEP.SLOT``.

    It names the source's mount folders and its entry in ``resolved.json``. It is unambiguous
    because a DNS label has no dot.
    """
    return f"{step}.{slot}" if slot else step


class LoadModel(BaseModel):
    """Base of the load plan's models: immutable, strict, camelCase in JSON, no unknown fields."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )
