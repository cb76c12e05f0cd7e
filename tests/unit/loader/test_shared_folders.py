"""Test that folders the loader creates on a shared volume belong to the user that runs Triton."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triton_pipelines.api import names
from triton_pipelines.loader.main import run
from triton_pipelines.loader.options import parse_options

PLAN = {
    "version": 1,
    "pipeline": "p",
    "namespace": "n",
    "revision": "0123456789",
    "files": [],
}


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A load of nothing."""
    (tmp_path / "revision").mkdir()
    (tmp_path / "revision" / names.KEY_PLAN).write_text(json.dumps(PLAN))
    return [f"--{name}={tmp_path / name}" for name in ("revision", "live", "root", "termination")]


def test_folders_are_made_and_may_be_there_already(arguments: list[str], tmp_path: Path) -> None:
    wanted = [tmp_path / "cache/engines/p", tmp_path / "cache/engines/q"]
    given = [*arguments, *(f"--folder={folder}" for folder in wanted)]
    assert parse_options(given).folders == tuple(wanted)
    for _ in range(2):
        assert run(given) == 0
        assert all(folder.is_dir() for folder in wanted)
    assert parse_options(arguments).folders == ()


def test_a_folder_that_cannot_be_made_holds_nothing_up(
    arguments: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert run([*arguments, f"--folder={tmp_path / 'file/engines'}"]) == 0
