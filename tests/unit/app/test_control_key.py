"""Operator key and control keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.messages import Messages
from triton_pipelines.app.control_key import ControlKeyError, derive, load_or_create, read_key_file
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import Conflict, Forbidden

KEY = b"k" * 64


class Creates:
    """Stand-in for the client: takes creates, or refuses them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.created: list[dict[str, Any]] = []

    async def create(self, obj: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.created.append(obj)
        if self.error:
            raise self.error
        return obj


async def no_sleep(_: float) -> None:
    raise AssertionError("nothing to wait for")


async def load(
    creates: Creates, path: Path, sleep: Callable[[float], Awaitable[None]] = no_sleep
) -> bytes:
    client = cast(Client, creates)
    return await load_or_create(
        client, path=path, namespace="n", secret="s", wait_seconds=5, sleep=sleep
    )


def test_derived_keys_are_hmacs_of_uid_and_revision() -> None:
    expected = hmac.HMAC(KEY, b"uid-1\x00rev-1", hashlib.sha256).hexdigest()[:40]
    assert derive(KEY, "uid-1", "rev-1") == expected
    keys = {
        derive(key, uid, revision)
        for key in (KEY, b"x" * 64)
        for uid in ("u", "ur")
        for revision in ("r", "rr")
    }
    assert len(keys) == 8


async def test_a_mounted_key_is_taken_without_a_request(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY + b"\n")
    creates = Creates()
    assert await load(creates, tmp_path / "key") == KEY
    assert creates.created == []


async def test_a_new_key_is_created_as_it_will_be_mounted(tmp_path: Path) -> None:
    creates = Creates()
    key = await load(creates, tmp_path / "key")
    assert len(bytes.fromhex(key.decode())) == 32
    (secret,) = creates.created
    assert (secret["kind"], secret["metadata"]["namespace"], secret["metadata"]["name"]) == (
        "Secret",
        "n",
        "s",
    )
    assert base64.b64decode(secret["data"]["key"]) == key
    assert await load(Creates(), tmp_path / "key") != key


async def test_an_existing_secret_is_waited_for(tmp_path: Path) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            (tmp_path / "key").write_bytes(KEY)

    assert await load(Creates(Conflict(409, "AlreadyExists", "")), tmp_path / "key", sleep) == KEY
    assert waits == [1.0] * 3


async def test_a_secret_that_is_never_mounted_is_an_error_that_says_what_to_do(
    tmp_path: Path,
    messages: Messages,
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with messages.raises(ControlKeyError):
        await load(Creates(Conflict(409, "AlreadyExists", "")), tmp_path / "key", sleep)
    assert sum(waits) == 5


async def test_other_refusals_go_up(tmp_path: Path) -> None:
    for error in (Forbidden(403, "Forbidden", "no"), Conflict(409, "Conflict", "no")):
        with pytest.raises(type(error)):
            await load(Creates(error), tmp_path / "key")


def test_key_files_that_cannot_be_keys(tmp_path: Path, messages: Messages) -> None:
    path = tmp_path / "key"
    assert read_key_file(path) is None
    path.write_bytes(b"\n")
    assert read_key_file(path) is None
    path.write_bytes(b"short")
    with messages.raises(ControlKeyError):
        read_key_file(path)
    with messages.raises(ControlKeyError):
        read_key_file(tmp_path)
