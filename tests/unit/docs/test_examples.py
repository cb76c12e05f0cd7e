"""Check that the product accepts every example in the docs.

Examples are resources, fragments of them, commands, programs, and names of fields.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer

from tests.support import libyaml
from tests.support.fields import whole_schema
from tests.unit.docs import markdown
from triton_pipelines.api import names, structural_schema
from triton_pipelines.cli.documents import check_resource
from triton_pipelines.cli.main import app
from triton_pipelines.compile.graph import Options

FENCES = [fence for page in markdown.pages() for fence in markdown.fences(page)]
YAML = [fence for fence in FENCES if fence.language == "yaml"]
SHELL = [fence for fence in FENCES if fence.language in ("console", "bash", "sh")]
PYTHON = [fence for fence in FENCES if fence.language == "python"]
# What a fragment (a document that is only `spec:`) is laid over.
BASE = libyaml.load(
    (markdown.ROOT / "manifests/samples/sentiment.yaml").read_text(encoding="utf-8")
)


def merged(base: Any, fragment: Any) -> Any:
    """Return a whole resource overlaid with a fragment.

    Mappings are merged, everything else is replaced. `postprocess` and `source` are replaced too,
    because each of them is one choice.
    """
    if not (isinstance(base, dict) and isinstance(fragment, dict)):
        return copy.deepcopy(fragment)
    result = copy.deepcopy(base)
    for key, value in fragment.items():
        result[key] = (
            value if key in ("postprocess", "source", "rollout") else merged(base.get(key), value)
        )
    return result


def pipelines(fence: markdown.Fence) -> Iterator[dict[str, Any]]:
    """The whole resources that an example stands for."""
    for document in libyaml.load_all(fence.text):
        if isinstance(document, dict) and document.get("kind") == names.KIND:
            yield document
        elif isinstance(document, dict) and list(document) == ["spec"]:
            yield merged(BASE, document)


def findings(document: dict[str, Any]) -> list[str]:
    """Everything that API server, operator and Triton would say against a resource."""
    return [str(finding) for finding in check_resource("example", document, Options()).findings]


@pytest.mark.parametrize("fence", YAML, ids=str)
def test_pipelines_are_valid_unless_marked(fence: markdown.Fence) -> None:
    found = [finding for document in pipelines(fence) for finding in findings(document)]
    if "invalid" in fence.info:
        assert found, "the example is marked as invalid, but nothing is wrong with it"
    else:
        assert found == []


# Examples marked as invalid, each with the messages that the page shows behind it.
TOLD = [
    (fence, behind.text)
    for fence, behind in itertools.pairwise(FENCES)
    if fence.language == "yaml"
    and "invalid" in fence.info
    and behind.page == fence.page
    and behind.language == "text"
]


@pytest.mark.parametrize(("fence", "reported"), TOLD, ids=str)
def test_messages_on_a_page_are_those_that_come(fence: markdown.Fence, reported: str) -> None:
    assert [
        finding for document in pipelines(fence) for finding in findings(document)
    ] == reported.splitlines()


def test_fragments_are_looked_at() -> None:
    wrong = markdown.Fence(
        "page",
        1,
        ("yaml",),
        "spec:\n  model:\n    instances: {kind: GPU}\n  server:\n    gpu: {count: 0}\n",
    )
    assert [len(findings(document)) for document in pipelines(wrong)] == [1]


CHART = markdown.ROOT / "charts" / "triton-pipelines"
VALUES_SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


def chart_values(fence: markdown.Fence) -> Iterator[dict[str, Any]]:
    """Yield the documents of an example that have only top-level values of the chart."""
    for document in libyaml.load_all(fence.text):
        if isinstance(document, dict) and document.keys() <= VALUES_SCHEMA["properties"].keys():
            yield document


@pytest.mark.parametrize(
    "fence", [fence for fence in YAML if any(True for _ in chart_values(fence))], ids=str
)
def test_the_chart_accepts_values(fence: markdown.Fence) -> None:
    for document in chart_values(fence):
        jsonschema.validate(document, VALUES_SCHEMA)


def test_wrong_values_are_found() -> None:
    wrong = markdown.Fence("page", 1, ("yaml",), "watch: {namespace: team-a}")
    with pytest.raises(jsonschema.ValidationError, match="namespace"):
        jsonschema.validate(next(chart_values(wrong)), VALUES_SCHEMA)


@pytest.mark.parametrize("page", markdown.pages(), ids=markdown.name)
def test_helm_commands_name_the_namespace(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(
        r"helm (?:install|upgrade|rollback|history|uninstall) triton-pipelines[^`\n]*", text
    )
    assert [command for command in found if "--namespace" not in command] == []


def commands(fence: markdown.Fence) -> Iterator[list[str]]:
    """Return the commands of a block, each split into words.

    In a console block with prompts, only the lines behind a prompt are commands.
    """
    text = fence.text.replace("\\\n", " ")
    lines = text.splitlines()
    if fence.language == "console" and any(line.startswith(("$ ", "# ")) for line in lines):
        lines = [line[2:] for line in lines if line.startswith(("$ ", "# "))]
    for line in lines:
        if re.match(r"\s*(?:[A-Z_]+=\S* )*(?:tritonpipe|make|python|python3)\b", line):
            # What follows a pipe, a list operator or a redirection is no argument.
            words = shlex.split(re.split(r"\s(?:\||\|\||&&|;|>|2>&1|&$)", line)[0], comments=True)
            yield [word for index, word in enumerate(words) if "=" not in word or index > 0]


def options(name: str) -> set[str]:
    """The options that a command of `tritonpipe` knows."""
    command = typer.main.get_command(app).commands.get(name)  # type: ignore[attr-defined]
    assert command is not None, f"tritonpipe has no command {name}"
    return {"--help"} | {
        option
        for parameter in command.params
        if parameter.param_type_name == "option"
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


COMMANDS = [
    pytest.param(words, id=f"{fence}: {' '.join(words)}")
    for fence in SHELL
    for words in commands(fence)
]
TARGETS = set(
    re.findall(
        r"^([a-z0-9-]+)(?: [a-z0-9- ]+)?:",
        (markdown.ROOT / "Makefile").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_exist(words: list[str]) -> None:
    if words[0] == "make":
        assert {
            word for word in words[1:] if "=" not in word and not word.startswith("-")
        } <= TARGETS
    elif words[0] == "tritonpipe":
        if words[1:] and not words[1].startswith("-") and words[1] != "COMMAND":
            used = {word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
            assert used <= options(words[1]) or words[1] == "load"
    elif "-m" in words:
        assert importlib.util.find_spec(words[words.index("-m") + 1]) is not None
    for word in words[1:]:
        if re.match(r"(manifests|charts|crds|docs|e2e|bench)/", word):
            assert (markdown.ROOT / word).exists(), word


def test_there_are_commands_to_look_at() -> None:
    said = [" ".join(parameter.values[0]) for parameter in COMMANDS]  # type: ignore[arg-type]
    assert {"make demo", "make test"} <= set(said)
    assert any(text.startswith("tritonpipe infer") for text in said)


@pytest.mark.parametrize("fence", PYTHON, ids=str)
def test_programs_are_python(fence: markdown.Fence) -> None:
    ast.parse(fence.text)


PATHS = {re.sub(r"(\[\]|\{\})", "", path) for path, _ in structural_schema.walk(whole_schema())}
# Below these stand objects of the Kubernetes API, or free keys.
OPEN = {
    re.sub(r"(\[\]|\{\})", "", path)
    for path, node in structural_schema.walk(whole_schema())
    if "additionalProperties" in node
}


@pytest.mark.parametrize(
    "page", [page for page in markdown.pages() if page.name != "api.md"], ids=markdown.name
)
def test_fields_exist(page: Path) -> None:
    """Every `spec.…` and `status.…` that a page names is a field."""
    named = set(
        re.findall(
            r"(?<![\w./-])((?:spec|status)(?:\.[a-zA-Z][a-zA-Z0-9]*)+)",
            "\n".join(re.findall(r"`([^`\n]+)`", markdown.prose(page))),
        )
    )
    unknown = {
        path
        for path in named
        if path not in PATHS and not any(path.startswith(f"{known}.") for known in OPEN)
    }
    assert unknown == set()
