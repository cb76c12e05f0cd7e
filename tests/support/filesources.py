"""A source with one file, for tests of downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from triton_pipelines.loader.listing import SourceListing
from triton_pipelines.loader.source import FileBody


class OneFile:
    """A source whose only file is what `body` returns at each opening."""

    def __init__(self, body: Callable[[], FileBody]) -> None:
        self._body = body

    def resolve(self) -> str | None:
        return None

    def list(self, place: str) -> SourceListing:
        return SourceListing(None)

    @contextmanager
    def open(
        self, name: str, *, offset: int = 0, validator: str | None = None
    ) -> Iterator[FileBody]:
        yield self._body()
