"""``tritonpipe``: validate, render, serve and ask pipelines; and the entry points of the operator's containers."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import triton_pipelines
from triton_pipelines.api import crd as crd_module

from . import infer, operate, render, serve, status, validate
from .failure import Failure

app = typer.Typer(
    name="tritonpipe",
    help="NVIDIA Triton ensembles as one Kubernetes resource: InferencePipeline. See `tritonpipe COMMAND --help`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False) -> None:
    """NVIDIA Triton ensembles as one Kubernetes resource."""
    if version:
        typer.echo(triton_pipelines.__version__)
        raise typer.Exit


app.command("validate")(validate.validate)
app.command("render")(render.render_files)
app.command("serve")(serve.serve)
app.command("infer")(infer.infer)
app.command("status")(status.status)
app.command("operator")(operate.operator)
app.command("load", context_settings=operate.LOADER_SETTINGS, add_help_option=False)(operate.load)


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition."""
    typer.echo(crd_module.render(), nl=False)


def main() -> None:
    """Run the command line; a failure is one message on stderr and its exit code, never a traceback."""
    try:
        app()
    except Failure as failure:
        typer.echo(f"tritonpipe: {failure}", err=True)
        sys.exit(failure.code)


if __name__ == "__main__":
    main()
