"""A usable TLS Secret. Pure; :mod:`~.certificate_checks` reads it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.controllers.timestamps import rfc3339
from triton_pipelines.triton.tls import ClientCertificate

PATH: Final = "spec.server.tls.secretName"
# Share of the lifetime that is left when a certificate should have been renewed: cert-manager
# renews with a third left (documentation, "renewBefore").
_RENEWAL_OVERDUE: Final = 0.2


class CertificateError(Exception):
    """The Secret cannot be used; the message names its key and the remedy."""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A usable TLS Secret."""

    digest: str
    """Hash of its certificates, which are public."""
    roots: str
    """What clients of its pods trust: the server's certificate and ``ca.crt``, PEM."""
    name: str
    """A host name that the certificate is valid for."""
    not_before: dt.datetime
    not_after: dt.datetime
    secret: str
    """Name of the Secret."""
    client: ClientCertificate | None = None
    """The same as the operator's own; ``None`` without mutual TLS."""

    def problem(self, now: dt.datetime) -> str:
        """Return why the certificate cannot be used now; empty if it can."""
        place = f"{PATH}: Secret {self.secret}: tls.crt"
        if now >= self.not_after:
            return (
                f"{place} expired at {rfc3339(self.not_after)}, so clients reject it; "
                "renew the certificate"
            )
        if now < self.not_before:
            return (
                f"{place} is not valid before {rfc3339(self.not_before)};"
                " use a certificate that is valid now"
            )
        return ""

    def warnings(self, now: dt.datetime) -> Sequence[Finding]:
        """Return a warning if the certificate should have been renewed by now."""
        left = (self.not_after - now) / (self.not_after - self.not_before)
        if left >= _RENEWAL_OVERDUE:
            return ()
        text = (
            f"tls.crt of Secret {self.secret} expires at {rfc3339(self.not_after)} and has not been"
            " renewed yet; check the controller that renews it"
        )
        return (Finding(PATH, text, Severity.WARNING, code=FindingCode.SERVER_CERTIFICATE_EXPIRES),)
