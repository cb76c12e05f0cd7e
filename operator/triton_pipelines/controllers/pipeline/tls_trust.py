"""What the operator needs to connect to the pods of a pipeline with TLS. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from triton_pipelines.triton.tls import TlsIdentity

from .snapshot import Pod, Snapshot

# Of pods whose certificate is unknown: the connection fails, and nothing is sent in plaintext.
_UNKNOWN_HOST: Final = "unknown.invalid"


@dataclass(frozen=True, slots=True)
class TlsTrust:
    """Certificates of a pipeline's pods, and the client certificate of the operator."""

    roots: bytes = b""
    """All that its pods may present, PEM: during a rotation these are several."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Host names in these certificates by hash."""
    chain: bytes = b""
    """The client certificate, PEM; empty without mutual TLS."""
    key: bytes = field(default=b"", repr=False)
    """Its private key, PEM; empty without mutual TLS. Kept in memory only."""

    def identity(self, pod: Pod) -> TlsIdentity | None:
        """Return how to connect to a pod; ``None`` for a pod without TLS."""
        if not pod.certificate:
            return None
        host = self.hosts.get(pod.certificate, _UNKNOWN_HOST)
        return TlsIdentity(self.roots, host, self.chain, self.key)


NO_TLS: Final = TlsTrust()
"""Of a pipeline without pods that use TLS."""


def tls_trust(snapshot: Snapshot, before: TlsTrust) -> TlsTrust:
    """Return what is known now; the client certificate stays while the Secret cannot be read.

    Args:
        snapshot: the pipeline.
        before: the result of the previous iteration.
    """
    found = snapshot.certificate
    if found is None and not any(pod.certificate for pod in snapshot.pods):
        return NO_TLS
    state = snapshot.state().certificate
    roots, hosts = dict(state.roots), dict(state.hosts)
    chain, key = before.chain, before.key
    if found is not None:
        roots[found.digest], hosts[found.digest] = found.roots, found.name
        chain, key = found.chain, found.key
    return TlsTrust("".join(roots[one] for one in sorted(roots)).encode(), hosts, chain, key)
