"""Test that custom code in a resource is checked before any server is.

It is rejected if it does not parse or if something that Triton calls is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import builders
from tests.unit.docs import markdown

from .conftest import Run

STEP: dict[str, Any] = {"platform": "python", "source": None}
FIELD = "spec.model.python.code.inline"


def warnings(tritonpipe: Run, code: str) -> list[str]:
    """What `validate` warns of at the code."""
    document = builders.document(model={**STEP, "python": {"code": {"inline": code}}})
    ended = tritonpipe("validate", "-", text=yaml.safe_dump(document).encode())
    assert ended.code == 0, ended.out
    return [line.partition(f"{FIELD}: ")[2] for line in ended.out.splitlines() if FIELD in line]


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        ("import json\ndef x(:\n", "line 2: invalid syntax"),
        ("class TritonPythonModel:\nx = 1\n", "line 2: expected an indented block"),
        ("import json\n", "class TritonPythonModel is missing"),
        (
            "class TritonPythonmodel:\n    def execute(self, requests): ...\n",
            "class TritonPythonModel is missing",
        ),
        (
            "import json\n\n\nclass TritonPythonModel:\n    def excute(self, requests): ...\n",
            "line 4: TritonPythonModel has no execute method",
        ),
    ],
)
def test_what_cannot_work_is_warned_of(tritonpipe: Run, code: str, reported: str) -> None:
    (said,) = warnings(tritonpipe, code)
    assert said.startswith(reported)


@pytest.mark.parametrize(
    "code",
    [
        "class TritonPythonModel:\n    def execute(self, requests): ...\n",
        "from ranker import TritonPythonModel\n",
        "from ranker import Model as TritonPythonModel\n",
        "from ranker import *\n",
        "class Base: ...\nclass TritonPythonModel(Base): ...\n",
        "def make(): ...\nTritonPythonModel = make()\n",
        "try:\n    import a\nexcept ImportError:\n    a = None\n"
        "if a:\n    class TritonPythonModel:\n        async def execute(self, requests): ...\n",
    ],
)
def test_what_may_work_is_not(tritonpipe: Run, code: str) -> None:
    assert warnings(tritonpipe, code) == []


def test_code_that_no_parser_takes_ends_nothing(tritonpipe: Run) -> None:
    (said,) = warnings(tritonpipe, "x = " + "(" * 5000 + "1" + ")" * 5000)
    assert said.startswith("line 1: too many nested parentheses")
    assert warnings(tritonpipe, "x = " + "-" * 50000 + "1") == []


@pytest.mark.parametrize(
    "sample",
    sorted((Path(markdown.ROOT) / "manifests/samples").glob("*.yaml")),
    ids=lambda path: path.stem,
)
def test_samples_are_not_warned_of(tritonpipe: Run, sample: Path) -> None:
    assert "code.inline" not in tritonpipe("validate", str(sample)).out
