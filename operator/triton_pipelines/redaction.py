"""Redaction: nothing that the loader logs or reports may contain a credential.

Credentials are values of mounted Secrets, and user information and queries of URLs.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from typing import Final
from urllib.parse import quote, quote_plus

MASK: Final = "***"
_SHORTEST: Final = 3
"""Shorter values are not secrets, and masking them would make every message unreadable."""
_USERINFO: Final = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#'\"<>]*@(?=[^\s/?#'\"<>])"
)
# A bracket or quote may stand in a query as it is (RFC 3986); one at its end is more likely the
# sentence's.
_QUERY: Final = re.compile(
    r"(?P<url>\b[A-Za-z][A-Za-z0-9+.-]*://[^\s?\"<>]*)\?[^\s\"<>]*[^\s\"<>)']"
)


def redact_url(text: str) -> str:
    """Return ``text`` with user information and query of every URL masked.

    ``hf://org/name@revision`` stays as it is.
    """
    if "://" not in text:
        return text

    def userinfo(match: re.Match[str]) -> str:
        return match[0] if match["scheme"] == "hf://" else f"{match['scheme']}{MASK}@"

    return _QUERY.sub(lambda match: f"{match['url']}?{MASK}", _USERINFO.sub(userinfo, text))


class Redactor:
    """Mask known secret values, however they are encoded, and credentials in URLs."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def add(self, *secrets: str | None) -> None:
        """Register secrets with the forms in which clients and servers echo them."""
        for secret in secrets:
            if secret is None or len(secret) < _SHORTEST:
                continue
            encoded = base64.b64encode(secret.encode()).decode()
            self._values |= {
                secret,
                quote(secret, safe=""),
                quote_plus(secret),
                json.dumps(secret)[1:-1],
                repr(secret)[1:-1],
                encoded,
            }

    def add_basic(self, username: str, password: str) -> None:
        """Register a user's password, alone and as the Basic authorization header carries it."""
        self.add(password, base64.b64encode(f"{username}:{password}".encode()).decode())

    def __call__(self, text: str) -> str:
        """Return ``text`` with every secret masked."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, MASK)
        return redact_url(text)


class RedactingFormatter(logging.Formatter):
    """A log formatter that redacts its whole output, tracebacks included."""

    def __init__(self, redact: Redactor, fmt: str) -> None:
        super().__init__(fmt, datefmt="%Y-%m-%dT%H:%M:%S%z")
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted and redacted record."""
        return self._redact(super().format(record))
