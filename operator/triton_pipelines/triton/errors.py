"""What can go wrong in a conversation with a Triton pod, in our words.

Triton and gRPC share status codes: UNAVAILABLE is a pod that cannot be reached, a missing control key (which no retry mends) and a full queue alike.
``translate`` tells them apart by the text Triton sends (2.51.0).
"""

from __future__ import annotations

from typing import Final


class TritonError(Exception):
    """Base of all errors of this package's client."""


class UnreachableError(TritonError):
    """Nothing answers at the pod's address, or the connection broke."""


class DeadlineError(TritonError):
    """The pod did not answer in time; what was asked may still happen."""


class RestrictedError(TritonError):
    """The pod wants its control key, and got none or another one; trying again does not help."""


class NotReadyError(TritonError):
    """The model is unknown, not loaded, or has no version that is ready."""


class RejectedError(TritonError):
    """The pod understood and refused: an invalid config, request or input, or a full queue.

    Attributes:
        reason: Triton's own words.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class OverloadedError(RejectedError):
    """The pod sheds load: a full queue, or a request that waited longer than its queue policy allows. Says nothing about the answers."""


class DeadBackendError(RejectedError):
    """A process of a python model is gone. The server keeps calling the model ready; up to 26.03 nothing but a reload or restart brings it back."""


class TooLargeError(TritonError):
    """The pod answered with more than the client takes in."""


_TOO_LARGE: Final = "message larger than max"
_RESTRICTED: Final = "protocol is restricted"
_NOT_READY: Final = (
    "unknown model",
    "is not found",
    "has no available versions",
    "is not ready",
    "not found",
)
_OVERLOADED: Final = ("request timeout expired", "exceeds maximum queue size")
_DEAD: Final = ("stub process", "is not healthy")
_POLL_FAILED: Final = "failed to poll from model repository"


def translate(action: str, address: str, status: str, detail: str) -> TritonError:
    """The error for a failed call.

    Args:
        action: what was tried, such as "loading model 'tokenizer'".
        address: the pod's gRPC address.
        status: gRPC status, such as ``UNAVAILABLE`` (a prefix ``StatusCode.`` is allowed).
        detail: the text that came with it.
    """
    code = status.removeprefix("StatusCode.")
    said = detail.strip().splitlines()[0] if detail.strip() else code
    lower = detail.lower()
    if code == "DEADLINE_EXCEEDED":
        return DeadlineError(f"{action} at {address}: no answer before the deadline")
    if code == "RESOURCE_EXHAUSTED" and _TOO_LARGE in lower:
        return TooLargeError(f"{action} at {address}: the answer is larger than is taken in")
    if _RESTRICTED in lower:
        return RestrictedError(
            f"{action} at {address}: the control key is missing or is not this pod's"
        )
    if any(text in lower for text in _OVERLOADED):
        return OverloadedError(
            f"{action} at {address}: the queue is full or the request waited too long ({said})",
            said,
        )
    if all(text in lower for text in _DEAD):
        return DeadBackendError(f"{action} at {address}: {said}", said)
    if any(text in lower for text in _NOT_READY):
        return NotReadyError(f"{action} at {address}: {said}")
    if code in ("UNAVAILABLE", "CANCELLED"):
        return UnreachableError(f"{action} at {address}: the pod cannot be reached ({said})")
    if _POLL_FAILED in lower:
        # Triton keeps the reason of a config that fails its checks to its log.
        return RejectedError(
            f"{action} at {address}: Triton refused the model's files or config; the reason is in the pod's log",
            said,
        )
    return RejectedError(f"{action} at {address}: {said}", said)
