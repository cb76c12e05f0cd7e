"""Objects of S3, Google Cloud Storage and Azure Blob Storage, and of what speaks their protocols, through obstore."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import PermissionDeniedError, PreconditionError, UnauthenticatedError

from triton_pipelines.loader.download import Body
from triton_pipelines.loader.errors import PROXY_REFUSED, SourceError
from triton_pipelines.loader.listing import MAX_FILES, Entry, Listing, folder

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import AzureStore, GCSStore, S3Store

_CHUNK: Final = 4 << 20
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
_CODE: Final = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,300})</Message>")
_STATUS: Final = re.compile(r"\bstatus: (\d{3})\b")
_ASKING: Final = "Error performing token request"
_NO_IDENTITY: Final = re.compile(rf"169\.254\.|metadata\.google\.internal|{_ASKING}")
"""Where clouds hand out a pod's identity: a failure there means that it has none, or that a proxy stands in between."""
_CAUSE: Final = re.compile(r"""\b(?:message|error): "([^"]+)\"""")


class BucketSource:
    """Objects below the key prefix ``folder``; ``version`` pins the object version of the file ``pinned``."""

    def __init__(
        self,
        store: S3Store | GCSStore | AzureStore,
        folder: str,
        *,
        pinned: str | None = None,
        version: str | None = None,
        ambient: bool = False,
    ) -> None:
        self._store, self._folder, self._pinned, self._version, self._ambient = (
            store,
            folder,
            pinned,
            version,
            ambient,
        )

    def resolve(self) -> str | None:
        """None: each object has its own version."""
        return None

    def list(self, place: str) -> Listing:
        """The object ``folder + place``, or everything below it; with ``/`` at the end, or empty, it is a folder."""
        key = self._folder + place
        if key and not key.endswith("/"):
            try:
                meta = obstore.head(self._store, key)
                return Listing(
                    (Entry(key.rpartition("/")[2], meta["size"], _identity(meta)),), single=True
                )
            except FileNotFoundError:
                pass
            except Exception as error:
                raise self._error(error, place) from error
        if self._version is not None:
            raise SourceError(
                f"revision {self._version} is an object's version, and {key or 'the URI'} is no object: remove it, or name the object"
            )
        prefix = f"{key.strip('/')}/" if key.strip("/") else ""
        try:
            return folder(self._below(prefix))
        except SourceError as error:
            if error.missing:
                raise SourceError(
                    f"has no object {key.rstrip('/')} and nothing below it: check uri and path",
                    missing=True,
                ) from error
            raise

    def _below(self, prefix: str) -> Iterator[Entry]:
        count = 0
        try:
            for chunk in obstore.list(self._store, prefix=prefix or None, chunk_size=1000):
                for meta in chunk:
                    name = meta["path"].removeprefix(prefix)
                    # Some tools write an empty object for each folder.
                    if name and not (meta["size"] == 0 and meta["path"].endswith("/")):
                        count += 1
                        yield Entry(name, meta["size"], _identity(meta))
                if count > MAX_FILES:
                    return
        except Exception as error:
            raise self._error(error, prefix) from error

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
            if offset and validator and result.meta.get("e_tag") != validator:
                # A server that does not know the condition would otherwise give the rest of another object.
                raise _ChangedError
        except _ChangedError:
            offset = 0
            result = self._get(
                name, {"version": options["version"]} if "version" in options else {}
            )
        yield Body(
            self._chunks(result, name),
            offset=offset if offset and validator else 0,
            size=result.meta["size"],
            validator=result.meta.get("e_tag"),
            revision=_identity(result.meta),
            identity=_identity(result.meta),
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
        if isinstance(error, FileNotFoundError) or (status == 404 and _ASKING not in text):
            return SourceError(
                f"has no object {self._folder}{name}: check bucket, key and revision", missing=True
            )
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            who = "the pod's own identity" if self._ambient else "the secret of source.secretRef"
            return SourceError(f"refused: {who} may not read {self._folder}{name} ({text})")
        if certificate:
            return SourceError(
                f"the server's certificate is not trusted ({certificate}): name its CA in source.caRef"
            )
        if "ProxyAuthRequired" in str(error):
            return SourceError(PROXY_REFUSED)
        if status == 416:
            return SourceError(
                "the server refuses to go on where the last attempt ended",
                retryable=True,
                restart=True,
            )
        hint = (
            "; no credentials are given and the pod has no usable cloud identity: name source.secretRef"
            if self._ambient and _NO_IDENTITY.search(text)
            else ""
        )
        # 4xx is about the request: another region's bucket, a skewed clock, a malformed name.
        final = status is not None and 300 <= status < 500 and status not in (408, 429)
        if _ASKING in text:
            # A cloud's token server refuses a pod that it does not know yet, for the first seconds of its life.
            final = status == 400
        return SourceError(f"{text}{hint}", retryable=not final)


def _identity(meta: ObjectMeta) -> str | None:
    """An object's version where its bucket keeps versions, else its ETag."""
    version = meta.get("version")
    return version if version and version != "null" else meta.get("e_tag")


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
