"""Good and bad resources, and the messages that each validator gives for the bad ones.

A bad file starts with comments that contain the expected messages:

- ``# path:`` and ``# message:`` what `triton_pipelines.api.parse` finds (exactly this one finding);
- ``# server path:`` and ``# server:`` the cause that the API server names, if it differs from the
  above. The path is empty for a refusal that names no field; the text need only be contained in the
  server's.

Files in ``refused`` can only be validated by the operator: the API server accepts them, and the
pipeline stalls with the findings.

``python -m tests.corpus`` rewrites ``messages.txt`` and ``refusals.txt``, the lists of these files
with the messages a user gets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import libyaml
from triton_pipelines.api import parse

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "messages.txt"
REFUSALS = FOLDER / "refusals.txt"
_HEADER = re.compile(r"^# (path|message|server path|server): ?(.*)$")


@dataclass(frozen=True)
class Sample:
    """One resource of the corpus, with what is expected of the judges (empty for a good one)."""

    file: Path
    document: dict[str, Any]
    path: str = ""
    message: str = ""
    server_path: str = ""
    server_text: str = ""

    @property
    def name(self) -> str:
        """Name of the file without its ending."""
        return self.file.stem


def _read(file: Path) -> Sample:
    text = file.read_text(encoding="utf-8")
    header = {match[1]: match[2] for line in text.splitlines() if (match := _HEADER.match(line))}
    path, message = header.get("path", ""), header.get("message", "")
    return Sample(
        file,
        libyaml.load(text),
        path,
        message,
        header.get("server path", path),
        header.get("server", message),
    )


def good() -> list[Sample]:
    """Resources that every judge accepts."""
    return [_read(file) for file in sorted((FOLDER / "good").glob("*.yaml"))]


def bad() -> list[Sample]:
    """Resources that every judge refuses."""
    return [_read(file) for file in sorted((FOLDER / "bad").glob("*.yaml"))]


def refused() -> list[Sample]:
    """Resources that every schema accepts and the operator refuses."""
    return [_read(file) for file in sorted((FOLDER / "refused").glob("*.yaml"))]


def messages() -> str:
    """Return the golden list of the messages that a user gets for each bad resource."""
    lines = []
    for sample in bad():
        _, findings = parse(sample.document)
        lines += [f"{sample.name}.yaml", *(f"  {finding}" for finding in findings), ""]
    return "\n".join(lines)
