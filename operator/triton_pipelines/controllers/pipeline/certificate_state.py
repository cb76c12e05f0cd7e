"""State of the policy that rolls out TLS certificates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from .policy_state import PolicyState


@dataclass(frozen=True, slots=True)
class CertificateState(PolicyState):
    """Certificates that pods are created for, and what clients of the pods trust. All public."""

    digests: Mapping[str, str] = field(default_factory=dict)
    """Hash of the certificate by Secret: of the Secret that new pods mount, and of the one that
    pods would mount after a rollback."""
    roots: Mapping[str, str] = field(default_factory=dict)
    """Trusted certificates in PEM by hash: of these certificates, and of those that pods still use.
    """
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Host names in these certificates by hash."""

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Read a document, without entries that are not text."""
        state = super(CertificateState, cls).parse(document)
        return cls(_texts(state.digests), _texts(state.roots), _texts(state.hosts))


def _texts(found: Mapping[str, Any]) -> dict[str, str]:
    return {key: value for key, value in found.items() if isinstance(value, str)}
