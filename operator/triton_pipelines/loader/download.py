"""Download one file of a source to disk: resumable, hashed while streaming, named when complete."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from triton_pipelines.loader.cache import CachedFile, FileCache, cache_key
from triton_pipelines.loader.errors import LoadStoppedError, NoSpaceError, SourceError
from triton_pipelines.loader.files import (
    FULL_VOLUME_ERRORS,
    free_bytes,
    fsync_folder,
    git_blob_of,
)
from triton_pipelines.loader.partial_file import DownloadedFile, PartialFile
from triton_pipelines.loader.progress import DownloadProgress, MeterFactory, format_bytes
from triton_pipelines.loader.retry import Retrier
from triton_pipelines.loader.source import FileBody, Source

_STOPPED: Final = "stopped, because another file of the same source failed"
_LOAD_FAILED: Final = "not fetched, because another source of this load failed"
_WAITS: Final = 3
"""Times that a download waits for another pod's before it continues by itself."""


@dataclass(frozen=True)
class DownloadJob:
    """A file to download."""

    source: Source
    """Where it comes from."""
    name: str
    """Its name in the source."""
    target: Path
    """Where to put it."""
    what: str
    """Field and URI: the start of every log line."""
    scope: str | None = None
    """Identifies the source in the cache's key; ``None`` bypasses the cache."""
    meter: MeterFactory | None = None
    """Starts the progress of the download; by default the download logs its own."""
    refresh: bool = False
    """Whether the file of the model cache is replaced instead of used."""


class Downloader:
    """Download files with retries.

    An unfinished file is next to its target as ``NAME.part`` with ``NAME.part.json``. A finished
    file has ``NAME.done.json`` next to it until it is moved to the repository, so that a restarted
    container does not fetch it again.
    """

    def __init__(
        self,
        retrier: Retrier,
        log: logging.Logger,
        cache: FileCache | None = None,
        load_failed: threading.Event | None = None,
    ) -> None:
        """Create the downloader.

        Args:
            retrier: tries downloads again.
            log: where progress is logged.
            cache: the model cache, if there is one.
            load_failed: set when a source of the same load has failed: files that another pod is
                fetching are then not waited for.
        """
        self._retrier, self._log, self._cache = retrier, log, cache
        self._load_failed = load_failed or threading.Event()

    def fetch(self, job: DownloadJob, stop: threading.Event | None = None) -> DownloadedFile:
        """Download a file.

        Args:
            job: what to download.
            stop: ends all downloads of a group when one of them failed for good.

        Raises:
            SourceError: the source stays unreadable.
            NoSpaceError: the volume is full.
            LoadStoppedError: another pod is fetching the file, and the load has failed already.
        """
        stop = stop or threading.Event()
        job.target.parent.mkdir(parents=True, exist_ok=True)
        waits = 0

        def attempt() -> DownloadedFile:
            nonlocal waits
            while True:
                done = self._attempt(job, stop, patient=waits < _WAITS)
                if isinstance(done, DownloadedFile):
                    return done
                # The connection is closed by now: a wait may be long.
                waits += 1
                assert self._cache is not None
                self._cache.wait(done, lambda: stop.is_set() or self._load_failed.is_set())
                if self._load_failed.is_set():
                    raise LoadStoppedError(_LOAD_FAILED)

        return self._retrier.run(job.what, attempt)

    def _attempt(
        self, job: DownloadJob, stop: threading.Event, patient: bool
    ) -> DownloadedFile | str:
        """Return the file, or the key of the cache that another pod is filling."""
        if stop.is_set():
            raise SourceError(_STOPPED)
        part = PartialFile(job.target)
        resumable = part.read()
        offset, validator = (part.size(), resumable) if resumable else (0, None)
        before = part.size() if resumable else 0
        try:
            with job.source.open(job.name, offset=offset, validator=validator) as body:
                if body.link is not None:
                    return self._link(body, body.link, job)
                if (done := part.finished(body)) is not None:
                    self._log.info("%s: complete since an earlier attempt", job.what)
                    if job.meter is not None:
                        job.meter(done.size, done.size).finish()
                    return done
                if self._cache is None or job.scope is None or body.identity is None:
                    return self._stream(body, part, job, stop)
                return self._through_cache(
                    self._cache,
                    cache_key(job.scope, job.name, body.identity),
                    body,
                    part,
                    job,
                    stop,
                    patient,
                )
        except SourceError as error:
            if error.restart:
                part.drop()
            error.progress = part.size() > before
            raise
        except OSError as error:
            if error.errno in FULL_VOLUME_ERRORS:
                raise NoSpaceError(None, free_bytes(job.target.parent), job.what) from error
            raise

    def _link(self, body: FileBody, file: Path, job: DownloadJob) -> DownloadedFile:
        """Read the file once for its digest, and link it."""
        digest, size = hashlib.sha256(), 0
        for chunk in body.chunks:
            digest.update(chunk)
            size += len(chunk)
        job.target.unlink(missing_ok=True)
        job.target.symlink_to(file)
        self._log.info("%s: %s linked", job.what, format_bytes(size))
        if job.meter is not None:
            job.meter(size, size).finish()
        return DownloadedFile(job.target, digest.hexdigest(), size, None, resumed=False)

    def _through_cache(
        self,
        cache: FileCache,
        key: str,
        body: FileBody,
        part: PartialFile,
        job: DownloadJob,
        stop: threading.Event,
        patient: bool,
    ) -> DownloadedFile | str:
        # The source was queried first: who may not read a file there does not get it from the
        # cache.
        if body.size is not None and body.size > free_bytes(job.target.parent) + part.size():
            raise NoSpaceError(body.size, free_bytes(job.target.parent), job.what)
        if job.refresh:
            done = self._stream(body, part, job, stop)
            cache.put(key, done.path, done.sha256)
            return done
        cached = cache.take(key, job.target, lambda file: _is_announced(file, body, job.target))
        if cached is not None:
            part.drop()
            self._log.info("%s: %s from the model cache", job.what, format_bytes(cached.size))
            if job.meter is not None:
                job.meter(cached.size, cached.size).finish()
            done = DownloadedFile(
                job.target,
                cached.sha256,
                cached.size,
                body.revision,
                resumed=False,
                is_unproven=not (body.digest or body.git_blob),
            )
            part.note(done, body.identity)
            return done
        lease = cache.lease(key)
        if lease is None:
            return key if patient else self._stream(body, part, job, stop)
        with lease:
            done = self._stream(body, part, job, stop)
            cache.put(key, done.path, done.sha256)
            return done

    def _stream(
        self, body: FileBody, part: PartialFile, job: DownloadJob, stop: threading.Event
    ) -> DownloadedFile:
        """Write the body to the partial file, check it, and give it its name."""
        digest = self._prepare(body, part, job)
        meter = (
            job.meter(body.size, body.offset)
            if job.meter
            else DownloadProgress(self._log, job.what, body.size, body.offset, time.monotonic)
        )
        size = body.offset
        with part.path.open("ab") as file:
            for chunk in body.chunks:
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
                meter.add(len(chunk))
                if body.size is not None and size > body.size:
                    break
                if stop.is_set():
                    raise SourceError(_STOPPED)
            file.flush()
            os.fsync(file.fileno())
        _check_content(body, part, size, digest.hexdigest())
        meter.finish()
        done = DownloadedFile(
            job.target, digest.hexdigest(), size, body.revision, resumed=body.offset > 0
        )
        part.path.replace(job.target)
        fsync_folder(job.target.parent)
        part.drop()
        part.note(done, body.identity)
        return done

    def _prepare(self, body: FileBody, part: PartialFile, job: DownloadJob) -> hashlib._Hash:
        """Return the digest of what is there already; check that the rest fits on the volume."""
        digest = hashlib.sha256()
        if body.offset:
            if body.offset != part.size():
                part.drop()
                raise SourceError(
                    f"the server resumed at byte {body.offset}, which was not requested",
                    retryable=True,
                )
            part.hash_into(digest)
            self._log.info("%s: resumes at %s", job.what, format_bytes(body.offset))
        else:
            part.drop()
        if body.size is not None:
            free, needed = free_bytes(job.target.parent), body.size - body.offset
            if needed > free:
                raise NoSpaceError(needed, free, job.what)
        part.write(body.validator)
        return digest


def _is_announced(file: CachedFile, body: FileBody, path: Path) -> bool:
    """Return whether a file of the model cache is what the source announced.

    The source answered just now, with the pod's own credentials; others can write to the cache.
    """
    if body.size is not None and file.size != body.size:
        return False
    if body.digest is not None:
        return file.sha256 == body.digest
    return body.git_blob is None or git_blob_of(path) == body.git_blob


def _check_content(body: FileBody, part: PartialFile, size: int, digest: str) -> None:
    """Compare what arrived with what the source announced."""
    if body.size is not None and size != body.size:
        if size > body.size:
            part.drop()
            raise SourceError(
                f"the response exceeds its Content-Length of {body.size} bytes",
                retryable=True,
            )
        raise SourceError(f"the response ended at byte {size} of {body.size}", retryable=True)
    if body.digest is not None and digest != body.digest:
        part.drop()
        raise SourceError(
            f"the file has digest {digest}, but the source announced {body.digest}",
            retryable=True,
        )
