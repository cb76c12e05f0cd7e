"""Start of the operator process."""

from __future__ import annotations

import gc

import pytest
from typer.testing import CliRunner

from triton_pipelines.cli import operator_command
from triton_pipelines.cli.main import app


def test_garbage_collections_are_rare_and_skip_what_the_imports_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[int] = []
    thresholds: list[tuple[int, ...]] = []
    before = gc.get_threshold()

    async def run(*_: object, **__: object) -> None:
        frozen.append(gc.get_freeze_count())
        thresholds.append(gc.get_threshold())

    async def load(*_: object) -> None:
        return None

    monkeypatch.setattr(operator_command, "run_operator", run)
    monkeypatch.setattr(operator_command, "load_configuration", load)
    monkeypatch.setattr(operator_command, "configure_logging", lambda _: None)
    try:
        result = CliRunner().invoke(app, ["operator"])
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
    assert result.exit_code == 0, result.output
    assert frozen[0] > 10_000
    assert thresholds == [operator_command.GC_THRESHOLDS]
