"""The contract between renderer and loader: load plan, live counts, resolved sources and report.

``plan.json`` is stored in the revision's ConfigMap (:data:`triton_pipelines.api.names.KEY_PLAN`),
``counts.json`` and ``resolved.json`` in the live ConfigMap. The report is the loader's termination
message. Both sides use these models, so neither can write a plan that the other cannot read. JSON
names are camelCase, Python names snake_case. Every model is frozen, strict and rejects unknown
fields, so that an older loader never silently skips a setting of a newer plan.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, RootModel, field_validator, model_validator

from triton_pipelines.api.loadreport import (
    INFORMATIVE,
    REPORT_MAX_BYTES,
    LoadFinding,
    LoadReason,
    LoadReport,
    ReportSource,
    ResolvedSource,
    ResolvedSources,
    resolution,
    same_source,
    strayed,
)
from triton_pipelines.api.loadtypes import (
    Key,
    LoadModel,
    Name,
    RelativePath,
    Sha256,
    Slot,
    Version,
    source_key,
)

__all__ = [
    "INFORMATIVE",
    "REPORT_MAX_BYTES",
    "FetchKind",
    "LiveCounts",
    "LoadFinding",
    "LoadPlan",
    "LoadReason",
    "LoadReport",
    "PlanAdapt",
    "PlanCheck",
    "PlanCount",
    "PlanFetch",
    "PlanFile",
    "PlanPlace",
    "PlanRaggedInput",
    "PlanTensor",
    "PlanTokens",
    "PlanVersions",
    "ReportSource",
    "ResolvedSource",
    "ResolvedSources",
    "resolution",
    "same_source",
    "shape_input",
    "source_key",
    "strayed",
]

PLAN_VERSION: Final = 1


class PlanFile(LoadModel):
    """A file written verbatim from the revision's ConfigMap."""

    key: Key
    path: RelativePath


class PlanCount(LoadModel):
    """A step whose instance count may change while the pod runs."""

    step: Name
    path: RelativePath
    """Its config.pbtxt, relative to the repository."""
    initial: Annotated[int, Field(ge=1)]
    min: Annotated[int, Field(ge=1)]
    max: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _ordered(self) -> PlanCount:
        if not self.min <= self.initial <= self.max:
            raise ValueError(
                f"step {self.step}: min {self.min} <= initial {self.initial} <= max {self.max}"
                " does not hold"
            )
        return self

    def clamp(self, wanted: int | None) -> int:
        """Return the number of instances that a new pod starts with, within min and max.

        Args:
            wanted: The desired count; ``None`` if none has been recorded yet, which means
                ``initial``.
        """
        return max(self.min, min(self.max, self.initial if wanted is None else wanted))


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
            raise ValueError("a version policy is exactly one of latest, all and specific")
        return self

    @property
    def newest_only(self) -> bool:
        """Whether only the newest version is served, as without a policy."""
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
                f"step {self.step}: {', '.join(given)} belong to kind model, not {self.kind}"
            )
        if self.cuts_pairs and self.kind is not FetchKind.TOKENIZER:
            raise ValueError(
                f"step {self.step}: cutsPairs belongs to kind tokenizer, not {self.kind}"
            )
        if self.kind is FetchKind.MODEL and "/" in self.target:
            raise ValueError(
                f"step {self.step}: the target of a model is its folder in the repository, not"
                f" {self.target}"
            )
        if (
            self.kind is FetchKind.MODEL
            and self.file is None
            and (self.source_file is not None or not self.whole)
        ):
            raise ValueError(
                f"step {self.step}: a model needs the name of its file unless whole folders are"
                " taken"
            )
        return self

    @property
    def key(self) -> str:
        """:func:`source_key` of this source."""
        return source_key(self.step, self.slot)

    @property
    def spec_field(self) -> str:
        """The source's path in the resource; ``spec.<step>.source`` unless the plan sets it."""
        return self.field or f"spec.{self.step}.source"


class PlanTensor(LoadModel):
    """A declared tensor."""

    name: Annotated[str, Field(min_length=1)]
    data_type: str
    """Element type as in the resource: INT64, FP32, STRING …"""
    dims: tuple[int, ...]
    """Shape without the batch axis."""

    @model_validator(mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        if isinstance(value, dict) and isinstance(value.get("dims"), list):
            return {**value, "dims": tuple(value["dims"])}
        return value


class PlanPlace(LoadModel):
    """Location of a step's file: ``path``, or ``file`` in every version folder of ``model``."""

    step: Name
    path: RelativePath | None = None
    model: RelativePath | None = None
    file: RelativePath | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.model is None) or (self.model is None) != (
            self.file is None
        ):
            raise ValueError(f"step {self.step}: name either path, or model and file")
        return self


class PlanTokens(LoadModel):
    """What the pipeline's tokenizer sends to a model's file."""

    tokenizer: RelativePath
    """Path of its tokenizer.json, relative to the repository."""
    ids: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Inputs of the file that receive token ids."""
    masks: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Inputs of the file that receive attention masks."""
    others: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Further inputs of the file with one value per token."""
    max_length: Annotated[int, Field(ge=1)]
    """Most tokens in a row."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """All inputs with one value per token."""
        return (*self.ids, *self.masks, *self.others)


class PlanCheck(PlanPlace):
    """ONNX files whose inputs and outputs must fit the step's declared tensors.

    Either the file at ``path``, or ``file`` of every version of ``model``. With ``tokens``, the
    files must also accept every token that the pipeline's tokenizer can emit, and rows as long as
    it sends.
    """

    format: Literal["onnx"] = "onnx"
    field: str
    max_batch_size: Annotated[int, Field(ge=0)]
    inputs: Annotated[tuple[PlanTensor, ...], Field(strict=False)] = ()
    outputs: Annotated[tuple[PlanTensor, ...], Field(strict=False)] = ()
    tokens: PlanTokens | None = None


def shape_input(name: str) -> str:
    """Return the name of the input with the row lengths of the ragged input ``name``.

    It is INT32 [rows, 1]; Triton fills it (BATCH_ITEM_SHAPE).
    """
    return f"{name}__shape"


class PlanRaggedInput(LoadModel):
    """An input of an ONNX file that arrives flat: all rows concatenated."""

    name: Annotated[str, Field(min_length=1)]
    pad_value: int = 0
    """Value that fills rows which are shorter than the longest row of the batch."""


class PlanAdapt(PlanPlace):
    """ONNX files to adapt to ragged batches: requests of different lengths in one batch.

    The files are rewritten in place, after their check.
    """

    field: str = "spec.tokenizer.padding"
    """The field of the resource that requires this, for messages."""
    inputs: Annotated[tuple[PlanRaggedInput, ...], Field(strict=False, min_length=1)]
    """Inputs of shape [rows, tokens] that become flat.

    All of them carry the tokens of the same texts.
    """
    token_outputs: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Outputs that are [rows, tokens, …] in the file and [all tokens, …] afterwards.

    The row lengths of the first input determine their shape.
    """
    max_length: Annotated[int, Field(ge=1)] | None = None
    """Most tokens in a row, for files that do not state it themselves."""
    vocabulary: Annotated[int, Field(ge=1)] | None = None
    """Number of token ids, for files that do not state it themselves.

    If it is ``None``, the loader takes it from the tokenizer.
    """

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        for what, names in (
            ("input", [item.name for item in self.inputs]),
            ("token output", list(self.token_outputs)),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"step {self.step}: {what} named twice: {', '.join(twice)}")
        return self


class LoadPlan(LoadModel):
    """Everything the loader does for one pod of one revision, in the order of the fields."""

    version: Literal[1] = PLAN_VERSION
    pipeline: str
    namespace: str
    revision: str
    files: Annotated[tuple[PlanFile, ...], Field(strict=False)] = ()
    empty_dirs: Annotated[tuple[RelativePath, ...], Field(strict=False)] = ()
    counts: Annotated[tuple[PlanCount, ...], Field(strict=False)] = ()
    fetch: Annotated[tuple[PlanFetch, ...], Field(strict=False)] = ()
    checks: Annotated[tuple[PlanCheck, ...], Field(strict=False)] = ()
    adapt: Annotated[tuple[PlanAdapt, ...], Field(strict=False)] = ()
    site: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> LoadPlan:
        # The contents of folders are known only once they are fetched, so the loader checks their
        # files for collisions.
        files = [
            item.target for item in self.fetch if item.kind in (FetchKind.FILE, FetchKind.TOKENIZER)
        ]
        targets = [item.path for item in self.files] + files
        twice = sorted({path for path in targets if targets.count(path) > 1})
        if twice:
            raise ValueError(f"written twice: {', '.join(twice)}")
        models = [item.target for item in self.fetch if item.kind is FetchKind.MODEL]
        keys = [item.key for item in self.fetch]
        for what, names in (("models fetched", models), ("sources named", keys)):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{what} twice: {', '.join(twice)}")
        missing = sorted({item.path for item in self.counts} - {item.path for item in self.files})
        if missing:
            raise ValueError(
                f"counts name files that the plan does not write: {', '.join(missing)}"
            )
        return self

    def to_json(self) -> str:
        """Return the plan as canonical JSON (sorted keys, one trailing newline).

        Equal plans give equal bytes. Fields that were added to the contract later are left out
        while they are unset: a plan that does not use them keeps its bytes, and thereby the
        pipeline's revision.
        """
        plan: dict[str, Any] = self.model_dump(mode="json", by_alias=True)
        if not self.adapt:
            del plan["adapt"]
        for part, later in _LATER.items():
            for item in plan.get(part, ()):
                for name in later:
                    if not item[name]:
                        del item[name]
                if isinstance(item.get("versions"), dict):
                    item["versions"] = {
                        name: value for name, value in item["versions"].items() if value is not None
                    }
        return json.dumps(plan, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


_LATER: Final[Mapping[str, tuple[str, ...]]] = {
    "fetch": ("slot", "file", "sourceFile", "whole", "versions", "pinned", "cutsPairs"),
    "checks": ("path", "model", "file", "tokens"),
    "adapt": ("path", "model", "file"),
}


class LiveCounts(RootModel[dict[str, Annotated[int, Field(ge=0)]]]):
    """``counts.json``: desired instances by step; new pods start with them."""

    model_config = ConfigDict(frozen=True, strict=True)
