"""Classify why a request of a load failed. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# Triton's messages for a full queue, and for a request that exceeded its queue's timeout
# (rate_limiter.cc, dynamic_batch_scheduler.cc). Both have the same status as other errors, so the
# text of the response is all there is.
_REJECTED_MESSAGES: Final = ("Exceeds maximum queue size", "Request timeout expired")


class RequestFailureKind(enum.StrEnum):
    """What kind of failure a request had."""

    REJECTED = "Rejected"
    """Rejected by a full queue, a queue timeout or the generator itself.

    Bursts cause that below the sustainable mean rate as well; it is not an error of the server.
    """
    TIMED_OUT = "TimedOut"
    """Not answered in time. Overload causes that; without overload it is an error."""
    ERROR = "Error"
    """Anything else."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request failed."""

    message: str
    """What went wrong; the same for all requests that failed in the same way."""
    kind: RequestFailureKind = RequestFailureKind.ERROR
    """What kind of failure it is."""

    def __str__(self) -> str:
        return self.message

    @property
    def is_rejected(self) -> bool:
        """Whether the request was rejected, which never counts as an error of the server."""
        return self.kind is RequestFailureKind.REJECTED

    @property
    def is_late(self) -> bool:
        """Whether the request timed out or was rejected; overload causes both."""
        return self.kind is not RequestFailureKind.ERROR


OnRequestEnd = Callable[[RequestFailure | None], None]
"""Called once with the end of a request: ``None`` for an answer."""


def rejected(message: str) -> RequestFailure:
    """Return the failure of a request that the generator did not send."""
    return RequestFailure(message, RequestFailureKind.REJECTED)


def timed_out(message: str) -> RequestFailure:
    """Return the failure of a request that was not answered in time."""
    return RequestFailure(message, RequestFailureKind.TIMED_OUT)


def error_response(message: str, *, is_timeout: bool = False) -> RequestFailure:
    """Return the failure that the server's error response describes.

    Args:
        message: Status and message of the response.
        is_timeout: Whether its status is that of a timeout.
    """
    if any(text in message for text in _REJECTED_MESSAGES):
        return rejected(message)
    return timed_out(message) if is_timeout else RequestFailure(message)
