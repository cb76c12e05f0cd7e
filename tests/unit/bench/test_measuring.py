"""Benchmarks of scaling: changes in place, runs that are kept, bad metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import bad_metrics, kept
from bench.in_place import AFTER_SECONDS, Change, beyond
from bench.simulator.measures import Measures
from e2e.load.bins import Answer
from triton_pipelines.autoscaling.metrics.samples import (
    Counters,
    Failure,
    PodHistory,
    Sample,
    Scrape,
)

CHANGE = Change(1, 2, 10.0, 11.0)


@pytest.mark.parametrize(
    ("answer", "milliseconds"),
    [
        (Answer(9.9, 10.1), 100),
        (Answer(9.0, 9.99), 0),
        (Answer(11.0 + AFTER_SECONDS - 0.1, 30.0), 16_000),
        (Answer(11.0 + AFTER_SECONDS, 30.0), 0),
        (Answer(10.5, 12.5, "refused"), 0),
        (Answer(10.5, 10.55), 0),
    ],
    ids=["under way", "before", "soon after", "later", "failed", "quick"],
)
def test_longest_beyond_the_steady_one(answer: Answer, milliseconds: float) -> None:
    assert 1000 * beyond([answer], CHANGE, 0.1) == pytest.approx(milliseconds)


def measures(violations: float) -> Measures:
    return Measures(violations, 1.0, 2.0, 1, 2, 0, 0.01, 0.05, None, 0.0, 0)


def test_runs_are_made_once_and_a_broken_line_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs.jsonl"
    jobs = [("step", "managed", 1), ("step", "managed", 2)]
    monkeypatch.setattr(kept, "play", lambda scenario, law, seed: (None, measures(seed / 100)))
    assert [found.violations for _, found in kept.measures(jobs, file)] == [0.01, 0.02]
    monkeypatch.setattr(kept, "play", lambda scenario, law, seed: (None, measures(0.5)))
    assert [found.violations for _, found in kept.measures(jobs, file)] == [0.01, 0.02]
    file.write_text(file.read_text()[:-20])
    assert [found.violations for _, found in kept.measures(jobs, file)] == [0.01, 0.5]


def sample() -> Sample:
    scrapes = tuple(
        Scrape(
            1000.0 + 5 * n,
            {
                "tokenizer": Counters(success=10.0 * n, pending=1.0),
                "model": Counters(success=10.0 * n),
            },
        )
        for n in range(13)
    )
    return Sample({"pod-0": PodHistory(scrapes), "pod-1": PodHistory(scrapes)}, 5.0)


@pytest.mark.parametrize("fault", bad_metrics.FAULTS, ids=lambda fault: fault.name)
def test_every_fault_spoils_something(fault: bad_metrics.Fault) -> None:
    good = sample()
    spoilt = fault.spoil(good, 30.0)
    assert isinstance(spoilt, Failure) or spoilt != good
    assert good == sample()


def test_all_kinds_of_the_goal_are_there() -> None:
    assert {fault.kind for fault in bad_metrics.FAULTS} == {
        "missing",
        "stale",
        "partial",
        "implausible",
    }
