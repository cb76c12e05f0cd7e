"""In a new checkout, commands that serve a tokenizer build its library first."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from e2e import demo
from e2e.local import native
from e2e.models import __main__ as models
from e2e.models import tree
from hack import terminal
from tests.gpu import encoder, serving
from tests.support.serving import sample_sources

FAILURE = "no Rust toolchain found: install Rust"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was built and started, in order."""
    seen: list[str] = []

    def build(*_: Path) -> Path:
        seen.append("models")
        return tmp_path

    monkeypatch.setattr(native, "install", lambda: seen.append("tokenizer"))
    monkeypatch.setattr(tree, "build", build)
    monkeypatch.setattr(os, "execv", lambda *_: seen.append("serve"))
    return seen


def fail() -> None:
    raise native.NativeBuildError(FAILURE)


def test_serve_builds_the_tokenizer_before_it_serves(made: list[str]) -> None:
    done = CliRunner().invoke(models.app, ["serve", "sample.yaml"])
    assert done.exit_code == 0, done.output
    assert made == ["tokenizer", "models", "serve"]


def test_export_builds_the_tokenizer_too(made: list[str]) -> None:
    done = CliRunner().invoke(models.app, ["export"])
    assert done.exit_code == 0, done.output
    assert made == ["tokenizer", "models"]


def test_without_a_toolchain_serve_says_what_to_install(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "install", fail)
    monkeypatch.setattr("sys.argv", ["models", "serve", "sample.yaml"])
    with pytest.raises(SystemExit, match=f"error: {FAILURE}"):
        models.main()
    assert made == []


def test_the_demo_needs_the_tokenizer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "install", fail)
    monkeypatch.setattr(demo, "OUT", tmp_path)
    monkeypatch.setattr(demo, "ROOT", tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(demo, "_choose_cluster", lambda: (None, "none"))
    assert demo.main() == 1
    assert FAILURE in "".join(capsys.readouterr())


class AskedError(Exception):
    """The library was asked for."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def install() -> None:
        raise AskedError

    monkeypatch.setattr(native, "install", install)
    monkeypatch.setattr(terminal, "FOLDER", tmp_path / "session")


@pytest.mark.usefixtures("asked")
def test_the_recorded_session_builds_the_tokenizer() -> None:
    with pytest.raises(AskedError):
        terminal.record()


@pytest.mark.usefixtures("asked")
def test_the_gpu_tier_builds_the_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(AskedError):
        serving.lay_out(tmp_path, tmp_path, encoder.SMALL, "CPU")


@pytest.mark.usefixtures("asked")
def test_the_tests_that_serve_samples_build_the_tokenizer() -> None:
    with pytest.raises(AskedError):
        sample_sources()
