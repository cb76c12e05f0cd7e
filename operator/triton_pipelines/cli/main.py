"""``tritonpipe``: validate, render, serve and ask pipelines; and the entry points of the operator's containers."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

import triton_pipelines

from .errors import EXIT_FAILED, Failure
from .output import tolerate_encoding

PLUGIN = "kubectl-tritonpipe"
TRACEBACK_VARIABLE = "TRITONPIPE_TRACEBACK"
_FILES, _LOCAL, _CLUSTER, _CONTAINERS = (
    "Resources in files",
    "On this machine",
    "On a cluster",
    "In the operator's containers",
)
# Command → panel of the help, module and function, and settings. A command's module is imported when the command is called: what the operator
# and load generators need takes a second to import, and every pod's init container would wait for it.
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
    "explain": (_CLUSTER, "scaling", "explain", {}),
    "scaling": (_CLUSTER, "scaling", "scaling", {}),
    "crd": (_CLUSTER, "crd", "crd", {}),
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


def application(command: str | None = None) -> typer.Typer:
    """The command line with the one command, or with all where there is none of that name."""
    made = typer.Typer(
        name="tritonpipe",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
        epilog="First steps: write a file such as manifests/samples/sentiment.yaml; `tritonpipe validate FILE` says what is wrong with it;"
        ' `tritonpipe serve FILE` runs it here; `tritonpipe infer FILE "some text"` asks it; `kubectl apply -f FILE` brings it to a cluster with'
        " the operator; `tritonpipe status NAME` tells how it is there.",
    )
    made.callback(invoke_without_command=True)(root)
    for name in [command] if command in _COMMANDS else _COMMANDS:
        panel, module, function, settings = _COMMANDS[name]
        made.command(name, rich_help_panel=panel, **settings)(
            getattr(importlib.import_module(f".{module}", __package__), function)
        )
    return made


def __getattr__(name: str) -> typer.Typer:
    """``app``: all commands, made when somebody asks for them."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return application()


def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)
    ] = False,
) -> None:
    """NVIDIA Triton ensembles (tokenizer, model, postprocess) as one Kubernetes resource: InferencePipeline.

    Exit codes: 0 done, 1 the resource is not valid, 2 wrong use, 3 something outside failed.
    """
    if version:
        typer.echo(triton_pipelines.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; a failure is one message on stderr and its exit code, never a traceback."""
    tolerate_encoding()
    called = Path(sys.argv[0]).name
    try:
        application(sys.argv[1] if len(sys.argv) > 1 else None)(
            prog_name="kubectl tritonpipe" if called == PLUGIN else "tritonpipe"
        )
    except Failure as failure:
        typer.echo(f"tritonpipe: {failure}", err=True)
        sys.exit(failure.code)
    except Exception as error:
        typer.echo(
            f"tritonpipe: unexpected {type(error).__name__}: {error}\nThis is a defect of tritonpipe; {TRACEBACK_VARIABLE}=1 shows where.",
            err=True,
        )
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
