"""Credentials and CA bundles of a source, read from mounted Secrets.

Nothing else in the loader reads them.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import certifi

from triton_pipelines.api.loadplan import PlanFetch
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.uris import RegistryUri, SourceLocation, parse_azure, parse_registry
from triton_pipelines.redaction import Redactor

CA_FILE: Final = "ca.crt"
_AMBIENT: Final = (
    *(
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    ),
    *(
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_TOKEN",
    ),
    *("AZURE_CLIENT_SECRET", "GOOGLE_SERVICE_ACCOUNT_KEY", "HF_TOKEN"),
)
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
DOCKER_CONFIG: Final = ".dockerconfigjson"
"""Key of a Secret of type ``kubernetes.io/dockerconfigjson``."""
_DOCKER_HUB: Final = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})


def ssl_context(ca: Path | None) -> ssl.SSLContext:
    """Return the system's trusted CAs, plus the bundle ``ca``.

    Raises:
        SourceError: the bundle is not in PEM format.
    """
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and (paths.capath is None or not any(Path(paths.capath).iterdir())):
        # An image without ca-certificates.
        context.load_verify_locations(cafile=certifi.where())
    if ca is not None:
        try:
            context.load_verify_locations(cafile=str(ca))
        except (OSError, ssl.SSLError) as error:
            raise SourceError(
                f"the CA bundle of caRef cannot be used ({error}); it must contain PEM certificates"
                " under the key ca.crt"
            ) from error
    return context


@dataclass(frozen=True)
class SourceCredentials:
    """What is presented to a source. No field is part of ``repr``."""

    token: str | None = field(default=None, repr=False)
    """Bearer token."""
    user: tuple[str, str] | None = field(default=None, repr=False)
    """User and password."""
    keys: tuple[str, str, str | None] | None = field(default=None, repr=False)
    """Access key id, secret access key and session token of S3."""
    account_key: str | None = field(default=None, repr=False)
    """Access key of an Azure storage account."""
    sas_token: str | None = field(default=None, repr=False)
    """Shared access signature of Azure."""
    service_account: str | None = field(default=None, repr=False)
    """JSON key of a Google service account."""
    ca_file: Path | None = None
    """CA bundle."""

    @property
    def sends_secret(self) -> bool:
        """Return whether requests carry a secret or a token, not only a signature made with it."""
        return any(
            value is not None
            for value in (self.token, self.user, self.sas_token, self.service_account)
        )

    def headers(self, from_url: tuple[str, str] | None = None) -> dict[str, str]:
        """Return the Authorization header for a web server.

        The bearer token comes first, then user and password, then those of the URL.
        """
        if self.token is not None:
            return {"Authorization": f"Bearer {self.token}"}
        user = self.user or from_url
        if user is None:
            return {}
        return {"Authorization": "Basic " + base64.b64encode(":".join(user).encode()).decode()}

    def ssl_context(self) -> ssl.SSLContext:
        """Return the trusted CAs for this source's servers."""
        return ssl_context(self.ca_file)


def read_credentials(
    item: PlanFetch, location: SourceLocation, credentials: Path, ca: Path, redact: Redactor
) -> SourceCredentials:
    """Return the credentials of ``item``; each value becomes known to ``redact``.

    Raises:
        SourceError: the Secret has not the keys that the source needs; names them.
    """
    ca_file = ca / item.key / CA_FILE if item.ca else None
    if ca_file is not None and not ca_file.is_file():
        raise SourceError(f"caRef: the bundle has no key {CA_FILE}")
    # Credentials that the platform injects must not appear in messages either.
    redact.add(*(os.environ.get(name) for name in _AMBIENT))
    for name in _PROXIES:
        redact.add(*_password(os.environ.get(name)), *_password(os.environ.get(name.lower())))
    if not item.credentials:
        return SourceCredentials(ca_file=ca_file)
    values = _read(credentials / item.key)
    redact.add(
        *(
            value
            for key, value in values.items()
            if key not in ("username", "accessKeyId", "accountName")
        )
    )
    # An access key id is no secret by itself, but scanners treat it as one.
    redact.add(values.get("accessKeyId"))
    return replace(_of_scheme(location, values, redact), ca_file=ca_file)


def _of_scheme(
    location: SourceLocation, values: Mapping[str, str], redact: Redactor
) -> SourceCredentials:
    match location.scheme:
        case "hf":
            _require(values, "token")
            return SourceCredentials(token=values["token"])
        case "s3":
            _require(values, "accessKeyId", "secretAccessKey")
            session = values.get("sessionToken") or None
            return SourceCredentials(
                keys=(values["accessKeyId"], values["secretAccessKey"], session)
            )
        case "gs":
            _require(values, "serviceAccountKey")
            key = _service_account(values["serviceAccountKey"], redact)
            return SourceCredentials(service_account=key)
        case "az":
            return _azure(location, values, redact)
        case "oci":
            return _registry(location, values, redact)
        case "https" | "http":
            return _web(values, redact)
    return SourceCredentials()


def _require(values: Mapping[str, str], *keys: str) -> None:
    missing = [key for key in keys if not values.get(key)]
    if missing:
        raise SourceError(
            f"secretRef: the secret has no {' and '.join(missing)} (it has {_keys(values)})"
        )


def _keys(values: Mapping[str, str]) -> str:
    """Return the secret's keys, for messages."""
    return ", ".join(sorted(values)) or "nothing"


def _registry(
    location: SourceLocation, values: Mapping[str, str], redact: Redactor
) -> SourceCredentials:
    user = (values.get("username", ""), values.get("password", ""))
    if not all(user):
        if not values.get(DOCKER_CONFIG):
            raise SourceError(
                f"secretRef: the secret must contain {DOCKER_CONFIG}, or username and password (it"
                f" has {_keys(values)})"
            )
        user = _docker(values[DOCKER_CONFIG], parse_registry(location.uri), redact)
    redact.add_basic(*user)
    return SourceCredentials(user=user)


def _web(values: Mapping[str, str], redact: Redactor) -> SourceCredentials:
    if values.get("token"):
        return SourceCredentials(token=values["token"])
    user = (values.get("username", ""), values.get("password", ""))
    if not all(user):
        raise SourceError(
            "secretRef: the secret must contain token, or username and password (it has"
            f" {_keys(values)})"
        )
    redact.add_basic(*user)
    return SourceCredentials(user=user)


def _password(proxy: str | None) -> tuple[str, ...]:
    """Return the password in a proxy's address, as written and decoded."""
    try:
        password = urlsplit(proxy or "").password
    except ValueError:
        return ()
    return (password, unquote(password)) if password else ()


def _service_account(text: str, redact: Redactor) -> str:
    key = _json(text, "serviceAccountKey")
    private = key.get("private_key")
    if not isinstance(private, str) or not isinstance(key.get("client_email"), str):
        raise SourceError(
            "secretRef: serviceAccountKey is not the key file of a service account "
            "(private_key or client_email is missing)"
        )
    # An error may contain part of the key, so each of its lines is redacted.
    redact.add(
        private,
        str(key.get("private_key_id") or ""),
        *(line for line in private.split("\n") if not line.startswith("-----")),
    )
    return text


def _azure(
    location: SourceLocation, values: Mapping[str, str], redact: Redactor
) -> SourceCredentials:
    account = parse_azure(location.uri).account
    if values.get("accountName", account) != account:
        raise SourceError(
            f"secretRef: the secret is for account {values['accountName']}, but the URI names"
            f" {account}"
        )
    if values.get("sasToken"):
        token = values["sasToken"].lstrip("?")
        redact.add(token, *(value for name, value in parse_qsl(token) if name == "sig"))
        return SourceCredentials(sas_token=token)
    if values.get("accountKey"):
        try:
            base64.b64decode(values["accountKey"], validate=True)
        except ValueError:
            raise SourceError(
                "secretRef: accountKey is not base64; copy the storage account's access key as the"
                " portal shows it"
            ) from None
        return SourceCredentials(account_key=values["accountKey"])
    raise SourceError(
        "secretRef: the secret must contain accountKey (with accountName) or sasToken (it has"
        f" {_keys(values)})"
    )


def _docker(text: str, uri: RegistryUri, redact: Redactor) -> tuple[str, str]:
    """Return user and password for a registry from a Docker configuration.

    The longest matching entry wins, as in the kubelet.
    """
    auths = _json(text, DOCKER_CONFIG).get("auths")
    if not isinstance(auths, dict):
        raise SourceError(
            f"secretRef: {DOCKER_CONFIG} has no auths; create the Secret with kubectl "
            "create secret docker-registry"
        )
    matching = [
        name for name, entry in auths.items() if isinstance(entry, dict) and _is_for(name, uri)
    ]
    if not matching:
        raise SourceError(
            f"secretRef: {DOCKER_CONFIG} has no entry for {uri.registry}; add one (existing "
            f"entries: {', '.join(sorted(auths)) or 'none'})"
        )
    name = max(matching, key=len)
    user, password = _docker_user(name, auths[name], redact)
    if not user or not password:
        raise SourceError(
            f"secretRef: {DOCKER_CONFIG} has no username and password for {name}; create "
            "the Secret with both (identity tokens and credential helpers are not supported)"
        )
    return user, password


def _is_for(name: str, uri: RegistryUri) -> bool:
    """Return whether the entry ``name`` of a Docker configuration covers a repository."""
    address = name.removeprefix("https://").removeprefix("http://").strip("/")
    host, _, path = address.partition("/")
    # Docker Hub's entry is an address of its old API.
    path = "" if path in ("v1", "v2") else path
    is_same_host = host == uri.registry or (host in _DOCKER_HUB and uri.registry in _DOCKER_HUB)
    is_above = not path or uri.repository == path or uri.repository.startswith(f"{path}/")
    return is_same_host and is_above


def _docker_user(name: str, entry: Mapping[str, Any], redact: Redactor) -> tuple[str, str]:
    """Return user and password of an entry, as ``auth`` or as fields of their own."""
    if not entry.get("auth"):
        return str(entry.get("username") or ""), str(entry.get("password") or "")
    redact.add(str(entry["auth"]))
    try:
        user, _, password = (
            base64.b64decode(str(entry["auth"]), validate=True).decode().partition(":")
        )
    except ValueError:
        raise SourceError(
            f"secretRef: {DOCKER_CONFIG}: auth of {name} must be the base64 encoding of "
            "USER:PASSWORD"
        ) from None
    return user, password


def _json(text: str, key: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        # The parser's own message would quote some of the text.
        raise SourceError(
            f"secretRef: {key} contains invalid JSON; create the Secret again"
        ) from None
    if not isinstance(value, dict):
        raise SourceError(f"secretRef: {key} must contain a JSON object")
    return value


def _read(folder: Path) -> dict[str, str]:
    """Return the Secret's keys, without ``..data`` and the like of the kubelet's atomic writer."""
    if not folder.is_dir():
        raise SourceError("secretRef: the Secret is not mounted", retryable=True)
    return {
        # `kubectl create secret --from-file` keeps a file's final newline, which no credential has.
        path.name: path.read_text().strip()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith("..")
    }
