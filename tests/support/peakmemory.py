"""Measure how much memory code needs at most, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MIB = 1024**2
_ROOT = Path(__file__).parents[2]
# VmHWM is the process' peak; ru_maxrss would be that of the test process, if that is larger.
_HARNESS = """
import asyncio, re, sys
from pathlib import Path

def figure(name):
    found = re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    return int(found.group(1)) * 1024

names = {}
exec(sys.argv[1], names)
Path("/proc/self/clear_refs").write_text("5")
before = figure("VmRSS")
asyncio.run(names["main"](*sys.argv[2:]))
print("growth", figure("VmHWM") - before)
"""


def peak_growth(code: str, *arguments: str, seconds: float = 60.0) -> int:
    """Return by how many bytes the peak memory of a process exceeds that before ``main``.

    Args:
        code: Python code that defines a coroutine function ``main``; imports are not measured.
        arguments: Arguments of ``main``.
        seconds: Time limit of the process.
    """
    done = subprocess.run(
        [sys.executable, "-c", _HARNESS, code, *arguments],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.rpartition("growth ")[2])
