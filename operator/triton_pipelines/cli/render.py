"""``tritonpipe render``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from triton_pipelines.api.loadplan import FetchKind
from triton_pipelines.compile.graph import Graph
from triton_pipelines.compile.graph.defaults import VERSION_FOLDER
from triton_pipelines.compile.graph.graph import Fetch
from triton_pipelines.compile.render import Revision, render
from triton_pipelines.compile.render.errors import RenderError
from triton_pipelines.controllers.pipeline.first_objects import first_objects
from triton_pipelines.tools.importer.yaml_document import AMBIGUOUS

from .documents import only, padding_of
from .errors import EXIT_FINDINGS, EXIT_USAGE, Failure
from .options import OperatorConfigFile, ServerImage, SourceMaps, SubstituteRunner, operator_options

KEY_PLACEHOLDER = "CONTROL-KEY-PLACEHOLDER"


def render_files(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="YAML file with one InferencePipeline; - reads standard input."
        ),
    ],
    repository: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the model repository there (without the sources' files)."
        ),
    ] = None,
    manifests: Annotated[
        bool,
        typer.Option(
            "--manifests", help="Print the Kubernetes objects as YAML that kubectl takes."
        ),
    ] = False,
    operator_config: OperatorConfigFile = None,
    server_image: ServerImage = None,
    loader_image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="The operator's own image, for the init container."),
    ] = None,
    source_map: SourceMaps = None,
    substitute_runner: SubstituteRunner = None,
    operator_namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace of the operator.")
    ] = None,
) -> None:
    """Show what the operator would make of a resource, byte for byte.

    Without --repository and --manifests the files of the model repository are printed. Placeholders stand for the owner's UID and the
    control key alone. Exit code: 1 the resource is not valid, 2 wrong use.
    """
    options = operator_options(
        operator_config,
        server_image=server_image,
        loader_image=loader_image,
        source_map=source_map,
        substitute_runner=substitute_runner,
        operator_namespace=operator_namespace,
    )
    pipeline, graph = only(file, options)
    try:
        revision = render(pipeline, graph, options)
    except RenderError as error:
        raise Failure(f"{file} ({pipeline.name}): {error}", EXIT_FINDINGS) from error
    if padding := padding_of(pipeline, graph):
        typer.echo(padding, err=True)
    if repository is not None:
        _write(revision, graph, repository)
        typer.echo(
            f"wrote {len(revision.files)} files of revision {revision.name} into {repository}",
            err=True,
        )
    if repository is not None or not manifests:
        _tell_absent(graph)
    if manifests:
        objects = first_objects(pipeline, graph, revision, options, KEY_PLACEHOLDER)
        typer.echo(
            yaml.dump_all(
                objects,
                Dumper=_Dumper,
                explicit_start=True,
                sort_keys=False,
                allow_unicode=True,
                width=140,
            ),
            nl=False,
        )
    elif repository is None:
        for path, content in revision.files.items():
            typer.echo(f"# {path}\n{content}")


def _tell_absent(graph: Graph) -> None:
    """Say which files of the model repository are the sources': a pod's init container fetches them, or the cluster mounts their ConfigMap."""
    absent = dict.fromkeys(
        f"{_target_of(item)} from {item.source.uri.partition('?')[0]}" for item in graph.fetches
    )
    if absent:
        typer.echo(
            "not rendered, since sources bring it:\n" + "\n".join(f"  {line}" for line in absent),
            err=True,
        )


def _target_of(item: Fetch) -> str:
    """Where in the model repository a source's content will lie; a folder ends with a slash."""
    if item.kind in (FetchKind.FILE, FetchKind.TOKENIZER):
        return item.target
    if item.kind is FetchKind.MODEL and item.file is not None and not item.whole:
        return f"{item.target}/{VERSION_FOLDER}/{item.file}"
    return f"{item.target}/"


def _write(revision: Revision, graph: Graph, folder: Path) -> None:
    try:
        for path, content in revision.files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
        (folder / graph.model_name / "1").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(
            f"--repository: {error.filename or folder} cannot be written: {error.strerror}",
            EXIT_USAGE,
        ) from error


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, so that a config in a ConfigMap can be read; texts that kubectl would take for something else in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str",
        value,
        style="|" if "\n" in value else '"' if AMBIGUOUS.match(value) else None,
    )


_Dumper.add_representer(str, _text)
