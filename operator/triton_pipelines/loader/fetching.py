"""Bring one source of the plan into the model repository as verified files."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx

from triton_pipelines.api.loadplan import (
    FetchKind,
    LoadFinding,
    LoadReason,
    PlanFetch,
    ReportSource,
    ResolvedSource,
    same_source,
)
from triton_pipelines.loader import tokenizer_files
from triton_pipelines.loader.cache import FileCache, cache_key
from triton_pipelines.loader.cleartext import refuse_cleartext, source_cleartext_host
from triton_pipelines.loader.credentials import read_credentials
from triton_pipelines.loader.download import Downloader
from triton_pipelines.loader.errors import LoaderError, SourceError
from triton_pipelines.loader.files import fsync_folder, sha256_of, write_atomically
from triton_pipelines.loader.group_download import PARALLEL, StagingRequest
from triton_pipelines.loader.layout import Layout
from triton_pipelines.loader.listing import ListingRecord
from triton_pipelines.loader.repository import below
from triton_pipelines.loader.retry import Retrier
from triton_pipelines.loader.sources import Folders, SourceAccess, open_source
from triton_pipelines.loader.sources.web import TIMEOUT
from triton_pipelines.loader.staged_files import StagedFiles
from triton_pipelines.loader.staging import Stager
from triton_pipelines.loader.uris import SourceLocation, SourceMap
from triton_pipelines.redaction import Redactor, redact_url

USER_AGENT: Final = "triton-pipelines"


@dataclass(frozen=True)
class FetchedSource:
    """What a source became."""

    source: ReportSource
    """Its line in the report."""
    findings: tuple[LoadFinding, ...]
    """Notes on it."""
    files: tuple[Path, ...]
    """The files that it wrote (absolute paths)."""
    versions: tuple[int, ...] = ()
    """The versions of a model."""


class Fetcher:
    """Fetch the sources of a plan.

    What is complete is recorded in ``state`` and not fetched again after a restart.
    """

    def __init__(
        self,
        models: Path,
        state: Path,
        folders: Folders,
        source_map: SourceMap,
        retrier: Retrier,
        redact: Redactor,
        log: logging.Logger,
        *,
        cache: FileCache | None = None,
        parallel: int = PARALLEL,
        load_failed: threading.Event | None = None,
    ) -> None:
        self._models, self._state, self._folders, self._map = models, state, folders, source_map
        self._retrier, self._redact, self._log = retrier, redact, log
        downloader = Downloader(retrier, log, cache=cache, load_failed=load_failed)
        self._stager = Stager(downloader, retrier, log, parallel)

    def reusable(self, item: PlanFetch, resolved: ResolvedSource | None) -> FetchedSource | None:
        """Return the result of an earlier attempt in this pod, if it still holds.

        It holds while every file is unchanged and the plan still asks for the same source.
        """
        try:
            record = json.loads(self._record(item).read_text())
            files = {below(self._models, name): digest for name, digest in record["files"].items()}
            sha256, revision, versions = (
                str(record["sha256"]),
                record["revision"],
                tuple(int(version) for version in record["versions"]),
            )
            notes = tuple(
                LoadFinding.model_validate_json(json.dumps(note)) for note in record["notes"]
            )
            if item.sha256 not in (None, sha256) or (
                resolved is not None and not same_source(resolved, revision, sha256)
            ):
                return None
            if not files or any(
                not path.is_file() or sha256_of(path) != digest for path, digest in files.items()
            ):
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return FetchedSource(_report_source(item, revision, sha256), notes, tuple(files), versions)

    def fetch(
        self, item: PlanFetch, resolved: ResolvedSource | None, layout: Layout
    ) -> FetchedSource:
        """Fetch ``item`` and put its files into the model repository.

        Args:
            item: what the plan says.
            resolved: what the source was at this revision's first load; exactly that is fetched.
                ``None`` if this is the first load.
            layout: which file of the repository belongs to which source.

        Raises:
            LoaderError: the source is unavailable, has changed, or does not fit.
        """
        what = f"{item.spec_field} {redact_url(item.uri)}"
        staging = self._state / _key(item)
        try:
            staged = self._stage(item, resolved, staging, what)
            notes = self._tokenizer_notes(item, staged, what)
            placed = {name: layout.place(item, name, what) for name in staged.files}
        except SourceError as error:
            raise LoaderError(
                LoadReason.SOURCE_UNAVAILABLE,
                f"{what}: {error}",
                step=item.step,
                field=f"{item.spec_field}.uri",
                retryable=error.retryable,
            ) from error
        except LoaderError as error:
            error.step, error.field = error.step or item.step, error.field or item.spec_field
            raise
        files = self._publish(item, replace(staged, notes=notes), placed)
        shutil.rmtree(staging, ignore_errors=True)
        self._log.info(
            "%s: complete, revision %s, sha256 %s", what, staged.revision or "none", staged.sha256
        )
        line = _report_source(item, staged.revision, staged.sha256)
        return FetchedSource(line, notes, files, staged.versions)

    def _tokenizer_notes(
        self, item: PlanFetch, staged: StagedFiles, what: str
    ) -> tuple[LoadFinding, ...]:
        """Return the notes on the staged files; a tokenizer is checked for that."""
        if item.kind is not FetchKind.TOKENIZER:
            return staged.notes
        ignored = self._ignored_settings(item, staged.files[item.target][0], what)
        if not ignored:
            return staged.notes
        finding = tokenizer_files.finding_of_settings(ignored, item.step, item.spec_field)
        return (*staged.notes, finding)

    def _publish(
        self, item: PlanFetch, staged: StagedFiles, placed: Mapping[str, tuple[str, ...]]
    ) -> tuple[Path, ...]:
        """Move staged files to their places and return these.

        The record of what was fetched is written before the first rename: a restart in between
        finds a file missing and fetches again.
        """
        digests = {
            name: staged.files[source][1] for source, names in placed.items() for name in names
        }
        record = {
            "files": digests,
            "sha256": staged.sha256,
            "revision": staged.revision,
            "versions": staged.versions,
            "notes": [finding.model_dump(mode="json", by_alias=True) for finding in staged.notes],
        }
        write_atomically(self._record(item), json.dumps(record).encode())
        for source, names in placed.items():
            for name in names[1:]:
                target = below(self._models, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(staged.files[source][0], target)
            publish(staged.files[source][0], below(self._models, names[0]))
        return tuple(below(self._models, name) for name in digests)

    def _stage(
        self, item: PlanFetch, resolved: ResolvedSource | None, staging: Path, what: str
    ) -> StagedFiles:
        """Download ``item`` into the folder ``staging`` and compare it with what is expected."""
        location = self._map.apply(item.uri)
        if location.mapped:
            self._log.info(
                "%s: mapped to %s", what, self._redact(location.endpoint or location.uri)
            )
        credentials = read_credentials(
            item, location, self._folders.credentials, self._folders.ca, self._redact
        )
        refuse_cleartext(location, item.endpoint, credentials, item.spec_field)
        with httpx.Client(
            verify=credentials.ssl_context(), timeout=TIMEOUT, headers={"User-Agent": USER_AGENT}
        ) as client:
            # The record of a listing is compared afterwards; it is not a revision that a source
            # has.
            is_record = resolved is None or ListingRecord.parse(resolved.revision) is not None
            access = SourceAccess(
                credentials,
                self._folders,
                client,
                None if resolved is None or is_record else resolved.revision,
                self._redact.add,
                staging / "image",
            )
            staged = self._download(item, resolved, location, access, staging, what)
        self._check_digest(item, resolved, staged, staging, what)
        host = source_cleartext_host(location, item.endpoint) if item.credentials else None
        if host is None:
            return staged
        note = LoadFinding(
            step=item.step,
            reason=LoadReason.INSECURE_SOURCE,
            message=(
                f"requests to {host} are signed with the key from "
                f"{item.spec_field}.secretRef but sent over http://, so others can read and "
                "change the files; use https:// and caRef"
            ),
            field=item.spec_field,
        )
        return replace(staged, notes=(*staged.notes, note))

    def _download(
        self,
        item: PlanFetch,
        resolved: ResolvedSource | None,
        location: SourceLocation,
        access: SourceAccess,
        staging: Path,
        what: str,
    ) -> StagedFiles:
        source = open_source(item, location, access)
        try:
            commit = self._retrier.run(what, source.source.resolve)
            _check_commit(item, resolved, commit, what)
            scope = cache_key(location.uri, location.endpoint or item.endpoint, item.path)
            request = StagingRequest(item, source, staging, what, commit, resolved, scope)
            staged = self._stager.files(request)
        except SourceError as error:
            if resolved is not None and resolved.revision is not None and error.missing:
                raise changed(item, resolved, f"gone ({error})", what) from error
            raise
        if _matches(item, resolved, staged) or not (staged.resumed or staged.is_unproven):
            return staged
        # What an earlier attempt left, or another pod put into the model cache, may be wrong; try
        # once more from byte 0 of the source. Files that the source's own digest proves are not
        # fetched again: then the expected digest is the wrong one.
        self._log.warning(
            "%s: the digest does not match after a %s; fetching all of it again",
            what,
            "copy from the model cache" if staged.is_unproven else "resumed download",
        )
        shutil.rmtree(staging, ignore_errors=True)
        return self._stager.files(replace(request, refresh=True))

    def _check_digest(
        self,
        item: PlanFetch,
        resolved: ResolvedSource | None,
        staged: StagedFiles,
        staging: Path,
        what: str,
    ) -> None:
        """Compare what was staged with the declared digest and with this revision's first load."""
        if item.sha256 is not None and item.sha256 != staged.sha256:
            shutil.rmtree(staging, ignore_errors=True)
            raise LoaderError(
                LoadReason.CHECKSUM_MISMATCH,
                f"{what}: {item.spec_field}.sha256 is {item.sha256}, but the source has "
                f"{staged.sha256}. Check that this is the intended source, and then set its "
                "digest.",
                field=f"{item.spec_field}.sha256",
            )
        if resolved is not None and not same_source(resolved, staged.revision, staged.sha256):
            shutil.rmtree(staging, ignore_errors=True)
            now = f"revision {staged.revision or 'none'}, sha256 {staged.sha256}"
            raise changed(item, resolved, now, what)

    def _ignored_settings(self, item: PlanFetch, path: Path, what: str) -> str | None:
        try:
            return tokenizer_files.check(path, cuts_pairs=item.cuts_pairs)
        except ValueError as error:
            shutil.rmtree(self._state / _key(item), ignore_errors=True)
            raise tokenizer_files.invalid(
                f"{what}: tokenizer.json is not a valid tokenizer: {error}",
                item.step,
                item.spec_field,
            ) from error

    def _record(self, item: PlanFetch) -> Path:
        return self._state / f"{_key(item)}.json"


def _report_source(item: PlanFetch, revision: str | None, sha256: str) -> ReportSource:
    return ReportSource(
        step=item.step,
        slot=item.slot,
        uri=redact_url(item.uri),
        resolved_revision=revision,
        sha256=sha256,
    )


def _matches(item: PlanFetch, resolved: ResolvedSource | None, staged: StagedFiles) -> bool:
    expected = item.sha256 or (resolved.sha256 if resolved else None)
    return expected in (None, staged.sha256)


def _check_commit(
    item: PlanFetch, resolved: ResolvedSource | None, commit: str | None, what: str
) -> None:
    """Compare the source's commit with that of this revision's first load."""
    if resolved is not None and commit is not None and resolved.revision not in (None, commit):
        raise changed(item, resolved, f"revision {commit}, sha256 not fetched", what)


def changed(item: PlanFetch, resolved: ResolvedSource, now: str, what: str) -> LoaderError:
    """Return the error for a source that differs from this revision's first load."""
    before = f"revision {resolved.revision or 'none'}, sha256 {resolved.sha256 or 'unknown'}"
    return LoaderError(
        LoadReason.SOURCE_CHANGED,
        f"{what}: this pipeline revision was first loaded from {before}, but the source is "
        f"now {now}. Restore the old content, or set {item.spec_field}.revision or sha256 "
        "to create a revision with the new content.",
        field=item.spec_field,
    )


def publish(staged: Path, target: Path) -> None:
    """Move a complete file to its name in the repository, even from another volume."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        staged.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = target.with_name(f".{target.name}.tmp")
        shutil.copyfile(staged, temporary)
        temporary.replace(target)
        staged.unlink()
    fsync_folder(target.parent)


def _key(item: PlanFetch) -> str:
    """Return a folder name for an item; another source, file or target is another key."""
    identity = item.model_dump(
        mode="json", exclude={"step", "slot", "field", "credentials", "ca", "sha256"}
    )
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{item.key}-{digest[:12]}"
