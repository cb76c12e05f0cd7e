"""Every claim of the threat model names tests, and every named test exists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.docs import markdown

PAGE = markdown.ROOT / "docs" / "user" / "threat-model.md"
HEADER = "| Claim | Mechanism | Tests |"


def claims(text: str) -> Iterator[tuple[str, str]]:
    """The claims of the page, each with the cell that names its tests."""
    table = text.partition(HEADER)[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        claim, _, tests = row.strip("| ").split(" | ")
        yield claim, tests


def faults(text: str) -> list[str]:
    """What is wrong with the table."""
    found = []
    for claim, tests in claims(text):
        links, wrong = markdown.linked_tests(PAGE, tests)
        found += [f"{claim}: {problem}" for problem in wrong]
        found += [] if links else [f"{claim}: names no test"]
    return found


def test_every_claim_names_tests_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert faults(text) == []
    assert len(list(claims(text))) > 20


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
    (found,) = faults(f"{HEADER}\n| --- | --- | --- |\n{row}\n\nmore")
    assert fault in found
