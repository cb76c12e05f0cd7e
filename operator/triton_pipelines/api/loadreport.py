"""The report of the loader, which is its termination message: resolved sources and findings."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import ConfigDict, Field, RootModel

from triton_pipelines.api.loadtypes import LoadModel, Sha256, Slot, source_key

REPORT_MAX_BYTES: Final = 4096
"""Length in bytes at which the kubelet cuts a container's termination message.

Source: Kubernetes, ``MaxContainerTerminationMessageLength``.
"""


class ResolvedSource(LoadModel):
    """What an unpinned source resolved to at the first load of a revision."""

    revision: str | None = None
    """A commit, an image's digest, or an object's version or ETag.

    For a folder that has none of these: ``listing=<SHA-256 over names, sizes and ETags>``, preceded
    by ``versions=1,2;`` if the folder has numbered versions.
    """
    sha256: Sha256 | None = None
    """Digest of its files."""


class ResolvedSources(RootModel[dict[str, dict[str, ResolvedSource]]]):
    """``resolved.json``: by pipeline revision, then by :func:`source_key`."""

    model_config = ConfigDict(frozen=True, strict=True)


EXIT_PERMANENT: Final = 2
"""Exit code of a loader of which no further start can succeed by itself.

That is so if at least one failure is permanent: a missing file, rejected credentials, a model that
does not fit. Loaders of all versions use it.
"""


class LoadReason(StrEnum):
    """Why a load failed, or what the loader noticed (:data:`INFORMATIVE`: never a failure)."""

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


INFORMATIVE: Final = frozenset(
    {
        LoadReason.TOKENIZER_SETTINGS_IGNORED,
        LoadReason.FILES_IGNORED,
        LoadReason.INSECURE_SOURCE,
        LoadReason.CACHE_UNUSED,
        LoadReason.ANSWERS_NOT_COMPARED,
    }
)
"""Reasons that are informative and do not fail a load."""


class LoadFinding(LoadModel):
    """One finding of the loader."""

    step: str | None = None
    reason: Annotated[LoadReason, Field(strict=False)]
    message: str
    field: str | None = None
    """Path of the field in the resource."""


class ReportSource(LoadModel):
    """What one source resolved to."""

    step: str
    slot: Slot = ""
    uri: str
    """The URI of the resource, without credentials."""
    resolved_revision: str | None = None
    sha256: Sha256 | None = None

    @property
    def key(self) -> str:
        """Return the :func:`source_key` of this source."""
        return source_key(self.step, self.slot)


class LoadReport(LoadModel):
    """The loader's termination message.

    :meth:`to_json` writes it in at most :data:`REPORT_MAX_BYTES` bytes.
    """

    ok: bool
    revision: str
    sources: Annotated[tuple[ReportSource, ...], Field(strict=False)] = ()
    findings: Annotated[tuple[LoadFinding, ...], Field(strict=False)] = ()

    sources_left_out: Annotated[int, Field(ge=0)] = 0
    """Number of sources that did not fit into the message.

    The operator does not know what they resolved to.
    """

    def to_json(self, limit: int = REPORT_MAX_BYTES) -> str:
        """Return the report as JSON of at most ``limit`` UTF-8 bytes.

        If necessary, messages are shortened first, then URIs; then informative findings are
        dropped, then sources, then the other findings. The result is always valid JSON, and the
        first finding of a failed load always keeps its reason. What a source resolved to is kept as
        long as possible, because later pods fetch exactly that.
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
        # Failures come first, so that the entries dropped from the end matter least.
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
    """Return ``finding`` with a message of at most ``length`` characters.

    The end of the message is kept as well, because it says what to do.
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
    """Return what ``resolved.json`` records of the first successful load of a revision."""
    return {
        item.key: ResolvedSource(revision=item.resolved_revision, sha256=item.sha256)
        for item in report.sources
    }


def diverged_sources(
    recorded: Mapping[str, ResolvedSource], report: LoadReport
) -> tuple[LoadFinding, ...]:
    """Return a SourceChanged finding, with both sides, for each source that differs.

    Pods of a revision that start at the same time all load before anything is recorded, and an
    unpinned source can change in between. The pod whose report is recorded decides. A pod for which
    this returns findings serves other files and must be replaced: the next one finds the record and
    fetches exactly that. Digests decide if both are known, as in the loader.

    Args:
        recorded: The resolved sources of the revision, by :func:`source_key`.
        report: The report of the pod.

    Returns:
        The findings; empty if the pod loaded what is recorded.
    """
    findings = []
    for item in report.sources:
        before = recorded.get(item.key)
        if before is None or same_source(before, item.resolved_revision, item.sha256):
            continue
        was = f"revision {before.revision or 'none'} (sha256 {before.sha256 or 'unknown'})"
        now = f"revision {item.resolved_revision or 'none'} (sha256 {item.sha256 or 'unknown'})"
        message = (
            f"{item.uri}: this pod loaded {now}, but the first pod of this pipeline revision "
            f"loaded {was}"
        )
        findings.append(
            LoadFinding(step=item.step, reason=LoadReason.SOURCE_CHANGED, message=message)
        )
    return tuple(findings)


def same_source(recorded: ResolvedSource, revision: str | None, sha256: str | None) -> bool:
    """Return whether a source is unchanged.

    The digest decides if it is known, because an ETag may change without the content.
    """
    if recorded.sha256 is not None and sha256 is not None:
        return recorded.sha256 == sha256
    return recorded.revision is None or revision is None or recorded.revision == revision
