"""Detached signatures with the maintainer's key.

A signature is ECDSA over P-256 and SHA-256, DER in Base64: what ``cosign sign-blob`` writes and
``cosign verify-blob --key`` and ``openssl dgst -verify`` check.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hack.release.errors import ReleaseError

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_ALGORITHM: Final = ec.ECDSA(hashes.SHA256())
_MAKE_KEY: Final = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out KEY"


def load_key(path: Path, password: str | None) -> ec.EllipticCurvePrivateKey:
    """Return the private key of a PEM file.

    Args:
        path: the file.
        password: the password of an encrypted key.

    Raises:
        ReleaseError: no such file, a wrong password, or another kind of key.
    """
    try:
        key = serialization.load_pem_private_key(
            path.read_bytes(), password.encode() if password else None
        )
    except OSError as error:
        raise ReleaseError(f"SIGN_KEY={path}: cannot read the key: {error.strerror}") from None
    except TypeError:
        raise ReleaseError(
            f"SIGN_KEY={path}: set SIGN_PASSWORD if the key is encrypted, and only then"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ReleaseError(
            f"SIGN_KEY={path}: not a private key in PEM, or SIGN_PASSWORD is wrong; make a key "
            f"with `{_MAKE_KEY}`"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ReleaseError(
            f"SIGN_KEY={path}: the key must be of the curve P-256; make one with `{_MAKE_KEY}`"
        )
    return key


def public_key(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the public key in PEM."""
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> str:
    """Return the detached signature of data, in Base64."""
    return base64.b64encode(key.sign(data, _ALGORITHM)).decode()


def envelope(payload: bytes, key: ec.EllipticCurvePrivateKey | None) -> dict[str, Any]:
    """Return a DSSE envelope; without a key it has no signature."""
    signed = b" ".join(
        (b"DSSEv1", *(b"%d %s" % (len(part), part) for part in (PAYLOAD_TYPE.encode(), payload)))
    )
    signatures = [{"sig": sign(key, signed)}] if key else []
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": signatures,
    }


def dump(document: Any) -> str:
    """Return JSON in the form that all files of a release have."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
