"""Tables of the comparison for the pages of docs/benchmarks; one number per cell. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[object]]]
"""Head and rows."""
ONE, MANY = "one text", "16 texts"
UNKNOWN = "not measured"


def throughput(found: Result, load: str) -> Table:
    """Return throughput, latency and CPU time with MiniLM, the fastest server first."""
    head = (
        "Server",
        "Requests/s (median)",
        "Lowest",
        "Highest",
        "p50 (ms)",
        "p99 (ms)",
        "CPU time per request (µs)",
    )
    servers = found["detail"]["loads"][load]
    order = sorted(servers, key=lambda name: -servers[name]["requestsPerSecond"][0])
    rows = [
        (
            _name(found, name),
            *_three(servers[name]["requestsPerSecond"]),
            number(servers[name]["p50Milliseconds"][0]),
            number(servers[name]["p99Milliseconds"][0]),
            _first(servers[name]["cpuMicrosecondsPerRequest"]),
        )
        for name in order
    ]
    return head, rows


def outside_model(found: Result) -> Table:
    """Return the CPU time outside the model, the least first, and the memory."""
    one, many = (found["detail"]["outsideModel"][load] for load in (ONE, MANY))
    key = "cpuMicrosecondsPerRequest"
    head = (
        "Server",
        f"{ONE} (µs)",
        "Lowest",
        "Highest",
        f"{MANY} (µs)",
        "Lowest",
        "Highest",
        "Memory (MiB)",
    )
    known = [name for name in one if one[name][key] is not None]
    rows = [
        (
            _name(found, name),
            *_three(one[name][key]),
            *_three(many[name][key]),
            found["detail"]["memoryMebibytes"].get(name, UNKNOWN),
        )
        for name in sorted(known, key=lambda name: float(one[name][key][0]))
    ]
    return head, rows


def shares(found: Result) -> Table:
    """Return where the pipeline's CPU time outside the model goes, by process."""
    head = ("Server", "Texts per request", "Process", "CPU time per request (µs)")
    return head, list(_shares(found["detail"]["shares"]))


def losses(found: Result) -> Table:
    """Return the figures in which a baseline is better than the pipeline."""
    head = ("Texts per request", "Figure", "Baseline", "Its value", "Best value of the pipeline")
    rows = [
        (one["load"], one["figure"], one["baseline"], number(one["theirs"]), _ours(one))
        for one in found["detail"]["losses"]
    ]
    return head, rows or [("none", "", "", "", "")]


def _ours(loss: Mapping[str, Any]) -> str:
    """Return the pipeline's value in a loss; 0 requests/s: its p99 is higher with any load."""
    return number(loss["ours"]) if loss["ours"] else "none: its p99 is always higher"


def _shares(by_server: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    for server, loads in by_server.items():
        for load, processes in loads.items():
            for process, cost in processes.items():
                yield server, load, process, number(cost)


def _name(found: Result, name: str) -> str:
    """Return the name of a server; the pipeline's forms are bold."""
    return f"**{name}**" if name in found["detail"]["pipeline"] else name


def _three(values: Sequence[float]) -> list[str]:
    return [number(value) for value in values]


def _first(values: Sequence[float] | None) -> str:
    return UNKNOWN if values is None else number(values[0])


def number(value: float) -> str:
    """Return a number with three significant digits, or as a whole number."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
