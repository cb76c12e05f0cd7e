"""Recognize transport errors of httpx, and of the httpx2 on which huggingface_hub is built.

One function per kind of error, so that the libraries' wording is read here and nowhere else.
"""

from __future__ import annotations

import ssl


def is_proxy_auth_error(error: BaseException) -> bool:
    """Return whether a proxy refused its credentials.

    httpx has no status on this error. Its transport, httpcore, raises ``ProxyError`` with the text
    "407 Proxy Authentication Required": ``httpcore/_sync/http_proxy.py`` writes the status code and
    the reason of the answer to CONNECT. The class is compared by name, because huggingface_hub may
    bring a client of its own (requests before 1.0, httpx, httpx2).
    """
    return type(error).__name__ == "ProxyError" and "407" in str(error)


def certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """Return the failed verification of the server's certificate that caused ``error``, if any."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None
