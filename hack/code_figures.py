"""Print figures on the size and structure of the code at commits.

    python -m hack.code_figures COMMIT [COMMIT …]

The output is a Markdown table with one column per commit.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Mapping

from hack.function_length import ROOT, long_functions

FOLDERS = ("operator", "tests", "e2e", "bench", "hack", "docs")
COLUMNS_MAX = 100
MODULE_LINES = (300, 400)
# Files in this folder stand alone inside Triton, so their names do not have to be unique.
_RUNTIME = "operator/triton_pipelines/runtime/"

Tree = Mapping[str, str]


def tree_of(commit: str) -> Tree:
    """Return the text of the Python and Markdown files of a commit by path."""
    archive = subprocess.run(
        ("git", "archive", "--format=tar", commit, *FOLDERS),
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for item in files:
            content = files.extractfile(item) if item.name.endswith((".py", ".md")) else None
            if content is not None:
                found[item.name] = content.read().decode("utf-8")
    return found


def figures(tree: Tree) -> dict[str, int]:
    """Return the figures of a tree by name."""
    code = {path: text for path, text in tree.items() if path.endswith(".py")}
    operator = {path: text for path, text in code.items() if path.startswith("operator/")}
    modules = {path: text for path, text in operator.items() if not path.startswith(_RUNTIME)}
    others = {path: text for path, text in code.items() if path not in operator}
    names = Counter(name for text in modules.values() for name in _class_names(text))
    return {
        "lines of operator code": _lines(operator),
        "lines of tests": _lines(_below(code, "tests/", "e2e/")),
        "functions of the operator over 50 lines": _long_functions(operator),
        "other functions over 50 lines (tests, tools)": _long_functions(others),
        "lines of code over 100 columns": _wide_lines(code),
        "lines of documentation over 100 columns, without tables": _wide_lines(
            {path: _without_tables(text) for path, text in _below(tree, "docs/").items()}
        ),
        "class names of the operator that occur twice": sum(n > 1 for n in names.values()),
        **{
            f"modules of the operator over {most} lines": sum(
                len(text.splitlines()) > most for text in operator.values()
            )
            for most in MODULE_LINES
        },
    }


def table(columns: Mapping[str, Mapping[str, int]]) -> str:
    """Return a Markdown table of figures by commit."""
    head = ["Figure", *(f"`{commit}`" for commit in columns)]
    names = next(iter(columns.values()))
    rows = [[name, *(f"{one[name]:,}" for one in columns.values())] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _below(tree: Tree, *folders: str) -> Tree:
    return {path: text for path, text in tree.items() if path.startswith(folders)}


def _lines(tree: Tree) -> int:
    return sum(len(text.splitlines()) for text in tree.values())


def _wide_lines(tree: Tree) -> int:
    return sum(len(line) > COLUMNS_MAX for text in tree.values() for line in text.splitlines())


def _without_tables(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


def _long_functions(tree: Tree) -> int:
    return sum(1 for text in tree.values() for _ in long_functions(text))


def _class_names(text: str) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


if __name__ == "__main__":
    print(table({commit: figures(tree_of(commit)) for commit in sys.argv[1:]}))
