"""The command line in this process, as `tritonpipe` runs it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from triton_pipelines.cli import main as cli


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def tritonpipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command to its end; whatever goes wrong, no traceback may be seen."""

    def run(*arguments: str, text: bytes = b"", program: str = "tritonpipe") -> Ended:
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        seen = capsys.readouterr()
        assert "Traceback" not in seen.out + seen.err, seen.err
        return Ended(code, seen.out, seen.err)

    monkeypatch.setenv("COLUMNS", "200")
    return run
