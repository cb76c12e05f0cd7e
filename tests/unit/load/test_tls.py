"""Load over TLS: whose authorities count, and what is said where they do not."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from e2e.local.pki import Authority
from tests.support.loopback import listening
from tests.support.messages import Messages
from triton_pipelines.tools.loadgen import LoadGeneratorError, LoadSpec, LoadTarget, run_load

ONCE = LoadSpec(concurrency=1, duration_s=0.1, warmup_s=0.0, statistics=False)


@contextlib.asynccontextmanager
async def serving(folder: Path, *, tls: bool = True) -> AsyncIterator[LoadTarget]:
    """Run a server that answers every request.

    Its certificate is from a separate authority, which is written to ``folder``/ca.pem.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            contextlib.suppress(asyncio.IncompleteReadError, ConnectionError),
            contextlib.closing(writer),
        ):
            if not tls:
                await reader.readexactly(1)
                writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                return
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(1)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    authority = Authority(dt.datetime.now(dt.UTC) - dt.timedelta(minutes=1))
    identity = authority.server("server", ["127.0.0.1"])
    (folder / "ca.pem").write_bytes(authority.identity.certificate)
    (folder / "server.pem").write_bytes(identity.certificate + identity.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem")
    async with listening(answer, context if tls else None) as address:
        yield LoadTarget(
            f"https://{address}",
            "m",
            (),
            path="/",
            bodies=[b"x"],
        )


async def test_an_authority_of_the_environment_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as target:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        result = await run_load(target, ONCE)
    assert len(result.latencies) > 0
    assert not result.errors


async def test_a_certificate_that_is_refused_says_how_to_trust_it(
    tmp_path: Path, messages: Messages
) -> None:
    async with serving(tmp_path) as target:
        with messages.raises(LoadGeneratorError, match="SSL_CERT_FILE"):
            await run_load(target, ONCE)


async def test_a_server_without_tls_is_not_told_to_be_a_matter_of_rights(
    tmp_path: Path, messages: Messages
) -> None:
    # The number of a TLS error is 1, which is the system's "Operation not permitted".
    async with serving(tmp_path, tls=False) as target:
        with messages.raises(LoadGeneratorError, match="TLS") as caught:
            await run_load(target, ONCE)
    assert "not permitted" not in str(caught.value)
