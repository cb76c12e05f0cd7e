"""Errors of the Kubernetes client, as far as callers distinguish them."""

# Named after the API's reasons (NotFound, Conflict, Gone), as in client-go's apierrors.
# ruff: noqa: N818

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from triton_pipelines.cluster.sent_secrets import redactor_of, safe_message

# Causes that are kept of an error, and characters of each other text.
_CAUSES_MAX: Final = 100
_TEXT_MAX: Final = 256


class ClusterError(Exception):
    """Base of all errors of the Kubernetes client.

    Attributes:
        status: HTTP status; 0 if no complete answer arrived.
        reason: the API's machine-readable reason (``AlreadyExists``), or the client's own
            (``Timeout``, ``ConnectFailed``).
        message: the API server's message, for people; shortened and without credentials.
        retry_after: seconds after which the server asked to retry, if it did.
        causes: the details' causes, in the server's order.
        object_name: the object that the details name; empty if they name none.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        retry_after: float | None = None,
        causes: tuple[Cause, ...] = (),
        object_name: str = "",
    ) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes
        self.object_name = object_name

    def __str__(self) -> str:
        cause = f"{self.status} {self.reason}" if self.status else self.reason
        return self.message if cause in self.message else f"{self.message} ({cause})"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause in the details of an API server's ``Status``."""

    field: str
    """Path of the field."""
    message: str
    """What is wrong, for people."""
    reason: str = ""
    """Machine-readable reason, if there is one."""


class NotFound(ClusterError):
    """404: the object, its namespace or its kind does not exist."""

    @property
    def of_an_object(self) -> bool:
        """Return whether the path is served and only the object is missing.

        The API server names the object in the details in that case; for a path that it does not
        serve, they are empty.
        """
        return bool(self.object_name)


class Conflict(ClusterError):
    """409, or 422 for the UID: the object already exists, or a precondition failed.

    Preconditions are uid, resourceVersion and the server's own optimistic lock.
    """

    @property
    def already_exists(self) -> bool:
        """Return whether an object of that name already exists."""
        return self.reason == "AlreadyExists"


class Invalid(ClusterError):
    """400, 422, or an apply that does not fit the schema (500): the server rejects this content.

    Only other content helps. ``message`` is the server's own.
    """

    @property
    def violates_schema(self) -> bool:
        """Return whether an apply does not fit the schema, which is checked before all policies."""
        return self.status >= 500


class Unauthorized(ClusterError):
    """401: the credentials are not (or no longer) accepted."""


class Forbidden(ClusterError):
    """403: rejected by RBAC or admission; the message names the missing right or the policy."""


class NamespaceTerminating(Forbidden):
    """403 with the cause ``NamespaceTerminating``: the namespace is being deleted.

    Nothing can be created in it, and retrying does not help: everything in it is deleted, too.
    """


class NotLeading(ClusterError):
    """The process is not the leader, so the request was not sent."""

    def __init__(self) -> None:
        super().__init__(
            0, "NotLeading", "this process is not the leader; the request was not sent"
        )


class ResponseTooLarge(ClusterError):
    """The answer exceeds the client's limit and was not read to its end."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "ResponseTooLarge", message)


class Gone(ClusterError):
    """410: a resourceVersion or continue token is too old."""


class TooMany(ClusterError):
    """429: the server sheds load, or a disruption budget rejects an eviction."""


class Unavailable(ClusterError):
    """5xx, time-out or broken connection. A write may or may not have taken effect."""


_BY_STATUS: Mapping[int, type[ClusterError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooMany,
}


# Reason of a cause (metav1.StatusCause) that the API server's NamespaceLifecycle admission plugin
# adds to its 403 (core/v1: NamespaceTerminatingCause).
_NAMESPACE_TERMINATING = "NamespaceTerminating"
# A patch with another UID than the object's is answered with 422 for this field (seen with
# Kubernetes 1.36).
_UID = "metadata.uid"
# Server-side apply of a value of the wrong type or of an unknown field is answered with 500 (seen
# with Kubernetes 1.36).
_UNTYPED = "failed to create typed patch object"


def from_response(
    status: int,
    reason_phrase: str,
    body: Any,
    retry_after: str | None,
    sent: Any = None,
    token: str = "",
) -> ClusterError:
    """Return the error for an HTTP response.

    Args:
        status: HTTP status, 400 or above (a 3xx is treated as unavailable).
        reason_phrase: HTTP reason phrase, used if the body is not a ``Status`` object (proxies
            answer in HTML).
        body: parsed JSON body, or None.
        retry_after: the ``Retry-After`` header in seconds; dates are ignored, as the API server
            never sends them.
        sent: the object that was sent; messages may repeat parts of it.
        token: the operator's own token, which a proxy may repeat.
    """
    kind = _BY_STATUS.get(status, Unavailable if status >= 500 or status < 400 else ClusterError)
    content: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    if str(content.get("message", "")).startswith(_UNTYPED):
        kind = Invalid
    given = content.get("details")
    details: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    redact = redactor_of(sent)
    redact.add(token)
    causes = tuple(
        Cause(
            field=safe_message(str(cause.get("field", "")), redact)[:_TEXT_MAX],
            message=safe_message(str(cause.get("message", "")), redact),
            reason=safe_message(str(cause.get("reason", "")), redact)[:_TEXT_MAX],
        )
        for cause in list(details.get("causes") or ())[:_CAUSES_MAX]
        if isinstance(cause, Mapping)
    )
    if kind is Forbidden and any(cause.reason == _NAMESPACE_TERMINATING for cause in causes):
        kind = NamespaceTerminating
    if kind is Invalid and any(cause.field == _UID for cause in causes):
        kind = Conflict
    seconds: float | None = None
    if retry_after is not None and retry_after.strip().isdigit():
        seconds = float(retry_after)
    message = str(content.get("message") or f"the API server returned {status} {reason_phrase}")
    return kind(
        status,
        safe_message(str(content.get("reason") or reason_phrase or "Unknown"), redact)[:_TEXT_MAX],
        safe_message(message, redact),
        retry_after=seconds,
        causes=causes,
        object_name=str(details.get("name") or ""),
    )
