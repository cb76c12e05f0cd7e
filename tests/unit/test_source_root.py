"""Check that the standard library's ``operator`` always wins over our source root ``operator/``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAYS = "import operator, sysconfig; print(operator.__file__); print(operator.itemgetter(1)('ab'))"


@pytest.mark.parametrize("path", [None, ".", "operator", "operator:."])
def test_the_standard_librarys_operator_wins(path: str | None) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | (
        {"PYTHONPATH": path} if path else {}
    )
    done = subprocess.run(
        [sys.executable, "-c", SAYS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    file, got = done.stdout.split()
    assert not Path(file).is_relative_to(ROOT / "operator")
    assert Path(file).name == "operator.py"
    assert got == "b"


def test_nothing_in_the_source_root_shadows_it() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "operator" / "operator.py").exists()
    assert sorted(path.name for path in (ROOT / "operator").iterdir() if path.suffix == ".py") == []


def test_the_package_is_found_and_typed() -> None:
    found = importlib.util.find_spec("triton_pipelines")
    assert found is not None
    assert found.origin is not None
    assert (Path(found.origin).parent / "py.typed").exists()
