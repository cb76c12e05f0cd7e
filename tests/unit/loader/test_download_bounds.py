"""Test that a download writes no more than the source announced."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from triton_pipelines.loader.download import Downloader, DownloadJob
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.listing import SourceListing
from triton_pipelines.loader.retry import Retrier, RetryPolicy
from triton_pipelines.loader.source import FileBody


class Endless:
    """A source that announces 1000 bytes and sends a mebibyte at a time."""

    def __init__(self) -> None:
        self.sent = 0

    def resolve(self) -> str | None:
        return None

    def list(self, place: str) -> SourceListing:
        return SourceListing(None)

    @contextmanager
    def open(
        self, name: str, *, offset: int = 0, validator: str | None = None
    ) -> Iterator[FileBody]:
        yield FileBody(self._chunks(), size=1000)

    def _chunks(self) -> Iterator[bytes]:
        for _ in range(64):
            self.sent += 1 << 20
            yield bytes(1 << 20)


def test_a_body_that_does_not_end_is_cut(tmp_path: Path) -> None:
    source, log = Endless(), logging.Logger("download")
    downloader = Downloader(Retrier(log, RetryPolicy(attempts=1)), log)
    with pytest.raises(SourceError, match="longer than the 1000 bytes"):
        downloader.fetch(DownloadJob(source, "name", tmp_path / "target", "what"))
    assert source.sent == 1 << 20
    assert list(tmp_path.iterdir()) == []
