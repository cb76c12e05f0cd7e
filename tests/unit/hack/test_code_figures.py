"""Test the figures on the size and structure of the code."""

from __future__ import annotations

from hack.code_figures import figures, table

LONG = "def f() -> None:\n" + "    pass\n" * 60
WIDE = "x = 1  # " + "wide " * 30
PACKAGE = "operator/triton_pipelines/"


def test_each_figure_counts_what_its_name_says() -> None:
    tree = {
        PACKAGE + "a.py": "class Twice: ...\n" + LONG,
        PACKAGE + "b.py": "class Twice: ...\nclass Once: ...\n" + "x = 1\n" * 400,
        PACKAGE + "runtime/c.py": "class Once: ...\n" + LONG,
        "tests/test_d.py": WIDE + "\n" + LONG,
        "docs/e.md": f"# Title\n\n| {WIDE} |\n{WIDE}\n",
    }
    assert figures(tree) == {
        "lines of operator code": 62 + 402 + 62,
        "lines of tests": 62,
        "functions of the operator over 50 lines": 2,
        "other functions over 50 lines (tests, tools)": 1,
        "lines of code over 100 columns": 1,
        "lines of documentation over 100 columns, without tables": 1,
        "class names of the operator that occur twice": 1,
        "modules of the operator over 300 lines": 1,
        "modules of the operator over 400 lines": 1,
    }


def test_the_table_has_a_column_for_each_commit() -> None:
    assert table({"a": {"lines": 1234}, "b": {"lines": 5}}).splitlines() == [
        "| Figure | `a` | `b` |",
        "| --- | --- | --- |",
        "| lines | 1,234 | 5 |",
    ]
