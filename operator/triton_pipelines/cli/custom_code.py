"""Own code that stands in a resource, looked at before a server runs it. Only here, where the reader's own file is read: the operator parses nobody's code."""

from __future__ import annotations

import ast
import platform
from collections.abc import Iterator

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.compile.graph import Graph

CLASS = "TritonPythonModel"


def doubts(graph: Graph) -> list[Finding]:
    """Warnings about inline code: what does not parse, and what lacks the class or the method that Triton calls.

    They are no errors, since the server's Python may be another version than this one.
    """
    return [
        Finding(f"{step.path}.python.code.inline", doubt, Severity.WARNING)
        for step in graph.models
        if step.code is not None
        for doubt in _of(step.code)
    ]


def _of(code: str) -> Iterator[str]:
    try:
        module = ast.parse(code)
    except SyntaxError as error:
        yield f"line {error.lineno}: {error.msg}, says Python {platform.python_version()}; a server of that version or an older one cannot load it"
        return
    except (ValueError, RecursionError, MemoryError):
        return  # a NUL, or nested deeper than this process takes: the server says it
    found = _defined(module)
    if found is None:
        yield f"defines no class {CLASS}, which Triton looks for"
    elif (
        isinstance(found, ast.ClassDef)
        and not found.bases
        and not any(_binds(part, "execute") for part in ast.walk(found))
    ):
        yield f"line {found.lineno}: {CLASS} has no method execute, which Triton calls with every batch"


def _defined(module: ast.Module) -> ast.AST | None:
    """What binds the name at any place of the module: a class, an import, an assignment. A star import may."""
    return next((node for node in ast.walk(module) if _binds(node, CLASS) or _star(node)), None)


def _star(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name == name
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any((alias.asname or alias.name) == name for alias in node.names)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(target, ast.Name) and target.id == name for target in targets)
    return False
