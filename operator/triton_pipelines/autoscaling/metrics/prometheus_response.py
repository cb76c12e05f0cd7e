"""A response of Prometheus, checked before anything reads it. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

TEXT_MAX: Final = 300
"""Longest text of a server that a message repeats, in characters."""
_SET_URL: Final = "set url to the address of a Prometheus server"


class PrometheusError(Exception):
    """A query returned no usable result; the message says why and contains no secret.

    Attributes:
        final: Whether further queries of this collection would fail too (server unreachable,
            request refused).
        is_timeout: Whether this query took too long. Another one may be faster.
        has_remedy: Whether the message says what to do, so that no checklist is needed.
    """

    def __init__(
        self,
        message: str,
        *,
        final: bool = False,
        is_timeout: bool = False,
        has_remedy: bool = False,
    ) -> None:
        super().__init__(message)
        self.final = final
        self.is_timeout = is_timeout
        self.has_remedy = has_remedy


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of an instant query."""

    kind: str
    """Prometheus' resultType."""
    result: list[Any]
    """The result as parsed JSON."""
    warnings: tuple[str, ...] = ()
    """Warnings from the server, such as about stores that did not respond (Thanos)."""


class PrometheusResponse:
    """The response as the client sees it: the status, and the JSON once it has been validated."""

    def __init__(
        self,
        status_code: int,
        content: bytes,
        location: str = "",
        redact: Callable[[str], str] = str,
    ) -> None:
        """Hold a response.

        Args:
            status_code: HTTP status.
            content: Body.
            location: Header of that name.
            redact: Masks the query's credentials, which the server may repeat. It needs the whole
                text: a part of a credential would stay.
        """
        self.status_code, self.content, self.location = status_code, content, location
        self._redact = redact
        self._document: Any = None

    def json(self) -> Any:
        """Return the document if it reports success and has a result.

        Raises:
            PrometheusError: The document is anything else.
        """
        self._document = _parsed(self.content)
        data = self._document.get("data")
        if self._document.get("status") != "success":
            reported = self._words(self._document) or "neither a success nor an error"
            raise PrometheusError(f"the server reports {reported}")
        if (
            not isinstance(data, dict)
            or not isinstance(data.get("resultType"), str)
            or not isinstance(data.get("result"), list)
        ):
            raise PrometheusError(f"the response contains no result; {_SET_URL}", has_remedy=True)
        return self._document

    def envelope(self) -> QueryResult:
        """Return the parsed result with its kind and warnings."""
        data = self._document["data"]
        warnings = self._document.get("warnings")
        texts = (
            tuple(self._redact(str(one))[:TEXT_MAX] for one in warnings[:5])
            if isinstance(warnings, list)
            else ()
        )
        return QueryResult(data["resultType"], data["result"], texts)

    def error_type(self) -> str:
        """Return the kind of the error that the server reports, or ""."""
        try:
            return str(_parsed(self.content).get("errorType", ""))
        except PrometheusError:
            return ""

    def detail(self) -> str:
        """Return the error message of the response, or ""."""
        try:
            return self._words(_parsed(self.content))
        except PrometheusError:
            text = self._redact(self.content.decode("utf-8", errors="replace"))
            return " ".join(text[:TEXT_MAX].split())

    def _words(self, document: dict[str, Any]) -> str:
        """Return kind and text of the error in a document, or ""."""
        kind, text = document.get("errorType"), document.get("error")
        if not isinstance(kind, str) or not isinstance(text, str):
            return ""
        return " ".join(f"{kind}: {self._redact(text)}".split())[:TEXT_MAX]


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise PrometheusError(f"the response is not JSON; {_SET_URL}", has_remedy=True) from None
    if not isinstance(document, dict):
        raise PrometheusError(f"the response is not a JSON object; {_SET_URL}", has_remedy=True)
    return document
