"""Objects of S3 and what speaks its protocol, through obstore."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import S3Store

from triton_pipelines.loader.download import Body
from triton_pipelines.loader.errors import SourceError

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig

DEFAULT_REGION: Final = "us-east-1"
_CHUNK: Final = 4 << 20
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
_CODE: Final = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,300})</Message>")
_STATUS: Final = re.compile(r"\bstatus: (\d{3})\b")
_CAUSE: Final = re.compile(r"""\b(?:message|error): "([^"]+)\"""")


def s3_store(
    bucket: str,
    *,
    endpoint: str | None,
    region: str | None,
    keys: tuple[str, str, str | None] | None,
    ca: Path | None,
) -> S3Store:
    """A store of ``bucket``. ``keys`` are access key id, secret and session token; None: the pod's ambient identity.

    With ``endpoint`` the bucket is addressed by path, which every S3 server takes. Retries are the downloader's, which logs them.
    """
    client: ClientConfig = {
        "connect_timeout": "10s",
        "read_timeout": "60s",
        "timeout": "7days",
        "allow_http": (endpoint or "").startswith("http://"),
    }
    if ca is not None:
        client["root_certificate"] = ca.read_bytes()
    options: dict[str, Any] = {"virtual_hosted_style_request": endpoint is None}
    # The platform tells a pod with an identity of its own where it runs (AWS_REGION); the resource's word comes first.
    if region or not any(os.environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION")):
        options["region"] = region or DEFAULT_REGION
    if endpoint is not None:
        options["endpoint"] = endpoint.rstrip("/")
    if keys is not None:
        access, secret, session = keys
        # A provider, not options: the environment's session token would otherwise mix with these keys.
        options["credential_provider"] = lambda: {
            "access_key_id": access,
            "secret_access_key": secret,
            "token": session,
            "expires_at": None,
        }
    try:
        return S3Store(bucket, client_options=client, retry_config={"max_retries": 0}, **options)
    except (BaseError, ValueError) as error:
        raise SourceError(f"the store cannot be used as configured: {error}") from error


class BucketSource:
    """Objects below the key prefix ``folder``; ``version`` pins the object version of the file ``pinned``."""

    def __init__(self, store: S3Store, folder: str, *, pinned: str | None = None, version: str | None = None, ambient: bool = False) -> None:
        self._store, self._folder, self._pinned, self._version, self._ambient = store, folder, pinned, version, ambient

    def resolve(self) -> str | None:
        """None: each object has its own version."""
        return None

    @contextmanager
    def open(self, name: str, *, offset: int = 0, validator: str | None = None) -> Iterator[Body]:
        """GET the object ``folder + name``; a continued one must still have the ETag ``validator``."""
        options: GetOptions = {}
        if self._version is not None and name == self._pinned:
            options["version"] = self._version
        if offset and validator:
            options["range"] = {"offset": offset}
            options["if_match"] = validator
        try:
            result = self._get(name, options)
        except _ChangedError:
            offset = 0
            result = self._get(name, {"version": options["version"]} if "version" in options else {})
        etag, version = result.meta.get("e_tag"), result.meta.get("version")
        yield Body(
            self._chunks(result, name),
            offset=offset if offset and validator else 0,
            size=result.meta["size"],
            validator=etag,
            revision=version if version and version != "null" else etag,
        )

    def _get(self, name: str, options: GetOptions) -> Any:
        try:
            return obstore.get(self._store, self._folder + name, options=options or None)
        except PreconditionError as error:
            raise _ChangedError from error
        except Exception as error:
            raise self._error(error, name) from error

    def _chunks(self, result: Any, name: str) -> Iterator[bytes]:
        try:
            for chunk in result.stream(min_chunk_size=_CHUNK):
                yield bytes(chunk)
        except Exception as error:
            raise self._error(error, name) from error

    def _error(self, error: Exception, name: str) -> SourceError:
        text, status, certificate = _read(error)
        if isinstance(error, FileNotFoundError):
            return SourceError(f"has no object {self._folder}{name}: check bucket, key and revision", missing=True)
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            who = "the pod's own identity" if self._ambient else "the secret of source.secretRef"
            return SourceError(f"refused: {who} may not read {self._folder}{name} ({text})")
        if certificate:
            return SourceError(f"the server's certificate is not trusted ({certificate}): name its CA in source.caRef")
        if status == 416:
            return SourceError("the server refuses to go on where the last attempt ended", retryable=True, restart=True)
        hint = "; no credentials are given and the pod has no cloud identity: name source.secretRef" if self._ambient and "169.254" in text else ""
        # 4xx is about the request: another region's bucket, a skewed clock, a malformed name.
        final = status is not None and 300 <= status < 500 and status not in (408, 429)
        return SourceError(f"{text}{hint}", retryable=not final)


class _ChangedError(Exception):
    """The object is no longer the one whose first part lies here."""


def _read(error: Exception) -> tuple[str, int | None, str | None]:
    """An obstore error on one line with its cause, the HTTP status, and what is wrong with the server's certificate.

    obstore gives one exception type for all of these and the cause only in the debug form that follows the message.
    """
    head, _, debug = str(error).partition("\n\nDebug source:")
    certificate = _CERTIFICATE.search(debug)
    status = _STATUS.search(debug)
    cause = _CAUSE.search(debug)
    # An S3 error document repeats key ids and what was signed: only its code and message are worth showing.
    said = ": ".join(part[1] for part in (_CODE.search(head), _MESSAGE.search(head)) if part)
    text = " ".join(head.split(": <")[0].split("<?xml")[0].split())
    text += f" ({said})" if said else (f" ({cause[1]})" if cause else "")
    return text[:600], int(status[1]) if status else None, certificate[1] if certificate else None
