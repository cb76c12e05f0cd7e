"""Read objects of S3, Google Cloud Storage, Azure Blob Storage and compatible servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import PermissionDeniedError, PreconditionError, UnauthenticatedError

from triton_pipelines.loader.errors import PROXY_REFUSED, SourceError
from triton_pipelines.loader.listing import MAX_FILES, ListedFile, SourceListing, folder
from triton_pipelines.loader.source import FileBody
from triton_pipelines.loader.sources.store_errors import StoreError, read_store_error

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import AzureStore, GCSStore, S3Store

_CHUNK: Final = 4 << 20


class BucketSource:
    """Objects below a key prefix."""

    def __init__(
        self,
        store: S3Store | GCSStore | AzureStore,
        folder: str,
        *,
        pinned: str | None = None,
        version: str | None = None,
        ambient: bool = False,
    ) -> None:
        """Create the source.

        Args:
            store: the bucket.
            folder: key prefix of all names.
            pinned: the file that ``version`` belongs to.
            version: object version of the file ``pinned``.
            ambient: whether the pod's own identity is used.
        """
        self._store, self._folder, self._pinned, self._version, self._ambient = (
            store,
            folder,
            pinned,
            version,
            ambient,
        )

    def resolve(self) -> str | None:
        """Return ``None``: each object has its own version."""
        return None

    def list(self, place: str) -> SourceListing:
        """Return the object ``folder + place``, or everything below it.

        An empty place, or one that ends with ``/``, is a folder.
        """
        key = self._folder + place
        if key and not key.endswith("/"):
            try:
                meta = obstore.head(self._store, key)
                return SourceListing(
                    (ListedFile(key.rpartition("/")[2], meta["size"], _identity(meta)),),
                    single=True,
                )
            except FileNotFoundError:
                pass
            except Exception as error:
                raise self._error(error, place) from error
        if self._version is not None:
            raise SourceError(
                f"revision {self._version} is an object's version, but {key or 'the URI'} "
                "is not an object; remove revision, or specify the object"
            )
        prefix = f"{key.strip('/')}/" if key.strip("/") else ""
        try:
            return folder(self._below(prefix))
        except SourceError as error:
            if error.missing:
                raise SourceError(
                    f"no object {key.rstrip('/')} and no objects below it; check uri and path",
                    missing=True,
                ) from error
            raise

    def _below(self, prefix: str) -> Iterator[ListedFile]:
        count = 0
        try:
            for chunk in obstore.list(self._store, prefix=prefix or None, chunk_size=1000):
                for meta in chunk:
                    name = meta["path"].removeprefix(prefix)
                    # Some tools write an empty object for each folder.
                    if name and not (meta["size"] == 0 and meta["path"].endswith("/")):
                        count += 1
                        yield ListedFile(name, meta["size"], _identity(meta))
                if count > MAX_FILES:
                    return
        except Exception as error:
            raise self._error(error, prefix) from error

    @contextmanager
    def open(
        self, name: str, *, offset: int = 0, validator: str | None = None
    ) -> Iterator[FileBody]:
        """Read the object ``folder + name``; to continue it, its ETag must match ``validator``."""
        options: GetOptions = {}
        if self._version is not None and name == self._pinned:
            options["version"] = self._version
        if offset and validator:
            options["range"] = {"offset": offset}
            options["if_match"] = validator
        try:
            result = self._get(name, options)
            if offset and validator and result.meta.get("e_tag") != validator:
                # A server that ignores the condition would otherwise return the rest of another
                # object.
                raise _ChangedError
        except _ChangedError:
            offset = 0
            result = self._get(
                name, {"version": options["version"]} if "version" in options else {}
            )
        yield FileBody(
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
        store = read_store_error(error)
        is_missing = store.status == 404 and not store.is_token_request
        if isinstance(error, FileNotFoundError) or is_missing:
            return SourceError(
                f"no object {self._folder}{name}; check bucket, key and revision", missing=True
            )
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            who = "the pod's own identity" if self._ambient else "the secret of source.secretRef"
            return SourceError(
                f"{who} cannot read {self._folder}{name} ({store.text}); grant the account "
                "read access"
            )
        if store.certificate_problem is not None:
            return SourceError(
                f"the server's certificate is not trusted ({store.certificate_problem}); "
                "set its CA in source.caRef"
            )
        if store.is_proxy_refusal:
            return SourceError(PROXY_REFUSED)
        if store.status == 416:
            return SourceError(
                "the server cannot continue where the last attempt ended",
                retryable=True,
                restart=True,
            )
        hint = (
            (
                "; there are no credentials, and the pod has no usable cloud identity: set "
                "source.secretRef"
            )
            if self._ambient and store.is_identity_failure
            else ""
        )
        return SourceError(f"{store.text}{hint}", retryable=not _is_final(store))


def _is_final(store: StoreError) -> bool:
    """Return whether another attempt cannot help."""
    if store.is_token_request:
        # A cloud's token server refuses a pod that it does not know yet, for the first seconds of
        # the pod's life.
        return store.status == 400
    # 4xx is about the request: another region's bucket, a skewed clock, a malformed name.
    return store.status is not None and 300 <= store.status < 500 and store.status not in (408, 429)


def _identity(meta: ObjectMeta) -> str | None:
    """Return an object's version if its bucket keeps versions, else its ETag."""
    version = meta.get("version")
    return version if version and version != "null" else meta.get("e_tag")


class _ChangedError(Exception):
    """The object is no longer the one whose first part was downloaded."""
