"""Test shell completion in a real bash, and what the shells ask the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(sys.executable).with_name("tritonpipe")


def asked(shell: str, line: str, *flags: str) -> list[str]:
    """Return what the command answers to a shell that completes a line."""
    words = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    done = subprocess.run(
        [sys.executable, *flags, "-m", "triton_pipelines.cli.main"],
        env={**os.environ, **words, "_TRITONPIPE_COMPLETE": f"complete_{shell}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tritonpipe s", ["serve", "status", "scaling"]),
        ("tritonpipe status --wa", ["--watch", "--wait"]),
        ("tritonpipe status -o y", ["yaml"]),
        ("tritonpipe completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_commands_options_and_values_are_completed(line: str, words: list[str]) -> None:
    assert asked("bash", line) == words


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_their_own_form(shell: str) -> None:
    assert "--source-map" in "\n".join(asked(shell, "tritonpipe serve --sou"))


def test_the_names_of_commands_are_completed_without_importing_them() -> None:
    lines = asked("bash", "tritonpipe s", "-X", "importtime")
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "typer" in imported
    assert not {"triton_pipelines.cli.serve", "rich", "yaml", "numpy"} & imported


def test_bash_completes_with_the_script() -> None:
    script = (
        f'export PATH="{TOOL.parent}:$PATH"; eval "$(tritonpipe completion bash)"\n'
        "COMP_WORDS=(tritonpipe st); COMP_CWORD=1; _tritonpipe_completion tritonpipe\n"
        'echo "${COMPREPLY[@]}"; complete -p tritonpipe'
    )
    done = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[0] == "status"
    assert "_tritonpipe_completion tritonpipe" in done.stdout.splitlines()[1]
