"""``make bench [ID=O5]``."""

from __future__ import annotations

import sys

from bench import (
    bad_metrics,
    baselines,
    collection,
    control_laws,
    direct_collection,
    equality,
    first_answer,
    gpu_scaling,
    in_place,
    native_step,
    overload,
    padding,
    padding_free,
    perf_analyzer,
    real_laws,
    scale,
    stages,
    step_response,
    tuner,
)
from bench.server_comparison import run as server_comparison

BENCHMARKS = {
    **dict.fromkeys(("O1", "O2", "O3", "O4", "O6"), scale.run),
    "O5": first_answer.run,
    **dict.fromkeys(
        ("S1", "S1-packed", "S1-cpu", "S2-fixed", "S2-longest", "S2-bucketed"), padding.run
    ),
    "S3": baselines.run,
    "PA": perf_analyzer.run,
    "S4": stages.run,
    "S5": stages.run,
    "S6": equality.run,
    "S7": server_comparison.run,
    "S8": padding_free.run,
    "S9": native_step.run,
    "overload": overload.run,
    "C1": step_response.run,
    "C2": step_response.run,
    "C3": step_response.run,
    "C4": in_place.run,
    "C5": control_laws.run,
    "C5-real": real_laws.run,
    "C6": bad_metrics.run,
    "C7": collection.run,
    "C7-direct": direct_collection.run,
    "C8": control_laws.run,
    "C9": gpu_scaling.run,
    "U1": tuner.predictions,
    "U2": tuner.choice,
    "C1-simulated": control_laws.run,
    "C2-simulated": control_laws.run,
    "C3-simulated": control_laws.run,
}


def main(wanted: list[str]) -> int:
    """Run the benchmarks asked for; ``all`` for every one."""
    names = list(BENCHMARKS) if wanted in ([], ["all"]) else wanted
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(
            f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr
        )
        return 2
    for run in dict.fromkeys(BENCHMARKS[name] for name in names):
        run()  # one run may make several results
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
