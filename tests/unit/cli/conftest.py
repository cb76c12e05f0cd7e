"""The command line in this process, as `tritonpipe` runs it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.support.handmade_repositories import FILES, write_files
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


Serve = Callable[[Mapping[str, tuple[int, bytes]]], str]


@pytest.fixture
def server() -> Iterator[Serve]:
    """A server that answers what it is told to, by method; a stand-in for what is no Triton."""
    answers: dict[str, tuple[int, bytes]] = {}
    asked: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            code, body = answers[self.command]
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()

    def serve(given: Mapping[str, tuple[int, bytes]]) -> str:
        answers.update(given)
        return f"http://127.0.0.1:{listening.server_port}/v2/models/m"

    yield serve
    listening.shutdown()
    thread.join()
    listening.server_close()


def response(document: Any, code: int = 200) -> tuple[int, bytes]:
    return code, json.dumps(document).encode()


Import = Callable[..., Ended]
SOURCE = "--source-uri=s3://models/repository"


@pytest.fixture
def import_of(tmp_path: Path, tritonpipe: Run) -> Import:
    """Return a function that writes the small repository with changes and imports it.

    A resource that is written must be accepted by ``validate``.
    """

    def run(changes: dict[str, str], *options: str, remove: str | None = None) -> Ended:
        folder = write_files(tmp_path / "models", {**FILES, **changes})
        if remove is not None:
            (folder / remove).unlink()
        ended = tritonpipe("import", str(folder), SOURCE, *options)
        if ended.out:
            file = tmp_path / "resource.yaml"
            file.write_text(ended.out, encoding="utf-8")
            validated = tritonpipe("validate", str(file))
            assert validated.code == 0, validated.err
        return ended

    return run


def spec_of(ended: Ended) -> dict[str, Any]:
    assert ended.code == 0, ended.err
    spec = yaml.safe_load(ended.out)["spec"]
    assert isinstance(spec, dict)
    return spec
