"""A served model over HTTP: its metadata, and requests to it."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from triton_pipelines.tools.loadgen import LENGTH_HEADER, trusted_authorities

from .errors import EXIT_FAILED, CommandError
from .model_metadata import ModelMetadata

CONNECT_SECONDS = 10.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def http_client(url: str, timeout: float) -> httpx.Client:
    """Return an HTTP client for an address; ``timeout``: seconds."""
    # Proxies of the environment are not used for this machine, but its certificate authorities
    # always are. Reading these takes longer than many a request.
    proxied = urlsplit(url).hostname not in _LOOPBACK
    verify = trusted_authorities() if proxied or url.startswith("https") else False
    return httpx.Client(
        timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
        trust_env=proxied,
        verify=verify,
    )


def fetch_metadata(client: httpx.Client, base: str) -> ModelMetadata:
    """Return the model's metadata and config as the server reports them.

    Raises:
        CommandError: the server cannot be reached, or does not serve the model.
    """
    metadata = parse_document(_request(client, "GET", base), base)
    try:
        config = parse_document(_request(client, "GET", f"{base}/config"), base)
    except CommandError:
        config = {}  # a gateway may block it; the metadata has most of it
    try:
        return ModelMetadata.of(metadata, config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CommandError(
            f"{base} did not return model metadata; check that the address points to a Triton "
            "server",
            EXIT_FAILED,
        ) from error


def _request(client: httpx.Client, method: str, url: str, **content: Any) -> httpx.Response:
    try:
        return client.request(method, url, **content)
    except httpx.HTTPError as error:
        raise connection_error(url, error) from error


def connection_error(url: str, error: httpx.HTTPError) -> CommandError:
    """Return the error of a request that failed without an answer."""
    if isinstance(error, httpx.TimeoutException):
        return CommandError(
            f"{url}: the request timed out ({type(error).__name__}); increase --timeout",
            EXIT_FAILED,
        )
    causes = list(_causes(error))
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        hint = "set SSL_CERT_FILE to a file of trusted certificate authorities (PEM)"
    elif any(isinstance(cause, ssl.SSLError) for cause in causes):
        hint = "if the server does not use TLS, use http://HOST:PORT"
    else:
        hint = "check that the pipeline is served at this address"
    return CommandError(f"cannot reach {url}: {error or type(error).__name__}; {hint}", EXIT_FAILED)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it, outermost first."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def post(
    client: httpx.Client, url: str, body: bytes, headers: Mapping[str, str]
) -> tuple[dict[str, Any], bytes]:
    """Return the JSON part of the answer and the bytes after it."""
    answer = _request(client, "POST", url, content=body, headers=dict(headers))
    length = answer.headers.get(LENGTH_HEADER, "")
    size = int(length) if length.isdecimal() else len(answer.content)
    return parse_document(answer, url, answer.content[:size]), answer.content[size:]


def parse_document(
    answer: httpx.Response, url: str, content: bytes | None = None
) -> dict[str, Any]:
    """Return the JSON object of an answer, or of its first part.

    Raises:
        CommandError: the server rejected the request, or it is no Triton server.
    """
    try:
        document = json.loads(answer.content if content is None else content)
    except ValueError:
        document = None
    reason = document.get("error") if isinstance(document, dict) else None
    if answer.status_code != httpx.codes.OK:
        raise CommandError(
            f"{url} returned {answer.status_code}:"
            f" {reason or answer.reason_phrase or 'no reason given'}",
            EXIT_FAILED,
        )
    if not isinstance(document, dict):
        raise CommandError(
            f"{url} did not return a JSON object; check that the address points to a Triton server",
            EXIT_FAILED,
        )
    return document
