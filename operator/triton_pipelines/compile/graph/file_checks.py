"""Check the sources of all steps, and that no source overwrites another file of a model."""

from __future__ import annotations

from collections.abc import Iterator

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.loadplan import FetchKind
from triton_pipelines.api.source import ModelSource

from .defaults import ENGINE_FILE
from .graph import Graph, Step
from .source_checks import RESERVED_FILES, check_source, names_file


def check_sources(graph: Graph) -> Iterator[Finding]:
    """Yield invalid sources, and files that would overwrite what the renderer writes."""
    sources = {item.path: item.source for item in graph.fetches}
    for path, source in sources.items():
        yield from check_source(source, path)
    models = {item.path for item in graph.fetches if item.kind is FetchKind.MODEL}
    for path, source in sources.items():
        if (
            isinstance(source, ModelSource)
            and source.file_name is not None
            and path not in models
            and not names_file(source)
        ):
            yield Finding(
                f"{path}.fileName",
                "names a model's file, but this source contains no model;"
                " write path to select a file in it",
                code=FindingCode.FIELD_COMBINATION,
            )
    for step in graph.models:
        yield from _file_conflicts(step)


def _file_conflicts(step: Step) -> Iterator[Finding]:
    """Yield files of a step's sources that take the place of another file."""
    has_code = step.code is not None or any(item.slot == "code" for item in step.fetches)
    targets: dict[str, str] = {}
    for item in step.fetches:
        name = item.target.rsplit("/", 1)[-1]
        taken_by = []
        if item.kind is FetchKind.FILE:
            if has_code and item.slot != "code" and name in RESERVED_FILES:
                taken_by.append(f"the file {name} replaces that of python.code")
            if name == ENGINE_FILE and step.files:
                taken_by.append(f"the file {name} replaces the one written from vllm.engineArgs")
            if item.target in targets:
                taken_by.append(f"{item.target} is already written by {targets[item.target]}")
        for conflict in taken_by:
            yield Finding(
                item.path,
                f"{conflict}; give the file another name",
                code=FindingCode.FILE_CONFLICT,
            )
        targets.setdefault(item.target, item.path)
