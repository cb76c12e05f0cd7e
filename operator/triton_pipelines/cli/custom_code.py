"""Check custom code in a resource before a server runs it.

Only the CLI does this, on the user's own file: the operator never parses user code.
"""

from __future__ import annotations

import ast
import platform
from collections.abc import Iterator

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.compile.graph import Graph

CLASS = "TritonPythonModel"


def code_warnings(graph: Graph) -> list[Finding]:
    """Return warnings about inline code.

    They cover code that does not parse, and a missing class or method that Triton calls.
    They are not errors, because the server's Python may be another version than this one.
    """
    return [
        Finding(
            f"{step.path}.python.code.inline",
            problem,
            Severity.WARNING,
            code=FindingCode.CUSTOM_CODE,
        )
        for step in graph.models
        if step.code is not None
        for problem in _of(step.code)
    ]


def _of(code: str) -> Iterator[str]:
    try:
        module = ast.parse(code)
    except SyntaxError as error:
        yield (
            f"line {error.lineno}: {error.msg} (Python {platform.python_version()});"
            " a server of that version or an older one cannot load it"
        )
        return
    except (ValueError, RecursionError, MemoryError):
        return  # a NUL, or nested too deeply for this process: the server reports it
    definition = _defined(module)
    if definition is None:
        yield f"class {CLASS} is missing; Triton looks for it"
    elif (
        isinstance(definition, ast.ClassDef)
        and not definition.bases
        and not any(_binds(part, "execute") for part in ast.walk(definition))
    ):
        yield (
            f"line {definition.lineno}: {CLASS} has no execute method, which Triton calls "
            "for each batch"
        )


def _defined(module: ast.Module) -> ast.AST | None:
    """Return the node that binds the class name: a class, an import or an assignment.

    A star import may bind it, too.
    """
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
