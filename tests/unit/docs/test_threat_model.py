"""Every claim of the threat model and every finding names tests, and every named test exists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.docs import markdown

FOLDER = markdown.ROOT / "docs" / "user"
PAGE = FOLDER / "threat-model.md"
# Page → first header of its tables, and how many rows they have at least.
PAGES = {
    PAGE: ("Claim", 40),
    FOLDER / "security-audit.md": ("Finding", 40),
    FOLDER / "security-audit-responses.md": ("Finding", 10),
}


def claims(text: str, header: str = "Claim") -> Iterator[tuple[str, str]]:
    """The claims or findings of the page, each with the cell that names its tests."""
    for table in text.split(f"| {header} | Mechanism | Tests |")[1:]:
        for row in table.partition("\n\n")[0].splitlines()[2:]:
            claim, _, tests = row.strip("| ").split(" | ")
            yield claim, tests


def faults(text: str, header: str = "Claim") -> list[str]:
    """What is wrong with the tables."""
    found = []
    for claim, tests in claims(text, header):
        links, wrong = markdown.linked_tests(PAGE, tests)
        found += [f"{claim}: {problem}" for problem in wrong]
        found += [] if links else [f"{claim}: names no test"]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_claim_names_tests_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    header, least = PAGES[page]
    assert faults(text, header) == []
    assert len(list(claims(text, header))) > least
    assert text.count("| Tests |") == text.count(f"| {header} | Mechanism | Tests |")


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| a | b | none |", "a: names no test"),
        ("| a | b | [test_x](../../tests/unit/nowhere.py) |", "nowhere.py does not exist"),
        (
            "| a | b | [test_gone](../../tests/unit/docs/test_threat_model.py) |",
            "has no test_gone",
        ),
    ],
)
def test_wrong_rows_are_found(row: str, fault: str) -> None:
    (found,) = faults(f"| Claim | Mechanism | Tests |\n| --- | --- | --- |\n{row}\n\nmore")
    assert fault in found
