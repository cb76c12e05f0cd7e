"""One fetch item of the plan from its source to verified files in the model repository."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import shutil
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
from triton_pipelines.loader.cache import FileCache, key_of
from triton_pipelines.loader.credentials import read_credentials
from triton_pipelines.loader.download import Downloader, fsync_folder, sha256_of, write_atomically
from triton_pipelines.loader.errors import LoadError, SourceError
from triton_pipelines.loader.layout import Layout
from triton_pipelines.loader.listing import Record
from triton_pipelines.loader.repository import below
from triton_pipelines.loader.retry import Retrier
from triton_pipelines.loader.sources import Access, Folders, open_source
from triton_pipelines.loader.sources.web import TIMEOUT
from triton_pipelines.loader.staging import PARALLEL, Stage, Staged, Stager
from triton_pipelines.loader.uris import SourceMap, insecure
from triton_pipelines.redaction import Redactor, redact_url

USER_AGENT: Final = "triton-pipelines"


@dataclass(frozen=True)
class Fetched:
    """What a source became: its line in the report, notes, the files written (absolute), and of a model its versions."""

    source: ReportSource
    findings: tuple[LoadFinding, ...]
    files: tuple[Path, ...]
    versions: tuple[int, ...] = ()


class Fetcher:
    """Fetches items; what is complete is remembered in ``state`` and not fetched again after a restart."""

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
    ) -> None:
        self._models, self._state, self._folders, self._map = models, state, folders, source_map
        self._retrier, self._redact, self._log = retrier, redact, log
        self._stager = Stager(Downloader(retrier, log, cache=cache), retrier, log, parallel)

    def reusable(self, item: PlanFetch, resolved: ResolvedSource | None) -> Fetched | None:
        """The result of an earlier attempt in this pod, when every file of it is still there byte for byte and still wanted."""
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
        return Fetched(_line(item, revision, sha256), notes, tuple(files), versions)

    def fetch(self, item: PlanFetch, resolved: ResolvedSource | None, layout: Layout) -> Fetched:
        """Fetch ``item``, exactly ``resolved`` where that is known, and put its files where ``layout`` has room for them. Raises :class:`LoadError`."""
        what = f"{item.spec_field} {redact_url(item.uri)}"
        staging = self._state / _key(item)
        try:
            staged = self._stage(item, resolved, staging, what)
            notes = staged.notes
            if item.kind is FetchKind.TOKENIZER and (
                ignored := self._checked(item, staged.files[item.target][0], what)
            ):
                notes = (
                    *notes,
                    tokenizer_files.finding_of_settings(ignored, item.step, item.spec_field),
                )
            placed = {name: layout.place(item, name, what) for name in staged.files}
        except SourceError as error:
            raise LoadError(
                LoadReason.SOURCE_UNAVAILABLE,
                f"{what}: {error}",
                step=item.step,
                field=f"{item.spec_field}.uri",
                retryable=error.retryable,
            ) from error
        except LoadError as error:
            error.step, error.field = error.step or item.step, error.field or item.spec_field
            raise
        digests = {
            name: staged.files[source][1] for source, names in placed.items() for name in names
        }
        # Written before the first rename: a restart in between finds a file missing and fetches again.
        note = {
            "files": digests,
            "sha256": staged.sha256,
            "revision": staged.revision,
            "versions": staged.versions,
            "notes": [finding.model_dump(mode="json", by_alias=True) for finding in notes],
        }
        write_atomically(self._record(item), json.dumps(note).encode())
        for source, names in placed.items():
            for name in names[1:]:
                target = below(self._models, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(staged.files[source][0], target)
            publish(staged.files[source][0], below(self._models, names[0]))
        shutil.rmtree(staging, ignore_errors=True)
        self._log.info(
            "%s: complete, revision %s, sha256 %s", what, staged.revision or "none", staged.sha256
        )
        return Fetched(
            _line(item, staged.revision, staged.sha256),
            notes,
            tuple(below(self._models, name) for name in digests),
            staged.versions,
        )

    def _stage(
        self, item: PlanFetch, resolved: ResolvedSource | None, staging: Path, what: str
    ) -> Staged:
        located = self._map.apply(item.uri)
        if located.mapped:
            self._log.info("%s: mapped to %s", what, self._redact(located.endpoint or located.uri))
        credentials = read_credentials(
            item, located, self._folders.credentials, self._folders.ca, self._redact
        )
        with httpx.Client(
            verify=credentials.ssl_context(), timeout=TIMEOUT, headers={"User-Agent": USER_AGENT}
        ) as client:
            # A listing is compared, not asked for.
            known = (
                resolved.revision
                if resolved is not None and Record.parse(resolved.revision) is None
                else None
            )
            opened = open_source(
                item,
                located,
                Access(
                    credentials, self._folders, client, known, self._redact.add, staging / "image"
                ),
            )
            try:
                commit = self._retrier.run(what, opened.source.resolve)
                _same_or_raise(item, resolved, commit, None, what)
                scope = key_of(located.uri, located.endpoint or item.endpoint, item.path)
                stage = Stage(item, opened, staging, what, commit, resolved, scope)
                staged = self._stager.files(stage)
            except SourceError as error:
                if resolved is not None and resolved.revision is not None and error.missing:
                    raise changed(item, resolved, f"gone ({error})", what) from error
                raise
            if not _matches(item, resolved, staged) and staged.resumed:
                # A part left by an earlier attempt may be what is wrong; the source gets one chance from byte 0.
                self._log.warning(
                    "%s: the digest is not the expected one after a resumed download; fetching all of it again",
                    what,
                )
                shutil.rmtree(staging, ignore_errors=True)
                staged = self._stager.files(stage)
        if item.sha256 is not None and item.sha256 != staged.sha256:
            shutil.rmtree(staging, ignore_errors=True)
            raise LoadError(
                LoadReason.CHECKSUM_MISMATCH,
                f"{what}: {item.spec_field}.sha256 is {item.sha256}, the source has {staged.sha256}. "
                "Check that the source is the one that is meant, then write its digest.",
                field=f"{item.spec_field}.sha256",
            )
        if resolved is not None and not same_source(resolved, staged.revision, staged.sha256):
            shutil.rmtree(staging, ignore_errors=True)
            raise changed(
                item,
                resolved,
                f"revision {staged.revision or 'none'}, sha256 {staged.sha256}",
                what,
            )
        if item.credentials and (host := insecure(located, item.endpoint)) is not None:
            message = f"the credentials of {item.spec_field}.secretRef were sent to {host} over http://, where others can read them: use https:// and caRef"
            note = LoadFinding(
                step=item.step,
                reason=LoadReason.INSECURE_SOURCE,
                message=message,
                field=item.spec_field,
            )
            staged = replace(staged, notes=(*staged.notes, note))
        return staged

    def _checked(self, item: PlanFetch, path: Path, what: str) -> str | None:
        try:
            return tokenizer_files.check(path, cuts_pairs=item.cuts_pairs)
        except ValueError as error:
            shutil.rmtree(self._state / _key(item), ignore_errors=True)
            raise tokenizer_files.invalid(
                f"{what}: tokenizer.json cannot be used: {error}", item.step, item.spec_field
            ) from error

    def _record(self, item: PlanFetch) -> Path:
        return self._state / f"{_key(item)}.json"


def _line(item: PlanFetch, revision: str | None, sha256: str) -> ReportSource:
    return ReportSource(
        step=item.step,
        slot=item.slot,
        uri=redact_url(item.uri),
        resolved_revision=revision,
        sha256=sha256,
    )


def _matches(item: PlanFetch, resolved: ResolvedSource | None, staged: Staged) -> bool:
    expected = item.sha256 or (resolved.sha256 if resolved else None)
    return expected in (None, staged.sha256)


def _same_or_raise(
    item: PlanFetch,
    resolved: ResolvedSource | None,
    commit: str | None,
    sha256: str | None,
    what: str,
) -> None:
    if resolved is not None and commit is not None and resolved.revision not in (None, commit):
        raise changed(item, resolved, f"revision {commit}, sha256 {sha256 or 'not fetched'}", what)


def changed(item: PlanFetch, resolved: ResolvedSource, now: str, what: str) -> LoadError:
    """The error for a source that is no longer what this revision was loaded from first, with both sides."""
    before = f"revision {resolved.revision or 'none'}, sha256 {resolved.sha256 or 'unknown'}"
    return LoadError(
        LoadReason.SOURCE_CHANGED,
        f"{what}: this pipeline revision was first loaded from {before}; the source now is {now}. Pods of one revision serve the same "
        f"files: put the old content back, or take the new one as a new revision by setting {item.spec_field}.revision or sha256.",
        field=item.spec_field,
    )


def publish(staged: Path, target: Path) -> None:
    """Move a complete file to its name in the repository, also where that lies on another volume."""
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
    """A folder name for an item; another source, file or target is another key."""
    identity = item.model_dump(
        mode="json", exclude={"step", "slot", "field", "credentials", "ca", "sha256"}
    )
    return f"{item.key}-{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]}"
