"""``tritonpipe render``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from triton_pipelines.reconcile.plan import first_objects
from triton_pipelines.render import render

from .documents import only, options_from

KEY_PLACEHOLDER = "CONTROL-KEY-PLACEHOLDER"


def render_files(
    file: Annotated[Path, typer.Argument(help="File with one InferencePipeline; - reads standard input.")],
    repository: Annotated[Path | None, typer.Option(help="Write the model repository into this folder.")] = None,
    manifests: Annotated[bool, typer.Option("--manifests", help="Print the Kubernetes objects as YAML.")] = False,
    server_image: Annotated[str | None, typer.Option(help="The operator's default Triton image.")] = None,
    loader_image: Annotated[str | None, typer.Option(help="The operator's own image, for the init container.")] = None,
    source_map: Annotated[list[str] | None, typer.Option(help="PREFIX=TARGET, as the operator's.")] = None,
    substitute_runner: Annotated[list[str] | None, typer.Option(help="Platform that runs on the project's runner, as the operator's.")] = None,
    operator_namespace: Annotated[str | None, typer.Option(help="Namespace of the operator.")] = None,
) -> None:
    """Show what the operator would make, byte for byte; placeholders stand for the owner's UID and the control key alone."""
    options = options_from(server_image, source_map or [], substitute_runner or [], "allow")
    if loader_image:
        options = replace(options, loader_image=loader_image)
    if operator_namespace:
        options = replace(options, operator_namespace=operator_namespace)
    pipeline, graph = only(file, options)
    revision = render(pipeline, graph, options)
    if repository is not None:
        for path, content in revision.files.items():
            target = repository / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
        (repository / graph.model_name / "1").mkdir(parents=True, exist_ok=True)
        typer.echo(f"wrote {len(revision.files)} files of revision {revision.name} into {repository}", err=True)
    if manifests:
        objects = first_objects(pipeline, graph, revision, options, KEY_PLACEHOLDER)
        typer.echo(yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=140), nl=False)
    elif repository is None:
        for path, content in revision.files.items():
            typer.echo(f"# {path}\n{content}")


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, so that a config in a ConfigMap can be read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
