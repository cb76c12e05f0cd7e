"""``tritonpipe crd``."""

from __future__ import annotations

import typer

from triton_pipelines.api import crd as definition


def crd() -> None:
    """Print the CustomResourceDefinition, for `kubectl apply --server-side -f -`."""
    typer.echo(definition.render(), nl=False)
