"""Test that a download writes no more than the source announced."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from tests.support.filesources import OneFile
from tests.support.messages import Messages
from triton_pipelines.loader.download import Downloader, DownloadJob
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.retry import Retrier, RetryPolicy
from triton_pipelines.loader.source import FileBody


def test_a_body_that_does_not_end_is_cut(tmp_path: Path, messages: Messages) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 1 << 20
            yield bytes(1 << 20)

    source = OneFile(lambda: FileBody(chunks(), size=1000))
    log = logging.Logger("download")
    downloader = Downloader(Retrier(log, RetryPolicy(attempts=1)), log)
    with messages.raises(SourceError, match="1000"):
        downloader.fetch(DownloadJob(source, "name", tmp_path / "target", "what"))
    assert sent == 1 << 20
    assert list(tmp_path.iterdir()) == []
