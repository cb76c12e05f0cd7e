"""The pages on `init` and `import`: what they show is what the commands print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.models import tree
from tests.unit.docs import markdown

pytestmark = pytest.mark.integration

INIT = markdown.ROOT / "docs/user/start-from-files.md"
IMPORT = markdown.ROOT / "docs/user/import-repository.md"
BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "110"}
SHOWN = [
    fence
    for page in (INIT, IMPORT)
    for fence in markdown.fences(page)
    if fence.language == "console" and fence.text.startswith("$ ")
]


def plain(text: str) -> str:
    """Output without digests: the model's file is built on each machine."""
    return re.sub(r'"?\b[0-9a-f]{64}\b"?', "DIGEST", text).strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`topics/` of the quickstart, and the checkout's own folders."""
    place, built = tmp_path_factory.mktemp("start"), tree.build()
    (place / "topics").mkdir()
    for name in (
        "s3/models/sentiment/model.onnx",
        "hub/sentence-transformers/all-MiniLM-L6-v2/tokenizer.json",
    ):
        (place / "topics" / Path(name).name).symlink_to(built / name)
    for name in ("tests", "manifests"):
        (place / name).symlink_to(markdown.ROOT / name)
    return place


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        shlex.split(command),
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_pages_show_both_commands() -> None:
    assert [fence.text.split()[2] for fence in SHOWN] == ["init", "import"]


@pytest.mark.parametrize("fence", SHOWN, ids=str)
def test_output_is_the_one_of_the_page(folder: Path, fence: markdown.Fence) -> None:
    command, _, output = fence.text.removeprefix("$ ").partition("\n")
    done = run(command, folder)
    assert done.returncode == 0, done.stderr
    assert plain(done.stdout) == plain(output)
    if " import " in command:
        said = next(other.text for other in markdown.fences(IMPORT) if other.language == "text")
        assert done.stderr.startswith(said)


def test_a_rendered_repository_reads_back(folder: Path) -> None:
    """The last block of the page."""
    *_, last = [fence for fence in markdown.fences(IMPORT) if fence.language == "console"]
    for command in last.text.strip().splitlines():
        done = run(command, folder)
        assert done.returncode == 0, done.stderr
