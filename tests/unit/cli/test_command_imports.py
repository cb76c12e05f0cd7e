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


def imported_for(command: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, command],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("command", ["load", "render", "validate", "serve", "status"])
def test_a_command_imports_no_other(command: str) -> None:
    imported = imported_for(command)
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


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        ("--version", {"pydantic", "yaml", "numpy", "jinja2"}),
        ("validate", {"kubernetes", "aiohttp", "httpx", "onnx", "matplotlib", "tokenizers"}),
        ("load", {"kubernetes", "aiohttp", "matplotlib", "tritonclient.grpc.aio"}),
        ("status", {"onnx", "tokenizers", "matplotlib"}),
    ],
)
def test_a_command_starts_without_libraries_that_it_does_not_call(
    command: str, heavy: set[str]
) -> None:
    assert not heavy & imported_for(command)


def test_an_unknown_command_is_told_beside_all_others() -> None:
    made = {command.name for command in cli.application("nonsense").registered_commands}
    assert {"validate", "serve", "operator", "load"} <= made
    assert [command.name for command in cli.application("load").registered_commands] == ["load"]
