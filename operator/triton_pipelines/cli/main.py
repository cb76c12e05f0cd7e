"""``tritonpipe``: the commands for users, and the entry points of the operator's containers."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

import triton_pipelines

from .completion import PROGRAM, command_to_complete, complete
from .errors import EXIT_FAILED, CommandError
from .output import escape_lines, tolerate_encoding

PLUGIN = "kubectl-tritonpipe"
TRACEBACK_VARIABLE = "TRITONPIPE_TRACEBACK"
_FILES, _LOCAL, _CLUSTER, _CONTAINERS = (
    "Resources in files",
    "On this machine",
    "On a cluster",
    "In the operator's containers",
)
# Command → help panel, module, function and settings. The module is imported when the command is
# called: imports of the operator and the load generator take a second, and the init container of
# every pod would wait for them.
_COMMANDS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "validate": (_FILES, "validate", "validate", {}),
    "render": (_FILES, "render", "render_files", {}),
    "init": (_FILES, "init", "init", {}),
    "import": (_FILES, "import_command", "import_repository", {}),
    "serve": (_LOCAL, "serve", "serve", {}),
    "infer": (_LOCAL, "infer", "infer", {}),
    "tune": (_LOCAL, "tune", "tune", {}),
    "bench": (_LOCAL, "bench", "bench", {}),
    "status": (_CLUSTER, "status", "status", {}),
    "explain": (_CLUSTER, "explain", "explain", {}),
    "scaling": (_CLUSTER, "scaling", "scaling", {}),
    "report": (_CLUSTER, "report", "report", {}),
    "crd": (_CLUSTER, "crd", "crd", {}),
    "completion": (_LOCAL, "completion", "completion", {}),
    "operator": (_CONTAINERS, "operator_command", "operator", {}),
    # The loader reads its own options.
    "load": (
        _CONTAINERS,
        "load",
        "load",
        {
            "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
            "add_help_option": False,
        },
    ),
}


def application(command: str | None = None, *, names_only: bool = False) -> typer.Typer:
    """Return the command line with one command, or with all if there is none of that name.

    ``--version`` needs none.

    Args:
        command: the name.
        names_only: add the other commands by their names, without importing them.
    """
    app = typer.Typer(
        name="tritonpipe",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
        epilog="First steps: write a file such as manifests/samples/sentiment.yaml;"
        " `tritonpipe validate FILE` checks it; `tritonpipe serve FILE` serves it on this machine;"
        ' `tritonpipe infer FILE "some text"` sends a request; `kubectl apply -f FILE` deploys it'
        " to a cluster with the operator; `tritonpipe status NAME` shows its status there.",
    )
    app.callback(invoke_without_command=True)(root)
    if command == "--version":
        return app
    for name in [command] if command in _COMMANDS else _COMMANDS:
        panel, module, function, settings = _COMMANDS[name]
        if names_only and name != command:
            app.command(name)(_named)
            continue
        app.command(name, rich_help_panel=panel, **settings)(
            getattr(importlib.import_module(f".{module}", __package__), function)
        )
    return app


def _named() -> None:
    """Stand for a command in the list of names."""


def __getattr__(name: str) -> typer.Typer:
    """Return ``app``, the command line with all commands, on first access."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return application()


def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Run NVIDIA Triton ensembles (tokenizer, model, postprocess) as a Kubernetes resource.

    The resource is an InferencePipeline. Exit codes: 0 success, 1 the resource is not valid or the
    pipeline is not ready, 2 wrong usage, 3 a cluster, a server or a download failed.
    """
    if version:
        typer.echo(triton_pipelines.__version__)
        raise typer.Exit


def _imported(command: str | None) -> typer.Typer:
    """Return the command line with one command.

    Imports create many objects and hardly any garbage. Collecting it meanwhile would take a tenth
    of their CPU time, and so would later collections that visit all of these objects.
    """
    gc.disable()
    try:
        return application(command)
    finally:
        gc.freeze()
        gc.enable()


def main() -> None:
    """Run the command line; print an error as one message and exit with its code."""
    tolerate_encoding()
    # Otherwise, gRPC writes lines to stderr for some frames that pods send: megabytes per probe. It
    # reads the variable when it is imported. Its errors are reported anyway.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if (words := command_to_complete()) is not None:
        complete(application(words, names_only=True))
    called = Path(sys.argv[0]).name
    try:
        _imported(sys.argv[1] if len(sys.argv) > 1 else None)(
            prog_name="kubectl tritonpipe" if called == PLUGIN else PROGRAM
        )
    except CommandError as failure:
        typer.echo(f"tritonpipe: {escape_lines(str(failure))}", err=True)
        sys.exit(failure.code)
    except Exception as error:
        typer.echo(
            f"tritonpipe: unexpected {type(error).__name__}: {escape_lines(str(error))}\n"
            "This is a bug in tritonpipe."
            f" Set {TRACEBACK_VARIABLE}=1 to print the traceback, and report the bug.",
            err=True,
        )
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
