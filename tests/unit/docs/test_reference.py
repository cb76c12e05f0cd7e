"""Check that lists in the docs are complete.

They are: commands with their options, reasons, banned words, and changelog fragments.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hack import measured
from tests.unit.docs import markdown
from triton_pipelines.api.conditions import KIND_OF, ConditionType, Reason, ReasonKind
from triton_pipelines.app.config import OperatorConfig, variable_of
from triton_pipelines.cli.main import app

CLI = "\n".join(
    page.read_text(encoding="utf-8")
    for page in sorted((markdown.ROOT / "docs/user").glob("cli*.md"))
)
REASONS = (markdown.ROOT / "docs/runbooks/reasons.md").read_text(encoding="utf-8")
STATUS = (markdown.ROOT / "docs/user/status.md").read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """Sections of the second level by their headings."""
    parts = re.split(r"^## +(.+?) *$", text, flags=re.MULTILINE)[1:]
    return {title.strip("`"): body for title, body in zip(parts[::2], parts[1::2], strict=True)}


def _help_of_load() -> str:
    """The loader reads its own arguments: its help is asked of the program."""
    result = CliRunner().invoke(app, ["load", "--help"])
    assert result.exit_code == 0
    return result.stdout


def known_options(name: str) -> set[str]:
    """Long options of a command of `tritonpipe`."""
    if name == "load":
        return set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", _help_of_load(), re.MULTILINE)) - {
            "--help"
        }
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    return {
        option
        for parameter in command.params
        if parameter.param_type_name == "option"
        for option in parameter.opts
        if option.startswith("--")
    } - {"--help"}


def test_every_command_has_its_section() -> None:
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert {
        title.split()[1] for title in sections(CLI) if title.startswith("tritonpipe ")
    } == commands


@pytest.mark.parametrize(
    "title", [title for title in sections(CLI) if title.startswith("tritonpipe ")]
)
def test_every_option_is_told_and_no_other(title: str) -> None:
    reported = set(re.findall(r"^\| `(--[a-z-]+)", sections(CLI)[title], re.MULTILINE))
    assert reported == known_options(title.split()[1])


def test_operator_variables_are_those_of_the_configuration() -> None:
    reported = set(re.findall(r"`(TRITONPIPE_[A-Z_]+)`", sections(CLI)["tritonpipe operator"]))
    assert reported <= {variable_of(name) for name in OperatorConfig.model_fields}
    assert {variable_of(name) for name in OperatorConfig.model_fields} <= reported


def test_every_reason_that_is_not_fine_has_a_section() -> None:
    assert set(sections(REASONS)) == {
        reason.value for reason in Reason if KIND_OF[reason] is not ReasonKind.FINE
    }


def test_the_table_of_first_steps_has_every_section_once() -> None:
    rows = re.findall(r"^\| (\[.+?) \| (.+) \|$", REASONS.partition("## ")[0], re.MULTILINE)
    led_to = [title for reasons, _ in rows for title in re.findall(r"\[(\w+)\]\(#\w+\)", reasons)]
    assert sorted(led_to) == sorted(sections(REASONS))


def test_the_status_page_has_every_reason_in_the_row_of_its_kind() -> None:
    rows = {
        first.partition(":")[0]: set(re.findall(r"\b[A-Z]\w+", reported))
        for first, reported in re.findall(r"^\| ([a-z][^|]*?) \| (.+) \|$", STATUS, re.MULTILINE)
    }
    for kind in ReasonKind:
        assert rows[kind.value.lower()] == {
            reason.value for reason in Reason if KIND_OF[reason] is kind
        }


@pytest.mark.parametrize("title", sections(REASONS))
def test_a_section_says_what_it_means_how_to_check_and_how_to_fix_it(title: str) -> None:
    for part in ("**Meaning.**", "**Check.**", "**Fix.**"):
        assert part in sections(REASONS)[title]


def test_status_page_names_every_condition() -> None:
    for condition in ConditionType:
        assert f"| `{condition.value}` |" in STATUS


# Folders of somebody's machine, and addresses of package indexes: a page is for any machine.
FORBIDDEN = re.compile(
    (
        r"/work/|/root\b|/home/\w|/tmp/team|\bpypi\.org|pythonhosted|"
        r"registry\.npmjs|proxy\.golang|crates\.io|artifactory|\bnexus\b|\bissue #?\d"
    ),
    re.IGNORECASE,
)


def test_the_readme_has_at_most_700_words() -> None:
    assert len((markdown.ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700


LONG_PAGES = {
    "docs/decisions/0014-ragged-onnx-graphs.md": "a decision is one record",
    "docs/decisions/0021-bounded-busy-time.md": "a decision is one record",
    "docs/decisions/0033-native-tokenizer.md": "a decision is one record",
    "docs/glossary.md": "readers look up one term; links need all terms on one page",
    "docs/index.md": "lists every page; the navigation of the site is generated from it",
    "docs/reference/api.md": "generated from the models of the API",
    "docs/reference/field-coverage.md": "generated from the CRD and the tests",
    "docs/runbooks/reasons.md": "readers look up one reason; one table leads to all",
    "docs/user/threat-model.md": "readers look up one claim; one table has all, with their tests",
}
"""Pages that may have more than 1,500 words, and why they are not split."""


def _word_count(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in sorted((markdown.ROOT / "docs").rglob("*.md"))
        if markdown.name(page) not in LONG_PAGES
    ],
    ids=markdown.name,
)
def test_a_page_has_at_most_1500_words(page: Path) -> None:
    assert _word_count(page) <= 1500


@pytest.mark.parametrize("name", LONG_PAGES)
def test_a_page_that_may_be_long_is_long(name: str) -> None:
    assert _word_count(markdown.ROOT / name) > 1500


@pytest.mark.parametrize("page", markdown.pages(), ids=markdown.name)
def test_pages_speak_of_the_product_alone(page: Path) -> None:
    found = [
        f"{number}: {line}"
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert found == []


def test_changelog_fragments_build() -> None:
    draft = subprocess.run(
        [
            sys.executable,
            "-m",
            "towncrier",
            "build",
            "--draft",
            "--version",
            "9.9.9",
            "--date",
            "2000-01-01",
            "--dir",
            str(markdown.ROOT),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "9.9.9" in draft
    reported = " ".join(draft.split())
    for fragment in (markdown.ROOT / "changelog.d").glob("*.md"):
        # +WHAT.TYPE.md; a fragment of another type would be passed over in silence.
        assert fragment.name.split(".")[-2] in ("feature", "bugfix", "doc", "removal"), (
            fragment.name
        )
        assert " ".join(fragment.read_text(encoding="utf-8").split()[:6]) in reported, fragment.name


def test_the_table_of_measured_figures() -> None:
    figures = {"requests": 900, "failed": 1, "longestGapMilliseconds": 35}
    assert measured.table({"Surge, replicas 1": {"grpc": figures}}).splitlines()[2] == (
        "| Surge, replicas 1 | 1 of 900 failed; longest gap 35 ms | – | – |"
    )


def test_every_sample_is_listed() -> None:
    samples = {path.name for path in (markdown.ROOT / "manifests/samples").glob("*.yaml")}
    assert samples == {
        link
        for link in markdown.links(markdown.ROOT / "manifests/samples/README.md")
        if link.endswith(".yaml")
    }


def test_the_roles_page_names_every_resource_of_the_roles() -> None:
    page = (markdown.ROOT / "docs/user/operator-permissions.md").read_text(encoding="utf-8")
    roles = sections(page)["Roles"].lower().replace(" ", "")
    templates = markdown.ROOT / "charts/triton-pipelines/templates"
    rules = "\n".join(
        (templates / name).read_text(encoding="utf-8") for name in ("_helpers.tpl", "rbac.yaml")
    )
    listed = {
        part.strip()
        for resources in re.findall(r"resources: \[(.+)\]", rules)
        for resource in resources.split(",")
        for part in resource.split("/")
    }
    assert {"podmonitors", "leases", "resize"} <= listed
    assert sorted(resource for resource in listed if resource not in roles) == []
