"""Errors that end a command: one message that says what to do, and an exit code."""

from __future__ import annotations

EXIT_FINDINGS = 1
"""The resource is invalid."""
EXIT_NOT_READY = 1
"""The pipeline is not ready."""
EXIT_USAGE = 2
"""The command is used wrongly, or a file cannot be read."""
EXIT_FAILED = 3
"""Something outside of the command failed: a cluster, a server, a download."""


class CommandError(Exception):
    """End the command with a message on standard error and an exit code."""

    def __init__(self, message: str, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code
