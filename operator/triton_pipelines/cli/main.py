"""``tritonpipe``: validate, render, serve and ask pipelines; and the entry points of the operator's containers."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

import triton_pipelines
from triton_pipelines.api import crd as crd_module

from . import bench, importing, infer, init, operate, render, scaling, serve, status, tune, validate
from .failure import EXIT_FAILED, Failure
from .output import tolerate_encoding

PLUGIN = "kubectl-tritonpipe"
TRACEBACK_VARIABLE = "TRITONPIPE_TRACEBACK"
_FILES, _LOCAL, _CLUSTER, _CONTAINERS = "Resources in files", "On this machine", "On a cluster", "In the operator's containers"

app = typer.Typer(
    name="tritonpipe",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="First steps: write a file such as manifests/samples/sentiment.yaml; `tritonpipe validate FILE` says what is wrong with it;"
    ' `tritonpipe serve FILE` runs it here; `tritonpipe infer FILE "some text"` asks it; `kubectl apply -f FILE` brings it to a cluster with'
    " the operator; `tritonpipe status NAME` tells how it is there.",
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False) -> None:
    """NVIDIA Triton ensembles (tokenizer, model, postprocess) as one Kubernetes resource: InferencePipeline.

    Exit codes: 0 done, 1 the resource is not valid, 2 wrong use, 3 something outside failed.
    """
    if version:
        typer.echo(triton_pipelines.__version__)
        raise typer.Exit


app.command("validate", rich_help_panel=_FILES)(validate.validate)
app.command("render", rich_help_panel=_FILES)(render.render_files)
app.command("init", rich_help_panel=_FILES)(init.init)
app.command("import", rich_help_panel=_FILES)(importing.import_repository)
app.command("serve", rich_help_panel=_LOCAL)(serve.serve)
app.command("infer", rich_help_panel=_LOCAL)(infer.infer)
app.command("tune", rich_help_panel=_LOCAL)(tune.tune)
app.command("bench", rich_help_panel=_LOCAL)(bench.bench)
app.command("status", rich_help_panel=_CLUSTER)(status.status)
app.command("explain", rich_help_panel=_CLUSTER)(scaling.explain)
app.command("scaling", rich_help_panel=_CLUSTER)(scaling.scaling)


@app.command(rich_help_panel=_CLUSTER)
def crd() -> None:
    """Print the CustomResourceDefinition, for `kubectl apply --server-side -f -`."""
    typer.echo(crd_module.render(), nl=False)


app.command("operator", rich_help_panel=_CONTAINERS)(operate.operator)
app.command("load", context_settings=operate.LOADER_SETTINGS, add_help_option=False, rich_help_panel=_CONTAINERS)(operate.load)


def main() -> None:
    """Run the command line; a failure is one message on stderr and its exit code, never a traceback."""
    tolerate_encoding()
    called = Path(sys.argv[0]).name
    try:
        app(prog_name="kubectl tritonpipe" if called == PLUGIN else "tritonpipe")
    except Failure as failure:
        typer.echo(f"tritonpipe: {failure}", err=True)
        sys.exit(failure.code)
    except Exception as error:
        typer.echo(
            f"tritonpipe: unexpected {type(error).__name__}: {error}\nThis is a defect of tritonpipe; {TRACEBACK_VARIABLE}=1 shows where.", err=True
        )
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
