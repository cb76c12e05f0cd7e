"""Named connections to Prometheus, as configured for the operator.

Secrets are stored in files, which are read for each use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from triton_pipelines.api.wording import listed

from .secret_files import SENDABLE, file_stamp, read_secret

DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, token
_OWN_HEADERS: Final = frozenset(
    {
        "authorization",
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "accept-encoding",
    }
)


class Security(StrEnum):
    """Whether the server's identity is verified."""

    VERIFIED = "Verified"
    INSECURE = "Insecure"


class ConnectionModel(BaseModel):
    """Base of the connection's models; field names are in camel case."""

    # hide_input_in_errors: a user may enter a token where its file name belongs.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
    )


def _label_name(value: str) -> str:
    if not _LABEL.fullmatch(value) or value.startswith("__"):
        raise ValueError(
            f"{value!r} is not a valid label name; use letters, digits and _, and do not start "
            "with a digit or __"
        )
    return value


LabelName = Annotated[str, AfterValidator(_label_name)]


def _namespace_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{value!r} is not a valid namespace name; wildcards are not supported, so list "
            "each namespace"
        )
    return value


NamespaceName = Annotated[str, AfterValidator(_namespace_name)]


class BasicAuth(ConnectionModel):
    """User and password, each from a file."""

    username_file: Path
    password_file: Path


class ConnectionTls(ConnectionModel):
    """Certificate files in PEM format."""

    ca_file: Path | None = None
    """Certificate authorities that replace the default ones."""
    cert_file: Path | None = None
    """The client's certificate."""
    key_file: Path | None = None
    """The client's key."""

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError(
                "certFile and keyFile must be set together; set both fields or omit both"
            )
        return self


class Tenant(ConnectionModel):
    """A header that names the tenant (Mimir, Cortex, Thanos)."""

    header: str = "X-Scope-OrgID"
    """Name of the header."""
    value: str | None = None
    """Value of the header."""
    value_file: Path | None = None
    """File that holds the value, instead of ``value``."""

    @field_validator("header")
    @classmethod
    def _header_is_free(cls, value: str) -> str:
        if not _HEADER.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a valid header name; use only letters, digits and hyphens"
            )
        if value.lower() in _OWN_HEADERS:
            raise ValueError(
                f"{value} is a reserved header; specify credentials in bearerTokenFile or basicAuth"
            )
        return value

    @field_validator("value")
    @classmethod
    def _value_can_be_sent(cls, value: str | None) -> str | None:
        if value is not None and not SENDABLE.fullmatch(value):
            raise ValueError(
                "a header value must not be empty and must contain only printable ASCII "
                "characters without spaces"
            )
        return value

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.value is None) == (self.value_file is None):
            raise ValueError(
                "exactly one of value and valueFile is required; set one of these fields"
            )
        return self


class SeriesLabels(ConnectionModel):
    """Labels that hold the namespace and the name of Triton's pods.

    Without honorLabels, these are ``exported_namespace`` and ``exported_pod``.
    """

    namespace: LabelName = "namespace"
    pod: LabelName = "pod"


class ContainerLabels(SeriesLabels):
    """The same labels for cAdvisor's series, and the label that holds the container."""

    container: LabelName = "container"


class Connection(ConnectionModel):
    """A Prometheus server, or another server with the same query API.

    Attributes:
        name: The name to which ``spec.scaling.prometheusRef`` refers.
        url: Base URL with its path prefix, without ``/api/v1``.
        bearer_token_file: File with a token; read for every query, so that the token may rotate.
        security: ``Insecure`` accepts any certificate and sends credentials over plain HTTP.
        matchers: Labels that all series must have, for a Prometheus with several clusters.
        timeout_seconds: Time limit for all queries of one collection together.
        namespaces: Namespaces whose pipelines may use the connection; ``None`` permits all.
    """

    name: str = DEFAULT
    url: str
    bearer_token_file: Path | None = None
    basic_auth: BasicAuth | None = None
    tls: ConnectionTls = ConnectionTls()
    security: Security = Security.VERIFIED
    tenant: Tenant | None = None
    matchers: Mapping[LabelName, str] = Field(default_factory=dict, max_length=16)
    labels: SeriesLabels = SeriesLabels()
    container_labels: ContainerLabels = ContainerLabels()
    timeout_seconds: Annotated[float, Field(ge=0.5, le=60)] = 4.0
    namespaces: frozenset[NamespaceName] | None = None

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a valid name; use at most 63 lowercase letters, digits and -"
            )
        return value

    @field_validator("url")
    @classmethod
    def _is_a_base(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            _ = parts.port
        except ValueError:
            raise ValueError(
                "the value is not a valid URL; use a URL such as "
                "https://prometheus.monitoring.svc:9090/prefix"
            ) from None
        if parts.username is not None or parts.password is not None:
            raise ValueError(
                "the URL contains user information; specify credentials in files, with basicAuth "
                "or bearerTokenFile"
            )
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or re.search(r"[\s\x00-\x1f\\]", value)
        ):
            raise ValueError(
                "the value is not an http or https URL; use a URL such as "
                "https://prometheus.monitoring.svc:9090/prefix"
            )
        if parts.query or parts.fragment:
            raise ValueError(
                "the URL contains a query or fragment; use only the base URL and, if "
                "needed, a path prefix"
            )
        base = value.rstrip("/")
        if base.endswith("/api/v1") or base.endswith("/api/v1/query"):
            raise ValueError("the URL ends in /api/v1; remove /api/v1 from the URL")
        return base

    @field_validator("namespaces")
    @classmethod
    def _permits_a_namespace(cls, value: frozenset[str] | None) -> frozenset[str] | None:
        if value is not None and not value:
            raise ValueError(
                "the list is empty; list at least one namespace, or omit the field to allow "
                "all namespaces"
            )
        return value

    @field_validator("matchers")
    @classmethod
    def _read_only(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        return MappingProxyType(dict(value))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.bearer_token_file is not None and self.basic_auth is not None:
            raise ValueError(
                "bearerTokenFile and basicAuth cannot be combined; remove one of these fields"
            )
        plain = self.url.startswith("http://")
        if plain and self.tls != ConnectionTls():
            raise ValueError("tls requires an https:// URL; change url, or remove tls")
        if (
            plain
            and self.security is Security.VERIFIED
            and (self.bearer_token_file is not None or self.basic_auth is not None)
        ):
            raise ValueError(
                "credentials would be sent unencrypted over http://; use https://, or set "
                "security: Insecure"
            )
        own = {
            self.labels.namespace,
            self.labels.pod,
            self.container_labels.namespace,
            self.container_labels.pod,
            "model",
        }
        if clash := sorted(own & set(self.matchers)):
            raise ValueError(
                f"matchers: the operator sets {listed(clash)} itself; remove {listed(clash)} "
                "from matchers"
            )
        return self

    def permits(self, namespace: str) -> bool:
        """Return whether pipelines of a namespace may use the connection."""
        return self.namespaces is None or namespace in self.namespaces

    def credentials(self) -> QueryCredentials:
        """Return the credentials for a query, read from their files.

        Raises:
            SecretFileError: A file is missing, unreadable or empty, or contains characters that a
                header cannot carry.
        """
        headers: dict[str, str] = {}
        secrets: list[str] = []
        basic: tuple[str, str] | None = None
        if self.bearer_token_file is not None:
            token = read_secret("bearerTokenFile", self.bearer_token_file)
            headers["Authorization"] = f"Bearer {token}"
            secrets.append(token)
        if self.basic_auth is not None:
            user = read_secret("basicAuth.usernameFile", self.basic_auth.username_file)
            basic = (
                user,
                read_secret("basicAuth.passwordFile", self.basic_auth.password_file, blanks=True),
            )
        if self.tenant is not None:
            if self.tenant.value_file is not None:
                value = read_secret("tenant.valueFile", self.tenant.value_file)
                secrets.append(value)
            else:
                value = self.tenant.value or ""
            headers[self.tenant.header] = value
        return QueryCredentials(MappingProxyType(headers), basic, tuple(secrets))

    def certificates(self) -> tuple[tuple[str, int, int], ...]:
        """Return the name, modification time and size of each certificate file.

        When the value changes, connections have to be reopened.

        Raises:
            SecretFileError: One of the files is missing.
        """
        files = (
            ("tls.caFile", self.tls.ca_file),
            ("tls.certFile", self.tls.cert_file),
            ("tls.keyFile", self.tls.key_file),
        )
        return tuple(file_stamp(name, path) for name, path in files if path is not None)


@dataclass(frozen=True, slots=True)
class QueryCredentials:
    """Credentials of one query."""

    headers: Mapping[str, str] = field(repr=False)
    """Headers to send."""
    basic: tuple[str, str] | None = field(default=None, repr=False)
    """User and password for basic authentication."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Secret values, which must be removed from every message."""
