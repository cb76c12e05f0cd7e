"""Result files: ``bench/results/ID.json``, from which the docs' tables are made."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
THRESHOLDS = FOLDER / "thresholds.json"
RESULTS = Path(os.environ.get("BENCH_RESULTS") or FOLDER / "results")
"""Where results and plots are written; a rehearsal writes to another folder."""
NATIVE = "-native"
"""Ends the ids of results with the native tokenizer, where the ids without it are those of the
removed Python tokenizer (docs/decisions/0040-one-tokenizer.md)."""


def write(
    identity: str,
    samples: Sequence[float],
    *,
    unit: str,
    goal: str,
    met: bool,
    workload: str,
    stand_ins: Sequence[str],
    detail: dict[str, Any],
    command: str | None = None,
) -> Path:
    """Write one result.

    Its value is the median of ``samples``, and its spread their minimum and maximum. ``command``
    repeats the measurement, by default ``make bench`` with the id.
    """
    document = {
        "id": identity,
        "value": round(statistics.median(samples), 3),
        "unit": unit,
        "spread": [round(min(samples), 3), round(max(samples), 3)],
        "runs": len(samples),
        "goal": goal,
        "met": met,
        "workload": workload,
        "stand_ins": list(stand_ins),
        "command": command or f"make bench ID={identity}",
        "commit": _commit(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "detail": detail,
    }
    path = RESULTS / f"{identity}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def thresholds() -> dict[str, dict[str, str]]:
    """The goals by id."""
    result: dict[str, dict[str, str]] = json.loads(THRESHOLDS.read_text(encoding="utf-8"))
    return result


def _commit() -> str:
    """Return the checkout's commit; empty where there is no git."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=FOLDER,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
