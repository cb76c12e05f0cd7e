"""CPU time and memory of a process and all processes below it, from ``/proc``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessStat:
    """One process, from its ``stat`` file."""

    parent: int
    """Process id of the parent."""
    ticks: int
    """CPU time in user and kernel mode, in clock ticks."""


def parse_stat(text: str) -> ProcessStat:
    """Return a process from its ``stat`` file, whose second field may hold any characters."""
    # Behind the name: state, parent, …, ticks in user and kernel mode.
    fields = text.rpartition(")")[2].split()
    return ProcessStat(int(fields[1]), int(fields[11]) + int(fields[12]))


def below(root: int, processes: Mapping[int, ProcessStat]) -> set[int]:
    """Return the processes below one, without itself."""
    found: set[int] = set()
    frontier = {root}
    while frontier:
        frontier = {pid for pid, one in processes.items() if one.parent in frontier} - found
        found |= frontier
    return found


def cpu_seconds(root: int | None = None) -> float:
    """Return the CPU time of a process and those below it.

    Without a root: that of all processes below this one, the servers that a benchmark started.
    """
    processes = _processes()
    pids = below(os.getpid(), processes) if root is None else {root, *below(root, processes)}
    return sum(processes[pid].ticks for pid in pids if pid in processes) / _TICKS


def cpu_by_command(root: int) -> dict[tuple[str, ...], float]:
    """Return the CPU time of a process and those below it, by their command lines."""
    processes = _processes()
    found: dict[tuple[str, ...], float] = {}
    for pid in {root, *below(root, processes)} & processes.keys():
        with contextlib.suppress(OSError):
            line = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0")
            command = tuple(os.fsdecode(word) for word in line.split(b"\0"))
            found[command] = found.get(command, 0.0) + processes[pid].ticks / _TICKS
    return found


def memory_bytes(root: int) -> int:
    """Return the memory of a process and those below it; a shared page counts once in total."""
    pids = {root, *below(root, _processes())}
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += parse_memory((PROC / str(pid) / "smaps_rollup").read_text(encoding="utf-8"))
    return total


def parse_memory(text: str) -> int:
    """Return the proportional set size of a ``smaps_rollup`` file, in bytes."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "Pss":
            return int(value.split()[0]) * 1024
    return 0


def _processes() -> dict[int, ProcessStat]:
    found = {}
    for stat in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = stat.read_text(encoding="utf-8", errors="replace")
            found[int(stat.parent.name)] = parse_stat(text)
    return found
