"""CPU time and memory of process trees, from what the kernel writes."""

from __future__ import annotations

import os

from bench import process_tree
from bench.process_tree import ProcessStat

STAT = "42 (a (b) c) S 7 42 42 0 -1 4194560 120 0 0 0 31 11 5 6 20 0 1 0 100 1 2"


def test_a_process_name_may_contain_spaces_and_parentheses() -> None:
    assert process_tree.parse_stat(STAT) == ProcessStat(parent=7, ticks=42)


def test_processes_below_one_are_found_at_any_depth() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 5}
    processes = {pid: ProcessStat(parent, 0) for pid, parent in parents.items()}
    assert process_tree.below(2, processes) == {3, 4}
    assert process_tree.below(4, processes) == set()


def test_memory_counts_shared_pages_by_their_share() -> None:
    text = "5555-7fff ---p 0 00:00 0 [rollup]\nRss:  9000 kB\nPss:  1234 kB\nPss_Anon:  1000 kB\n"
    assert process_tree.parse_memory(text) == 1234 * 1024


def test_this_process_has_cpu_time_memory_and_a_command() -> None:
    assert process_tree.memory_bytes(os.getpid()) > 2**20
    own = process_tree.cpu_by_command(os.getpid())
    assert any("python" in command[0] for command in own)
    assert process_tree.cpu_seconds(os.getpid()) >= max(own.values())
