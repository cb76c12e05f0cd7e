"""Errors of calls to a Triton pod, and their translation from gRPC.

Triton and gRPC share status codes: UNAVAILABLE is a pod that cannot be reached, a missing control
key (which no retry fixes) and a full queue alike. :func:`translate` tells them apart.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class TritonError(Exception):
    """Base of all errors of this package's client."""


class UnreachableError(TritonError):
    """Nothing answers at the pod's address, or the connection broke."""


class DeadlineError(TritonError):
    """The pod did not answer in time; the requested action may still happen."""


class RestrictedError(TritonError):
    """The pod requires its control key and got none or another one; a retry does not help."""


class NotReadyError(TritonError):
    """The model is unknown, not loaded, or has no version that is ready."""


class RejectedError(TritonError):
    """The pod refused an invalid config, request or input, or its queue is full."""

    def __init__(self, message: str, reason: str) -> None:
        """Create the error.

        Args:
            message: the whole message.
            reason: Triton's own message.
        """
        super().__init__(message)
        self.reason = reason


class OverloadedError(RejectedError):
    """The pod sheds load: a full queue, or a request that waited longer than its queue allows.

    Says nothing about the outputs.
    """


class DeadBackendError(RejectedError):
    """A process of a Python model has died.

    The server keeps reporting the model as ready. Up to Triton 26.03 only a reload or a restart
    brings the process back.
    """


class SharedMemoryFullError(RejectedError):
    """The pod's shared memory (/dev/shm) has no room for the tensors of a Python model.

    It is not freed while the pod exists: its content outlives a restart of the container.
    """


class TooLargeError(TritonError):
    """The response is larger than the client accepts."""


class FloodError(TritonError):
    """The pod sent more than a response can need, so the connection to it was closed."""


class FailureKind(Enum):
    """What a failed call means."""

    DEADLINE = auto()
    TOO_LARGE = auto()
    RESTRICTED = auto()
    OVERLOADED = auto()
    DEAD_BACKEND = auto()
    SHARED_MEMORY_FULL = auto()
    NOT_READY = auto()
    UNREACHABLE = auto()
    POLL_FAILED = auto()
    REJECTED = auto()


REASON_CHARACTERS_MAX: Final = 2000
"""Maximum length of a reason that is kept from a pod's response."""
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
_SHARED_MEMORY_FULL: Final = ("shared memory", "no space left on device")
_POLL_FAILED: Final = "failed to poll from model repository"


def classify(code: str, detail: str) -> FailureKind:
    """Return what a failed call means; the only place that reads Triton's messages.

    The wording is that of Triton 2.51.0: of its core (model repository, queue), of its gRPC
    front end ("This protocol is restricted, expecting header …"), and of its Python backend ("Stub
    process … is not healthy.", "Failed to increase the shared memory pool size … Error: No space
    left on device"). "message larger than max" is gRPC's own. The tests in
    ``tests/integration/triton`` and ``e2e/suite`` produce these errors on a real server.

    Args:
        code: gRPC status, such as ``UNAVAILABLE``.
        detail: the message that came with it.
    """
    text = detail.lower()
    rules = (
        (FailureKind.DEADLINE, code == "DEADLINE_EXCEEDED"),
        (FailureKind.TOO_LARGE, code == "RESOURCE_EXHAUSTED" and _TOO_LARGE in text),
        (FailureKind.RESTRICTED, _RESTRICTED in text),
        (FailureKind.OVERLOADED, any(part in text for part in _OVERLOADED)),
        (FailureKind.DEAD_BACKEND, all(part in text for part in _DEAD)),
        (FailureKind.SHARED_MEMORY_FULL, all(part in text for part in _SHARED_MEMORY_FULL)),
        (FailureKind.NOT_READY, any(part in text for part in _NOT_READY)),
        (FailureKind.UNREACHABLE, code in ("UNAVAILABLE", "CANCELLED")),
        (FailureKind.POLL_FAILED, _POLL_FAILED in text),
    )
    return next((kind for kind, applies in rules if applies), FailureKind.REJECTED)


def translate(action: str, address: str, status: str, detail: str) -> TritonError:
    """Return the error for a failed call.

    Args:
        action: what was tried, such as "loading model 'tokenizer'".
        address: the pod's gRPC address.
        status: gRPC status, such as ``UNAVAILABLE`` (a prefix ``StatusCode.`` is allowed).
        detail: the message that came with it.
    """
    code = status.removeprefix("StatusCode.")
    text = detail.strip() or code or "Triton gave no reason"
    reason = text.splitlines()[0][:REASON_CHARACTERS_MAX]
    start = f"{action} at {address}:"
    match kind := classify(code, detail):
        case FailureKind.DEADLINE:
            return DeadlineError(f"{start} no response before the deadline")
        case FailureKind.TOO_LARGE:
            return TooLargeError(f"{start} the response is larger than the client accepts")
        case FailureKind.RESTRICTED:
            return RestrictedError(f"{start} the control key is missing or does not match this pod")
        case FailureKind.NOT_READY:
            return NotReadyError(f"{start} {reason}")
        case FailureKind.UNREACHABLE:
            return UnreachableError(f"{start} the pod cannot be reached ({reason})")
        case _:
            return _rejection(kind, start, reason)


def _rejection(kind: FailureKind, start: str, reason: str) -> RejectedError:
    """Return the error of a pod that answered, and refused or failed the call."""
    match kind:
        case FailureKind.OVERLOADED:
            return OverloadedError(
                f"{start} the queue is full or the request waited too long ({reason})", reason
            )
        case FailureKind.DEAD_BACKEND:
            return DeadBackendError(f"{start} {reason}", reason)
        case FailureKind.SHARED_MEMORY_FULL:
            return SharedMemoryFullError(
                f"{start} the pod's shared memory (/dev/shm) is full ({reason}); if this "
                "error persists, raise spec.server.sharedMemory",
                reason,
            )
        case FailureKind.POLL_FAILED:
            # Triton writes the reason of a config that fails its checks only to its log.
            return RejectedError(
                f"{start} Triton rejected the model's files or config; for the reason, see "
                "the pod's log",
                reason,
            )
        case _:
            return RejectedError(f"{start} {reason}", reason)
