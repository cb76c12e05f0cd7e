"""Read resources from files and check them, as several commands do."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.depth import MAX_DOCUMENT_DEPTH, expanded_size
from triton_pipelines.api.parse import parse
from triton_pipelines.api.suggestions import did_you_mean
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import listed
from triton_pipelines.compile.graph import Graph, Options, build, check, lint
from triton_pipelines.compile.graph.advisories import lint_server, server_image
from triton_pipelines.compile.graph.padding_choice import uses_auto_padding
from triton_pipelines.compile.graph.source_checks import pinned
from triton_pipelines.compile.render import review

from .custom_code import code_warnings
from .errors import EXIT_FINDINGS, EXIT_USAGE, CommandError

STANDARD_INPUT = "-"
MAX_FILE_BYTES: Final = 16 * 2**20
"""Largest file of resources; the API server stores at most 1.5 MiB of one."""
MAX_VALUES: Final = 1_000_000
"""Values in one file after its aliases are expanded."""


@dataclass(frozen=True, slots=True)
class CheckedResource:
    """One resource of a file with the result of all checks."""

    label: str
    """File and name, for messages."""
    pipeline: InferencePipeline | None
    """The parsed resource; ``None`` if its schema is violated."""
    graph: Graph | None
    """Its graph; ``None`` if there are findings."""
    findings: tuple[Finding, ...]
    """Errors."""
    warnings: tuple[Finding, ...] = ()
    """What works but is probably unintended."""


class _KubectlLoader(yaml.SafeLoader):
    """YAML as kubectl reads it.

    A duplicate key is an error, and a bare Y or N is a boolean, as in YAML 1.1.
    """

    _depth = 0

    bool_values: ClassVar[dict[str, bool]] = {**yaml.SafeLoader.bool_values, "y": True, "n": False}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DOCUMENT_DEPTH + 1:  # A scalar may be at the deepest level.
            raise yaml.composer.ComposerError(
                None,
                None,
                f"nested more than {MAX_DOCUMENT_DEPTH} levels deep; use fewer levels",
                self.peek_event().start_mark,  # type: ignore[no-untyped-call]
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None,
                        None,
                        f"duplicate key {key.value!r}; remove one of the two entries",
                        key.start_mark,
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_KubectlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN")
)


def display_name(path: Path) -> str:
    """Return the name of a file for messages."""
    return "standard input" if str(path) == STANDARD_INPUT else str(path)


def load_yaml(path: Path) -> list[Any]:
    """Return the documents of a YAML file (``-``: standard input) without empty ones.

    Raises:
        CommandError: the file cannot be read or is not YAML; names line and column.
    """
    name, text = display_name(path), _read_text(path)
    try:
        # The loader is a SafeLoader; bandit's rule knows only that very class.
        documents = [
            item for item in yaml.load_all(text, Loader=_KubectlLoader) if item is not None
        ]
        if expanded_size(documents, MAX_VALUES) > MAX_VALUES:
            raise CommandError(
                f"{name}: the file contains more than {MAX_VALUES} values (each alias counts as a "
                "copy of its values); use fewer aliases, or split the file",
                EXIT_USAGE,
            )
        _check_json(documents, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise CommandError(f"{where}: invalid YAML: {_problem(error)}", EXIT_USAGE) from error
    except yaml.YAMLError as error:
        raise CommandError(
            f"{name}: invalid YAML: {str(error).splitlines()[0]}", EXIT_USAGE
        ) from error
    except RecursionError as error:
        raise CommandError(
            f"{name}: the YAML is nested too deeply or contains a recursive alias (an alias "
            "inside the value that it refers to); use fewer levels, or remove the alias",
            EXIT_USAGE,
        ) from error
    except ValueError as error:  # for example a date that does not exist
        raise CommandError(f"{name}: the resource is not valid: {error}", EXIT_USAGE) from error
    return documents


def _check_json(documents: list[Any], name: str) -> None:
    """Reject what is valid in YAML but not in JSON, which the API server speaks."""
    try:
        json.dumps(documents, default=str)
    except TypeError as error:
        raise CommandError(
            f"{name}: a mapping key is not a string, number or Boolean; put the key in quotes",
            EXIT_USAGE,
        ) from error
    except ValueError as error:
        raise CommandError(
            f"{name}: an alias (*name) makes a value contain itself; remove the alias",
            EXIT_USAGE,
        ) from error


def _read_text(path: Path) -> str:
    name = display_name(path)
    try:
        if str(path) == STANDARD_INPUT:
            content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise CommandError(
                (f"{name}: the file is larger than {MAX_FILE_BYTES // 2**20} MiB; split the file"),
                EXIT_USAGE,
            )
        return content.decode()
    except IsADirectoryError as error:
        raise CommandError(
            f"{name}: the path is a directory; specify the files", EXIT_USAGE
        ) from error
    except OSError as error:
        raise CommandError(f"cannot read {name}: {error.strerror}", EXIT_USAGE) from error
    except UnicodeDecodeError as error:
        raise CommandError(
            (
                f"{name}: the file is not UTF-8 (invalid byte at position {error.start}); save "
                "the file as UTF-8"
            ),
            EXIT_USAGE,
        ) from error


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Return the parser's message with the start of the enclosing block and the usual cause."""
    message = error.problem or error.context or ""
    if _character(error.problem_mark) == "\t":
        return f"{message}; use spaces, not tabs"
    start = error.context_mark
    if (
        start is None
        or error.context is None
        or error.problem_mark is None
        or start.line == error.problem_mark.line
    ):
        return message
    opening = _character(start)
    cause = (
        f"check that {opening!r} is closed"
        if opening in ("[", "{")
        else "check the indentation: sibling keys must start in the same column"
    )
    return f"{message}, {error.context} that starts on line {start.line + 1}; {cause}"


def _character(mark: yaml.Mark | None) -> str:
    """Return the character at a mark; empty if there is none."""
    buffer, position = getattr(mark, "buffer", None), getattr(mark, "pointer", None)
    if buffer is None or position is None:
        return ""
    return str(buffer)[position : position + 1].rstrip("\0")


def read_documents(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the InferencePipelines of a YAML file (``-``: standard input) with their labels.

    Other kinds are skipped.

    Raises:
        CommandError: the file contains no InferencePipeline.
    """
    documents = list(_flatten_lists(load_yaml(path)))
    found = False
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == names.KIND:
            found = True
            metadata = document.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            yield f"{display_name(path)} ({name or 'no name'})", document
    if not found:
        raise CommandError(
            f"{display_name(path)}: no {names.KIND} (apiVersion {names.API_VERSION}) found: "
            f"{_describe_contents(documents)}",
            EXIT_USAGE,
        )


def _describe_contents(documents: list[Any]) -> str:
    """Describe what a file contains that has no pipeline."""
    if not documents:
        return "the file is empty"
    kinds = [document.get("kind") for document in documents if isinstance(document, dict)]
    if not kinds:
        return "the document is not a mapping"
    named = list(dict.fromkeys(str(kind) for kind in kinds if kind))
    if not named:
        return f"kind is missing; add kind: {names.KIND}"
    return f"the file contains {listed(named)}{did_you_mean(named[0], [names.KIND])}"


def _flatten_lists(documents: list[Any]) -> Iterator[Any]:
    """Yield the documents, and the items of lists as ``kubectl get --output=yaml`` writes them."""
    for document in documents:
        is_list = isinstance(document, dict) and str(document.get("kind", "")).endswith("List")
        items = document.get("items") if is_list else None
        if isinstance(items, list):
            yield from items
        else:
            yield document


def check_resource(label: str, document: dict[str, Any], options: Options) -> CheckedResource:
    """Run the schema, rules and checks that the API server and the operator apply."""
    pipeline, findings = parse(document)
    if pipeline is None or findings:
        return CheckedResource(label, pipeline, None, tuple(findings))
    graph = build(pipeline, options)
    findings = check(pipeline, graph, options) or review(pipeline, graph, options)
    if findings:
        return CheckedResource(label, pipeline, None, tuple(findings))
    warnings = (
        *lint(pipeline, graph),
        *lint_server(pipeline, graph, server_image(pipeline, graph, options)),
        *code_warnings(graph),
    )
    return CheckedResource(label, pipeline, graph, (), warnings)


def padding_line(pipeline: InferencePipeline, graph: Graph) -> str | None:
    """Return the padding mode that Auto chose, and why, as one line.

    ``None`` if the resource names a mode, or has no built-in tokenizer.
    """
    if graph.padding is None or not uses_auto_padding(pipeline.spec.tokenizer):
        return None
    return f"padding {graph.padding}"


def unpinned_line(graph: Graph) -> str | None:
    """Return the sources whose content may change, as one line; ``None`` if all are pinned.

    This is no warning: each pipeline revision keeps what its sources first resolved to.
    """
    fields = {item.path: None for item in graph.fetches if not pinned(item.source)}
    if not fields:
        return None
    return (
        f"not pinned: {listed(list(fields))} (each pipeline revision keeps the content that it "
        "loads first; to pin the content, set revision or sha256)"
    )


def load_document(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the only resource of a file with its label.

    Raises:
        CommandError: the file contains several.
    """
    found = list(read_documents(path))
    if len(found) > 1:
        raise CommandError(
            f"{display_name(path)}: the file contains {len(found)} pipelines, but this "
            "command accepts only one; specify a file that contains only one pipeline",
            EXIT_USAGE,
        )
    return found[0]


def load_pipeline(path: Path, options: Options) -> tuple[InferencePipeline, Graph]:
    """Return the only pipeline of a file and its graph, after all checks.

    Raises:
        CommandError: the resource is invalid; lists all findings.
    """
    checked = check_resource(*load_document(path), options)
    if checked.pipeline is None or checked.graph is None:
        raise _invalid_resource(checked.label, checked.findings)
    return checked.pipeline, checked.graph


def parse_pipeline(path: Path) -> InferencePipeline:
    """Return the only pipeline of a file, checked against the schema only.

    For commands that do not depend on options of an operator or server.

    Raises:
        CommandError: the resource is invalid; lists all findings.
    """
    label, document = load_document(path)
    pipeline, findings = parse(document)
    if pipeline is None or findings:
        raise _invalid_resource(label, tuple(findings))
    return pipeline


def _invalid_resource(label: str, findings: tuple[Finding, ...]) -> CommandError:
    lines = "\n".join(f"  {finding}" for finding in findings)
    return CommandError(f"{label} is not valid:\n{lines}", EXIT_FINDINGS)
