"""Compare rendering with golden files that people have reviewed.

``PYTHONPATH=operator python -m tests.golden`` regenerates them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.golden import CASES, path_of, text_of

ROOT = Path(__file__).parents[3]
DIGEST = """
import hashlib
from tests.support.golden import CASES, text_of
print(hashlib.sha256("".join(map(text_of, CASES)).encode()).hexdigest())
"""


@pytest.mark.parametrize("case", CASES)
def test_renders_what_the_file_says(case: str) -> None:
    assert text_of(case) == path_of(case).read_text(encoding="utf-8")


def test_every_file_has_its_case() -> None:
    assert sorted(path.name for path in path_of("x").parent.glob("*.golden.txt")) == [
        path_of(case).name for case in CASES
    ]
    assert len(CASES) >= 8


def test_another_process_gives_the_same_bytes() -> None:
    here = hashlib.sha256("".join(map(text_of, CASES)).encode()).hexdigest()
    for seed in ("1", "4242"):
        environment = dict(os.environ) | {
            "PYTHONPATH": f"{ROOT / 'operator'}{os.pathsep}{ROOT}",
            "PYTHONHASHSEED": seed,
        }
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.strip() == here
