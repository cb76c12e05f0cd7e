"""Options of commands that send requests: certificates for gRPC with TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from triton_pipelines.tools.loadgen import ClientTls

from .errors import EXIT_USAGE, CommandError

GRPC, GRPCS = "grpc", "grpcs"
"""Schemes of addresses of gRPC in plaintext and with TLS."""

CaCert = Annotated[
    Path | None,
    typer.Option(
        "--cacert",
        metavar="FILE",
        help="For grpcs://: trusted certificate authorities (PEM). Default: public authorities.",
    ),
]
Cert = Annotated[
    Path | None,
    typer.Option(
        "--cert", metavar="FILE", help="For grpcs://: client certificate (PEM); requires --key."
    ),
]
Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="For grpcs://: private key of --cert (PEM)."),
]
ServerName = Annotated[
    str,
    typer.Option(
        "--servername",
        metavar="NAME",
        help=(
            "For grpcs://: host name in the server's certificate, if it differs from the host in "
            "the address."
        ),
    ),
]


def is_grpc(url: str) -> bool:
    """Return whether an address is one of gRPC."""
    return urlsplit(url).scheme in (GRPC, GRPCS)


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Certificates for gRPC with TLS."""

    cacert: CaCert = None
    """``None``: public certificate authorities."""
    cert: Cert = None
    """``None``: the client has no certificate."""
    key: Key = None
    """Key of ``cert``."""
    servername: ServerName = ""
    """Empty: the host of the address."""


def client_tls(url: str, tls: TlsOptions) -> ClientTls | None:
    """Return how to connect to an address of gRPC with TLS; ``None`` for other addresses.

    Raises:
        CommandError: an option does not fit the address, or a file cannot be read.
    """
    given = {
        "--cacert": tls.cacert,
        "--cert": tls.cert,
        "--key": tls.key,
        "--servername": tls.servername,
    }
    used = [name for name, value in given.items() if value]
    if urlsplit(url).scheme != GRPCS:
        if used:
            raise CommandError(
                f"{', '.join(used)}: allowed only with an address grpcs://HOST:PORT", EXIT_USAGE
            )
        return None
    if (tls.cert is None) != (tls.key is None):
        raise CommandError("--cert and --key must be set together", EXIT_USAGE)
    return ClientTls(
        _read("--cacert", tls.cacert),
        _read("--cert", tls.cert),
        _read("--key", tls.key),
        tls.servername,
    )


def _read(option: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CommandError(f"{option} {path}: {error.strerror or error}", EXIT_USAGE) from error
    if b"-----BEGIN" not in content:
        raise CommandError(f"{option} {path}: the file is not in PEM format", EXIT_USAGE)
    return content
