"""A certificate authority for tests, and Secrets in cert-manager's layout."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = dt.timedelta(days=1)
HOST = "sentiment.nlp.svc"
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def pem(key: CertificateIssuerPrivateKeyTypes) -> bytes:
    """A private key in PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@dataclass
class Authority:
    """A self-signed authority, valid around ``now``."""

    now: dt.datetime
    name: str = "test authority"
    key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)

    def _signed(
        self,
        subject: str,
        key: CertificateIssuerPrivateKeyTypes,
        extensions: Sequence[x509.ExtensionType],
        before: dt.datetime,
        after: dt.datetime,
    ) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(before)
            .not_valid_after(after)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)

    @property
    def certificate(self) -> bytes:
        """Its own certificate in PEM."""
        own = x509.BasicConstraints(ca=True, path_length=None)
        return self._signed(self.name, self.key, [own], self.now - DAY, self.now + 365 * DAY)

    def secret(
        self,
        *hosts: str,
        usages: Sequence[x509.ObjectIdentifier] = (),
        before: dt.timedelta = DAY,
        after: dt.timedelta = 90 * DAY,
        key: CertificateIssuerPrivateKeyTypes | None = None,
    ) -> dict[str, bytes]:
        """Content of a Secret with a new certificate of this authority."""
        private = key or new_key()
        names = [x509.DNSName(host) for host in hosts or (HOST,)]
        extensions: list[x509.ExtensionType] = [x509.SubjectAlternativeName(names)]
        if usages:
            extensions.append(x509.ExtendedKeyUsage(usages))
        signed = self._signed("server", private, extensions, self.now - before, self.now + after)
        return {"tls.crt": signed, "tls.key": pem(private), "ca.crt": self.certificate}
