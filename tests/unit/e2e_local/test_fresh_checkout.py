"""Commands that serve a tokenizer from a checkout build its library first."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.local import native
from hack import terminal
from tests.gpu import encoder, serving
from tests.support.serving import sample_sources


class Asked(Exception):
    """The library was asked for."""


@pytest.fixture(autouse=True)
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def install() -> None:
        raise Asked

    monkeypatch.setattr(native, "install", install)
    monkeypatch.setattr(terminal, "FOLDER", tmp_path / "session")


def test_the_recorded_session() -> None:
    with pytest.raises(Asked):
        terminal.record()


def test_the_gpu_tier(tmp_path: Path) -> None:
    with pytest.raises(Asked):
        serving.lay_out(tmp_path, tmp_path, encoder.SMALL, "CPU")


def test_the_tests_that_serve_samples() -> None:
    with pytest.raises(Asked):
        sample_sources()
