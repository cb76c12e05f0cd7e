"""Rendered repositories on disk, for `tritonpipe import` to read back.

The configs of both sides are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from tests.support import libyaml
from triton_pipelines.api import parse
from triton_pipelines.compile.graph import Graph, Options, build
from triton_pipelines.compile.render.config_patch import patch
from triton_pipelines.compile.render.model_config import ensemble_config, step_config
from triton_pipelines.compile.render.model_config import parse as parse_config
from triton_pipelines.tools.importer.assemble import import_models
from triton_pipelines.tools.importer.import_notes import ImportNote
from triton_pipelines.tools.importer.repository_reader import read_repository

PREFIX = "s3://bucket/models"
REPOSITORIES = Path(__file__).parents[1] / "corpus" / "repositories"
# Options that a repository of the corpus asks for.
FILLED = {
    "triton_max_batch_size": "8",
    "preprocessing_instance_count": "2",
    "decoupled_mode": "true",
}
NAMED = {"configs": "a100"}


@dataclass(frozen=True)
class Imported:
    """Result of an import: the YAML, its document, and its messages."""

    text: str
    document: dict[str, Any]
    notes: tuple[ImportNote, ...]


def graph_of(document: Mapping[str, Any]) -> Graph:
    """The graph of a resource that is valid."""
    pipeline, findings = parse(document)
    assert pipeline is not None, findings
    assert findings == []
    return build(pipeline, Options())


def configs_of(graph: Graph) -> dict[str, Any]:
    """Return the ModelConfig of each model as it would be rendered.

    Triton does not check it here.
    """
    made = {}
    for step in graph.models:
        made[step.model_name] = parse_config(step_config(step))
        assert (
            not step.config_patch
            or patch(made[step.model_name], step.config_patch, step.path) == []
        )
    if graph.entry is None:
        made[graph.model_name] = parse_config(ensemble_config(graph))
    return made


def write_repository(graph: Graph, folder: Path) -> None:
    """Write the rendered part of a repository.

    It has configs, code that is inline in the resource, and engine files. Sources are not fetched.
    """
    called = {step.model_name: step.version for step in graph.models if step.version}
    for name, config in configs_of(graph).items():
        for version in {1, called.get(name, 1), *config.version_policy.specific.versions}:
            (folder / name / str(version)).mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(
            text_format.MessageToString(config, as_utf8=True), encoding="utf-8"
        )
    for step in graph.models:
        files = {**step.files, **({"model.py": step.code} if step.code is not None else {})}
        for name, text in files.items():
            (folder / step.model_name / "1" / name).write_text(text, encoding="utf-8")


def imported(
    folder: Path,
    ensemble: str | None = None,
    values: Mapping[str, str] | None = None,
    config_name: str | None = None,
    image: str | None = None,
) -> Imported:
    """`tritonpipe import` without the command line."""
    draft, report = import_models(
        read_repository(folder, values, config_name),
        ensemble,
        PREFIX,
        lambda _, __: lambda ___: None,
        image=image,
    )
    text = draft.text()
    document = libyaml.load(text)
    assert document == draft.document
    return Imported(text, document, tuple(report.notes))


def corpus_import(name: str) -> Imported:
    """One hand-written repository of the corpus."""
    return imported(REPOSITORIES / name, None, FILLED, NAMED.get(name))


def golden_of(name: str) -> Path:
    """Where the expected import of a repository of the corpus lies."""
    return Path(__file__).parents[1] / "golden" / "imports" / f"{name}.txt"


def golden_text(name: str) -> str:
    """Return the result of importing it now: messages and resource."""
    made = corpus_import(name)
    return "\n".join([*map(str, made.notes), "-----", made.text])


if (
    __name__ == "__main__"
):  # python -m tests.support.imports: writes the expected imports anew; read the difference
    for repository in sorted(path.name for path in REPOSITORIES.iterdir()):
        golden_of(repository).write_text(golden_text(repository), encoding="utf-8")
        print(f"wrote {golden_of(repository).name}")
