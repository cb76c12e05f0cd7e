"""Every claim of the threat model names tests, and every named test exists."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.unit.docs import markdown

PAGE = markdown.ROOT / "docs" / "user" / "threat-model.md"
HEADER = "| Claim | Mechanism | Tests |"
LINK = re.compile(r"\[(test_\w+)\]\(([^)]+)\)")


def claims(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The claims of the page, each with the names and files of its tests."""
    table = text.partition(HEADER)[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        claim, _, tests = row.strip("| ").split(" | ")
        yield claim, LINK.findall(tests)


def faults(text: str) -> list[str]:
    """What is wrong with the table."""
    found = []
    for claim, tests in claims(text):
        found += [] if tests else [f"{claim}: names no test"]
        for name, file in tests:
            path = (PAGE.parent / file).resolve()
            if not path.is_file():
                found.append(f"{claim}: {file} does not exist")
            elif name not in markdown.functions(path.read_text(encoding="utf-8")):
                found.append(f"{claim}: {file} has no {name}")
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
