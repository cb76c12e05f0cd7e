"""What runs inside Triton: one self-contained ``model.py`` per kind of step.

Each file is copied alone into the version folder of a model. It imports only the standard library,
numpy, ``triton_python_backend_utils`` and the one library that its step needs. If it imports other
modules of this package, from its own folder or shared by the steps, their text replaces the import.
The files run on the Python of the Triton image: 3.10 in releases up to 24.10, 3.12 later.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from typing import Final

_FUTURE: Final = "\nfrom __future__ import annotations\n"
STEPS: Final = ("postprocess", "onnx_runner")


@functools.cache
def source(step: str) -> str:
    """Return the complete ``model.py`` of ``step`` (one of ``STEPS``), with its modules inlined."""
    if step not in STEPS:
        raise ValueError(f"no runtime for '{step}': one of {', '.join(STEPS)}")
    return _whole(step, f"{step}.model", set())


@functools.cache
def tracing_source() -> str:
    """Return the file that Triton runs around a step's ``model.py`` while it is traced."""
    return importlib.resources.files(__name__).joinpath("tracing.py").read_text(encoding="utf-8")


def _whole(step: str, module: str, inlined: set[str]) -> str:
    """Return a module's text with the modules that it imports, each of them once.

    Args:
        step: the step whose folder ``module`` may import from.
        module: name of the module within this package.
        inlined: names of the modules that are already part of the text; extended here.
    """
    folder, _, name = module.rpartition(".")
    file = importlib.resources.files(__name__).joinpath(folder, f"{name}.py")
    imports = re.compile(
        rf"^from {re.escape(__name__)}\.((?:{step}\.)?\w+) import (?:\([^)]*\)|.*)\n", re.MULTILINE
    )

    def text_of(line: re.Match[str]) -> str:
        if line[1] in inlined:
            return ""
        inlined.add(line[1])
        return _as_part(_whole(step, line[1], inlined))

    return imports.sub(text_of, file.read_text(encoding="utf-8"))


def _as_part(text: str) -> str:
    """Return a module's text in a form that fits into another module.

    The docstring becomes comments. The import from the future is removed, because it is allowed
    only at the head of a file.
    """
    docstring, rest = text.removeprefix('"""').split('"""\n', 1)
    said = [f"# {line}".rstrip() for line in docstring.rstrip().splitlines()]
    return "\n".join([*said, rest.replace(_FUTURE, "", 1)])
