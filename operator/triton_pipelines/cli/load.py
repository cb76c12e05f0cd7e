"""``tritonpipe load``: the init container of a pipeline's pod."""

from __future__ import annotations

import typer

from triton_pipelines.loader.main import run_process


def load(context: typer.Context) -> None:
    """Fetch the sources of a revision and prepare its model repository (init container)."""
    raise typer.Exit(run_process(context.args))
