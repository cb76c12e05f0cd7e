"""What runs inside Triton: one self-contained ``model.py`` per kind of step.

Each is laid alone into a model's version folder, so it imports only the standard library, numpy, ``triton_python_backend_utils`` and the one library its
step is about. The modules of this package that it imports, of its own folder or shared by the steps, are put in the place of the lines that import them. It
runs on the Python of the Triton image: 3.10 in releases up to 24.10, 3.12 later.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from typing import Final

_FUTURE: Final = "\nfrom __future__ import annotations\n"
STEPS: Final = ("tokenizer", "postprocess", "onnx_runner")


@functools.cache
def source(step: str) -> str:
    """Text of the ``model.py`` of ``step`` (one of ``STEPS``), whole: with the files that it is made of."""
    if step not in STEPS:
        raise ValueError(f"no runtime for '{step}': one of {', '.join(STEPS)}")
    return _whole(step, f"{step}.model")


@functools.cache
def tracing_source() -> str:
    """Return the file that Triton runs around a step's ``model.py`` while it is traced."""
    return importlib.resources.files(__name__).joinpath("tracing.py").read_text(encoding="utf-8")


def _whole(step: str, module: str) -> str:
    text = importlib.resources.files(__name__).joinpath(*f"{module.replace('.', '/')}.py".split("/")).read_text(encoding="utf-8")
    imports = re.compile(rf"^from {re.escape(__name__)}\.((?:{step}\.)?\w+) import .*\n", re.MULTILINE)
    return imports.sub(lambda line: _inlined(_whole(step, line[1])), text)


def _inlined(text: str) -> str:
    """A module's text as a part of another one's: its docstring as comments, without the import from the future, which stands at the head of a file only."""
    docstring, rest = text.removeprefix('"""').split('"""\n', 1)
    said = [f"# {line}".rstrip() for line in docstring.rstrip().splitlines()]
    return "\n".join([*said, rest.replace(_FUTURE, "", 1)])
