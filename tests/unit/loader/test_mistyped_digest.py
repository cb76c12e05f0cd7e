"""Test that a mistyped sha256 does not fetch what the source's own digest proves once per start."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from tests.support.filesources import OneFile
from triton_pipelines.loader.cache import FileCache
from triton_pipelines.loader.download import Downloader, DownloadJob
from triton_pipelines.loader.retry import Retrier, RetryPolicy
from triton_pipelines.loader.source import FileBody
from triton_pipelines.loader.staged_files import staged

DATA = b"weights"


SHA256 = hashlib.sha256(DATA).hexdigest()
GIT = hashlib.sha1(b"blob 7\0" + DATA, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    ("digest", "git_blob", "is_unproven"),
    [(SHA256, None, False), (None, GIT, False), (None, None, True)],
)
def test_a_copy_that_the_source_proves_is_not_refreshed(
    tmp_path: Path, digest: str | None, git_blob: str | None, is_unproven: bool
) -> None:
    log = logging.Logger("download")
    cache = FileCache(tmp_path / "volume", log, keep_free=0.0)
    downloader = Downloader(Retrier(log, RetryPolicy(attempts=1)), log, cache=cache)
    source = OneFile(
        lambda: FileBody(
            iter([DATA]), size=len(DATA), identity="v1", digest=digest, git_blob=git_blob
        )
    )
    first, second = (
        downloader.fetch(DownloadJob(source, "name", tmp_path / target, "what", scope="s"))
        for target in ("first", "second")
    )
    assert not first.is_unproven
    assert second.sha256 == SHA256
    assert second.is_unproven is is_unproven
    files = {"name": (second.path, second.sha256)}
    assert staged(files, {"name": second}, None).is_unproven is is_unproven
