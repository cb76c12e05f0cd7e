"""Reading resources from files, and what commands share of judging them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.parse import parse
from triton_pipelines.api.suggestions import did_you_mean
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Graph, Options, build, check, lint
from triton_pipelines.compile.graph.tokenizer_step import left_to_auto
from triton_pipelines.compile.render import review

from .custom_code import doubts
from .errors import EXIT_FINDINGS, EXIT_USAGE, Failure

STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class Judged:
    """One resource of a file: findings and warnings, and the graph where there are no findings."""

    label: str
    pipeline: InferencePipeline | None
    graph: Graph | None
    findings: tuple[Finding, ...]
    warnings: tuple[Finding, ...] = ()


class _Loader(yaml.SafeLoader):
    """YAML as kubectl takes it: a key that stands twice is an error, and a bare Y or N is a truth value, as in YAML 1.1."""

    bool_values: ClassVar[dict[str, bool]] = {**yaml.SafeLoader.bool_values, "y": True, "n": False}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None,
                        None,
                        f"the key {key.value!r} stands here a second time",
                        key.start_mark,
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))


def shown(path: Path) -> str:
    """A file's name in messages."""
    return "standard input" if str(path) == STANDARD_INPUT else str(path)


def load_yaml(path: Path) -> list[Any]:
    """The documents of a YAML file (``-``: standard input), empty ones left out. :class:`Failure` says where the text is wrong."""
    name = shown(path)
    try:
        text = (
            sys.stdin.buffer.read().decode()
            if str(path) == STANDARD_INPUT
            else path.read_text(encoding="utf-8")
        )
    except IsADirectoryError as error:
        raise Failure(f"{name}: is a folder; give the files in it", EXIT_USAGE) from error
    except OSError as error:
        raise Failure(f"{name}: cannot be read: {error.strerror}", EXIT_USAGE) from error
    except UnicodeDecodeError as error:
        raise Failure(f"{name}: is no UTF-8 text (byte {error.start})", EXIT_USAGE) from error
    try:
        # The loader is a SafeLoader; bandit's rule knows only that very class.
        documents = [item for item in yaml.load_all(text, Loader=_Loader) if item is not None]
        json.dumps(documents, default=str)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise Failure(f"{where}: is no YAML: {_problem(error)}", EXIT_USAGE) from error
    except yaml.YAMLError as error:
        raise Failure(f"{name}: is no YAML: {str(error).splitlines()[0]}", EXIT_USAGE) from error
    except (RecursionError, TypeError, ValueError) as error:
        # What YAML can say and JSON, the API server's language, cannot: a mapping within itself, a date as key.
        raise Failure(f"{name}: cannot be a resource: {error}", EXIT_USAGE) from error
    return documents


def _problem(error: yaml.MarkedYAMLError) -> str:
    """What the parser says, with what it was reading and the usual cause."""
    said = error.problem or error.context or ""
    if "'\\t'" in said:
        return f"{said}; indent with blanks, not with tabs"
    begun = error.context_mark
    if (
        begun is None
        or error.context is None
        or error.problem_mark is None
        or begun.line == error.problem_mark.line
    ):
        return said
    cause = (
        "is it closed?"
        if "flow" in error.context
        else "lines that belong together stand equally far in"
    )
    return f"{said}, {error.context} that begins in line {begun.line + 1}; {cause}"


def read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The InferencePipelines of a YAML file (``-``: standard input) with a label for messages; other kinds are passed over."""
    documents = list(_flat(load_yaml(path)))
    found = False
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == names.KIND:
            found = True
            metadata = document.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            yield f"{shown(path)} ({name or 'without a name'})", document
    if not found:
        raise Failure(
            f"{shown(path)}: holds no {names.KIND} (apiVersion {names.API_VERSION}): {_held(documents)}",
            EXIT_USAGE,
        )


def _held(documents: list[Any]) -> str:
    """What a file without a pipeline holds instead."""
    if not documents:
        return "it is empty"
    kinds = [document.get("kind") for document in documents if isinstance(document, dict)]
    if not kinds:
        return "it is no mapping of fields"
    named = list(dict.fromkeys(str(kind) for kind in kinds if kind))
    if not named:
        return f"it has no kind; write kind: {names.KIND}"
    return f"its kind is {', '.join(named)}{did_you_mean(named[0], [names.KIND])}"


def _flat(documents: list[Any]) -> Iterator[Any]:
    """The documents, and those inside lists as ``kubectl get --output=yaml`` writes them."""
    for document in documents:
        items = (
            document.get("items")
            if isinstance(document, dict) and str(document.get("kind", "")).endswith("List")
            else None
        )
        if isinstance(items, list):
            yield from items
        else:
            yield document


def judge(label: str, document: dict[str, Any], options: Options) -> Judged:
    """Schema, rules and checks of one resource, as the API server and the operator judge it."""
    pipeline, findings = parse(document)
    if pipeline is None or findings:
        return Judged(label, pipeline, None, tuple(findings))
    graph = build(pipeline, options)
    findings = check(pipeline, graph, options) or review(pipeline, graph, options)
    if findings:
        return Judged(label, pipeline, None, tuple(findings))
    return Judged(label, pipeline, graph, (), (*lint(pipeline, graph, options), *doubts(graph)))


def padding_of(pipeline: InferencePipeline, graph: Graph) -> str | None:
    """The padding that Auto chose and why, as one line; ``None`` where the resource names one, or has no tokenizer of ours."""
    return (
        f"padding {graph.padding}"
        if graph.padding is not None and left_to_auto(pipeline.spec.tokenizer)
        else None
    )


def one(path: Path) -> tuple[str, dict[str, Any]]:
    """The one resource of a file, with its label; :class:`Failure` where it holds several."""
    found = list(read(path))
    if len(found) > 1:
        raise Failure(
            f"{shown(path)}: holds {len(found)} pipelines; this command takes one", EXIT_USAGE
        )
    return found[0]


def only(path: Path, options: Options) -> tuple[InferencePipeline, Graph]:
    """The one pipeline of a file, judged good; raises :class:`Failure` with all findings otherwise."""
    judged = judge(*one(path), options)
    if judged.pipeline is None or judged.graph is None:
        raise _invalid(judged.label, judged.findings)
    return judged.pipeline, judged.graph


def resource(path: Path) -> InferencePipeline:
    """The one pipeline of a file by its schema alone, for commands to which no option of an operator or server matters."""
    label, document = one(path)
    pipeline, findings = parse(document)
    if pipeline is None or findings:
        raise _invalid(label, tuple(findings))
    return pipeline


def _invalid(label: str, findings: tuple[Finding, ...]) -> Failure:
    lines = "\n".join(f"  {finding}" for finding in findings)
    return Failure(f"{label} is not valid:\n{lines}", EXIT_FINDINGS)
