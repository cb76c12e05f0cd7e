"""The report of the loader: resolved sources and findings.

Resolved sources, findings, and the report that is its termination message.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field, RootModel

from triton_pipelines.api.loadtypes import LoadModel, Sha256, Slot, source_key

REPORT_MAX_BYTES: Final = 4096
"""The kubelet cuts a container's termination message at 4096 bytes (Kubernetes, ``MaxContainerTerminationMessageLength``)."""


class ResolvedSource(LoadModel):
    """What an unpinned source was at the first load of a revision, and the digest of its files.

    ``revision`` is a commit, an image's digest, an object's version or ETag; of a folder without
    one of these ``listing=<SHA-256 over names, sizes and ETags>``, and with numbered versions
    ``versions=1,2`` (before ``;listing=…``).
    """

    revision: str | None = None
    sha256: Sha256 | None = None


class ResolvedSources(RootModel[dict[str, dict[str, ResolvedSource]]]):
    """``resolved.json``: by pipeline revision, then by :func:`source_key`."""

    model_config = ConfigDict(frozen=True, strict=True)


class LoadReason(StrEnum):
    """Why a load failed, or what it noticed (:data:`INFORMATIVE` ones never fail a load)."""

    SOURCE_UNAVAILABLE = "SourceUnavailable"
    SOURCE_CHANGED = "SourceChanged"
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    MODEL_MISMATCH = "ModelMismatch"
    INVALID_TOKENIZER = "InvalidTokenizer"
    RAGGED_UNSUPPORTED = "RaggedUnsupported"
    NO_SPACE = "NoSpace"
    INTERNAL_ERROR = "InternalError"
    TOKENIZER_SETTINGS_IGNORED = "TokenizerSettingsIgnored"
    FILES_IGNORED = "FilesIgnored"
    INSECURE_SOURCE = "InsecureSource"
    CACHE_UNUSED = "CacheUnused"
    ANSWERS_NOT_COMPARED = "AnswersNotCompared"

    @classmethod
    def _missing_(cls, value: object) -> LoadReason | None:
        """Read the name that loaders before 0.1.0 report.

        Their image stays pinned by old revisions.
        """
        return cls.RAGGED_UNSUPPORTED if value == "NotRagged" else None


INFORMATIVE: Final = frozenset(
    {
        LoadReason.TOKENIZER_SETTINGS_IGNORED,
        LoadReason.FILES_IGNORED,
        LoadReason.INSECURE_SOURCE,
        LoadReason.CACHE_UNUSED,
        LoadReason.ANSWERS_NOT_COMPARED,
    }
)
"""Reasons that inform and do not fail a load."""


class LoadFinding(LoadModel):
    """One thing the loader found; ``field`` is a path in the resource."""

    step: str | None = None
    reason: Annotated[LoadReason, Field(strict=False)]
    message: str
    field: str | None = None


class ReportSource(LoadModel):
    """What one source resolved to. ``uri`` is the resource's, without credentials."""

    step: str
    slot: Slot = ""
    uri: str
    resolved_revision: str | None = None
    sha256: Sha256 | None = None

    @property
    def key(self) -> str:
        """:func:`source_key` of this source."""
        return source_key(self.step, self.slot)


class LoadReport(LoadModel):
    """The loader's termination message.

    At most :data:`REPORT_MAX_BYTES` bytes as :meth:`to_json` writes it.
    """

    ok: bool
    revision: str
    sources: Annotated[tuple[ReportSource, ...], Field(strict=False)] = ()
    findings: Annotated[tuple[LoadFinding, ...], Field(strict=False)] = ()

    sources_left_out: Annotated[int, Field(ge=0)] = 0
    """Sources that did not fit into the message.

    What they resolved to is unknown to the operator.
    """

    def to_json(self, limit: int = REPORT_MAX_BYTES) -> str:
        """JSON of at most ``limit`` UTF-8 bytes.

        Messages are cut first, then URIs, then findings that inform, then sources, then findings.

        A cut never breaks the JSON, and the first finding of a failed load always keeps its reason.
        What a source resolved to is kept as long as possible: later pods fetch exactly that.
        """
        report = self
        for length in (2048, 1024, 512, 256, 128, 64):
            if _size(report) <= limit:
                return _compact(report)
            report = report.model_copy(
                update={"findings": tuple(_cut(item, length) for item in self.findings)}
            )
        if _size(report) > limit:
            report = report.model_copy(
                update={
                    "sources": tuple(
                        item.model_copy(update={"uri": item.uri[:_SHORT_URI]})
                        for item in self.sources
                    )
                }
            )
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
            left_out = len(self.sources) - len(sources)
            report = report.model_copy(
                update={
                    "findings": tuple(findings),
                    "sources": tuple(sources),
                    "sources_left_out": left_out,
                }
            )
        return _compact(report)


_SHORT_URI: Final = 32


def _cut(finding: LoadFinding, length: int) -> LoadFinding:
    """``finding`` with a message of at most ``length`` characters.

    The end is kept too, since it says what to do.
    """
    text = finding.message
    if len(text) <= length:
        return finding
    tail = length // 3
    return finding.model_copy(update={"message": f"{text[: length - tail - 3]} … {text[-tail:]}"})


def _compact(report: LoadReport) -> str:
    return report.model_dump_json(by_alias=True, exclude_defaults=True)


def _size(report: LoadReport) -> int:
    return len(_compact(report).encode())


def resolution(report: LoadReport) -> dict[str, ResolvedSource]:
    """What ``resolved.json`` records of the first successful load of a revision."""
    return {
        item.key: ResolvedSource(revision=item.resolved_revision, sha256=item.sha256)
        for item in report.sources
    }


def strayed(recorded: Mapping[str, ResolvedSource], report: LoadReport) -> tuple[LoadFinding, ...]:
    """Where a pod loaded something else than ``recorded``.

    SourceChanged findings, with both sides; none for a pod that fits.

    Pods of a revision that start at the same time all load before anything is recorded, and an
    unpinned source can change in between. The one whose report is recorded decides; a pod for which
    this returns findings serves other files and has to be replaced (the next one finds the record
    and fetches exactly that). Digests decide where both are known, as in the loader.
    """
    findings = []
    for item in report.sources:
        before = recorded.get(item.key)
        if before is None or same_source(before, item.resolved_revision, item.sha256):
            continue
        was = f"revision {before.revision or 'none'}, sha256 {before.sha256 or 'unknown'}"
        now = f"revision {item.resolved_revision or 'none'}, sha256 {item.sha256 or 'unknown'}"
        message = (
            f"{item.uri}: this pod loaded {now}, while this pipeline revision was first loaded from"
            f" {was}"
        )
        findings.append(
            LoadFinding(step=item.step, reason=LoadReason.SOURCE_CHANGED, message=message)
        )
    return tuple(findings)


def same_source(recorded: ResolvedSource, revision: str | None, sha256: str | None) -> bool:
    """Whether a source is what it was.

    The digest decides where it is known, since an ETag may change without the content.
    """
    if recorded.sha256 is not None and sha256 is not None:
        return recorded.sha256 == sha256
    return recorded.revision is None or revision is None or recorded.revision == revision
