"""Source URIs, and the source map that rewrites them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from triton_pipelines.api.source import OCI_REFERENCE_PATTERN, SCHEMES, image_folder
from triton_pipelines.loader.errors import SourceError

MAPPED_SCHEMES: Final = (*SCHEMES, "http", "file")
"""Schemes that a source map may map to."""
_ENDPOINT_SCHEMES: Final = ("hf", "s3", "gs", "az", "oci")
"""Protocols over HTTP whose server a source map may replace.

``hf://=http://mirror`` names an endpoint. A longer prefix (``s3://models/=http://files/``) names
another URI, which is fetched as a plain file.
"""
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class SourceLocation:
    """Where a source is fetched from."""

    uri: str
    """The URI after mapping."""
    endpoint: str | None = None
    """The endpoint of a mapped protocol (:data:`_ENDPOINT_SCHEMES`)."""
    mapped: bool = False
    """Whether a rule applied."""

    @property
    def scheme(self) -> str:
        """Return the scheme in lower case."""
        return scheme_of(self.uri)


@dataclass(frozen=True)
class SourceMap:
    """Rules ``PREFIX=TARGET``; the longest matching prefix wins."""

    rules: tuple[tuple[str, str], ...] = ()
    """Prefix and target, longest prefix first."""

    @classmethod
    def parse(cls, rules: Iterable[str]) -> SourceMap:
        """Return the map of rules as given by ``--source-map``.

        Raises:
            ValueError: a rule is not valid; names it.
        """
        parsed: dict[str, str] = {}
        for rule in (item.strip() for item in rules):
            if not rule:
                continue
            prefix, separator, target = rule.partition("=")
            if not separator or "://" not in prefix:
                raise ValueError(
                    f"source map {rule!r} must have the form PREFIX=TARGET, with a prefix "
                    "such as hf:// or https://host/"
                )
            if scheme_of(target) not in MAPPED_SCHEMES:
                folder = (
                    f"; for a directory on this machine, use file://{target}"
                    if target.startswith("/")
                    else ""
                )
                raise ValueError(
                    f"source map {rule!r}: the target must start with one of "
                    f"{', '.join(f'{s}://' for s in MAPPED_SCHEMES)}{folder}"
                )
            parsed[prefix] = target
        return cls(tuple(sorted(parsed.items(), key=lambda rule: -len(rule[0]))))

    def apply(self, uri: str) -> SourceLocation:
        """Return where ``uri`` is fetched from."""
        for prefix, target in self.rules:
            if not uri.startswith(prefix):
                continue
            if (
                prefix == f"{scheme_of(uri)}://"
                and scheme_of(uri) in _ENDPOINT_SCHEMES
                and scheme_of(target) in ("http", "https")
            ):
                return SourceLocation(uri, endpoint=target.rstrip("/"), mapped=True)
            return SourceLocation(target + uri[len(prefix) :], mapped=True)
        return SourceLocation(uri)


def scheme_of(uri: str) -> str:
    """Return the scheme of ``uri`` in lower case; empty without one."""
    scheme, separator, _ = uri.partition("://")
    return scheme.lower() if separator else ""


def check_scheme(location: SourceLocation) -> None:
    """Refuse a URI that a resource may not use; ``http`` and ``file`` need a source map.

    ``http`` is also allowed on loopback.

    Raises:
        SourceError: the URI is refused.
    """
    scheme = location.scheme
    # If a rule replaced the prefix, .. would leave the folder that the rule allows.
    if ".." in unquote(location.uri.partition("://")[2].partition("?")[0]).replace("\\", "/").split(
        "/"
    ):
        raise SourceError("the URI must not contain '..'; specify the resolved path")
    if scheme in SCHEMES or (location.mapped and scheme in MAPPED_SCHEMES):
        return
    if scheme == "http":
        if (urlsplit(location.uri).hostname or "") in LOOPBACK:
            return
        raise SourceError(
            "http:// sends credentials and models unencrypted; use https://, or map it with"
            " --source-map"
        )
    if scheme == "file":
        raise SourceError(
            "file:// is allowed only as a target of --source-map, because a resource must "
            "not refer to files in the loader's container"
        )
    raise SourceError(f"the URI must start with one of {', '.join(f'{s}://' for s in SCHEMES)}")


@dataclass(frozen=True)
class HubUri:
    """Parts of ``hf://org/name[/path][@revision]``."""

    repo: str
    """``org/name``."""
    path: str
    """Path in the repository; empty for the repository itself."""
    revision: str | None
    """Branch, tag or commit, if named."""


def parse_hub(uri: str) -> HubUri:
    """Split a model hub URI.

    Raises:
        SourceError: it names no repository.
    """
    rest, _, revision = uri.partition("://")[2].partition("@")
    parts = [part for part in rest.split("/") if part]
    if not parts or ".." in parts:
        raise SourceError("the URI has no repository; use hf://org/name or hf://org/name@revision")
    return HubUri("/".join(parts[:2]), "/".join(parts[2:]), revision or None)


def parse_bucket(uri: str) -> tuple[str, str]:
    """Return bucket and key of an ``s3://bucket/key`` or ``gs://bucket/key`` URI.

    A key that is empty or ends with ``/`` is a folder.
    """
    bucket, _, key = uri.partition("://")[2].partition("/")
    if not bucket:
        raise SourceError(f"the URI has no bucket; use {scheme_of(uri)}://bucket/key")
    return bucket, key


@dataclass(frozen=True)
class AzureUri:
    """Parts of ``az://account/container/key``."""

    account: str
    """Storage account."""
    container: str
    """Container."""
    key: str
    """Key of the blob, or prefix."""


def parse_azure(uri: str) -> AzureUri:
    """Split a URI of Azure Blob Storage; it names the account, as a blob's own URL does."""
    account, container, key = [*uri.partition("://")[2].split("/", 2), "", ""][:3]
    if not account or not container:
        raise SourceError("the URI has no container; use az://account/container/key")
    return AzureUri(account, container, key)


@dataclass(frozen=True)
class RegistryUri:
    """Parts of ``oci://registry/repository[:tag|@digest]``."""

    registry: str
    """Host, with port if it has one."""
    repository: str
    """Repository in the registry."""
    reference: str | None
    """Tag or digest, if named."""


_REPOSITORY: Final = re.compile(
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
)
"""Names of repositories as in the OCI distribution specification (1.1)."""


def parse_registry(uri: str) -> RegistryUri:
    """Split a URI of an OCI registry.

    Raises:
        SourceError: a name is not valid in registries.
    """
    registry, _, rest = uri.partition("://")[2].partition("/")
    name, at, digest = rest.strip("/").partition("@")
    name, colon, tag = name.partition(":")
    if not registry or not _REPOSITORY.fullmatch(name):
        raise SourceError(
            "the URI has no repository; use oci://registry/repository:tag or "
            "…@sha256:digest, in lowercase"
        )
    reference = digest if at else tag
    if (at or colon) and not is_reference(reference):
        raise SourceError(
            f"{reference[:140]!r} is not a valid OCI tag or digest; use"
            " oci://registry/repository:tag or …@sha256: and 64 hex digits"
        )
    return RegistryUri(registry, name, reference or None)


def parse_image(uri: str) -> str:
    """Return the folder at which the image of an ``image://`` URI is mounted.

    Raises:
        SourceError: the URI has no digest.
    """
    parse_registry(uri)
    folder = image_folder(uri)
    if folder is None:
        raise SourceError("the URI has no digest; use image://registry/repository@sha256:DIGEST")
    return folder


def is_reference(text: str) -> bool:
    """Return whether this is a tag or a digest of a registry."""
    return re.fullmatch(OCI_REFERENCE_PATTERN, text) is not None


def parse_folder(uri: str) -> tuple[str, str]:
    """Return name (of a claim or ConfigMap) and path of a ``pvc://`` or ``configmap://`` URI."""
    name, _, path = uri.partition("://")[2].partition("/")
    if not name:
        raise SourceError("the URI has no path; use pvc://claim/path or configmap://name/key")
    return name, path.strip("/")


def file_path(uri: str) -> str:
    """Return the path of a ``file:///path`` URI."""
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise SourceError("file:// requires an absolute path; use file:///path")
    return unquote(parts.path)
