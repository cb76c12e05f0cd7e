"""The comparison with other projects: every statement names its source."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs import markdown

PAGE = markdown.ROOT / "docs" / "user" / "comparison.md"
TEXT = PAGE.read_text(encoding="utf-8")
TABLES, SOURCES = TEXT.split("## Sources")
NUMBERS = {int(number) for number in re.findall(r"^(\d+)\. \[", SOURCES, re.MULTILINE)}
OURS = "This project"
PROJECTS = (
    *("KServe", "Seldon Core 2", "NIM Operator", "SuperSONIC", "Dynamo", "TEI"),
    "With any Triton",
)


def cited(text: str) -> set[int]:
    """Return the numbers of the sources that a text cites."""
    groups = re.findall(r"\[(\d+(?:, \d+)*)\](?!\()", text)
    return {int(number) for group in groups for number in group.split(", ")}


def statements(cell: str) -> list[str]:
    """Split a cell into what it says about each project."""
    return re.split(rf"(?<=[.;]) (?=(?:{'|'.join(PROJECTS)})[^.]*?: )", cell)


def cells(tables: str) -> list[tuple[str, str]]:
    """Return heading and text of each cell behind the first column."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", tables, re.MULTILINE):
        heading, _, *rows = (
            [cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()
        )
        for name, *values in rows:
            for column, value in zip(heading[1:], values, strict=True):
                found.append((OURS if OURS in (name, column) else f"{name}, {column}", value))
    return found


CELLS = cells(TABLES)


def test_all_tables_are_read() -> None:
    assert len(CELLS) >= 30
    assert sum(whose == OURS for whose, _ in CELLS) >= 14


@pytest.mark.parametrize(("whose", "cell"), CELLS)
def test_every_cell_has_a_source(whose: str, cell: str) -> None:
    if whose == OURS:
        assert re.search(r"\]\([^)]+\.md\)", cell), f"{cell!r} links no page"
        return
    for statement in statements(cell):
        assert cited(statement), f"{statement!r} cites no source"
        assert cited(statement) <= NUMBERS


def test_every_source_is_cited() -> None:
    assert cited(TABLES) == NUMBERS


def test_a_statement_without_a_source_is_found() -> None:
    ((whose, cell),) = cells(
        "| Question | Others |\n| --- | --- |\n| a | KServe: b [1]. TEI: c. |\n"
    )
    assert [sorted(cited(one)) for one in statements(cell)] == [[1], []]
    assert whose != OURS
