"""Read the connections from a YAML file or from a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import (
    ValidationError,
)

from triton_pipelines.api.wording import validation_message

from .connection import DEFAULT, Connection, ConnectionModel


class ConnectionsError(ValueError):
    """The connections are invalid; the message contains no secret.

    Each line of the message names a field, the problem and what is expected.
    """


class _ConnectionsFile(ConnectionModel):
    connections: tuple[Connection, ...]


def parse_connections(text: str, place: str = "metrics connections") -> dict[str, Connection]:
    """Return the connections in a YAML text, by name; ``place`` is named in messages.

    Raises:
        ConnectionsError: The text is invalid; one line for each mistake, with its field.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConnectionsError(
            f"{place}: invalid YAML{f' at line {mark.line + 1}' if mark else ''}"
        ) from None
    if not isinstance(document, dict):
        raise ConnectionsError(f"{place}: the file must be a mapping with the key 'connections'")
    return _validated(document, place)


def load_connections(path: Path) -> dict[str, Connection]:
    """Return the connections in a YAML file, by name.

    Raises:
        ConnectionsError: The file cannot be read, or it is invalid (one line for each mistake).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConnectionsError(
            f"{path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from None
    except UnicodeDecodeError:
        raise ConnectionsError(f"{path} is not valid UTF-8; save the file in UTF-8") from None
    return parse_connections(text, str(path))


def single_connection(url: str) -> dict[str, Connection]:
    """Return the connection ``default`` that ``--prometheus-url`` defines.

    Raises:
        ConnectionsError: The URL is not usable.
    """
    try:
        return {DEFAULT: Connection(url=url)}
    except ValidationError as error:
        raise ConnectionsError(_message(error.errors()[0])) from None


def _validated(document: dict[Any, Any], place: str) -> dict[str, Connection]:
    try:
        found = _ConnectionsFile.model_validate(document).connections
    except ValidationError as error:
        raise ConnectionsError(
            "\n".join(
                f"{place}: {_field(finding)}: {_message(finding)}" for finding in error.errors()
            )
        ) from None
    if not found:
        raise ConnectionsError(
            f"{place}: connections must have at least one entry; add a connection"
        )
    named: dict[str, Connection] = {}
    for index, one in enumerate(found):
        if one.name in named:
            raise ConnectionsError(
                f"{place}: connections[{index}].name: {one.name!r} is not unique; use a "
                "different name for each connection"
            )
        named[one.name] = one
    return named


def _field(finding: Any) -> str:
    parts = [
        f"[{part}]" if isinstance(part, int) else f".{part}"
        for part in finding["loc"]
        if part != "[key]"
    ]
    return "".join(parts).removeprefix(".") or "connections"


def _message(finding: Any) -> str:
    return validation_message(str(finding["msg"]))
