"""One fetch item of the plan from its source to verified files in the model repository."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import httpx

from triton_pipelines.api.loadplan import FetchKind, Finding, PlanFetch, Reason, ReportSource, ResolvedSource
from triton_pipelines.loader import tokenizer
from triton_pipelines.loader.credentials import Credentials, read_credentials
from triton_pipelines.loader.download import Downloaded, Downloader, fsync_folder, sha256_of, write_atomically
from triton_pipelines.loader.errors import LoadError, SourceError
from triton_pipelines.loader.onnxfile import read_onnx
from triton_pipelines.loader.redact import Redactor, redact_url
from triton_pipelines.loader.repository import below
from triton_pipelines.loader.retry import Retrier
from triton_pipelines.loader.sources import Folders, Opened, open_source
from triton_pipelines.loader.sources.web import TIMEOUT
from triton_pipelines.loader.uris import SourceMap

USER_AGENT: Final = "triton-pipelines"


@dataclass(frozen=True)
class Fetched:
    """What a source became: its line in the report, notes, and the files written (absolute)."""

    source: ReportSource
    findings: tuple[Finding, ...]
    files: tuple[Path, ...]


@dataclass(frozen=True)
class _Ready:
    """Files that lie complete in the staging folder: target (relative to the repository) to staged file and its digest."""

    files: Mapping[str, tuple[Path, str]]
    sha256: str
    revision: str | None
    resumed: bool


class Fetcher:
    """Fetches items; what is complete is remembered in ``state`` and not fetched again after a restart."""

    def __init__(
        self, models: Path, state: Path, folders: Folders, source_map: SourceMap, retrier: Retrier, redact: Redactor, log: logging.Logger
    ) -> None:
        self._models, self._state, self._folders, self._map = models, state, folders, source_map
        self._retrier, self._redact, self._log = retrier, redact, log
        self._downloader = Downloader(retrier, log)

    def reusable(self, item: PlanFetch, resolved: ResolvedSource | None) -> Fetched | None:
        """The result of an earlier attempt in this pod, when every file of it is still there byte for byte and still wanted."""
        try:
            record = json.loads(self._record(item).read_text())
            files = {below(self._models, name): digest for name, digest in record["files"].items()}
            sha256, revision, ignored = str(record["sha256"]), record["revision"], record["ignored"]
            if item.sha256 not in (None, sha256) or (resolved is not None and not _same(resolved, revision, sha256)):
                return None
            if not files or any(not path.is_file() or sha256_of(path) != digest for path, digest in files.items()):
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return self._result(item, revision, sha256, ignored, tuple(files))

    def fetch(self, item: PlanFetch, resolved: ResolvedSource | None) -> Fetched:
        """Fetch ``item``, exactly ``resolved`` where that is known. Raises :class:`LoadError`."""
        what = f"{item.spec_field} {redact_url(item.uri)}"
        staging = self._state / _key(item)
        try:
            ready = self._stage(item, resolved, staging, what)
            ignored = None
            if item.kind is FetchKind.TOKENIZER:
                ignored = self._checked(item, ready.files[item.target][0], what)
        except SourceError as error:
            raise LoadError(
                Reason.SOURCE_UNAVAILABLE, f"{what}: {error}", step=item.step, field=f"{item.spec_field}.uri", retryable=error.retryable
            ) from error
        except LoadError as error:
            error.step, error.field = error.step or item.step, error.field or item.spec_field
            raise
        digests = {name: digest for name, (_, digest) in ready.files.items()}
        # Written before the first rename: a restart in between finds a file missing and fetches again.
        note = {"files": digests, "sha256": ready.sha256, "revision": ready.revision, "ignored": ignored}
        write_atomically(self._record(item), json.dumps(note).encode())
        for name, (path, _) in ready.files.items():
            publish(path, below(self._models, name))
        shutil.rmtree(staging, ignore_errors=True)
        self._log.info("%s: complete, revision %s, sha256 %s", what, ready.revision or "none", ready.sha256)
        return self._result(item, ready.revision, ready.sha256, ignored, tuple(below(self._models, name) for name in ready.files))

    def _stage(self, item: PlanFetch, resolved: ResolvedSource | None, staging: Path, what: str) -> _Ready:
        located = self._map.apply(item.uri)
        if located.mapped:
            self._log.info("%s: mapped to %s", what, self._redact(located.endpoint or located.uri))
        credentials = read_credentials(item, located.scheme, self._folders.credentials, self._folders.ca, self._redact)
        with self._client(credentials) as client:
            opened = open_source(item, located, credentials, self._folders, client, resolved.revision if resolved else None)
            try:
                commit = self._retrier.run(what, opened.source.resolve)
                _same_or_raise(item, resolved, commit, None, what)
                ready = self._files(item, opened, staging, what, commit)
            except SourceError as error:
                if resolved is not None and resolved.revision is not None and error.missing:
                    raise changed(item, resolved, f"gone ({error})", what) from error
                raise
            if not self._matches(item, resolved, ready) and ready.resumed:
                # A part left by an earlier attempt may be what is wrong; the source gets one chance from byte 0.
                self._log.warning("%s: the digest is not the expected one after a resumed download; fetching all of it again", what)
                shutil.rmtree(staging, ignore_errors=True)
                ready = self._files(item, opened, staging, what, commit)
        if item.sha256 is not None and item.sha256 != ready.sha256:
            shutil.rmtree(staging, ignore_errors=True)
            raise LoadError(
                Reason.CHECKSUM_MISMATCH,
                f"{what}: {item.spec_field}.sha256 is {item.sha256}, the source has {ready.sha256}. "
                "Check that the source is the one that is meant, then write its digest.",
                field=f"{item.spec_field}.sha256",
            )
        if resolved is not None and not _same(resolved, ready.revision, ready.sha256):
            shutil.rmtree(staging, ignore_errors=True)
            raise changed(item, resolved, f"revision {ready.revision or 'none'}, sha256 {ready.sha256}", what)
        return ready

    def _client(self, credentials: Credentials) -> httpx.Client:
        return httpx.Client(verify=credentials.ssl_context(), timeout=TIMEOUT, headers={"User-Agent": USER_AGENT})

    def _matches(self, item: PlanFetch, resolved: ResolvedSource | None, ready: _Ready) -> bool:
        expected = item.sha256 or (resolved.sha256 if resolved else None)
        return expected in (None, ready.sha256)

    def _files(self, item: PlanFetch, opened: Opened, staging: Path, what: str, commit: str | None) -> _Ready:
        if item.kind is FetchKind.TOKENIZER:
            return self._tokenizer(item, opened, staging, what, commit)
        assert opened.file is not None
        main = self._one(opened, opened.file, staging, what)
        got, files = {PurePosixPath(opened.file).name: main}, {item.target: (main.path, main.sha256)}
        if item.target.endswith(".onnx"):
            folder = PurePosixPath(opened.file).parent
            for name in _side_files(item, main.path, what):
                side = self._one(opened, str(folder / name), staging, what)
                got[name] = side
                files[str(PurePosixPath(item.target).parent / name)] = (side.path, side.sha256)
        return _ready(files, got, commit or main.revision)

    def _tokenizer(self, item: PlanFetch, opened: Opened, staging: Path, what: str, commit: str | None) -> _Ready:
        file = opened.file
        if file is not None and PurePosixPath(file).name != tokenizer.VOCABULARY:
            main = self._one(opened, file, staging, what)
            return _ready({item.target: (main.path, main.sha256)}, {PurePosixPath(file).name: main}, commit or main.revision)
        folder = PurePosixPath(file).parent if file is not None else PurePosixPath()
        if file is None:
            try:
                main = self._one(opened, tokenizer.TOKENIZER_JSON, staging, what)
                return _ready({item.target: (main.path, main.sha256)}, {tokenizer.TOKENIZER_JSON: main}, commit or main.revision)
            except SourceError as error:
                if not error.missing:
                    raise
        got: dict[str, Downloaded] = {}
        for name in (tokenizer.VOCABULARY, tokenizer.CONFIGURATION, tokenizer.SPECIAL_TOKENS):
            try:
                got[name] = self._one(opened, str(folder / name), staging, what)
            except SourceError as error:
                if not error.missing:
                    raise
                if name != tokenizer.SPECIAL_TOKENS:
                    raise SourceError(
                        f"has neither {tokenizer.TOKENIZER_JSON} nor {tokenizer.VOCABULARY} with its {tokenizer.CONFIGURATION} ({error})",
                        missing=True,
                    ) from error
        try:
            text = tokenizer.convert({name: value.path for name, value in got.items()})
        except ValueError as error:
            advice = "Save the tokenizer as tokenizer.json (save_pretrained of its fast class) and use that."
            raise tokenizer.invalid(f"{what}: {error}. {advice}", item.step, item.spec_field) from error
        built = staging / "built" / tokenizer.TOKENIZER_JSON
        write_atomically(built, text.encode())
        self._log.info("%s: built tokenizer.json from %s", what, ", ".join(got))
        return _ready({item.target: (built, sha256_of(built))}, got, commit or got[tokenizer.VOCABULARY].revision)

    def _one(self, opened: Opened, name: str, staging: Path, what: str) -> Downloaded:
        return self._downloader.fetch(opened.source, name, below(staging, name), f"{what} {name}" if opened.file != name else what)

    def _checked(self, item: PlanFetch, path: Path, what: str) -> str | None:
        try:
            return tokenizer.check(path)
        except ValueError as error:
            shutil.rmtree(self._state / _key(item), ignore_errors=True)
            raise tokenizer.invalid(f"{what}: tokenizer.json cannot be used: {error}", item.step, item.spec_field) from error

    def _result(self, item: PlanFetch, revision: str | None, sha256: str, ignored: str | None, files: tuple[Path, ...]) -> Fetched:
        findings = (tokenizer.finding_of_settings(ignored, item.step, item.spec_field),) if ignored else ()
        source = ReportSource(step=item.step, uri=redact_url(item.uri), resolved_revision=revision, sha256=sha256)
        return Fetched(source, findings, files)

    def _record(self, item: PlanFetch) -> Path:
        return self._state / f"{_key(item)}.json"


def _side_files(item: PlanFetch, path: Path, what: str) -> tuple[str, ...]:
    try:
        return read_onnx(path).side_files
    except ValueError as error:
        raise LoadError(Reason.MODEL_MISMATCH, f"{what}: the file {error}", step=item.step, field=item.spec_field) from error


def _ready(files: Mapping[str, tuple[Path, str]], got: Mapping[str, Downloaded], revision: str | None) -> _Ready:
    return _Ready(files, digest_of({name: value.sha256 for name, value in got.items()}), revision, any(value.resumed for value in got.values()))


def digest_of(files: Mapping[str, str]) -> str:
    """The digest of a source: its file's; of several files that of their ``sha256sum`` lines in the order of their names."""
    if len(files) == 1:
        return next(iter(files.values()))
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _same(resolved: ResolvedSource, revision: str | None, sha256: str) -> bool:
    """Whether a source is what it was: the digest decides where it is known, since an ETag may change without the content."""
    if resolved.sha256 is not None:
        return resolved.sha256 == sha256
    return resolved.revision in (None, revision)


def _same_or_raise(item: PlanFetch, resolved: ResolvedSource | None, commit: str | None, sha256: str | None, what: str) -> None:
    if resolved is not None and commit is not None and resolved.revision not in (None, commit):
        raise changed(item, resolved, f"revision {commit}, sha256 {sha256 or 'not fetched'}", what)


def changed(item: PlanFetch, resolved: ResolvedSource, now: str, what: str) -> LoadError:
    """The error for a source that is no longer what this revision was loaded from first, with both sides."""
    before = f"revision {resolved.revision or 'none'}, sha256 {resolved.sha256 or 'unknown'}"
    return LoadError(
        Reason.SOURCE_CHANGED,
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
    identity = json.dumps([item.uri, item.revision, item.path, item.endpoint, item.target])
    return f"{item.step}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
