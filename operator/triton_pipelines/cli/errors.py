"""How commands fail: one message that says what to do, and an exit code."""

from __future__ import annotations

EXIT_FINDINGS = 1  # the resource is wrong
EXIT_USAGE = 2  # the command is used wrongly, or a file cannot be read
EXIT_FAILED = 3  # something outside failed


class Failure(Exception):  # noqa: N818 - a message for people, with its exit code
    """Ends a command with a message on stderr."""

    def __init__(self, message: str, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code
