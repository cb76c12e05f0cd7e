"""The operator key and the control keys derived from it.

Each revision of each pipeline has its own control key for Triton's repository control: an HMAC over
the pipeline's UID and the revision with the operator key. So nothing is stored per pipeline, and
the operator needs no right to read Secrets: it creates the Secret of its own key once and reads it
as a mounted file.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Conflict
from triton_pipelines.cluster.resources import SECRETS

KEY_BYTES: Final = 32
_DERIVED_CHARACTERS: Final = 40  # 160 bits in hex: far beyond guessing, and short in a header
_POLL_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)


class ControlKeyError(Exception):
    """The operator key is not available; the message says what to do."""


def derive(key: bytes, uid: str, revision: str) -> str:
    """Return the control key of one revision of one pipeline.

    Args:
        key: the operator key.
        uid: ``metadata.uid`` of the pipeline.
        revision: its revision hash.

    Returns:
        40 hexadecimal characters (HMAC-SHA256, cut).
    """
    # Neither part can contain a NUL, so no two pairs give the same message.
    return hmac.new(key, f"{uid}\0{revision}".encode(), hashlib.sha256).hexdigest()[
        :_DERIVED_CHARACTERS
    ]


def read_key_file(path: Path) -> bytes | None:
    """Return the operator key from its file.

    ``None`` if there is no file (the Secret is not mounted yet) or it is empty.

    Raises:
        ControlKeyError: the file is not readable, or too short for a key.
    """
    try:
        key = path.read_bytes().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ControlKeyError(
            f"operator key file {path} cannot be read ({error.strerror}); check the mounted Secret"
        ) from error
    if key and len(key) < KEY_BYTES:
        raise ControlKeyError(
            f"operator key file {path} contains {len(key)} bytes, but at least {KEY_BYTES} "
            "bytes are required; delete the Secret to create a new key"
        )
    return key or None


async def load_or_create(
    client: Client,
    *,
    path: Path,
    namespace: str,
    secret: str,
    wait_seconds: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> bytes:
    """Return the operator key.

    It is read from its file, else its Secret is created, else (the Secret exists) the function
    waits until the kubelet mounts it.

    The Secret is never read through the API.

    Args:
        client: client of the API server.
        path: the mounted file; its name is the data key in the Secret.
        namespace: namespace of the Secret.
        secret: its name.
        wait_seconds: how long to wait for the file once the Secret is known to exist.
        sleep: waits; replaced in tests.

    Raises:
        ControlKeyError: the key is not available; the message says what to do.
        ClusterError: the Secret could not be created.
    """
    found = read_key_file(path)
    if found is not None:
        return found
    created = secrets.token_hex(KEY_BYTES).encode()
    try:
        await client.create(_secret(namespace, secret, path.name, created))
    except Conflict as error:
        if not error.already_exists:
            raise
    else:
        await _log.ainfo("created the operator key", namespace=namespace, name=secret)
        return created
    await _log.ainfo(
        "waiting for the operator key to be mounted",
        namespace=namespace,
        name=secret,
        path=str(path),
    )
    waited = 0.0
    while waited < wait_seconds:
        await sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS
        found = read_key_file(path)
        if found is not None:
            return found
    raise ControlKeyError(
        f"Secret {namespace}/{secret} exists, but {path} did not appear within "
        f"{wait_seconds:g} s. Mount the Secret there (an optional Secret volume with the "
        f"key {path.name!r}), or delete the Secret to create a new operator key"
    )


def _secret(namespace: str, name: str, data_key: str, key: bytes) -> Object:
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {names.LABEL_NAME: names.APP, names.LABEL_MANAGED_BY: names.MANAGED_BY},
        },
        "type": "Opaque",
        "data": {data_key: base64.b64encode(key).decode()},
    }
