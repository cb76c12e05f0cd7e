"""A seed replays a run: the same faults in the same order, and each draws the same."""

from __future__ import annotations

from itertools import islice

from tests.support.soak.faults import KINDS
from tests.support.soak.run import Report, Row, schedule


def test_a_seed_decides_the_faults_and_what_they_draw() -> None:
    first = [(kind.name, random.random()) for kind, random in islice(schedule(7), 80)]
    again = [(kind.name, random.random()) for kind, random in islice(schedule(7), 80)]
    other = [(kind.name, random.random()) for kind, random in islice(schedule(8), 80)]
    assert first == again
    assert first != other


def test_a_round_has_every_fault_once() -> None:
    names = [kind.name for kind, _ in islice(schedule(7), 2 * len(KINDS))]
    assert len(set(names)) == len(KINDS)
    assert set(names[: len(KINDS)]) == set(names[len(KINDS) :])
    assert names[: len(KINDS)] != names[len(KINDS) :]


def test_one_fault_alone_can_be_replayed() -> None:
    name = KINDS[3].name
    assert {kind.name for kind, _ in islice(schedule(7, [name]), 5)} == {name}


def test_the_table_counts_by_fault() -> None:
    report = Report(7, {"pod killed": Row(2, 3.25, 100, 0, 4)})
    assert "| pod killed | 2 | 3.2 s | 100 | 4 | 0 |" in report.table()
    assert report.injected == 2
