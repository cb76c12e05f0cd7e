"""``make bench [ID=O5]``."""

from __future__ import annotations

import sys

from bench import first_answer

BENCHMARKS = {"O5": first_answer.run}


def main(wanted: list[str]) -> int:
    """Run the benchmarks asked for; ``all`` for every one."""
    names = list(BENCHMARKS) if wanted in ([], ["all"]) else wanted
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names:
        BENCHMARKS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
