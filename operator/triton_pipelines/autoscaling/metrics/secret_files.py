"""Read the secrets of a connection from their files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

SECRET_BYTES_MAX: Final = 64 * 1024

# Characters that a header may carry unquoted: no blanks and no line ends.
SENDABLE: Final = re.compile(r"[\x21-\x7e]+")


class SecretFileError(Exception):
    """A file of a connection is not usable; the message names field and file, never the content."""


def read_secret(name: str, path: Path, *, blanks: bool = False) -> str:
    """Return the secret in a file.

    Args:
        name: Field of the connection, for messages.
        path: The file.
        blanks: Whether the secret may contain blanks; otherwise it must fit into a header.

    Raises:
        SecretFileError: The file is missing, unreadable, empty or too long, or its content does
            not fit.
    """
    try:
        with path.open("rb") as handle:
            data = handle.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(name, path, error) from None
    if len(data) > SECRET_BYTES_MAX:
        raise SecretFileError(
            f"{name}: {path} is longer than {SECRET_BYTES_MAX} bytes; store only the secret in it"
        )
    try:
        text = data.decode("utf-8").strip("\r\n") if blanks else data.decode("utf-8").strip()
    except UnicodeDecodeError:
        raise SecretFileError(
            f"{name}: {path} is not valid UTF-8; save the file in UTF-8"
        ) from None
    if not text:
        raise SecretFileError(f"{name}: {path} is empty; store the secret in it")
    if not blanks and not SENDABLE.fullmatch(text):
        raise SecretFileError(
            f"{name}: {path} contains characters that are not allowed in a header (spaces, "
            "line breaks or non-ASCII characters); store only the secret in it"
        )
    return text


def _unreadable(name: str, path: Path, error: OSError) -> SecretFileError:
    return SecretFileError(
        f"{name}: {path} cannot be read ({error.strerror}); check the path and its permissions"
    )


def file_stamp(name: str, path: Path) -> tuple[str, int, int]:
    """Return path, modification time (nanoseconds) and size of a file of the field ``name``.

    Raises:
        SecretFileError: The file is missing.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise _unreadable(name, path, error) from None
    return str(path), state.st_mtime_ns, state.st_size
