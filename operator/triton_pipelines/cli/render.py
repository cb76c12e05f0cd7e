"""``tritonpipe render``."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from triton_pipelines.api.loadplan import FetchKind
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Graph, Options
from triton_pipelines.compile.graph.defaults import VERSION_FOLDER
from triton_pipelines.compile.graph.graph import Fetch
from triton_pipelines.compile.render import Revision, render
from triton_pipelines.compile.render.errors import RenderError
from triton_pipelines.compile.render.kserve import kserve_objects
from triton_pipelines.compile.render.pre_pull import pre_pull_daemon_set, pre_pull_notes
from triton_pipelines.controllers.pipeline.first_objects import first_objects
from triton_pipelines.tools.importer import AMBIGUOUS

from .documents import load_pipeline, padding_line
from .errors import EXIT_FINDINGS, EXIT_USAGE, CommandError
from .option_groups import expand_options
from .options import OperatorRenderOptions
from .shared_options import PipelineFile

KEY_PLACEHOLDER = "CONTROL-KEY-PLACEHOLDER"


class ManifestFormat(StrEnum):
    """Which objects are printed."""

    OPERATOR = "operator"
    KSERVE = "kserve"
    PRE_PULL = "pre-pull"


@expand_options
def render_files(
    file: PipelineFile,
    operator: OperatorRenderOptions,
    repository: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help=(
                "Write the model repository to this directory, without the files that come "
                "from sources."
            ),
        ),
    ] = None,
    manifests: Annotated[
        bool,
        typer.Option("--manifests", help="Print the Kubernetes objects as YAML for kubectl."),
    ] = False,
    output_format: Annotated[
        ManifestFormat,
        typer.Option(
            "--format",
            help="Objects to print with --manifests: those that the operator creates, an "
            "InferenceService that KServe serves without the operator (kserve), or a DaemonSet "
            "that pulls the images onto nodes before pods start there (pre-pull).",
        ),
    ] = ManifestFormat.OPERATOR,
) -> None:
    """Show what the operator renders from a resource, byte for byte.

    Without --repository and --manifests, the files of the model repository are printed. The only
    placeholders are the owner's UID and the control key.

    Exit codes: 1 the resource is not valid, 2 wrong usage.
    """
    options = operator.render_options()
    pipeline, graph = load_pipeline(file, options)
    try:
        revision = render(pipeline, graph, options)
    except RenderError as error:
        raise CommandError(f"{file} ({pipeline.name}): {error}", EXIT_FINDINGS) from error
    if padding := padding_line(pipeline, graph):
        typer.echo(padding, err=True)
    if repository is not None:
        _write(revision, graph, repository)
        typer.echo(
            f"wrote {len(revision.files)} files of revision {revision.name} into {repository}",
            err=True,
        )
    manifests = manifests or output_format is not ManifestFormat.OPERATOR
    if repository is not None or not manifests:
        _print_source_files(graph)
    if manifests:
        _print_manifests(_objects(pipeline, graph, revision, options, output_format))
    elif repository is None:
        for path, content in revision.files.items():
            typer.echo(f"# {path}\n{content}")


def _objects(
    pipeline: InferencePipeline,
    graph: Graph,
    revision: Revision,
    options: Options,
    output_format: ManifestFormat,
) -> list[dict[str, Any]]:
    """Return the objects of a format."""
    if output_format is ManifestFormat.PRE_PULL:
        for note in pre_pull_notes(pipeline, revision.template):
            typer.echo(note, err=True)
        return [pre_pull_daemon_set(pipeline, revision.template)]
    objects = first_objects(pipeline, graph, revision, options, KEY_PLACEHOLDER)
    if output_format is ManifestFormat.KSERVE:
        return kserve_objects(pipeline, revision, objects)
    return objects


def _print_manifests(objects: Iterable[dict[str, Any]]) -> None:
    typer.echo(
        yaml.dump_all(
            objects,
            Dumper=_ManifestDumper,
            explicit_start=True,
            sort_keys=False,
            allow_unicode=True,
            width=140,
        ),
        nl=False,
    )


def _print_source_files(graph: Graph) -> None:
    """List the files that sources bring.

    A pod's init container fetches them, or the cluster mounts their ConfigMap.
    """
    absent = dict.fromkeys(
        f"{_target_of(item)} from {item.source.uri.partition('?')[0]}" for item in graph.fetches
    )
    if absent:
        typer.echo(
            "not rendered, because these files come from sources:\n"
            + "\n".join(f"  {line}" for line in absent),
            err=True,
        )


def _target_of(item: Fetch) -> str:
    """Return where a source's content goes in the model repository; a folder ends with a slash."""
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
        raise CommandError(
            f"--repository: cannot write {error.filename or folder}: {error.strerror}",
            EXIT_USAGE,
        ) from error


class _ManifestDumper(yaml.SafeDumper):
    """Write multi-line strings as blocks, so that a config in a ConfigMap can be read.

    Strings that kubectl would read as another type are quoted.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str",
        value,
        style="|" if "\n" in value else '"' if AMBIGUOUS.match(value) else None,
    )


_ManifestDumper.add_representer(str, _text)
