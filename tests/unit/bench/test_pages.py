"""Pages made of results: honest about what is missed, and what is not measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import pages, typography

RESULT: dict[str, Any] = {
    "id": "C1",
    "value": 9.0,
    "unit": "s",
    "spread": [7.0, 1e9],
    "met": False,
    "workload": "documents",
    "stand_ins": ["a sleep"],
    "machine": "Linux x86_64, 2 CPUs",
    "command": "make bench ID=C1",
    "date": "2026-01-01",
    "commit": "abc",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    return tmp_path


def write(folder: Path, **changes: Any) -> None:
    (folder / "C1.json").write_text(json.dumps(RESULT | changes))


def test_what_is_missed_is_said_with_its_reason(folder: Path) -> None:
    write(folder)
    text = pages.results(["C1", "C2"])
    assert "| 9 (7 to never) s | **missed** |" in text
    assert f"- C1: {json.loads(pages.MISSED_GOALS.read_text())['C1']}" in " ".join(text.split())
    assert "| not measured yet |  |" in text


def test_what_is_met_needs_no_reason(folder: Path) -> None:
    write(folder, met=True, spread=[9.0, 9.0])
    assert pages.results(["C1"]).endswith("| 9 s | met |")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yield 4 300. Then 2 147 483 647", "yield 4,300. Then 2,147,483,647"),
        ("1.2 % (9.0 % of it), 80 ms", "1.2% (9.0% of it), 80 ms"),
        ("at 127 1284 or 1.5 000 or v1 000", "at 127 1284 or 1.5 000 or v1 000"),
    ],
)
def test_percents_and_thousands_are_typeset(text: str, expected: str) -> None:
    assert typography.typeset(text) == expected


def test_a_percentage_has_its_sign_at_every_number(folder: Path) -> None:
    write(folder, value=15.7, spread=[0.2, 33.4], unit="% error, per point", met=True)
    assert "| 15.7% (0.2% to 33.4%) error, per point | met |" in pages.results(["C1"])
    write(folder, value=98.0, spread=[98.0, 98.0], unit="percent", met=True)
    assert "| 98% | met |" in pages.results(["C1"])


def test_every_goal_that_may_be_missed_has_a_reason_at_hand() -> None:
    assert {"C1", "C2", "C3", "C4", "C5", "C6", "C8"} <= json.loads(
        pages.MISSED_GOALS.read_text()
    ).keys()


def test_runs_changes_and_faults_are_tables(folder: Path) -> None:
    run = {
        "workload": "documents",
        "source": "direct",
        "recoverySeconds": None,
        "violationsPercent": 1.25,
        "violationsOfThisRunPercent": 9.0,
        "cost": 1.2,
        "counts": [1, 2, 1],
        "starvedPercent": 6.0,
        "failed": 0,
        "verdicts": ["Balanced"],
    }
    assert (
        "| documents | direct | never | 1.2 % (9.0 % of this short run) | 1.20 | 1 → 2 → 1 | "
        "6 % | 0 | Balanced |"
    ) in pages.runs({"detail": {"runs": [run]}})
    change = {
        "workload": "short",
        "requestsPerSecond": 300.0,
        "requests": 9000,
        "failed": 0,
        "steadyLongestMilliseconds": 20.0,
        "longestBeyondSteadyMilliseconds": [3.0, 44.0],
        "changeSeconds": [0.3, 2.4],
    }
    assert "| short | 300 | 9000 | 0 | 20 ms | 3, 44 ms | 0.30 to 2.40 s |" in pages.changes(
        {"detail": {"workloads": [change]}}
    )
    fault = {"goodMetrics": [4], "faults": {"old samples": {"kind": "stale", "downwardSteps": [0]}}}
    assert pages.faults({"detail": fault}).splitlines()[2:] == [
        "| stale | old samples | 0 |",
        "| none | good metrics, for comparison | 4 |",
    ]


def test_blocks_are_renewed_and_all_else_stays(folder: Path) -> None:
    write(folder)
    text = (
        "before\n\n<!-- setup: C1 -->\nold\n<!-- end -->\n\n"
        "between\n\n<!-- faults: C6 -->\n<!-- end -->\n"
    )
    once = pages.page(text)
    assert "old" not in once
    assert "| a sleep |" in once
    assert "Not measured yet: `make bench ID=C6`." in once
    assert once.startswith("before\n\n<!-- setup: C1 -->\n")
    assert pages.page(once) == once


def test_only_plots_that_there_are(folder: Path) -> None:
    (folder / "plots").mkdir()
    (folder / "plots" / "C1-short.svg").touch()
    assert (
        pages.block("plots", ["C1-documents", "C1-short"])
        == "![C1-short](../../bench/results/plots/C1-short.svg)"
    )
    assert pages.block("plots", ["C9"]) == "No plots have been made yet."


@pytest.mark.parametrize("mark", ["nothing: C1", "runs: C1 C2", "results: C99"])
def test_marks_that_mean_nothing_are_refused(mark: str) -> None:
    with pytest.raises(pages.PageError):
        pages.page(f"<!-- {mark} -->\n<!-- end -->\n")
