"""The pages on reliability name every fault and invariant of the runs, and tests that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.soak.faults import KINDS
from tests.support.soak.invariants import INVARIANTS
from tests.unit.docs import markdown

FOLDER = markdown.ROOT / "docs" / "benchmarks"
PAGES = "\n".join(
    page.read_text(encoding="utf-8") for page in sorted(FOLDER.glob("reliability*.md"))
)


def tables(text: str) -> Iterator[list[list[str]]]:
    """The tables of a page: rows of cells, the header first."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [
            [cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.splitlines()
        ]
        yield [row for number, row in enumerate(rows) if number != 1]


def column(text: str, header: str) -> list[str]:
    """The first cells of the rows of all tables whose first header this is."""
    return [row[0] for table in tables(text) if table[0][0] == header for row in table[1:]]


def faults(text: str) -> list[str]:
    """What is wrong with the rows that have to name a test."""
    found = []
    for header, *rows in tables(text):
        if header[-1] != "Test":
            continue
        for row in rows:
            links, wrong = markdown.linked_tests(FOLDER / "reliability.md", row[-1])
            if not links and row[-1] != "the same test":
                found.append(f"{row[0]}: names no test")
            found += [f"{row[0]}: {problem}" for problem in wrong]
    return found


def test_every_row_names_tests_that_exist() -> None:
    assert faults(PAGES) == []
    assert sum(len(table) - 1 for table in tables(PAGES) if table[0][-1] == "Test") > 25


def test_every_fault_and_every_invariant_of_the_runs_has_a_row() -> None:
    assert sorted(column(PAGES, "Random fault")) == sorted(kind.name for kind in KINDS)
    named = [f"`{item.__name__}`" for item in INVARIANTS]
    assert sorted(column(PAGES, "Invariant")) == sorted(named)


@pytest.mark.parametrize(
    ("cell", "fault"),
    [
        ("none", "a: names no test"),
        ("[test_x](../../tests/unit/nowhere.py)", "nowhere.py does not exist"),
        ("[test_gone](../../tests/unit/docs/test_reliability.py)", "has no test_gone"),
    ],
)
def test_wrong_rows_are_found(cell: str, fault: str) -> None:
    (found,) = faults(f"| Fault | Test |\n| --- | --- |\n| a | {cell} |\n")
    assert fault in found
