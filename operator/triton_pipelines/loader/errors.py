"""Errors of the loader: of a source, which may be tried again, and of the load."""

from __future__ import annotations

from typing import Final

from triton_pipelines.api.loadplan import LoadFinding, LoadReason

PROXY_REFUSED: Final = (
    "the proxy in HTTPS_PROXY rejects the credentials (407); add the username and password "
    "to its address"
)


class SourceError(Exception):
    """A source could not be read this time."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        missing: bool = False,
        restart: bool = False,
        challenge: str | None = None,
    ) -> None:
        """Create the error.

        Args:
            message: what is wrong and what to do.
            retryable: whether the same request may succeed later.
            retry_after: seconds that the server asked to wait.
            missing: whether the source answered and has no such file.
            restart: whether the unfinished file here cannot be continued.
            challenge: the server's ``WWW-Authenticate``, if it wants credentials, or others.
        """
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.missing = missing
        self.restart = restart
        self.challenge = challenge
        self.progress = False


class LoadStoppedError(Exception):
    """A file is not fetched, because the load has failed for another reason, which is reported."""


class LoaderError(Exception):
    """A finding that fails the load."""

    def __init__(
        self,
        reason: LoadReason,
        message: str,
        *,
        step: str | None = None,
        field: str | None = None,
        retryable: bool = False,
    ) -> None:
        """Create the error.

        Args:
            reason: the finding's reason.
            message: what is wrong and what to do.
            step: the step that it is about.
            field: the resource's field that it is about.
            retryable: whether another start of the container may succeed by itself.
        """
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.step = step
        self.field = field
        self.retryable = retryable

    def finding(self) -> LoadFinding:
        """Return the error as a finding of the report."""
        return LoadFinding(
            step=self.step, reason=self.reason, message=self.message, field=self.field
        )


class NoSpaceError(LoaderError):
    """The volume of the model repository is full."""

    def __init__(self, needed: int | None, free: int, what: str) -> None:
        """Create the error.

        Args:
            needed: bytes that are needed; ``None`` if unknown.
            free: bytes that are free.
            what: what was being written.
        """
        amount = "more" if needed is None else f"{needed} bytes"
        super().__init__(
            LoadReason.NO_SPACE,
            f"{what} requires {amount}, but the volume of the model repository has {free} bytes"
            " free. Raise the node's ephemeral storage or the volume's size limit, or use a"
            " smaller model.",
        )
        self.needed = needed
        self.free = free
