"""Reject long functions of the operator: ``python -m hack.function_length``.

A function has at most 50 lines, its docstring not counted.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "operator" / "triton_pipelines"
LINES_MAX = 50
# Function → why it may be longer.
ALLOWED: Mapping[str, str] = {}


def long_functions(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, line and length of each function that is too long."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _lines(node) - (_lines(node.body[0]) if ast.get_docstring(node) else 0)
            if length > LINES_MAX:
                yield node.name, node.lineno, length


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def check(package: Path, allowed: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each long function, and for each allowance that allows nothing."""
    unused = set(allowed)
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        for name, line, length in long_functions(path.read_text(encoding="utf-8")):
            unused.discard(f"{file}:{name}")
            if f"{file}:{name}" not in allowed:
                yield (
                    f"{file}:{line}: {name} has {length} lines without its docstring; split it, at"
                    f" most {LINES_MAX} are allowed"
                )
    for function in sorted(unused):
        yield f"{function} is not too long; remove it from ALLOWED in hack/function_length.py"


def main() -> int:
    """Print what is too long; return exit code 1 if anything is."""
    messages = list(check(PACKAGE, ALLOWED))
    for message in messages:
        print(message)
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
