"""Read files over HTTP: custom CA, bearer or basic credentials, ranges and redirects.

A redirect takes no credentials to another host.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import httpx

from triton_pipelines.loader.errors import PROXY_REFUSED, SourceError
from triton_pipelines.loader.listing import ListedFile, SourceListing
from triton_pipelines.loader.source import FileBody
from triton_pipelines.loader.sources.transport_errors import (
    certificate_error,
    is_proxy_auth_error,
)
from triton_pipelines.loader.sources.unpack_limits import unpacked_error, unpacked_limit

_RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS: Final = 10
IDENTITY: Final = {"Accept-Encoding": "identity"}
"""Header that requests content as it is; some servers compress it all the same."""
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_UNPACKED_CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
_OTHER_CODINGS: Final = frozenset({"br", "zstd", "compress", "x-compress"})
"""Codings that compress and that are not unpacked here.

All other values change no content: servers send ``aws-chunked``, ``utf-8``, ``binary``, ``none``.
"""
_BLOCK: Final = 1 << 20
TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)
"""Seconds without a byte until an attempt fails; a whole download has no limit."""


class WebSource:
    """Files below a URL."""

    def __init__(
        self,
        client: httpx.Client,
        base: str,
        headers: Mapping[str, str],
        exact: Mapping[str, str] | None = None,
        *,
        immutable: bool = False,
    ) -> None:
        """Create the source.

        Args:
            client: HTTP client.
            base: URL of the folder; ends with ``/``.
            headers: headers of every request.
            exact: name → its own URL (signed queries).
            immutable: whether the content of a URL never changes, so that a range needs no
                validator.
        """
        self._immutable = immutable
        self._client, self._base, self._headers, self._exact = (
            client,
            base,
            dict(headers),
            dict(exact or {}),
        )

    def resolve(self) -> str | None:
        """Return ``None``: each file has its own ETag."""
        return None

    def list(self, place: str) -> SourceListing:
        """Return the file at ``place``; a folder (``/`` at the end, or empty) cannot be listed."""
        if not place or place.endswith("/"):
            return SourceListing(None)
        return SourceListing((ListedFile(place.rpartition("/")[2]),), single=True)

    @contextmanager
    def open(
        self, name: str, *, offset: int = 0, validator: str | None = None
    ) -> Iterator[FileBody]:
        """Request ``name``; with ``offset`` and ``validator`` as a range of the same version."""
        url = self._exact.get(name) or self._base + quote(name)
        headers = {**self._headers, **IDENTITY}
        if offset and validator:
            headers["Range"] = f"bytes={offset}-"
            if not self._immutable:
                headers["If-Range"] = validator
        with web_errors(), stream(self._client, url, headers) as response:
            start, size = _range(response, offset if offset and validator else 0)
            encoded = bool(_codings(response))
            yield FileBody(
                decoded_chunks(response),
                offset=start,
                size=None if encoded else size,
                validator=None if encoded else _validator(response),
                revision=response.headers.get("etag") or response.headers.get("last-modified"),
                identity=None if encoded else _strong(response),
            )


@contextmanager
def web_errors() -> Iterator[None]:
    """Turn errors of httpx into :class:`SourceError`."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise SourceError(f"timed out ({type(error).__name__})", retryable=True) from error
    except httpx.TransportError as error:
        raise _source_error(error) from error
    except (httpx.InvalidURL, httpx.HTTPError) as error:
        raise SourceError(f"not a usable URL: {error}") from error


def _source_error(error: httpx.TransportError) -> SourceError:
    if is_proxy_auth_error(error):
        return SourceError(PROXY_REFUSED)
    certificate = certificate_error(error)
    if certificate is not None:
        return SourceError(
            f"the server's certificate is not trusted ({certificate.verify_message}); set "
            "its CA in source.caRef"
        )
    return SourceError(
        f"{type(error).__name__}: {error}",
        retryable=not isinstance(error, httpx.UnsupportedProtocol),
    )


@contextmanager
def stream(client: httpx.Client, url: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
    """Send a GET and follow redirects.

    Authorization stays with its origin, and https never becomes http. Only the origin of ``url``
    may ask for credentials: where a redirect leads is not trusted with them (CVE-2020-15157).
    """
    send, first = dict(headers), _origin(url)
    for _ in range(_MAX_REDIRECTS):
        with client.stream("GET", url, headers=send, follow_redirects=False) as response:
            if response.status_code not in _REDIRECTS:
                _check_status(
                    response,
                    url,
                    presented="Authorization" in headers,
                    is_own=_origin(url) == first,
                )
                yield response
                return
            following = urljoin(url, response.headers.get("location", ""))
        if urlsplit(url).scheme == "https" and urlsplit(following).scheme != "https":
            raise SourceError(
                f"redirects from https to {urlsplit(following).scheme}://, which is not allowed"
            )
        if _origin(following) != _origin(url):
            send.pop("Authorization", None)
        url = following
    raise SourceError(f"redirects more than {_MAX_REDIRECTS} times")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _check_status(response: httpx.Response, url: str, *, presented: bool, is_own: bool) -> None:
    """Raise the error for a response without content.

    Args:
        response: the response.
        url: its URL.
        presented: whether the first request carried credentials.
        is_own: whether the response came from the origin that was requested.
    """
    status = response.status_code
    if status in (200, 206):
        return
    where = urlsplit(url).hostname
    if status in (401, 403):
        advice = (
            "check the Secret in source.secretRef"
            if presented
            else "set its credentials in source.secretRef"
        )
        raise SourceError(
            f"{where} returned {status} {response.reason_phrase}; {advice}",
            challenge=_challenge(response) if is_own else None,
        )
    if status in (404, 410):
        raise SourceError(
            f"{where} has no file {urlsplit(url).path} ({status}); check uri, path and revision",
            missing=True,
        )
    if status == 416:
        # The part on disk is longer than the file or not part of it: the next attempt starts again.
        raise SourceError(
            f"{where} cannot continue where the last attempt ended", retryable=True, restart=True
        )
    raise SourceError(
        f"{where} returned {status} {response.reason_phrase}",
        retryable=status in _RETRYABLE,
        retry_after=_retry_after(response),
    )


def _challenge(response: httpx.Response) -> str | None:
    return response.headers.get("www-authenticate", "") if response.status_code == 401 else None


def _retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("retry-after", "").strip()
    if value.isdigit():
        return float(value)
    try:
        return (
            max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
            if value
            else None
        )
    except (ValueError, TypeError):
        return None


def _range(response: httpx.Response, requested: int) -> tuple[int, int | None]:
    """Return the first byte of the body and the size of the whole file."""
    if response.status_code == 206:
        unit, _, rest = response.headers.get("content-range", "").partition(" ")
        span, _, total = rest.partition("/")
        start = span.partition("-")[0]
        if unit.lower() != "bytes" or not start.isdigit() or int(start) != requested:
            raise SourceError(
                f"responded with the range {response.headers.get('content-range')!r}, which does "
                f"not start at byte {requested}",
                retryable=True,
                restart=True,
            )
        return requested, int(total) if total.isdigit() else None
    length = response.headers.get("content-length", "")
    return 0, int(length) if length.isdigit() else None


def _validator(response: httpx.Response) -> str | None:
    """Return what If-Range accepts: a strong ETag, else a date (RFC 9110, 13.1.5)."""
    if etag := _strong(response):
        return etag
    return (
        response.headers.get("last-modified")
        if response.headers.get("accept-ranges", "").lower() == "bytes"
        else None
    )


def _strong(response: httpx.Response) -> str | None:
    etag = response.headers.get("etag")
    return str(etag) if etag and not etag.startswith("W/") else None


def _codings(response: httpx.Response) -> tuple[str, ...]:
    """Return the codings by which the body is compressed."""
    values = str(response.headers.get("content-encoding", "")).lower().split(",")
    names = (value.strip() for value in values)
    return tuple(name for name in names if name in _UNPACKED_CODINGS | _OTHER_CODINGS)


def decoded_chunks(response: httpx.Response) -> Iterator[bytes]:
    """Yield the body, unpacked if the server compressed it unrequested.

    httpx would unpack each chunk at once, by any number of encodings and without a limit.

    Raises:
        SourceError: the body cannot be read, is compressed otherwise than by gzip or deflate, or
            unpacks to too much.
    """
    codings = _codings(response)
    with web_errors():
        if not codings:
            yield from response.iter_raw()
        elif len(codings) == 1 and codings[0] in _UNPACKED_CODINGS:
            yield from _inflated(response.iter_raw(), codings[0])
        else:
            raise SourceError(
                f"sends Content-Encoding {', '.join(codings)[:80]}, which was not requested;"
                " configure the server to send the file unchanged"
            )


def _inflated(chunks: Iterator[bytes], coding: str) -> Iterator[bytes]:
    decoder, packed, unpacked = None, 0, 0
    for chunk in chunks:
        packed += len(chunk)
        rest = chunk
        while rest:
            decoder = decoder or zlib.decompressobj(_window_bits(rest[0], coding))
            try:
                data = decoder.decompress(rest, _BLOCK)
            except zlib.error as error:
                raise SourceError(f"sent a body that cannot be decompressed ({error})") from error
            unpacked += len(data)
            if unpacked > unpacked_limit(packed):
                raise unpacked_error("a compressed body", packed)
            yield data
            rest = decoder.unconsumed_tail
            if decoder.eof and decoder.unused_data:
                # gzip files may consist of several members.
                rest, decoder = decoder.unused_data, zlib.decompressobj(_GZIP_OR_ZLIB)
    if decoder is None or not decoder.eof:
        raise SourceError("the compressed body ended early", retryable=True)


def _window_bits(first: int, coding: str) -> int:
    """Return the format of a body by its first byte: some servers send deflate without a header.

    Deflate data starts with neither the method of a zlib header nor gzip's magic number (RFC 1951,
    3.2.3): block type 3 is not used, and a stored block is padded with zeros.
    """
    has_header = first == 0x1F or first & 0x0F == zlib.DEFLATED
    return -zlib.MAX_WBITS if coding == "deflate" and not has_header else _GZIP_OR_ZLIB


def split_userinfo(url: str) -> tuple[str, tuple[str, str] | None]:
    """Return ``url`` without user information, and user and password if it had them."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, None
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host)), (
        unquote(parts.username),
        unquote(parts.password or ""),
    )
