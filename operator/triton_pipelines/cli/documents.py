"""Reading resources from files, and what commands share of judging them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.parse import parse
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.pipeline import Graph, Options, build, check, lint

from .failure import EXIT_FINDINGS, EXIT_USAGE, Failure


@dataclass(frozen=True, slots=True)
class Judged:
    """One resource of a file: findings and warnings, and the graph where there are no findings."""

    label: str
    pipeline: InferencePipeline | None
    graph: Graph | None
    findings: tuple[Finding, ...]
    warnings: tuple[Finding, ...] = ()


def read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The InferencePipelines of a YAML file (``-``: standard input) with a label for messages; other kinds are passed over."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"{path}: cannot be read: {error.strerror}", EXIT_USAGE) from error
    except UnicodeDecodeError as error:
        raise Failure(f"{path}: is no UTF-8 text", EXIT_USAGE) from error
    try:
        documents = [item for item in yaml.safe_load_all(text) if item is not None]
    except yaml.YAMLError as error:
        raise Failure(f"{path}: is no YAML: {error}", EXIT_USAGE) from error
    found = False
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == names.KIND:
            found = True
            metadata = document.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            yield f"{path} ({name or 'without a name'})", document
    if not found:
        raise Failure(f"{path}: holds no {names.KIND} (apiVersion {names.API_VERSION})", EXIT_USAGE)


def judge(label: str, document: dict[str, Any], options: Options) -> Judged:
    """Schema, rules and checks of one resource, as the API server and the operator judge it."""
    pipeline, findings = parse(document)
    if pipeline is None or findings:
        return Judged(label, pipeline, None, tuple(findings))
    graph = build(pipeline, options)
    findings = check(pipeline, graph, options)
    if findings:
        return Judged(label, pipeline, None, tuple(findings))
    return Judged(label, pipeline, graph, (), tuple(lint(pipeline, graph, options)))


def only(path: Path, options: Options) -> tuple[InferencePipeline, Graph]:
    """The one pipeline of a file, judged good; raises :class:`Failure` with all findings otherwise."""
    judged = [judge(label, document, options) for label, document in read(path)]
    if len(judged) > 1:
        raise Failure(f"{path}: holds {len(judged)} pipelines; this command takes one", EXIT_USAGE)
    first = judged[0]
    if first.pipeline is None or first.graph is None:
        lines = "\n".join(f"  {finding}" for finding in first.findings)
        raise Failure(f"{first.label} is not valid:\n{lines}", EXIT_FINDINGS)
    return first.pipeline, first.graph


def options_from(server_image: str | None, source_map: Sequence[str], substitute: Sequence[str], custom_code: str) -> Options:
    """Rendering options from command-line values."""
    defaults = Options()
    return Options(
        server_image=server_image or defaults.server_image,
        source_map=tuple(source_map),
        substitute_runner=frozenset(substitute),
        custom_code_allowed=custom_code != "forbid",
    )
