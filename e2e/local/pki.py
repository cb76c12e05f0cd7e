"""Keys, certificates and kubeconfigs of a test cluster.

There is one CA, created in memory in well under a second.

Elliptic-curve keys (P-256) are used throughout but for service-account tokens, whose signing key is
RSA as in kubeadm.
"""

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=30)
"""Validity of the certificates.

Long enough for a cluster that someone keeps over a holiday, short enough that a forgotten key is
worthless.
"""

BACKDATE = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class Identity:
    """A key and its certificate, PEM."""

    key: bytes
    certificate: bytes


class Authority:
    """A certificate authority for one cluster.

    `now` is the start of validity (UTC); every certificate is valid for `VALID` from it.
    """

    def __init__(self, now: datetime.datetime) -> None:
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("triton-pipelines-ca", ())
        self._certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, digital_signature=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def identity(self) -> Identity:
        """Key and certificate of the authority itself."""
        return Identity(
            _key_pem(self._key), self._certificate.public_bytes(serialization.Encoding.PEM)
        )

    def client(self, common_name: str, organizations: Sequence[str] = ()) -> Identity:
        """Create a client certificate.

        Kubernetes reads the common name as the user and the organizations as groups.
        """
        return self._issue(common_name, organizations, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, common_name: str, names: Sequence[str]) -> Identity:
        """A serving certificate for host names and IP addresses."""
        return self._issue(common_name, (), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - BACKDATE)
            .not_valid_after(self._now + VALID)
        )

    def _issue(
        self,
        common_name: str,
        organizations: Sequence[str],
        purpose: x509.ObjectIdentifier,
        names: Sequence[str],
    ) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            self._builder(_name(common_name, organizations), key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        return Identity(_key_pem(key), certificate.public_bytes(serialization.Encoding.PEM))


def service_account_pair() -> tuple[bytes, bytes]:
    """Private and public key (PEM) that sign and verify service-account tokens."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return _key_pem(key), public


def kubeconfig(name: str, server: str, authority: bytes, identity: Identity) -> str:
    """Return a kubeconfig with one cluster, user and context, all named `name`.

    All certificates and keys are embedded.
    """

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {"server": server, "certificate-authority-data": encoded(authority)},
            }
        ],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": encoded(identity.certificate),
                    "client-key-data": encoded(identity.key),
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return yaml.safe_dump(document, sort_keys=False)


def write_private(path: Path, data: bytes | str) -> Path:
    """Write a file that only its owner can read, replacing what was there in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    scratch.touch(mode=0o600)
    scratch.write_bytes(data.encode() if isinstance(data, str) else data)
    return scratch.replace(path)


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    attributes = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)
        for organization in organizations
    ]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
