"""Rewrite the expected output of rendering, and the messages that users read.

``PYTHONPATH=operator python -m tests.golden`` from the repository's root.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.golden import CASES, path_of, text_of
from tests.support.messages import FILE, FIXTURE, ROOT

UNIT = ROOT / "tests" / "unit"


def write_messages() -> int:
    """Rewrite the golden messages by running the tests that check them; return pytest's code."""
    files = sorted(
        str(path.relative_to(ROOT))
        for path in UNIT.rglob("test_*.py")
        if f"{FIXTURE}: Messages" in path.read_text(encoding="utf-8")
    )
    workers = str(min(4, os.cpu_count() or 1))
    command = (sys.executable, "-m", "pytest", "-q", "-n", workers, f"--write-messages={FILE}")
    return subprocess.run((*command, *files), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    for name in CASES:
        path_of(name).parent.mkdir(parents=True, exist_ok=True)
        path_of(name).write_text(text_of(name), encoding="utf-8")
        print(f"wrote {path_of(name).name}")
    sys.exit(write_messages())
