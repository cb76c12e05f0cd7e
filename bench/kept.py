"""Runs of the simulator, kept: law, world, trace and seed decide a run wholly, so one that was made
need not be made again.

They lie in the cache folder below a hash of everything that decides them, the operator's own law
included: a changed line of it makes new runs, and a benchmark that was broken off goes on where it
was.
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
    """Every job's measures, in the order of the jobs; those not known yet are played, as many at a
    time as there are cores.

    Args:
        jobs: what is wanted.
        file: where runs are kept; default: in the cache folder.
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
    """Hash of the modules that decide a run, and of numpy's version: its generators make the
    traces.
    """
    modules = sorted(name for name in sys.modules if name.startswith(_DECIDING))
    return digest(
        [
            np.__version__,
            *(part for name in modules for part in (name, inspect.getsource(sys.modules[name]))),
        ]
    )
