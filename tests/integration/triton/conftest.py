"""What several tests against a real Triton share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tinymodel


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tokenizer step with a small tokenizer in it."""
    path = tmp_path_factory.mktemp("tokenizer")
    tinymodel.write(path / "1")
    return path
