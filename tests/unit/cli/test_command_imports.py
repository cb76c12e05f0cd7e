"""Test what a command imports.

Every pod's init container waits for the imports, and so does every user at a terminal.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from triton_pipelines.cli import main as cli

IMPORTED = (
    "import sys; from triton_pipelines.cli.main import application;"
    " application(sys.argv[1]); print(*sys.modules)"
)


@pytest.mark.parametrize("command", ["load", "render", "validate", "serve", "status"])
def test_a_command_imports_no_other(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, command],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    imported = set(done.stdout.split())
    assert f"triton_pipelines.cli.{command}" in imported
    assert (
        not {
            "kopf",
            "triton_pipelines.app.main",
            "triton_pipelines.cli.operator_command",
            "triton_pipelines.cli.bench",
        }
        & imported
    )


def test_an_unknown_command_is_told_beside_all_others() -> None:
    made = {command.name for command in cli.application("nonsense").registered_commands}
    assert {"validate", "serve", "operator", "load"} <= made
    assert [command.name for command in cli.application("load").registered_commands] == ["load"]
