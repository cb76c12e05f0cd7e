"""Tables of live scaling before a real step (C9), and of the cost of many pipelines (O1 to O6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def pipeline_counts(found: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[Sequence[object]]]:
    """Return the head and the rows of O1 to O6: one column for each number of pipelines."""
    sizes: Sequence[Mapping[str, Any]] = found["detail"]["sizes"]
    cells: Sequence[tuple[str, str, Callable[[Mapping[str, Any]], str]]] = (
        ("O1", "CPU time per created pipeline", lambda one: f"{one['create_cpu_ms']:.0f} ms"),
        ("O1", "the same for a bare client", lambda one: f"{one['bare_cpu_ms']:.1f} ms"),
        ("O1", "time per created pipeline", lambda one: f"{one['create_ms']:.0f} ms"),
        ("O1", "the same for a bare client", lambda one: f"{one['bare_ms']:.0f} ms"),
        ("O1", "requests per created pipeline", lambda one: f"{one['create_requests']:.0f}"),
        ("O2", "writes after a restart", lambda one: f"{one['restart_writes']:.0f}"),
        ("O2", "CPU time of a restart", lambda one: f"{one['restart_cpu_seconds']:.1f} s"),
        ("O2", "time of a restart", lambda one: f"{one['restart_seconds']:.1f} s"),
        ("O3", "CPU while idle", lambda one: f"{one['idle_cpu_percent']:.2f} % of a core"),
        ("O3", "resident memory", lambda one: f"{one['memory_mib']:.0f} MiB"),
        ("O6", "slowest of ten new pipelines", lambda one: _slowest(one["new_seconds"])),
        (
            "O6",
            "the same while 30 pods hang",
            lambda one: _slowest(one["new_seconds_hung"]),
        ),
    )
    rows = [(goal, text, *(form(one) for one in sizes)) for goal, text, form in cells]
    head = ("ID", "Measurement", *(f"{one['pipelines']:,} pipelines" for one in sizes))
    return head, rows


def _slowest(seconds: Sequence[float]) -> str:
    return f"{max(seconds):.2f} s"
