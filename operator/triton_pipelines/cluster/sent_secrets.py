"""Keep credentials that the operator sends out of the API server's error messages.

Validation and admission webhooks may repeat any part of a rejected object in their messages, which
users with fewer permissions read in the status, in events and in logs.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from triton_pipelines.api.wording import truncate
from triton_pipelines.cluster.resources import SECRETS, TOKEN_REVIEWS
from triton_pipelines.redaction import Redactor

# Length of the longest message that is kept. A webhook's can have megabytes.
MESSAGE_MAX: Final = 2000
# Characters of it that are redacted.
_READ_MAX: Final = 8 * MESSAGE_MAX
# Names of environment variables whose values are credentials.
_CREDENTIAL: Final = re.compile(r"(?i)token(?!i[sz])|passw|passphrase|secret|credential|auth|key")


def redactor_of(sent: Any) -> Redactor:
    """Return what masks the credentials of a sent object, and those in URLs.

    These are the data of a Secret, a token to review, and the values of environment variables with
    a credential's name.
    """
    redact = Redactor()
    redact.add(*_credentials(sent))
    return redact


def safe_message(message: str, redact: Redactor) -> str:
    """Return a message of the API server, shortened and redacted."""
    return truncate(redact(message[:_READ_MAX]), MESSAGE_MAX)


def _credentials(sent: Any) -> Iterator[str]:
    """Yield the credentials in an object."""
    if isinstance(sent, Mapping) and sent.get("kind") == SECRETS.kind:
        yield from (sent.get("stringData") or {}).values()
        for encoded in (sent.get("data") or {}).values():
            yield encoded
            try:
                yield base64.b64decode(encoded).decode()
            except (binascii.Error, UnicodeDecodeError):
                continue  # Only text can be in a message.
    elif isinstance(sent, Mapping) and sent.get("kind") == TOKEN_REVIEWS.kind:
        yield str((sent.get("spec") or {}).get("token") or "")
    elif isinstance(sent, Mapping | list):
        yield from _credential_variables(sent)


def _credential_variables(sent: Mapping[str, Any] | list[Any]) -> Iterator[str]:
    """Yield the values of the containers' environment variables with a credential's name."""
    pending: list[Any] = [sent]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, Mapping):
            pending += value.values()
            for item in value.get("env") or ():
                if isinstance(item, Mapping) and _CREDENTIAL.search(str(item.get("name"))):
                    yield str(item.get("value") or "")
