"""``make bench [ID=O5]``."""

from __future__ import annotations

import sys

from bench import collection, control_laws, first_answer

BENCHMARKS = {
    "O5": first_answer.run,
    "C5": control_laws.run,
    "C7": collection.run,
    "C8": control_laws.run,
    "C1-simulated": control_laws.run,
    "C2-simulated": control_laws.run,
    "C3-simulated": control_laws.run,
}


def main(wanted: list[str]) -> int:
    """Run the benchmarks asked for; ``all`` for every one."""
    names = list(BENCHMARKS) if wanted in ([], ["all"]) else wanted
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for run in dict.fromkeys(BENCHMARKS[name] for name in names):
        run()  # one run may make several results
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
