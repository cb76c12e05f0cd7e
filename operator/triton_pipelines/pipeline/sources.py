"""What can be told of a source before it is fetched: the file it names, and what is wrong with its address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from triton_pipelines.api.base import Finding
from triton_pipelines.api.source import Source

# What a source must not bring: the renderer writes this file.
RESERVED_FILES = ("model.py",)


def file_name_of(source: Source) -> str | None:
    """The name of the file that a source names, or ``None`` where it names a folder."""
    if source.path is not None:
        return source.path.rsplit("/", 1)[-1] or None
    scheme, _, rest = source.uri.partition("://")
    if scheme == "https":
        return unquote(urlsplit(source.uri).path).rsplit("/", 1)[-1] or None
    parts = rest.partition("@")[0].split("/") if scheme == "hf" else rest.split("/")
    folder = 2 if scheme == "hf" else 1
    return parts[-1] or None if len(parts) > folder else None


def check_source(source: Source, path: str) -> Iterator[Finding]:
    """What keeps this address from ever being fetched, or would show a secret."""
    scheme, _, rest = source.uri.partition("://")
    if source.path is not None and not _is_normal(source.path):
        yield Finding(
            f"{path}.path", f"{source.path!r} must be a plain path inside the source, such as onnx/model.onnx: no '..', '.', '//' or backslash"
        )
    if scheme == "https":
        address = rest.split("/", 1)[0]
        if "@" in address:
            yield Finding(
                f"{path}.uri",
                "carries a user or password, which everyone who reads the resource would see; put them into a Secret and name it in secretRef",
            )
        elif not address:
            yield Finding(f"{path}.uri", "names no host; write https://host/file")
    if scheme == "hf":
        repository, _, revision = rest.partition("@")
        parts = [part for part in repository.split("/") if part]
        if not parts or ".." in parts:
            yield Finding(f"{path}.uri", "names no repository; write hf://org/name")
        if revision and source.revision is not None:
            yield Finding(f"{path}.revision", f"the uri already says @{revision}; write the revision once")
    if scheme == "s3" and not rest.split("/", 1)[0]:
        yield Finding(f"{path}.uri", "names no bucket; write s3://bucket/key")


def pinned(source: Source) -> bool:
    """Whether what the source holds cannot change unnoticed: mounted, or named by revision or digest."""
    scheme, _, rest = source.uri.partition("://")
    if scheme in ("pvc", "configmap"):
        return True
    return source.revision is not None or source.sha256 is not None or (scheme == "hf" and "@" in rest)


def _is_normal(path: str) -> bool:
    pure = PurePosixPath(path)
    return str(pure) == path and path != "." and ".." not in pure.parts and not pure.is_absolute() and "\\" not in path
