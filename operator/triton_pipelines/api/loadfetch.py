"""Sources that the loader fetches: kind, location, and served versions of a model."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from triton_pipelines.api.loadtypes import (
    LoadModel,
    Name,
    RelativePath,
    Sha256,
    Slot,
    Version,
    source_key,
)


class FetchKind(StrEnum):
    """What a source becomes in the repository.

    A tokenizer's file, one file, a model's version folders, or everything below a folder.
    """

    TOKENIZER = "tokenizer"
    FILE = "file"
    MODEL = "model"
    FOLDER = "folder"


class PlanVersions(LoadModel):
    """Triton's version policy: which versions of a model are served.

    Exactly one of the three fields is set.
    """

    latest: Version | None = None
    all: Literal[True] | None = None
    specific: Annotated[tuple[Version, ...] | None, Field(strict=False, min_length=1)] = None

    @model_validator(mode="after")
    def _one(self) -> PlanVersions:
        if sum(value is not None for value in (self.latest, self.all, self.specific)) != 1:
            raise ValueError("a version policy must set exactly one of latest, all and specific")
        return self

    @property
    def newest_only(self) -> bool:
        """Return whether only the newest version is served, as without a policy."""
        return self.latest == 1

    def select(self, held: Collection[int]) -> tuple[int, ...]:
        """Return the versions of ``held`` that are served, in ascending order.

        Requested versions that are not in ``held`` are left out.
        """
        ordered = sorted(set(held))
        if self.latest is not None:
            return tuple(ordered[-self.latest :])
        return tuple(
            version for version in ordered if self.specific is None or version in self.specific
        )


class PlanFetch(LoadModel):
    """One source to fetch into ``target``.

    For kind ``model`` the result depends on the source:

    - One file becomes ``TARGET/1/<file>``.
    - A folder of numbered folders becomes the versions that ``versions`` and ``pinned`` select,
      each with all of its files.
    - Any other folder becomes ``TARGET/1``, with everything below it (``whole``), or with the main
      file and the data files that the main file names.
    """

    step: Name
    slot: Slot = ""
    uri: Annotated[str, Field(min_length=1, max_length=4096)]
    target: RelativePath
    """Where to store it in the repository: a file, or a folder for kinds model and folder."""
    kind: Annotated[FetchKind, Field(strict=False)] = FetchKind.FILE
    file: RelativePath | None = None
    """Kind model: the main file's name in a version folder. ``None``: no main file is needed."""
    source_file: RelativePath | None = None
    """Kind model: the main file's name in the source, if it differs from ``file``."""
    whole: bool = False
    """Kind model: whether a folder without numbered versions is fetched completely."""
    versions: PlanVersions | None = None
    pinned: Version | None = None
    revision: str | None = None
    path: RelativePath | None = None
    """A file or folder inside a source that is a folder."""
    sha256: Sha256 | None = None
    endpoint: str | None = None
    region: str | None = None
    credentials: bool = False
    """Whether the source's credential folder (``STEP`` or ``STEP.SLOT``) is mounted."""
    ca: bool = False
    """Whether the source's CA folder (``STEP`` or ``STEP.SLOT``) is mounted."""
    cuts_pairs: bool = False
    """Kind tokenizer: whether text pairs that are too long are truncated.

    Not every tokenizer allows that.
    """
    field: str | None = None
    """The source's path in the resource, for messages."""

    @field_validator("path", mode="before")
    @classmethod
    def _folder(cls, value: object) -> object:
        """Remove the trailing slash with which a folder may be written."""
        return value.rstrip("/") if isinstance(value, str) and value.rstrip("/") else value

    @model_validator(mode="after")
    def _fitting(self) -> PlanFetch:
        model = {
            "file": self.file,
            "sourceFile": self.source_file,
            "versions": self.versions,
            "pinned": self.pinned,
            "whole": self.whole or None,
        }
        given = sorted(name for name, value in model.items() if value is not None)
        if self.kind is not FetchKind.MODEL and given:
            raise ValueError(
                f"step {self.step}: {', '.join(given)}: allowed only for kind model, not "
                f"for {self.kind}"
            )
        if self.cuts_pairs and self.kind is not FetchKind.TOKENIZER:
            raise ValueError(
                f"step {self.step}: cutsPairs is allowed only for kind tokenizer, not for "
                f"{self.kind}"
            )
        if self.kind is FetchKind.MODEL and "/" in self.target:
            raise ValueError(
                f"step {self.step}: the target of a model must be its directory in the "
                f"repository, not {self.target}"
            )
        if (
            self.kind is FetchKind.MODEL
            and self.file is None
            and (self.source_file is not None or not self.whole)
        ):
            raise ValueError(
                f"step {self.step}: a model requires the name of its file, unless whole "
                "directories are fetched"
            )
        return self

    @property
    def key(self) -> str:
        """Return the :func:`source_key` of this source."""
        return source_key(self.step, self.slot)

    @property
    def spec_field(self) -> str:
        """Return the field of the source; ``spec.<step>.source`` unless the plan sets it."""
        return self.field or f"spec.{self.step}.source"
