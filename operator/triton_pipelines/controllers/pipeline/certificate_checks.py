"""Check the content of a TLS Secret before pods are created for it. Pure.

Imported when the first Secret is read: its library takes 7 MiB of memory, which an operator without
TLS does not need.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from triton_pipelines.api import names
from triton_pipelines.api.tls import TlsMode
from triton_pipelines.triton.tls import ClientCertificate

from .server_certificate import CertificateError, ServerCertificate

# Bytes of one key of the Secret. A chain of certificates takes less than 8 KiB.
_FILE_MAX: Final = 16 * 1024
# What the library raises for a part of a certificate that is malformed or that it does not know. It
# parses most parts only when they are read.
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


def read_certificate(data: Mapping[str, bytes], secret: str, mode: TlsMode) -> ServerCertificate:
    """Check the content of a TLS Secret.

    Args:
        data: content of the Secret by key.
        secret: its name.
        mode: ``spec.server.tls.mode``.

    Raises:
        CertificateError: it cannot be used at any time.
    """
    chain = _certificates(data, names.KEY_CERTIFICATE)
    leaf, mutual = chain[0], mode is TlsMode.MUTUAL
    _check_readable(leaf)
    key = _checked_key(data, leaf)
    authorities = (
        _certificates(data, names.KEY_AUTHORITIES)
        if mutual or data.get(names.KEY_AUTHORITIES, b"").strip()
        else []
    )
    _check_usage(leaf, ExtendedKeyUsageOID.SERVER_AUTH, "server auth", "clients would reject it")
    if mutual:
        why = "the operator also uses it as its client certificate"
        _check_usage(leaf, ExtendedKeyUsageOID.CLIENT_AUTH, "client auth", why)
        if not any(_issued(one, leaf) for one in (*chain[1:], *authorities)):
            raise CertificateError(
                f"tls.crt is not issued by ca.crt, and {why}; use a certificate issued by "
                "that authority"
            )
    files = [data[names.KEY_CERTIFICATE], *(one.public_bytes(Encoding.PEM) for one in authorities)]
    return ServerCertificate(
        digest=hashlib.sha256(b"\0".join(files)).hexdigest()[:32],
        roots=b"".join(one.public_bytes(Encoding.PEM) for one in (leaf, *authorities)).decode(),
        name=_host_name(leaf),
        not_before=leaf.not_valid_before_utc,
        not_after=leaf.not_valid_after_utc,
        secret=secret,
        client=ClientCertificate(data[names.KEY_CERTIFICATE], key) if mutual else None,
    )


def _file(data: Mapping[str, bytes], key: str) -> bytes:
    content = data.get(key, b"")
    if not content.strip():
        why = " (mode Mutual needs it)" if key == names.KEY_AUTHORITIES else ""
        raise CertificateError(f"key {key} is missing or empty{why}; add the key to the Secret")
    if len(content) > _FILE_MAX:
        raise CertificateError(
            f"{key} has {len(content)} bytes, but at most {_FILE_MAX} are allowed; remove"
            " certificates that are not needed"
        )
    return content


def _certificates(data: Mapping[str, bytes], key: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_file(data, key))
    except _UNREADABLE:
        raise CertificateError(
            f"{key} contains no readable certificates; use X.509 certificates in PEM"
        ) from None


def _check_readable(leaf: x509.Certificate) -> None:
    """Reject a certificate whose key gRPC does not support, or of which a part is malformed."""
    if not _has_supported_key(leaf):
        raise CertificateError(
            "tls.crt has a key of a type that gRPC does not support; request a certificate "
            "with an RSA key, or with an ECDSA key on the curve P-256 or P-384"
        )
    try:
        _ = (leaf.extensions, leaf.subject, leaf.issuer, leaf.not_valid_before_utc)
        _ = leaf.not_valid_after_utc
    except _UNREADABLE:
        # The library's own text describes its parser.
        raise CertificateError(
            "tls.crt has a malformed name, time or extension; request a new certificate"
        ) from None


def _has_supported_key(leaf: x509.Certificate) -> bool:
    """Return whether gRPC connects with the key (measured, gRPC 1.85 and Triton 2.51.0)."""
    try:
        key = leaf.public_key()
    except _UNREADABLE:
        return False
    if isinstance(key, EllipticCurvePublicKey):
        return isinstance(key.curve, SECP256R1 | SECP384R1)
    return isinstance(key, RSAPublicKey)


def _checked_key(data: Mapping[str, bytes], leaf: x509.Certificate) -> bytes:
    content = _file(data, names.KEY_PRIVATE)
    try:
        private = load_pem_private_key(content, None)
    except _UNREADABLE:
        # The library's own text could quote what it read.
        raise CertificateError(
            "tls.key contains no readable private key; use a key in PEM without a password"
        ) from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise CertificateError(
            "tls.key does not match the first certificate in tls.crt; use the key with which "
            "this certificate was requested"
        )
    return content


def _check_usage(leaf: x509.Certificate, usage: x509.ObjectIdentifier, name: str, why: str) -> None:
    try:
        allowed = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return  # for any use
    if usage not in allowed and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in allowed:
        raise CertificateError(
            f"tls.crt does not have the usage '{name}', and {why}; request that usage "
            "(usages of a cert-manager Certificate)"
        )


def _issued(issuer: x509.Certificate, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(issuer)
    except (*_UNREADABLE, InvalidSignature):
        return False
    return True


def _host_name(leaf: x509.Certificate) -> str:
    """Return a name that the certificate is valid for; clients compare it."""
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        host = str(common[0].value) if common else ""
    else:
        addresses = [str(item) for item in found.get_values_for_type(x509.IPAddress)]
        hosts = [*found.get_values_for_type(x509.DNSName), *addresses]
        host = hosts[0] if hosts else ""
    if not host:
        raise CertificateError(
            "tls.crt has no host name; request a certificate for the names of the "
            "pipeline's Service"
        )
    return host.replace("*", "any", 1)
