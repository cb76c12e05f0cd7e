"""How a gRPC client verifies the pod that it connects to, and identifies itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from triton_pipelines.triton.limited_relay import OVERHEAD_BYTES, LimitedRelay

_TARGET_NAME: Final = "grpc.ssl_target_name_override"
POD_CHANNEL_OPTIONS: Final = (
    # Pods are reached directly.
    ("grpc.enable_http_proxy", 0),
    # Forget a failed connection to an earlier pod at this address.
    ("grpc.use_local_subchannel_pool", 1),
)
# Seconds in which a pod has to accept one of several identities.
_CONNECT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """The certificate of a client, for mutual TLS."""

    chain: bytes
    """The certificate and those of its issuers, PEM."""
    key: bytes = field(repr=False)
    """Its private key, PEM."""


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """What a client needs for TLS with one pod."""

    roots: bytes
    """Certificates that are trusted, PEM; the server's own is enough."""
    name: str
    """Host name in the server's certificate. Pods are reached by their address, which is not."""
    client: ClientCertificate | None = None
    """Certificate of the client; ``None`` without mutual TLS."""
    alternatives: tuple[TlsIdentity, ...] = ()
    """What else the pod may require; see :func:`accepted_identity`."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials of a channel."""
        if self.client is None:
            return grpc.ssl_channel_credentials(self.roots)
        return grpc.ssl_channel_credentials(self.roots, self.client.key, self.client.chain)

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


async def accepted_identity(
    address: str, tls: TlsIdentity | None, seconds: float = _CONNECT_SECONDS
) -> TlsIdentity | None:
    """Return the first identity with which a connection succeeds; if none does, the first one.

    Args:
        address: ``host:port`` of the pod's gRPC API.
        tls: the identity to try first; without alternatives, nothing is tried.
        seconds: for all attempts together.
    """
    if tls is None or not tls.alternatives:
        return tls
    try:
        async with asyncio.timeout(seconds):
            for one in (tls, *tls.alternatives):
                if await _connects(address, one):
                    return one
    except TimeoutError:
        pass  # The pod does not answer, whatever the identity.
    return tls


async def _connects(address: str, tls: TlsIdentity) -> bool:
    options = [*POD_CHANNEL_OPTIONS, *tls.channel_options()]
    relay = LimitedRelay(address, OVERHEAD_BYTES)
    try:
        await relay.connect()
        return await _is_accepted(open_channel(relay.target, tls, options))
    except OSError:
        return False  # Nothing answers, whatever the identity.
    finally:
        await relay.close()


async def _is_accepted(opened: grpc.aio.Channel) -> bool:
    """Return whether a channel connects; close it."""
    async with opened as channel:
        state = channel.get_state(try_to_connect=True)
        # A channel whose connection ends becomes idle again.
        for waiting in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
            if state is waiting:
                await channel.wait_for_state_change(state)
                state = channel.get_state()
        return bool(state is grpc.ChannelConnectivity.READY)
