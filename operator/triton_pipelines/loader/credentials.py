"""A step's credentials and CA bundle as mounted from its secrets; nothing else in the loader reads them."""

from __future__ import annotations

import base64
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import certifi

from triton_pipelines.api.loadplan import PlanFetch
from triton_pipelines.loader.errors import SourceError
from triton_pipelines.loader.redact import Redactor

CA_FILE: Final = "ca.crt"
_AMBIENT: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN")


def ssl_context(ca: Path | None) -> ssl.SSLContext:
    """The system's trust, plus the bundle ``ca``; :class:`SourceError` when that is no PEM bundle."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and (paths.capath is None or not any(Path(paths.capath).iterdir())):
        # An image without ca-certificates.
        context.load_verify_locations(cafile=certifi.where())
    if ca is not None:
        try:
            context.load_verify_locations(cafile=str(ca))
        except (OSError, ssl.SSLError) as error:
            raise SourceError(f"the CA bundle of caRef cannot be used ({error}): it must hold certificates in PEM under the key ca.crt") from error
    return context


@dataclass(frozen=True)
class Credentials:
    """What a source is presented with. No field shows in ``repr``."""

    token: str | None = field(default=None, repr=False)
    user: tuple[str, str] | None = field(default=None, repr=False)
    keys: tuple[str, str, str | None] | None = field(default=None, repr=False)
    ca_file: Path | None = None

    def headers(self, from_url: tuple[str, str] | None = None) -> dict[str, str]:
        """The Authorization header for a web server: bearer token, else user and password (those of the URL last)."""
        if self.token is not None:
            return {"Authorization": f"Bearer {self.token}"}
        user = self.user or from_url
        if user is None:
            return {}
        return {"Authorization": "Basic " + base64.b64encode(":".join(user).encode()).decode()}

    def ssl_context(self) -> ssl.SSLContext:
        """Trust for this source's servers."""
        return ssl_context(self.ca_file)


def read_credentials(item: PlanFetch, scheme: str, credentials: Path, ca: Path, redact: Redactor) -> Credentials:
    """The credentials of ``item`` for a source of ``scheme``; each value becomes known to ``redact``.

    Raises :class:`SourceError` that names the secret's missing key.
    """
    ca_file = ca / item.step / CA_FILE if item.ca else None
    if ca_file is not None and not ca_file.is_file():
        raise SourceError(f"caRef: the bundle has no key {CA_FILE}")
    # What the platform injects must not show either.
    redact.add(*(os.environ.get(name) for name in _AMBIENT))
    if not item.credentials:
        return Credentials(ca_file=ca_file)
    values = _read(credentials / item.step)
    redact.add(*(value for key, value in values.items() if key not in ("username", "accessKeyId")))
    # An access key id is no secret by itself, but scanners treat it as one.
    redact.add(values.get("accessKeyId"))

    def need(*keys: str) -> None:
        missing = [key for key in keys if not values.get(key)]
        if missing:
            held = ", ".join(sorted(values)) or "nothing"
            raise SourceError(f"secretRef: the secret lacks {' and '.join(missing)} (it holds {held})")

    match scheme:
        case "hf":
            need("token")
            return Credentials(token=values["token"], ca_file=ca_file)
        case "s3":
            need("accessKeyId", "secretAccessKey")
            keys = (values["accessKeyId"], values["secretAccessKey"], values.get("sessionToken") or None)
            return Credentials(keys=keys, ca_file=ca_file)
        case "https" | "http":
            if values.get("token"):
                return Credentials(token=values["token"], ca_file=ca_file)
            if not (values.get("username") and values.get("password")):
                held = ", ".join(sorted(values)) or "nothing"
                raise SourceError(f"secretRef: the secret needs token, or username and password (it holds {held})")
            redact.add_basic(values["username"], values["password"])
            return Credentials(user=(values["username"], values["password"]), ca_file=ca_file)
    return Credentials(ca_file=ca_file)


def _read(folder: Path) -> dict[str, str]:
    """The secret's keys; ``..data`` and the like of the kubelet's atomic writer are skipped."""
    if not folder.is_dir():
        raise SourceError("secretRef: the secret is not mounted", retryable=True)
    return {
        # `kubectl create secret --from-file` keeps a file's final newline, which no credential has.
        path.name: path.read_text().strip()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith("..")
    }
