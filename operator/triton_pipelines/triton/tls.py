"""How a gRPC client verifies the pod that it connects to, and identifies itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

_TARGET_NAME: Final = "grpc.ssl_target_name_override"


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """What a client needs for TLS with one pod."""

    roots: bytes
    """Certificates that are trusted, PEM; the server's own is enough."""
    name: str
    """Host name in the server's certificate. Pods are reached by their address, which is not."""
    chain: bytes = b""
    """Certificate of the client, PEM; empty without mutual TLS."""
    key: bytes = field(default=b"", repr=False)
    """Private key of the client, PEM; empty without mutual TLS."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials of a channel."""
        return grpc.ssl_channel_credentials(self.roots, self.key or None, self.chain or None)

    def channel_options(self) -> list[tuple[str, str]]:
        """Return the options of a channel."""
        return [(_TARGET_NAME, self.name)]


def open_channel(
    address: str, tls: TlsIdentity | None, options: Sequence[tuple[str, Any]]
) -> grpc.aio.Channel:
    """Return a channel to ``host:port``; ``tls``: ``None`` for plaintext."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.credentials(), options=options)
