"""Cache runs of the simulator.

Law, world, trace and seed determine a run completely, so a run is never repeated. Runs are stored
in the cache folder under a hash of everything that determines them, including the operator's own
law. A changed line of it leads to new runs, and an interrupted benchmark resumes where it stopped.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bench.simulator.measures import Measures
from bench.simulator.scenarios import SCENARIOS, play
from e2e.local.cache import cache_root, digest

Job = tuple[str, str, int]
"""Scenario, law, seed."""

_DECIDING = (
    "triton_pipelines.autoscaling.metrics.",
    "triton_pipelines.autoscaling.",
    "bench.simulator.",
)
_SHOWN_EVERY = 25


def measures(jobs: Sequence[Job], file: Path | None = None) -> Iterator[tuple[Job, Measures]]:
    """Return the measures of every job, in the order of the jobs.

    Jobs without a cached run are simulated, as many at a time as there are cores.

    Args:
        jobs: The jobs.
        file: Where runs are cached; by default in the cache folder.
    """
    file = file if file is not None else cache_root() / f"simulated-{_inputs()}" / "runs.jsonl"
    known = _read(file)
    missing = [job for job in jobs if job not in known]
    if missing:
        print(
            (
                f"{len(jobs) - len(missing)} of {len(jobs)} runs are known, {len(missing)} to "
                "make, some 2 s each"
            ),
            flush=True,
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        with (
            file.open("a", encoding="utf-8") as kept,
            ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool,
        ):
            for number, (job, found) in enumerate(
                zip(missing, pool.map(_one, missing), strict=True), 1
            ):
                known[job] = found
                kept.write(json.dumps({"job": job, "measures": asdict(found)}) + "\n")
                kept.flush()
                if number % _SHOWN_EVERY == 0:
                    print(f"{number} of {len(missing)} made", flush=True)
    return ((job, known[job]) for job in jobs)


def _one(job: Job) -> Measures:
    return play(SCENARIOS[job[0]], job[1], job[2])[1]


def _read(file: Path) -> dict[Job, Measures]:
    found: dict[Job, Measures] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            document = json.loads(line)
            name, law, seed = document["job"]
            found[name, law, seed] = Measures(**document["measures"])
        except (ValueError, KeyError, TypeError):
            continue  # written by half when somebody ended it
    return found


def _inputs() -> str:
    """Return a hash of the modules that determine a run, and of numpy's version.

    Numpy's generators create the traces.
    """
    modules = sorted(name for name in sys.modules if name.startswith(_DECIDING))
    return digest(
        [
            np.__version__,
            *(part for name in modules for part in (name, inspect.getsource(sys.modules[name]))),
        ]
    )
