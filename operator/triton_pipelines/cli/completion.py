"""``tritonpipe completion``, and what the shells ask while a command is typed."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Final, NoReturn

import typer

PROGRAM: Final = "tritonpipe"
_VARIABLE: Final = "_TRITONPIPE_COMPLETE"
# Where the scripts put the words so far: zsh and fish, bash.
_WORDS: Final = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")


class Shell(StrEnum):
    """A shell that completes commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Print the script that lets a shell complete commands, options and their values.

    For bash: `source <(tritonpipe completion bash)` in ~/.bashrc; for zsh the same in ~/.zshrc,
    after compinit; for fish: `tritonpipe completion fish | source` in config.fish.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=_VARIABLE, shell=shell.value))


def command_to_complete() -> str | None:
    """Return the command on the line that a shell completes; empty if there is none yet.

    ``None`` if no shell asks.
    """
    if not os.environ.get(_VARIABLE):
        return None
    text = next((value for name in _WORDS if (value := os.environ.get(name))), "")
    return next(iter(text.split()[1:2]), "")


def complete(app: typer.Typer) -> NoReturn:
    """Answer the shell, and end the process."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
    app(prog_name=PROGRAM, complete_var=_VARIABLE)
    raise SystemExit
