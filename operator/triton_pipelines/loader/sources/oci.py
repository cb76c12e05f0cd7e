"""Read artifacts and images of an OCI registry.

Hand-written on top of the loader's HTTP code: of the protocol (OCI distribution specification 1.1)
only three GETs and one exchange for a token are needed. The available libraries bring an HTTP
client of their own that cannot resume a download, and look for credentials where the loader must
not.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import parse_http_list, parse_keqv_list

import httpx

from triton_pipelines.loader.cleartext import cleartext_host
from triton_pipelines.loader.credentials import SourceCredentials
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.listing import ListedFile, SourceListing, check_name, listing_at
from triton_pipelines.loader.source import FileBody
from triton_pipelines.loader.sources.folder import FolderSource
from triton_pipelines.loader.sources.layers import scope_of, unpack
from triton_pipelines.loader.sources.web import (
    IDENTITY,
    WebSource,
    decoded_chunks,
    stream,
    web_errors,
)
from triton_pipelines.loader.uris import RegistryUri

DEFAULT_TAG: Final = "latest"
DOCKER_HUB: Final = "registry-1.docker.io"
_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_TITLES: Final = ("org.opencontainers.image.title", "org.cncf.model.filepath")
"""Annotations by which ORAS and the CNCF model format name a layer's file."""
_UNPACK: Final = "io.deis.oras.content.unpack"
"""Annotation by which ORAS marks a folder that it packed."""
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_MAX_DOCUMENT: Final = 4 << 20
"""Maximum bytes of a manifest or token response; registries accept no larger manifest."""


@dataclass(frozen=True)
class Layer:
    """A blob of the manifest. One that is neither a file nor an archive is ignored."""

    digest: str
    """Its digest."""
    size: int
    """Its bytes."""
    title: str | None
    """Name of the file; ``None`` if it is not a file."""
    archive: bool
    """Whether it is an archive of files."""


class OciSource:
    """Files of an artifact or image."""

    def __init__(
        self,
        client: httpx.Client,
        uri: RegistryUri,
        reference: str | None,
        *,
        endpoint: str | None,
        credentials: SourceCredentials,
        on_secret: Callable[[str], None],
        workspace: Path,
    ) -> None:
        """Create the source.

        Args:
            client: HTTP client.
            uri: registry and repository.
            reference: tag or digest; ``None`` for that of the URI, or the default tag.
            endpoint: address of the registry; ``None`` for that of the URI.
            credentials: credentials for the registry.
            on_secret: called with every token that the registry issues.
            workspace: folder for unpacked archives.
        """
        self._client, self._uri, self._credentials, self._on_secret = (
            client,
            uri,
            credentials,
            on_secret,
        )
        self._reference = reference or uri.reference or DEFAULT_TAG
        host = DOCKER_HUB if uri.registry == "docker.io" else uri.registry
        self._base = f"{(endpoint or f'https://{host}').rstrip('/')}/v2/{uri.repository}"
        self._workspace = workspace
        self._headers: dict[str, str] = {}
        self._digest: str | None = None
        self._layers: tuple[Layer, ...] = ()
        self._files: dict[str, Layer] = {}
        self._lock = threading.Lock()

    @property
    def packed(self) -> tuple[Layer, ...]:
        """Return the layers that are archives, in order.

        They are downloaded (with the digest as name) and given to :meth:`unpack`.
        """
        return tuple(layer for layer in self._layers if layer.archive)

    def resolve(self) -> str | None:
        """Return the digest of the reference, which is requested once."""
        if self._digest is None:
            manifest, digest = self._manifest(self._reference)
            if manifest.get("mediaType") in _INDEXES or "manifests" in manifest:
                manifest, _ = self._manifest(_of_platform(manifest))
            self._layers = tuple(_layer(item) for item in manifest.get("layers") or ())
            if not self._layers:
                raise SourceError(
                    f"{self._reference} has no layers; push an artifact that contains files"
                )
            for layer in self._layers:
                if layer.title is not None:
                    check_name(layer.title)
                    self._files[layer.title] = layer
            self._digest = digest
        return self._digest

    def unpack(self, layers: list[Path], place: str) -> None:
        """Unpack the files of the archives ``layers`` that ``place`` may need."""
        scope = scope_of(layers, place.strip("/"))
        shutil.rmtree(self._workspace, ignore_errors=True)
        self._workspace.mkdir(parents=True, exist_ok=True)
        try:
            for layer in layers:
                unpack(layer, scope, self._workspace)
        except Exception:
            # What came out of a harmful layer must not stay on the node until the next attempt.
            shutil.rmtree(self._workspace, ignore_errors=True)
            raise

    def local(self, name: str) -> Path | None:
        """Return the path of an unpacked file."""
        path = self._workspace / name
        return (
            path
            if name not in self._files
            and path.is_file()
            and path.resolve().is_relative_to(self._workspace.resolve())
            else None
        )

    def list(self, place: str) -> SourceListing:
        """Return the artifact's files by their titles, with those of its archives."""
        self.resolve()
        entries = {
            name: ListedFile(name, layer.size, layer.digest) for name, layer in self._files.items()
        }
        if self._workspace.is_dir() and any(self._workspace.iterdir()):
            for entry in FolderSource(self._workspace, self._workspace, "").list("").entries or ():
                entries.setdefault(entry.name, entry)
        problem = f"no file or directory {place or '/'} at {self._digest}"
        return listing_at(place, entries, problem)

    @contextmanager
    def open(
        self, name: str, *, offset: int = 0, validator: str | None = None
    ) -> Iterator[FileBody]:
        """Read a titled file, an archive by its digest, or an unpacked file."""
        self.resolve()
        if (path := self.local(name)) is not None:
            with FolderSource(path.parent, None, "").open(
                path.name, offset=offset, validator=validator
            ) as body:
                yield FileBody(body.chunks, body.offset, body.size, body.validator, self._digest)
            return
        layer = self._files.get(name) or next(
            (layer for layer in self._layers if layer.digest == name), None
        )
        if layer is None:
            raise SourceError(f"no file {name} at {self._digest}", missing=True)
        start = offset if validator == layer.digest else 0
        with self._blob(layer, start) as body:
            yield FileBody(
                body.chunks,
                body.offset,
                layer.size,
                layer.digest,
                self._digest,
                layer.digest,
                layer.digest.removeprefix("sha256:"),
            )

    @contextmanager
    def _blob(self, layer: Layer, offset: int) -> Iterator[FileBody]:
        url = f"{self._base}/blobs/{layer.digest}"

        def source() -> WebSource:
            return WebSource(
                self._client, f"{self._base}/", self._headers, {layer.digest: url}, immutable=True
            )

        with ExitStack() as stack:
            try:
                body = stack.enter_context(
                    source().open(layer.digest, offset=offset, validator=layer.digest)
                )
            except SourceError as error:
                # A token is valid for minutes: one that expired since the manifest was read is
                # renewed.
                if error.challenge is None:
                    raise
                self._login(error.challenge)
                body = stack.enter_context(
                    source().open(layer.digest, offset=offset, validator=layer.digest)
                )
            yield body

    def _manifest(self, reference: str) -> tuple[dict[str, Any], str]:
        url = f"{self._base}/manifests/{reference}"
        accept = {"Accept": ", ".join((*_MANIFESTS, *_INDEXES))}
        try:
            try:
                data = self._document(url, accept | self._headers)
            except SourceError as error:
                if error.challenge is None:
                    raise
                self._login(error.challenge)
                data = self._document(url, accept | self._headers)
        except SourceError as error:
            if error.missing:
                raise SourceError(
                    f"the registry has no {self._uri.repository}:{reference}; check the "
                    "name and the permissions of the credentials",
                    missing=True,
                ) from error
            raise
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if reference.startswith("sha256:") and digest != reference:
            raise SourceError(
                f"the registry returned different content for {reference} ({digest})",
                retryable=True,
            )
        return _object(data, "manifest"), digest

    def _document(self, url: str, headers: Mapping[str, str]) -> bytes:
        with web_errors(), stream(self._client, url, {**headers, **IDENTITY}) as response:
            data = bytearray()
            for chunk in decoded_chunks(response):
                data += chunk
                if len(data) > _MAX_DOCUMENT:
                    raise SourceError(
                        "the registry's response exceeds the maximum size of a manifest"
                    )
            return bytes(data)

    def _login(self, challenge: str) -> None:
        """Set the headers that ``challenge`` (WWW-Authenticate) asks for."""
        kind, _, rest = challenge.partition(" ")
        basic = self._credentials.headers()
        if kind.lower() == "basic":
            if not basic or self._headers == basic:
                raise _refused(bool(basic))
            self._headers = basic
            return
        values = parse_keqv_list(parse_http_list(rest)) if kind.lower() == "bearer" else {}
        realm = values.get("realm", "")
        if not realm.startswith(("https://", "http://")):
            raise SourceError(
                f"the registry requires {kind or 'unknown'} credentials, which the loader does not"
                " support"
            )
        is_downgrade = urlsplit(self._base).scheme == "https" and urlsplit(realm).scheme != "https"
        if is_downgrade or (basic and cleartext_host(realm) is not None):
            raise SourceError(
                "the registry uses a token server without TLS "
                f"({urlsplit(realm).hostname}), to which no credentials are sent; configure "
                "the registry with an https:// address"
            )
        scope = values.get("scope") or f"repository:{self._uri.repository}:pull"
        query = {
            "scope": scope,
            **({"service": values["service"]} if values.get("service") else {}),
        }
        try:
            data = self._document(str(httpx.URL(realm).copy_merge_params(query)), basic)
        except SourceError as error:
            if error.challenge is not None:
                raise _refused(bool(basic)) from error
            raise
        answer = _object(data, "token")
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not token:
            raise SourceError("the registry returned no token")
        self._on_secret(token)
        with self._lock:
            self._headers = {"Authorization": f"Bearer {token}"}


def _refused(presented: bool) -> SourceError:
    advice = (
        "check the Secret in source.secretRef"
        if presented
        else "set its credentials in source.secretRef"
    )
    return SourceError(f"the registry refused to issue a token; {advice}")


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise SourceError(
            f"the registry's {what} is not a JSON object; check whether the address is that "
            "of a login page"
        )
    return value


def _of_platform(index: Mapping[str, Any]) -> str:
    """Return the digest of this machine's manifest in an index."""
    desired = ("linux", _MACHINES.get(platform.machine(), platform.machine()))
    offered: dict[tuple[str, str], str] = {}
    for item in index.get("manifests") or ():
        of = item.get("platform") or {}
        offered.setdefault(
            (of.get("os", "linux"), of.get("architecture", desired[1])), str(item.get("digest"))
        )
    if desired not in offered:
        raise SourceError(
            f"the index has no image for {'/'.join(desired)} (it has "
            f"{', '.join('/'.join(key) for key in sorted(offered)) or 'none'})"
        )
    return offered[desired]


def _layer(item: Mapping[str, Any]) -> Layer:
    digest, size, media = str(item.get("digest")), item.get("size"), str(item.get("mediaType"))
    if not digest.startswith("sha256:") or len(digest) != 71 or not isinstance(size, int):
        raise SourceError(
            f"the image has a layer {digest[:80]} of {size} bytes; push layers that have a "
            "sha256 digest and a size"
        )
    notes = item.get("annotations") or {}
    title = next((str(notes[name]) for name in _TITLES if notes.get(name)), None)
    # ORAS marks folders that it packed. A single file has its type from who pushed it, which ORAS
    # sets to a layer's by default: the title counts.
    packed = str(notes.get(_UNPACK)).lower() == "true" or (
        media.startswith("application/vnd.cncf.model.") and ".tar" in media
    )
    archive = packed or (title is None and "tar" in media)
    return Layer(digest, size, None if archive else title, archive)
