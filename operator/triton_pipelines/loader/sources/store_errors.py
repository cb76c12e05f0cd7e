"""Read errors of obstore, whose types do not say enough to decide on a retry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_DEBUG_FORM: Final = "\n\nDebug source:"
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
_STATUS: Final = re.compile(r"\bstatus: (\d{3})\b")
_CAUSE: Final = re.compile(r"""\b(?:message|error): "([^"]+)\"""")
_CODE: Final = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,300})</Message>")
_PROXY_REFUSAL: Final = "ProxyAuthRequired"
_IDENTITY_REQUEST: Final = "Error performing token request"
_IDENTITY: Final = re.compile(rf"169\.254\.|metadata\.google\.internal|{_IDENTITY_REQUEST}")
"""Addresses at which clouds hand out a pod's identity.

A failure there means that the pod has none, or that a proxy is in between.
"""
_TEXT_MAX: Final = 600


@dataclass(frozen=True)
class StoreError:
    """What an error of obstore says."""

    text: str
    """The error and its cause on one line."""
    status: int | None
    """HTTP status of the answer; ``None`` if there was no answer."""
    certificate_problem: str | None
    """What is wrong with the server's certificate; ``None`` if nothing is."""
    is_proxy_refusal: bool
    """Whether the proxy refused its credentials."""
    is_token_request: bool
    """Whether a request for a cloud token failed, not the request for an object."""
    is_identity_failure: bool
    """Whether the server that hands out the pod's identity failed."""


def read_store_error(error: Exception) -> StoreError:
    """Return what an error of obstore says.

    obstore raises one exception type for most failures. Its text is the message of the Rust crate
    ``object_store``, followed by "Debug source:" and Rust's debug form of the causes: an answer has
    ``status: 404``, a certificate ``InvalidCertificate(UnknownIssuer)``, a proxy
    ``ProxyAuthRequired``. The wording is that of obstore 0.12. The integration tests of buckets,
    clouds and proxies produce these errors on real connections.
    """
    full = str(error)
    head, _, debug = full.partition(_DEBUG_FORM)
    status, certificate, cause = (
        pattern.search(debug) for pattern in (_STATUS, _CERTIFICATE, _CAUSE)
    )
    # An S3 error document repeats key ids and what was signed: show only its code and message.
    document = ": ".join(
        part[1] for part in (_CODE.search(head), _MESSAGE.search(head)) if part is not None
    )
    text = " ".join(head.split(": <")[0].split("<?xml")[0].split())
    detail = document or (cause[1] if cause else "")
    text = (f"{text} ({detail})" if detail else text)[:_TEXT_MAX]
    return StoreError(
        text=text,
        status=int(status[1]) if status else None,
        certificate_problem=certificate[1] if certificate else None,
        is_proxy_refusal=_PROXY_REFUSAL in full,
        is_token_request=_IDENTITY_REQUEST in text,
        is_identity_failure=_IDENTITY.search(text) is not None,
    )
