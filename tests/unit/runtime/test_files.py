"""Test what all runtime files share.

They have no imports from each other and run on the oldest Python of a supported Triton image.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triton_pipelines import runtime

# Triton images up to 24.10 carry Python 3.10.
OLDEST_PYTHON = (3, 10)
ALLOWED = {"numpy", "tokenizers", "onnxruntime", "triton_python_backend_utils"}


def imported_packages(source: str) -> set[str]:
    """Return the packages that a file imports.

    Raises:
        SyntaxError: The oldest Python cannot read it.
    """
    tree = ast.parse(source, feature_version=OLDEST_PYTHON)
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in imported}


@pytest.mark.parametrize("step", runtime.STEPS)
def test_imports_and_syntax(step: str) -> None:
    roots = imported_packages(runtime.source(step))
    assert roots - ALLOWED <= sys.stdlib_module_names
    assert "numpy" in roots


@pytest.mark.parametrize("step", runtime.STEPS)
def test_packages_of_the_site_folders_come_after_the_images_own(step: str, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "triton_python_backend_utils.py").write_text(f"origin = {folder.name!r}")
        (folder / "json.py").write_text("raise ImportError('the image has its own')")
    code = f"import runpy; print(runpy.run_path({str(tmp_path / 'model.py')!r})['pb_utils'].origin)"
    (tmp_path / "model.py").write_text(runtime.source(step))
    environment = {**os.environ, "TRITONPIPE_SITE": os.pathsep.join(["", *map(str, folders)])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("one", "")


def test_the_file_that_traces_a_step_needs_only_the_standard_library() -> None:
    assert imported_packages(runtime.tracing_source()) <= sys.stdlib_module_names


def test_an_unknown_step_is_named() -> None:
    with pytest.raises(ValueError, match="no runtime for 'other'"):
        runtime.source("other")
