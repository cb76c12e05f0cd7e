"""Run the commands of docs/user/bench.md on a real Triton.

They are unchanged except for addresses and times.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support import pipelines
from tests.support.serving import sample_sources
from tests.support.triton import triton_server
from tests.unit.docs import markdown
from tests.unit.docs.test_examples import commands
from triton_pipelines.cli.main import app
from triton_pipelines.triton.local_server import LocalTriton

pytestmark = pytest.mark.integration
PAGE = markdown.ROOT / "docs/user/bench.md"
COMMANDS = [
    words
    for fence in markdown.fences(PAGE)
    for words in commands(fence)
    if words[:2] == ["tritonpipe", "bench"]
]
SHORT = ("--duration=1", "--warmup=0.1", "--runs=1")
ADDRESS = "http://127.0.0.1:8000/v2/models/sentiment"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTriton]:
    repository = tmp_path_factory.mktemp("models")
    pipelines.write_pipeline(repository)
    with triton_server(repository, [pipelines.ENSEMBLE]) as running:
        yield running


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further windows: whether a run is stable is not asked here."""
    monkeypatch.setattr("triton_pipelines.cli.bench_options.EXTRA_WINDOWS", 0)


def test_commands_are_found() -> None:
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("words", [words for words in COMMANDS if ADDRESS in words], ids=" ".join)
def test_commands_to_an_address(
    server: LocalTriton, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = [
        word.replace(ADDRESS, f"{server.http_url}/v2/models/{pipelines.ENSEMBLE}")
        for word in words[1:]
    ]
    done = CliRunner().invoke(app, [*here, *SHORT, f"--grpc-address={server.grpc_address}"])
    assert done.exit_code == 0, (done.exception, done.stderr)
    assert "concurrency" in done.stdout or "/s poisson" in done.stdout
    if "--plot" in words:
        assert (tmp_path / words[words.index("--plot") + 1]).read_text().startswith("<svg")


@pytest.mark.parametrize(
    "words", [words for words in COMMANDS if ADDRESS not in words], ids=" ".join
)
def test_commands_to_a_file(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(markdown.ROOT)
    # Two loads of a model on CPU instead of seven; on a busy machine it takes its time for each
    # request.
    done = CliRunner().invoke(
        app, [*words[1:], *SHORT, "--duration=2", "--concurrency=1,2", *sample_sources()]
    )
    assert done.exit_code == 0, (done.exception, done.stderr)
    for step in ("tokenizer", "model", "postprocess"):
        assert step in done.stdout
