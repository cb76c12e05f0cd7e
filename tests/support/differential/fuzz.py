"""Compare the validator with a real Triton for a long time: ``make fuzz``.

Every run uses new repositories. It stops at the first disagreement, makes it as small as it can,
and leaves it in a folder.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from .engine import Counts, Differential, DisagreementError, Repository, running
from .reduction import disagrees, smallest
from .repositories import repositories

_EXAMPLES = 100
_AT_ONCE = 4


def campaign(differential: Differential, number: int, examples: int = _EXAMPLES) -> None:
    """Compare ``examples`` draws of up to four repositories each.

    The draws are those of seed ``number``.

    Raises:
        DisagreementError: the first one, made as small as can be.
    """
    found: list[Repository] = []

    # Hypothesis draws; what it finds is made smaller here, which takes a twentieth of the time.
    @seed(number)
    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(repositories(), min_size=1, max_size=_AT_ONCE))
    def compare(drawn: list[Repository]) -> None:
        if found:
            return
        try:
            differential.compare(drawn)
        except DisagreementError:
            found.extend(repository for repository in drawn if disagrees(differential, repository))
            if not found:
                raise

    compare()
    if found:
        differential.compare([smallest(differential, found[0])])


def main(arguments: list[str] | None = None) -> int:
    """Run; exit code 1 when the two sides disagreed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.differential",
        description=__doc__.splitlines()[0] if __doc__ else None,
    )
    parser.add_argument(
        "--loads", type=int, default=5000, help="real loads to reach (default 5000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=900.0, help="time to stop after in any case (default 900)"
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="seed of an earlier run (default: a new one)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/fuzz"),
        help="folder for what was found (default out/fuzz)",
    )
    options = parser.parse_args(arguments)
    number = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    print(f"seed {number}: at least {options.loads} loads, or {options.seconds:.0f} s", flush=True)
    began, total, rounds = time.monotonic(), Counts(), 0
    while total.loads < options.loads and time.monotonic() - began < options.seconds:
        # A server per round: its memory grows with every load.
        with (
            tempfile.TemporaryDirectory(prefix="tritonpipe-fuzz-") as folder,
            running(Path(folder) / "server") as differential,
        ):
            try:
                campaign(differential, number + rounds)
            except DisagreementError as error:
                options.out.mkdir(parents=True, exist_ok=True)
                target = options.out / f"disagreement-{number + rounds}.txt"
                target.write_text(f"{error}\n")
                print(
                    (
                        f"{error}\n\nseed {number + rounds}: the judge and Triton disagree; "
                        f"saved as {target}"
                    ),
                    flush=True,
                )
                return 1
            finally:
                total.add(differential.counts)
        rounds += 1
        print(f"{time.monotonic() - began:6.0f} s  {total}", flush=True)
    print(
        "rules met: " + ", ".join(f"{rule} {count}" for rule, count in total.rules.most_common()),
        flush=True,
    )
    return 0
