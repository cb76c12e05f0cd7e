"""``make soak``: inject random faults for a long time. See the package."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests.support.controlplane import ControlPlane
from tests.support.operators import CRD_FILE
from tests.support.soak.faults import KINDS
from tests.support.soak.run import Report, run


def main(arguments: list[str] | None = None) -> int:
    """Run; exit code 1 if an invariant did not hold."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.soak", description="Inject random faults and check invariants"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="time to run (default 10)")
    parser.add_argument("--seed", type=int, help="seed of an earlier run (default: a new one)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[kind.name for kind in KINDS],
        metavar="FAULT",
        help="inject only this fault; may be repeated",
    )
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="tritonpipe-soak-"))
    print(f"seed {seed}, {options.minutes:g} minutes, logs in {folder}", flush=True)
    with ControlPlane(controllers=True, crds=(CRD_FILE,)) as plane:
        report = asyncio.run(
            run(
                seed,
                60 * options.minutes,
                plane,
                folder,
                only=options.only,
                say=lambda line: print(line, flush=True),
            )
        )
    return _conclude(report)


def _conclude(report: Report) -> int:
    print(f"\n{report.table()}\n")
    print(f"seed {report.seed}: {report.injected} faults in {report.seconds:.0f} s")
    for text in report.violations[:20]:
        print(f"VIOLATED {text}")
    if report.violations:
        return 1
    print("every invariant held after every fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
