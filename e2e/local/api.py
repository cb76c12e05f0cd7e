"""The few API calls that bringing a cluster up needs, over the administrator's kubeconfig."""

import base64
import json
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml


class NotReadyError(RuntimeError):
    """Something did not become ready in time; the message says what and where its log is."""


def client(kubeconfig: Path, timeout: float = 30.0) -> httpx.Client:
    """Return an HTTP client that authenticates with a kubeconfig's client certificate.

    The kubeconfig has one context.

    `timeout` in seconds, for each request.
    """
    document = yaml.safe_load(kubeconfig.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    context = ssl.create_default_context(
        cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
    )
    with (
        tempfile.NamedTemporaryFile() as pair
    ):  # the ssl module reads client keys from files only; mode 0600
        pair.write(
            base64.b64decode(user["client-certificate-data"])
            + base64.b64decode(user["client-key-data"])
        )
        pair.flush()
        context.load_cert_chain(pair.name)
    return httpx.Client(
        base_url=cluster["server"], verify=context, timeout=timeout, trust_env=False
    )


def apply(connection: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Server-side apply of one object; returns it as stored.

    Raises:
        httpx.HTTPStatusError: the API server refused it.
    """
    answer = connection.patch(
        path,
        params={"fieldManager": "local-cluster", "force": "true"},
        headers={"Content-Type": "application/apply-patch+yaml"},
        content=json.dumps(body, ensure_ascii=False).encode(),  # YAML knows no pairs of escapes
    )
    answer.raise_for_status()
    result: dict[str, Any] = answer.json()
    return result


def wait_for(
    what: str,
    check: Callable[[], bool],
    deadline: float,
    alive: Callable[[], object] = lambda: None,
) -> None:
    """Call `check` until it returns true.

    `deadline` is in seconds from now. `alive` raises when waiting has become pointless.

    A refused connection or a 5xx answer counts as "not yet".

    Raises:
        NotReadyError: the deadline passed.
    """
    end = time.monotonic() + deadline
    while True:
        alive()
        try:
            if check():
                return
        except (httpx.TransportError, httpx.HTTPStatusError, OSError) as error:
            last: Exception | None = error
        else:
            last = None
        if time.monotonic() > end:
            raise NotReadyError(
                f"{what}: not within {deadline:.0f} s" + (f" (last: {last})" if last else "")
            )
        time.sleep(0.1)


def ready(connection: httpx.Client, path: str = "/readyz") -> bool:
    """Whether the API server says that it is ready."""
    return connection.get(path).status_code == httpx.codes.OK
