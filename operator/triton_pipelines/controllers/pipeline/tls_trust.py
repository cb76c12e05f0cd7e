"""What the operator needs to connect to the pods of a pipeline with TLS. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from triton_pipelines.api.tls import Tls
from triton_pipelines.compile.render.pod_volumes import mounted_tls
from triton_pipelines.triton.tls import ClientCertificate, TlsIdentity

from .snapshot import Pod, Snapshot

# Of pods whose certificate is unknown: the connection fails, and nothing is sent in plaintext.
_UNKNOWN_HOST: Final = "unknown.invalid"


@dataclass(frozen=True, slots=True)
class TlsTrust:
    """Certificates of a pipeline's pods, and the client certificates of the operator."""

    roots: bytes = b""
    """All that its pods may present, PEM: during a rotation these are several."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Host names in these certificates by hash, the newest first."""
    clients: Mapping[str, ClientCertificate] = field(default_factory=dict)
    """The same certificates as the operator's own, by hash, the newest first; none without mutual
    TLS. Kept in memory only."""

    def identity(self, pod: Pod) -> TlsIdentity | None:
        """Return how to connect to a pod; ``None`` for a pod without TLS.

        A pod that was created or restarted before a renewal is rolled out already presents the new
        certificate, so others are alternatives to the one that it was created for.
        """
        if not pod.certificate:
            return None
        own = self.clients.get(pod.certificate, next(iter(self.clients.values()), None))
        first = self.hosts.get(pod.certificate, _UNKNOWN_HOST)
        identity = TlsIdentity(self.roots, first, own)
        others = (
            TlsIdentity(self.roots, host, self.clients.get(digest, own))
            for digest, host in self.hosts.items()
        )
        distinct = dict.fromkeys(other for other in others if other != identity)
        return replace(identity, alternatives=tuple(distinct))


NO_TLS: Final = TlsTrust()
"""Of a pipeline without pods that use TLS."""


def desired_tls(snapshot: Snapshot) -> Tls | None:
    """Return ``server.tls`` of the revision to run, as its record has it; ``None`` without TLS.

    The current spec may name another Secret: while it cannot be acted on, or was rolled back.
    """
    state = snapshot.state()
    desired = state.rollout.target(state.revision.desired) or snapshot.deployed_revision()
    record = snapshot.revision_record(desired)
    return mounted_tls(record["template"]) if record is not None else None


def tls_trust(snapshot: Snapshot, before: TlsTrust) -> TlsTrust:
    """Return what is known now; client certificates stay while the Secret cannot be read.

    Args:
        snapshot: the pipeline.
        before: the result of the previous iteration.
    """
    found, pods = snapshot.desired_certificate, {pod.certificate for pod in snapshot.pods} - {""}
    if found is None and not pods:
        return NO_TLS
    state = snapshot.state().certificate
    roots, hosts, clients = dict(state.roots), dict(state.hosts), dict(before.clients)
    if found is not None:
        roots[found.digest] = found.roots
        hosts = {found.digest: found.name} | hosts
        used = (pods | set(state.digests.values())) - {found.digest}
        clients = {} if found.client is None else {found.digest: found.client}
        clients |= {digest: one for digest, one in before.clients.items() if digest in used}
    return TlsTrust("".join(roots[one] for one in sorted(roots)).encode(), hosts, clients)
