"""What the renderer asks of the loader and what the loader answers: load plan, live counts, resolved sources, report.

``plan.json`` lies in the revision's ConfigMap (:data:`triton_pipelines.api.names.KEY_PLAN`), ``counts.json`` and
``resolved.json`` in the live ConfigMap; the report is the loader's termination message. Both sides use these models, so a
plan that one of them cannot read does not exist. JSON names are camelCase, Python names snake_case; everything is frozen,
strict and refuses unknown fields, so that an older loader never silently skips what a newer plan asks for.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, model_validator
from pydantic.alias_generators import to_camel

PLAN_VERSION: Final = 1
REPORT_MAX_BYTES: Final = 4096
"""The kubelet cuts a container's termination message at 4096 bytes (Kubernetes, ``MaxContainerTerminationMessageLength``)."""


def _below(path: str) -> str:
    """``path`` when it is relative, normal and stays below its root; :class:`ValueError` otherwise."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == "." or "\x00" in path or "\\" in path:
        raise ValueError(f"{path!r} is not a normal relative path below the model repository")
    return path


RelativePath = Annotated[str, AfterValidator(_below)]
"""A normal relative POSIX path: not empty, no ``..``, no ``.``, no leading slash, no doubled slash."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 digest, 64 lower-case hexadecimal digits."""

Key = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]{1,253}$")]
"""A ConfigMap key."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A step's name: a DNS label (it names mount folders)."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class PlanFile(_Model):
    """A file written verbatim from the revision's ConfigMap."""

    key: Key
    path: RelativePath


class PlanCount(_Model):
    """A step whose instance count is live: ``path`` is its config.pbtxt below the repository."""

    step: Name
    path: RelativePath
    initial: Annotated[int, Field(ge=1)]
    min: Annotated[int, Field(ge=1)]
    max: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _ordered(self) -> PlanCount:
        if not self.min <= self.initial <= self.max:
            raise ValueError(f"step {self.step}: min {self.min} <= initial {self.initial} <= max {self.max} does not hold")
        return self

    def clamp(self, wanted: int | None) -> int:
        """The instances a new pod starts with: ``wanted`` (``initial`` when nothing is wanted yet), within min..max."""
        return max(self.min, min(self.max, self.initial if wanted is None else wanted))


class FetchKind(StrEnum):
    """What is made of a source."""

    TOKENIZER = "tokenizer"
    FILE = "file"


class PlanFetch(_Model):
    """One source to fetch into ``target`` (a file below the repository).

    ``credentials`` and ``ca`` say whether the step's credential and CA folders are mounted. ``path`` names a file inside a
    source that is a folder. ``field`` is the source's path in the resource, for messages.
    """

    step: Name
    uri: Annotated[str, Field(min_length=1, max_length=4096)]
    target: RelativePath
    kind: Annotated[FetchKind, Field(strict=False)] = FetchKind.FILE
    revision: str | None = None
    path: RelativePath | None = None
    sha256: Sha256 | None = None
    endpoint: str | None = None
    region: str | None = None
    credentials: bool = False
    ca: bool = False
    field: str | None = None

    @property
    def spec_field(self) -> str:
        """The source's path in the resource, ``spec.<step>.source`` unless the plan says otherwise."""
        return self.field or f"spec.{self.step}.source"


class PlanTensor(_Model):
    """A declared tensor: ``data_type`` as in the resource (INT64, FP32, STRING …), ``dims`` without the batch axis."""

    name: Annotated[str, Field(min_length=1)]
    data_type: str
    dims: tuple[int, ...]

    @model_validator(mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        if isinstance(value, dict) and isinstance(value.get("dims"), list):
            return {**value, "dims": tuple(value["dims"])}
        return value


class PlanCheck(_Model):
    """An ONNX file whose inputs and outputs must fit the step's declared tensors."""

    step: Name
    format: Literal["onnx"] = "onnx"
    path: RelativePath
    field: str
    max_batch_size: Annotated[int, Field(ge=0)]
    inputs: Annotated[tuple[PlanTensor, ...], Field(strict=False)] = ()
    outputs: Annotated[tuple[PlanTensor, ...], Field(strict=False)] = ()


class LoadPlan(_Model):
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
    site: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> LoadPlan:
        targets = [item.path for item in self.files] + [item.target for item in self.fetch]
        twice = sorted({path for path in targets if targets.count(path) > 1})
        if twice:
            raise ValueError(f"written twice: {', '.join(twice)}")
        missing = sorted({item.path for item in self.counts} - {item.path for item in self.files})
        if missing:
            raise ValueError(f"counts name files that the plan does not write: {', '.join(missing)}")
        return self

    def to_json(self) -> str:
        """The plan as canonical JSON (sorted keys, one trailing newline): equal plans give equal bytes."""
        return _json(self)


class LiveCounts(RootModel[dict[str, Annotated[int, Field(ge=0)]]]):
    """``counts.json``: desired instances by step; new pods start from it."""

    model_config = ConfigDict(frozen=True, strict=True)


class ResolvedSource(_Model):
    """What an unpinned source was at the first load of a revision: commit, object version or ETag; and the digest."""

    revision: str | None = None
    sha256: Sha256 | None = None


class ResolvedSources(RootModel[dict[str, dict[str, ResolvedSource]]]):
    """``resolved.json``: by pipeline revision, then by step."""

    model_config = ConfigDict(frozen=True, strict=True)


class Reason(StrEnum):
    """Why a load failed, or what it noticed (:data:`INFORMATIVE` ones never fail a load)."""

    SOURCE_UNAVAILABLE = "SourceUnavailable"
    SOURCE_CHANGED = "SourceChanged"
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    MODEL_MISMATCH = "ModelMismatch"
    INVALID_TOKENIZER = "InvalidTokenizer"
    NO_SPACE = "NoSpace"
    INTERNAL_ERROR = "InternalError"
    TOKENIZER_SETTINGS_IGNORED = "TokenizerSettingsIgnored"


INFORMATIVE: Final = frozenset({Reason.TOKENIZER_SETTINGS_IGNORED})
"""Reasons that inform and do not fail a load."""


class Finding(_Model):
    """One thing the loader found; ``field`` is a path in the resource."""

    step: str | None = None
    reason: Annotated[Reason, Field(strict=False)]
    message: str
    field: str | None = None


class ReportSource(_Model):
    """What one source resolved to. ``uri`` is the resource's, without credentials."""

    step: str
    uri: str
    resolved_revision: str | None = None
    sha256: Sha256 | None = None


class LoadReport(_Model):
    """The loader's termination message. At most :data:`REPORT_MAX_BYTES` bytes as :meth:`to_json` writes it."""

    ok: bool
    revision: str
    sources: Annotated[tuple[ReportSource, ...], Field(strict=False)] = ()
    findings: Annotated[tuple[Finding, ...], Field(strict=False)] = ()

    def to_json(self, limit: int = REPORT_MAX_BYTES) -> str:
        """JSON of at most ``limit`` UTF-8 bytes: messages are cut first, then findings that inform, then sources, then findings.

        A cut never breaks the JSON, and the first finding of a failed load always keeps its reason.
        """
        report = self
        for length in (2048, 1024, 512, 256, 128, 64):
            if _size(report) <= limit:
                return _compact(report)
            report = report.model_copy(update={"findings": tuple(_cut(item, length) for item in self.findings)})
        # Failures before information, so that what is dropped from the end matters least.
        findings = sorted(report.findings, key=lambda item: item.reason in INFORMATIVE)
        sources = list(report.sources)
        while _size(report) > limit and (findings or sources):
            if len(findings) > 1:
                findings.pop()
            elif sources:
                sources.pop()
            else:
                findings.pop()
            report = report.model_copy(update={"findings": tuple(findings), "sources": tuple(sources)})
        return _compact(report)


def _cut(finding: Finding, length: int) -> Finding:
    """``finding`` with a message of at most ``length`` characters; the end is kept too, since it says what to do."""
    text = finding.message
    if len(text) <= length:
        return finding
    tail = length // 3
    return finding.model_copy(update={"message": f"{text[: length - tail - 3]} … {text[-tail:]}"})


def _compact(report: LoadReport) -> str:
    return report.model_dump_json(by_alias=True, exclude_none=True)


def _size(report: LoadReport) -> int:
    return len(_compact(report).encode())


def _json(model: BaseModel) -> str:
    return json.dumps(model.model_dump(mode="json", by_alias=True), sort_keys=True, indent=1, ensure_ascii=False) + "\n"
