"""What makes the content of a TLS Secret usable, and what a user is told if it is not."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding

from tests.support.certificates import CLIENT, DAY, HOST, SERVER, Authority, new_key, pem
from tests.support.messages import Messages
from tests.support.worlds import START
from triton_pipelines.api.tls import TlsMode
from triton_pipelines.controllers.pipeline.certificate_checks import read_certificate
from triton_pipelines.controllers.pipeline.server_certificate import CertificateError
from triton_pipelines.triton.tls import ClientCertificate

AUTHORITY = Authority(START)
OTHER = Authority(START, "another authority")
# Object identifiers in DER: the usage "server auth" (RFC 5280), and the start of those of curves.
SERVER_USAGE = bytes.fromhex("06082b06010505070301")
CURVES = bytes.fromhex("06082a8648ce3d03")
P384 = ec.generate_private_key(ec.SECP384R1())
Content = dict[str, bytes]


def der(certificate: bytes) -> bytes:
    return x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)


def with_bytes(content: Content, changed: bytes) -> Content:
    """The Secret with a certificate of these bytes, whatever they are."""
    text = b"-----BEGIN CERTIFICATE-----\n%b-----END CERTIFICATE-----\n"
    return content | {"tls.crt": text % base64.encodebytes(changed)}


def replaced(content: Content, old: bytes, new: bytes) -> Content:
    whole = der(content["tls.crt"])
    assert old in whole
    return with_bytes(content, whole.replace(old, new))


def test_a_usable_secret_says_what_clients_need() -> None:
    content = AUTHORITY.secret(HOST, "*.example.com")
    found = read_certificate(content, "certs", TlsMode.SIMPLE)
    assert found.name == HOST
    assert found.roots.encode() == content["tls.crt"] + content["ca.crt"]
    assert found.client is None
    assert found.problem(START) == ""
    assert content["tls.key"].decode() not in repr(found)


def test_a_client_certificate_is_kept_for_mutual_tls_alone_and_never_shown() -> None:
    content = AUTHORITY.secret(usages=[SERVER, CLIENT])
    found = read_certificate(content, "certs", TlsMode.MUTUAL)
    assert found.client == ClientCertificate(content["tls.crt"], content["tls.key"])
    assert "PRIVATE" not in repr(found)


def test_the_digest_changes_with_the_certificates_alone() -> None:
    one = AUTHORITY.secret()
    digest = read_certificate(one, "certs", TlsMode.SIMPLE).digest
    assert read_certificate(dict(one), "certs", TlsMode.SIMPLE).digest == digest
    assert read_certificate(AUTHORITY.secret(), "certs", TlsMode.SIMPLE).digest != digest
    without = {key: value for key, value in one.items() if key != "ca.crt"}
    assert read_certificate(without, "certs", TlsMode.SIMPLE).digest != digest


def test_a_wildcard_stands_for_one_host() -> None:
    found = read_certificate(AUTHORITY.secret("*.nlp.svc"), "certs", TlsMode.SIMPLE)
    assert found.name == "any.nlp.svc"


BROKEN: dict[str, tuple[Callable[[Content], Content], TlsMode, str]] = {
    "no certificate": (lambda c: c | {"tls.crt": b""}, TlsMode.SIMPLE, "key tls.crt is missing"),
    "no key": (lambda c: c | {"tls.key": b" "}, TlsMode.SIMPLE, "key tls.key is missing"),
    "no authority": (
        lambda c: c | {"ca.crt": b""},
        TlsMode.MUTUAL,
        "key ca.crt is missing or empty (mode Mutual needs it); add the key to the Secret",
    ),
    "text": (lambda c: c | {"tls.crt": b"hello"}, TlsMode.SIMPLE, "tls.crt contains no readable"),
    "key that is text": (
        lambda c: c | {"tls.key": b"-----BEGIN secret"},
        TlsMode.SIMPLE,
        "tls.key contains no readable private key",
    ),
    "another key": (
        lambda c: c | {"tls.key": pem(new_key())},
        TlsMode.SIMPLE,
        "tls.key does not match the first certificate in tls.crt; use the key",
    ),
    "too large": (lambda c: c | {"tls.crt": c["tls.crt"] * 40}, TlsMode.SIMPLE, "at most 16384"),
    "for clients alone": (
        lambda _: AUTHORITY.secret(usages=[CLIENT]),
        TlsMode.SIMPLE,
        "does not have the usage 'server auth'",
    ),
    "not for clients": (
        lambda _: AUTHORITY.secret(usages=[SERVER]),
        TlsMode.MUTUAL,
        "does not have the usage 'client auth', and the operator also uses it",
    ),
    "malformed host name": (
        lambda c: replaced(c, HOST.encode(), b"\xff" * len(HOST)),
        TlsMode.SIMPLE,
        "tls.crt has a malformed name, time or extension",
    ),
    "malformed usage": (
        lambda _: replaced(
            AUTHORITY.secret(usages=[SERVER]), SERVER_USAGE, b"\x05" + SERVER_USAGE[1:]
        ),
        TlsMode.SIMPLE,
        "tls.crt has a malformed name, time or extension",
    ),
    "unknown curve": (
        lambda c: replaced(c, CURVES, CURVES[:-1] + b"\x04"),
        TlsMode.SIMPLE,
        "tls.crt has a key of a type that gRPC does not support",
    ),
    "Ed25519": (
        lambda _: AUTHORITY.secret(key=Ed25519PrivateKey.generate()),
        TlsMode.SIMPLE,
        "tls.crt has a key of a type that gRPC does not support",
    ),
    "P-521": (
        lambda _: AUTHORITY.secret(key=ec.generate_private_key(ec.SECP521R1())),
        TlsMode.SIMPLE,
        "request a certificate with an RSA key, or with an ECDSA key on the curve P-256 or P-384",
    ),
    "of another authority": (
        lambda c: c | {"ca.crt": OTHER.certificate},
        TlsMode.MUTUAL,
        "tls.crt is not issued by ca.crt",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_and_what_to_do_is_said(case: str) -> None:
    change, mode, words = BROKEN[case]
    with pytest.raises(CertificateError) as caught:
        read_certificate(change(AUTHORITY.secret()), "certs", mode)
    assert words in str(caught.value)
    assert "; " in str(caught.value)  # the remedy
    assert "BEGIN" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_no_damage_of_a_certificate_is_an_error_of_the_operator(mask: int) -> None:
    content = AUTHORITY.secret(usages=[SERVER, CLIENT])
    whole, texts = der(content["tls.crt"]), set[str]()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= mask
        try:
            read_certificate(with_bytes(content, bytes(damaged)), "certs", TlsMode.MUTUAL)
        except CertificateError as error:
            texts.add(str(error))
    assert len(texts) > 3


@pytest.mark.parametrize("key", [rsa.generate_private_key(65537, 2048), new_key(), P384])
def test_keys_that_grpc_supports_are_accepted(key: CertificateIssuerPrivateKeyTypes) -> None:
    assert read_certificate(AUTHORITY.secret(key=key), "certs", TlsMode.SIMPLE).digest


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (90 * DAY, -DAY, "2025-12-31T12:00:00Z"),
        (-DAY, 90 * DAY, "2026-01-02T12:00:00Z"),
    ],
)
def test_a_certificate_is_valid_for_a_time(
    before: dt.timedelta, after: dt.timedelta, words: str, messages: Messages
) -> None:
    content = AUTHORITY.secret(before=before, after=after)
    found = read_certificate(content, "certs", TlsMode.SIMPLE)
    assert words in found.problem(START)
    assert "spec.server.tls.secretName" in found.problem(START)
    messages.check(found.problem(START))


@pytest.mark.parametrize(("left", "warned"), [(31, False), (17, True)])
def test_a_late_renewal_is_a_warning(left: int, warned: bool) -> None:
    content = AUTHORITY.secret(before=(90 - left) * DAY, after=left * DAY)
    found = read_certificate(content, "certs", TlsMode.SIMPLE)
    assert [item.path for item in found.warnings(START)] == (
        ["spec.server.tls.secretName"] if warned else []
    )
