"""Download the files of a source together, into its staging folder."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

from triton_pipelines.api.loadplan import (
    PlanFetch,
    ResolvedSource,
)
from triton_pipelines.loader.download import Downloader, DownloadJob
from triton_pipelines.loader.errors import NoSpaceError
from triton_pipelines.loader.files import free_bytes, sha256_of
from triton_pipelines.loader.listing import ListedFile
from triton_pipelines.loader.partial_file import DownloadedFile
from triton_pipelines.loader.progress import GroupProgress
from triton_pipelines.loader.repository import below
from triton_pipelines.loader.sources import OpenedSource

PARALLEL: Final = 4
"""Files of a source that are fetched at once; more would share the same network."""


@dataclass(frozen=True)
class StagingRequest:
    """What is staged, from where and to where."""

    item: PlanFetch
    """The plan's item."""
    source: OpenedSource
    """Its source."""
    folder: Path
    """The staging folder."""
    what: str
    """Field and URI: the start of every log line."""
    commit: str | None
    """The commit that the source is at, if it has commits."""
    resolved: ResolvedSource | None
    """What the source was at this revision's first load, if known."""
    scope: str
    """Identifies the source in the cache's keys."""
    refresh: bool = False
    """Whether files of the model cache are replaced instead of used."""


class GroupDownloader:
    """Download files of one source; ``parallel`` files at once."""

    def __init__(
        self, downloader: Downloader, log: logging.Logger, parallel: int = PARALLEL
    ) -> None:
        self._downloader, self._log, self._parallel = downloader, log, parallel

    def fetch_one(self, stage: StagingRequest, name: str) -> DownloadedFile:
        """Fetch one file into the staging folder, by its name in the source."""
        what = f"{stage.what} {name}" if stage.source.file != name else stage.what
        return self._downloader.fetch(
            DownloadJob(
                stage.source.source,
                name,
                below(stage.folder, name),
                what,
                stage.scope,
                refresh=stage.refresh,
            )
        )

    def path_of(self, stage: StagingRequest, name: str) -> Path:
        """Return a path in a folder of its own for each file, so that names cannot collide."""
        return (
            stage.folder
            / "files"
            / sha256(name.encode()).hexdigest()[:16]
            / PurePosixPath(name).name
        )

    def fetch_all(
        self,
        stage: StagingRequest,
        requests: Sequence[tuple[str, str, Path]],
        entries: Mapping[str, ListedFile],
    ) -> dict[str, DownloadedFile]:
        """Fetch files, several at once; the first that fails ends the others.

        Args:
            stage: what is staged.
            requests: key, name in the source and staged path of each file.
            entries: key → listed file, where it is known.

        Returns:
            The files by key.
        """
        total = _total_size([entries.get(key) for key, _, _ in requests])
        group = (
            GroupProgress(self._log, stage.what, len(requests), total, time.monotonic)
            if len(requests) > 1
            else None
        )
        found = _unpacked_files(stage, requests)
        if group is not None:
            for key, file in found.items():
                group.there(key, file.size)
        jobs = [
            (
                key,
                DownloadJob(
                    stage.source.source,
                    name,
                    path,
                    stage.what
                    if len(requests) == 1 and name == stage.source.place
                    else f"{stage.what} {key}",
                    stage.scope,
                    group.of(key) if group else None,
                    stage.refresh,
                ),
            )
            for key, name, path in requests
            if key not in found
        ]
        if total is not None and group is not None and not stage.source.is_linked:
            self._check_space(stage, total - sum(file.size for file in found.values()))
        found |= self._fetch_together(jobs)
        if group is not None:
            group.finish()
        return {key: found[key] for key, _, _ in requests}

    def _check_space(self, stage: StagingRequest, needed: int) -> None:
        """Check that the volume has room before the first byte is written.

        Files that an earlier attempt left count as written.
        """
        stage.folder.mkdir(parents=True, exist_ok=True)
        there = sum(
            path.stat().st_size for path in (stage.folder / "files").rglob("*") if path.is_file()
        )
        free = free_bytes(stage.folder)
        if needed - there > free:
            raise NoSpaceError(needed - there, free, stage.what)

    def _fetch_together(self, jobs: Sequence[tuple[str, DownloadJob]]) -> dict[str, DownloadedFile]:
        if len(jobs) == 1:
            return {jobs[0][0]: self._downloader.fetch(jobs[0][1])}
        stop = threading.Event()
        futures: dict[str, Future[DownloadedFile]] = {}
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="fetch") as pool:
            try:
                futures = {key: pool.submit(self._downloader.fetch, job, stop) for key, job in jobs}
                done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
                failed = next(
                    (
                        error
                        for error in (future.exception() for future in done)
                        if error is not None
                    ),
                    None,
                )
                if failed is not None:
                    raise failed
            finally:
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
        return {key: future.result() for key, future in futures.items()}


def _unpacked_files(
    stage: StagingRequest, requests: Sequence[tuple[str, str, Path]]
) -> dict[str, DownloadedFile]:
    """Return the requested files that came out of an image's archives and need no download."""
    from triton_pipelines.loader.sources.oci import OciSource

    source, found = stage.source.source, dict[str, DownloadedFile]()
    if not isinstance(source, OciSource):
        return found
    for key, name, _ in requests:
        if (local := source.local(name)) is not None:
            found[key] = DownloadedFile(
                local, sha256_of(local), local.stat().st_size, stage.commit, resumed=False
            )
    return found


def _total_size(entries: Sequence[ListedFile | None]) -> int | None:
    """Return the bytes of all files; ``None`` if the size of one is not known."""
    sizes = [entry.size if entry is not None else None for entry in entries]
    return None if None in sizes else sum(size or 0 for size in sizes)
