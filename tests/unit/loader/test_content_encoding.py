"""Test which values of Content-Encoding are unpacked, ignored and rejected."""

from __future__ import annotations

import gzip
import zlib

import httpx
import pytest

from tests.support.web import LoopbackServer, Response
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.sources.web import WebSource

DATA = bytes(range(256)) * 400


def fetched(body: bytes, encoding: str) -> tuple[bytes, int | None]:
    """Return what the loader reads, and the size that it expects."""
    answer = Response(200, {"Content-Encoding": encoding}, body)
    with (
        LoopbackServer(lambda _: answer) as server,
        httpx.Client(trust_env=False) as client,
        WebSource(client, f"{server.url}/", {}).open("model.bin") as opened,
    ):
        return b"".join(opened.chunks), opened.size


def raw_deflate(data: bytes, level: int) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    "encoding", ["aws-chunked", "utf-8", "binary", "none", "identity, identity", "Identity", ""]
)
def test_values_that_compress_nothing_are_ignored(encoding: str) -> None:
    assert fetched(DATA, encoding) == (DATA, len(DATA))


@pytest.mark.parametrize("encoding", ["gzip", "X-GZIP", "aws-chunked,gzip", "gzip, identity"])
def test_gzip_is_unpacked(encoding: str) -> None:
    assert fetched(gzip.compress(DATA), encoding) == (DATA, None)


@pytest.mark.parametrize("level", [0, 1, 9])
def test_deflate_is_unpacked_with_and_without_its_header(level: int) -> None:
    assert fetched(zlib.compress(DATA, level), "deflate") == (DATA, None)
    assert fetched(raw_deflate(DATA, level), "deflate") == (DATA, None)


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip, br"])
def test_other_compression_is_rejected(encoding: str) -> None:
    with pytest.raises(SourceError, match="Content-Encoding"):
        fetched(gzip.compress(gzip.compress(DATA)), encoding)
