"""Find the Python packages that custom code imports: the server's image must contain them."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Final

# Modules that the python backend itself provides, and numpy, without which it does not run.
_PROVIDED: Final = frozenset(
    {"triton_python_backend_utils", "c_python_backend_utils", "numpy", "__main__"}
)


def imported_packages(files: Mapping[str, str]) -> list[str]:
    """Return the packages that Python files import, sorted.

    Modules of the standard library, of the python backend and of the files themselves are left out.
    Code that cannot be parsed imports nothing as far as this is concerned.

    Args:
        files: path below the code's folder → text.
    """
    local = {part.removesuffix(".py") for path in files for part in path.split("/")}
    found = {name for text in files.values() for name in _imports(text)}
    return sorted(found - local - _PROVIDED - sys.stdlib_module_names)


def _imports(text: str) -> Iterator[str]:
    """Yield the top-level names of the modules that a text imports."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]
