"""The loader's two errors: one of a source, which may be tried again, and one of the load, which is a finding."""

from __future__ import annotations

from typing import Final

from triton_pipelines.api.loadplan import LoadFinding, LoadReason

PROXY_REFUSED: Final = "the proxy of HTTPS_PROXY refuses these or no credentials (407): write user and password into its address"


class SourceError(Exception):
    """A source could not be read this time.

    ``retryable`` says whether the same request may succeed later, ``retry_after`` what the server asked for in seconds,
    ``missing`` that the source answered and has no such file, ``restart`` that the unfinished file here cannot be continued,
    ``challenge`` (WWW-Authenticate) that the server wants credentials, or others, ``progress`` that new bytes arrived before the failure.
    """

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
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.missing = missing
        self.restart = restart
        self.challenge = challenge
        self.progress = False


class LoadError(Exception):
    """A finding that fails the load; ``retryable`` when another start of the container may succeed by itself."""

    def __init__(
        self,
        reason: LoadReason,
        message: str,
        *,
        step: str | None = None,
        field: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.step = step
        self.field = field
        self.retryable = retryable

    def finding(self) -> LoadFinding:
        """The error as it stands in the report."""
        return LoadFinding(
            step=self.step, reason=self.reason, message=self.message, field=self.field
        )


class NoSpaceError(LoadError):
    """The volume of the model repository is full. ``needed`` and ``free`` are bytes; ``needed`` may be unknown."""

    def __init__(self, needed: int | None, free: int, what: str) -> None:
        amount = "more" if needed is None else f"{needed} bytes"
        super().__init__(
            LoadReason.NO_SPACE,
            f"{what}: needs {amount}, the volume of the model repository has {free} bytes free. Raise the node's ephemeral storage "
            "or the volume's size limit, or use a smaller model.",
        )
        self.needed = needed
        self.free = free
