"""Test the check of function lengths: what it counts, and that the operator passes."""

from __future__ import annotations

from pathlib import Path

from hack.function_length import ALLOWED, LINES_MAX, PACKAGE, check


def written(folder: Path, name: str, lines: int) -> str:
    """A function of this many lines, whose docstring has three more."""
    (folder / name).parent.mkdir(exist_ok=True)
    body = "\n".join(["    x = 1"] * (lines - 1))
    text = f'async def long():\n    """Summary.\n\n    More.\n    """\n{body}\n'
    (folder / name).write_text(text, encoding="utf-8")
    return f"{name}:long"


def test_the_docstring_does_not_count(tmp_path: Path) -> None:
    written(tmp_path, "good.py", LINES_MAX)
    assert list(check(tmp_path, {})) == []


def test_a_longer_function_is_rejected_unless_it_is_allowed(tmp_path: Path) -> None:
    function = written(tmp_path, "bad.py", LINES_MAX + 1)
    (message,) = check(tmp_path, {})
    assert message.startswith(f"bad.py:1: long has {LINES_MAX + 1} lines")
    assert list(check(tmp_path, {function: "reason"})) == []


def test_an_allowance_that_allows_nothing_is_rejected(tmp_path: Path) -> None:
    function = written(tmp_path, "good.py", LINES_MAX)
    assert list(check(tmp_path, {function: "reason"})) == [
        "good.py:long is not too long; remove it from ALLOWED in hack/function_length.py"
    ]


def test_the_operator_passes() -> None:
    assert list(check(PACKAGE, ALLOWED)) == []
