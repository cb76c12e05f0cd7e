"""From a plan's fetch item to a source that can be read, and the names of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from triton_pipelines.api.loadplan import FetchKind, PlanFetch
from triton_pipelines.loader import uris
from triton_pipelines.loader.credentials import Credentials
from triton_pipelines.loader.download import Source
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.sources.folder import FolderSource

TOKENIZER_SUFFIXES: Final = (".json", ".txt")
"""A tokenizer's URI that ends so names the file itself, any other its folder."""


@dataclass(frozen=True)
class Folders:
    """Where the pod's mounts lie."""

    credentials: Path
    ca: Path
    configmaps: Path
    claims: Path


@dataclass(frozen=True)
class Opened:
    """A readable source; ``file`` is the one file it names, None where it is a folder (of a tokenizer)."""

    source: Source
    file: str | None
    located: uris.Located


def wanted_file(item: PlanFetch, last: str, is_folder: bool | None) -> tuple[bool, str | None]:
    """Whether the URI names a folder, and the file wanted below it (None: the tokenizer's files).

    ``last`` is the URI's last part; ``is_folder`` is known for mounted folders, else it follows from the URI's form: ``/`` at
    the end or a ``path`` make a folder, and so does a tokenizer without a file's suffix.
    """
    if item.path is not None:
        return True, item.path
    if is_folder is None:
        is_folder = last == "" or (item.kind is FetchKind.TOKENIZER and not last.endswith(TOKENIZER_SUFFIXES))
    if not is_folder:
        return False, last
    return True, None if item.kind is FetchKind.TOKENIZER else PurePosixPath(item.target).name


def open_source(
    item: PlanFetch, located: uris.Located, credentials: Credentials, folders: Folders, client: httpx.Client, revision: str | None
) -> Opened:
    """The source of ``item`` at ``revision`` (None: whatever it is now). Raises :class:`SourceError`."""
    uris.check_scheme(located)
    match located.scheme:
        case "hf":
            return _hub(item, located, credentials, client, revision)
        case "s3":
            return _bucket(item, located, credentials, revision)
        case "https" | "http":
            return _web(item, located, credentials, client)
        case scheme:
            return _folder(item, located, folders, scheme)


def _hub(item: PlanFetch, located: uris.Located, credentials: Credentials, client: httpx.Client, revision: str | None) -> Opened:
    from triton_pipelines.loader.sources.hub import HubSource

    uri = uris.parse_hub(located.uri)
    parts = PurePosixPath(uri.path)
    # The repository itself is a folder; below it the URI's form decides, as for a web server.
    is_folder, file = wanted_file(item, parts.name, True if not uri.path else None)
    folder = uri.path if is_folder else str(parts.parent)
    source = HubSource(
        client,
        uri.repo,
        revision or item.revision or uri.revision,
        "" if folder == "." else folder,
        endpoint=located.endpoint or item.endpoint,
        token=credentials.token,
        context=credentials.ssl_context(),
    )
    return Opened(source, file, located)


def _bucket(item: PlanFetch, located: uris.Located, credentials: Credentials, revision: str | None) -> Opened:
    from triton_pipelines.loader.sources.bucket import BucketSource, s3_store

    bucket, key = uris.parse_bucket(located.uri)
    parent, _, last = key.rpartition("/")
    is_folder, file = wanted_file(item, last, None)
    folder = key.rstrip("/") if is_folder else parent
    version = revision or item.revision
    store = s3_store(bucket, endpoint=located.endpoint or item.endpoint, region=item.region, keys=credentials.keys, ca=credentials.ca_file)
    source = BucketSource(
        store,
        f"{folder}/" if folder else "",
        pinned=file,
        # A quoted value is an ETag: it is compared after the request, not asked for.
        version=None if version is None or '"' in version else version,
        ambient=credentials.keys is None,
    )
    return Opened(source, file, located)


def _web(item: PlanFetch, located: uris.Located, credentials: Credentials, client: httpx.Client) -> Opened:
    from triton_pipelines.loader.sources.web import WebSource, split_userinfo

    url, user = split_userinfo(located.uri)
    parts = urlsplit(url)
    if not parts.hostname:
        raise SourceError("names no host: write https://host/path")
    parent, _, last = parts.path.rpartition("/")
    is_folder, file = wanted_file(item, unquote(last), None)
    folder = parts.path.rstrip("/") if is_folder else parent
    base = urlunsplit(parts._replace(path=f"{folder}/", query="", fragment=""))
    exact: Mapping[str, str] = {} if is_folder or file is None else {file: url}
    return Opened(WebSource(client, base, credentials.headers(user), exact), file, located)


def _folder(item: PlanFetch, located: uris.Located, folders: Folders, scheme: str) -> Opened:
    if scheme == "file":
        fence, path, missing = None, Path(uris.file_path(located.uri)), "check the path"
    elif scheme == "configmap":
        name, key = uris.parse_folder(located.uri)
        fence = folders.configmaps / item.step
        path, missing = fence / key, f"check the keys of ConfigMap {name} (binary files belong in binaryData)"
    else:
        claim, below = uris.parse_folder(located.uri)
        fence = folders.claims / claim
        path, missing = fence / below, f"check the path below claim {claim}"
    if fence is not None and not fence.is_dir():
        raise SourceError(f"is not mounted at {fence}", retryable=True)
    is_folder, file = wanted_file(item, path.name, path.is_dir())
    return Opened(FolderSource(path if is_folder else path.parent, fence, missing), file, located)
