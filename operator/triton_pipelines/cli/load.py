"""``tritonpipe load``: the init container of a pipeline's pod."""

from __future__ import annotations

import typer

from triton_pipelines.loader.main import exit_on_sigterm, run


def load(context: typer.Context) -> None:
    """Fetch the sources of a revision and prepare its model repository (init container)."""
    exit_on_sigterm()
    raise typer.Exit(run(context.args))
