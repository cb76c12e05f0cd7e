"""Open the source of a plan item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from triton_pipelines.api.loadplan import FetchKind, PlanFetch
from triton_pipelines.loader import uris
from triton_pipelines.loader.credentials import SourceCredentials
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.source import Source
from triton_pipelines.loader.sources.folder import FolderSource

TOKENIZER_SUFFIXES: Final = (".json", ".txt")
"""A tokenizer's URI with one of these suffixes names the file itself, any other its folder."""


@dataclass(frozen=True)
class Folders:
    """The pod's mounts."""

    credentials: Path
    """Secrets, one folder per source."""
    ca: Path
    """CA bundles, one folder per source."""
    configmaps: Path
    """ConfigMaps, one folder per source."""
    claims: Path
    """Claims by name."""
    images: Path
    """Images by the first digits of their digest."""


@dataclass(frozen=True)
class OpenedSource:
    """A readable source."""

    source: Source
    """Reads files."""
    file: str | None
    """The one file that it names; ``None`` for a folder with a tokenizer."""
    location: uris.SourceLocation
    """Where it is."""
    is_linked: bool = False
    """Whether its files are linked into the repository instead of copied."""
    place: str | None = None
    """Of a model or folder: what URI and path name below the source's own folder."""


@dataclass(frozen=True)
class SourceAccess:
    """What opening a source needs in addition to its address."""

    credentials: SourceCredentials
    """Credentials and trust."""
    folders: Folders
    """The pod's mounts."""
    client: httpx.Client
    """HTTP client."""
    revision: str | None
    """Revision to fetch; ``None`` for the current one."""
    on_secret: Callable[[str], None]
    """Called with every secret that a server issues."""
    workspace: Path
    """Folder for unpacked archives."""


def requested_file(item: PlanFetch, last: str, is_folder: bool | None) -> tuple[bool, str | None]:
    """Return whether the URI names a folder, and the requested file below it.

    The file is ``None`` for a tokenizer's files.

    Args:
        item: the plan's item.
        last: last part of the URI.
        is_folder: known for mounted folders. Otherwise it follows from the URI's form: ``/`` at the
            end or a ``path`` make a folder, and so does a tokenizer without a file's suffix.
    """
    if item.path is not None:
        return True, item.path
    if is_folder is None:
        is_folder = last == "" or (
            item.kind is FetchKind.TOKENIZER and not last.endswith(TOKENIZER_SUFFIXES)
        )
    if not is_folder:
        return False, last
    return True, None if item.kind is FetchKind.TOKENIZER else PurePosixPath(item.target).name


def open_source(
    item: PlanFetch, location: uris.SourceLocation, access: SourceAccess
) -> OpenedSource:
    """Return the source of ``item`` at ``access.revision``.

    Raises:
        SourceError: the URI is not valid, or the source is not mounted.
    """
    uris.check_scheme(location)
    match location.scheme:
        case "hf":
            return _hub(item, location, access)
        case "s3" | "gs" | "az":
            return _bucket(item, location, access)
        case "oci":
            return _registry(item, location, access)
        case "https" | "http":
            return _web(item, location, access)
        case "image":
            return _image(item, location, access.folders.images)
        case scheme:
            return _folder(item, location, access.folders, scheme)


def join(place: str, name: str) -> str:
    """Return ``name`` below ``place``, which may be empty or end with a slash."""
    return f"{place.rstrip('/')}/{name}".lstrip("/")


def _is_tree(item: PlanFetch) -> bool:
    """Return whether the files at the URI decide what is fetched."""
    return item.kind in (FetchKind.MODEL, FetchKind.FOLDER)


def _place(item: PlanFetch, path: str) -> str:
    return path if item.path is None else join(path, item.path)


def _hub(item: PlanFetch, location: uris.SourceLocation, access: SourceAccess) -> OpenedSource:
    from triton_pipelines.loader.sources.hub import HubSource

    uri = uris.parse_hub(location.uri)
    parts = PurePosixPath(uri.path)
    # The repository itself is a folder; below it the URI's form decides, as for a web server.
    is_folder, file = requested_file(item, parts.name, True if not uri.path else None)
    folder = uri.path if is_folder else str(parts.parent)
    source = HubSource(
        access.client,
        uri.repo,
        access.revision or item.revision or uri.revision,
        "" if folder == "." or _is_tree(item) else folder,
        endpoint=location.endpoint or item.endpoint,
        token=access.credentials.token,
        context=access.credentials.ssl_context(),
    )
    place = _place(item, uri.path) if _is_tree(item) else None
    return OpenedSource(source, file, location, place=place)


def _bucket(item: PlanFetch, location: uris.SourceLocation, access: SourceAccess) -> OpenedSource:
    from triton_pipelines.loader.sources import stores
    from triton_pipelines.loader.sources.bucket import BucketSource

    held, endpoint = access.credentials, location.endpoint or item.endpoint
    store: stores.Store
    if location.scheme == "az":
        uri = uris.parse_azure(location.uri)
        key = uri.key
        store = stores.azure_store(
            uri.account,
            uri.container,
            endpoint=endpoint,
            account_key=held.account_key,
            sas_token=held.sas_token,
            ca=held.ca_file,
        )
    else:
        bucket, key = uris.parse_bucket(location.uri)
        if location.scheme == "gs":
            store = stores.gcs_store(
                bucket, endpoint=endpoint, service_account=held.service_account, ca=held.ca_file
            )
        else:
            store = stores.s3_store(
                bucket, endpoint=endpoint, region=item.region, keys=held.keys, ca=held.ca_file
            )
    parent, _, last = key.rpartition("/")
    is_folder, file = requested_file(item, last, None)
    folder = key.rstrip("/") if is_folder else parent
    place = _place(item, key) if _is_tree(item) else None
    version = access.revision or item.revision
    source = BucketSource(
        store,
        f"{folder}/" if folder and place is None else "",
        pinned=file if place is None else place,
        # A quoted value is an ETag: it is compared after the request and not requested.
        version=None if version is None or '"' in version else version,
        ambient=not item.credentials,
    )
    return OpenedSource(source, file, location, place=place)


def _registry(item: PlanFetch, location: uris.SourceLocation, access: SourceAccess) -> OpenedSource:
    from triton_pipelines.loader.sources.oci import OciSource

    if item.revision is not None and not uris.is_reference(item.revision):
        raise SourceError(
            f"revision {item.revision!r} is not a valid OCI tag or digest; use a tag such as v3,"
            " or sha256:DIGEST"
        )
    source = OciSource(
        access.client,
        uris.parse_registry(location.uri),
        access.revision or item.revision,
        endpoint=location.endpoint or item.endpoint,
        credentials=access.credentials,
        on_secret=access.on_secret,
        workspace=access.workspace,
    )
    _, file = requested_file(item, "", True)
    place = (item.path or "") if _is_tree(item) else None
    return OpenedSource(source, file, location, place=place)


def _web(item: PlanFetch, location: uris.SourceLocation, access: SourceAccess) -> OpenedSource:
    from triton_pipelines.loader.sources.web import WebSource, split_userinfo

    url, user = split_userinfo(location.uri)
    parts = urlsplit(url)
    if not parts.hostname:
        raise SourceError("the URI has no host; use https://host/path")
    parent, _, last = parts.path.rpartition("/")
    is_folder, file = requested_file(item, unquote(last), None)
    folder = parts.path.rstrip("/") if is_folder else parent
    base = urlunsplit(parts._replace(path=f"{folder}/", query="", fragment=""))
    exact: Mapping[str, str] = {} if is_folder or file is None else {file: url}
    source = WebSource(access.client, base, access.credentials.headers(user), exact)
    place = (item.path or ("" if is_folder else file)) if _is_tree(item) else None
    return OpenedSource(source, file, location, place=place)


def _image(item: PlanFetch, location: uris.SourceLocation, images: Path) -> OpenedSource:
    fence = images / uris.parse_image(location.uri)
    if not fence.is_dir():
        raise SourceError(
            f"the image is not mounted at {fence}; outside a pod, use --source-map "
            "image://=oci:// to download the image",
            retryable=True,
        )
    place = (item.path or "") if _is_tree(item) else None
    _, file = requested_file(item, "", True)
    source = FolderSource(fence, fence, "check the path in the image", is_linked=True)
    return OpenedSource(source, file, location, is_linked=True, place=place)


def _folder(
    item: PlanFetch, location: uris.SourceLocation, folders: Folders, scheme: str
) -> OpenedSource:
    fence: Path | None
    if scheme == "file":
        root, fence, below, missing = (
            Path("/"),
            None,
            uris.file_path(location.uri).lstrip("/"),
            "check the path",
        )
    elif scheme == "configmap":
        name, below = uris.parse_folder(location.uri)
        fence = root = folders.configmaps / item.key
        missing = f"check the keys of ConfigMap {name} (binary files belong in binaryData)"
    else:
        claim, below = uris.parse_folder(location.uri)
        fence = root = folders.claims / claim
        missing = f"check the path below claim {claim}"
    if fence is not None and not fence.is_dir():
        raise SourceError(f"the source is not mounted at {fence}", retryable=True)
    if _is_tree(item):
        source = FolderSource(root, fence, missing)
        return OpenedSource(source, None, location, place=_place(item, below))
    path = root / below
    is_folder, file = requested_file(item, path.name, path.is_dir())
    return OpenedSource(
        FolderSource(path if is_folder else path.parent, fence, missing), file, location
    )
