"""Start of the operator process."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from triton_pipelines.app.config import OperatorConfigError
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


def test_options_have_the_types_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def load(options: dict[str, Any]) -> None:
        given.append(options)
        raise OperatorConfigError("enough")

    monkeypatch.setattr(operator_command, "load_config", load)
    command = ["operator", "--namespace", "a", "--namespace", "b", "--image", "default=x:24.10-py3"]
    command += ["--workers", "3", "--leader-elect", "--leader-elect-retry-seconds", "1.5"]
    command += ["--operator-key-file", "key", "--pod-template", "forbid"]
    assert CliRunner().invoke(app, command).exit_code != 0
    assert given == [
        {
            "namespaces": ["a", "b"],
            "images": ["default=x:24.10-py3"],
            "workers": 3,
            "leader_elect": True,
            "leader_elect_retry_seconds": 1.5,
            "operator_key_file": Path("key"),
            "pod_template": "forbid",
        }
    ]
