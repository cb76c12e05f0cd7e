"""Table of live scaling before a real step (C9), for docs/benchmarks/scaling-gpu.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEAD = (
    "Run",
    "Requests/s offered",
    "Requests/s answered",
    "p99 within the SLO after",
    "Instances",
    "GPU utilization",
    "Model step busy",
    "Verdict under load",
    "Failed requests",
)


def gpu_runs(found: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Return the head and the rows: one for each run, at its highest load."""
    rows = []
    for name, one in found["detail"]["runs"].items():
        settled, recovery = one["settled"], one["recoverySeconds"]
        rows.append(
            (
                name,
                f"{one['requestsPerSecond'][1]:g}",
                f"{settled['answeredPerSecond']:.0f}",
                "never" if recovery is None else f"{recovery:.0f} s",
                " → ".join(str(count) for count in one["counts"]),
                f"{one['gpuPercent'][1]:.0f} %" if one["gpuPercent"] else "not measured",
                f"{settled['modelStepBusyPercent']:.0f} %",
                one["verdicts"][1] or "none (no loop)",
                one["failed"],
            )
        )
    return HEAD, rows
