"""``make test``: what counts as passed, failed and left out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hack import tiers
from hack.tiers import Tier


def command(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


PASS, FAIL = command("print('fine')"), command("raise SystemExit(3)")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "code", "summary"),
    [
        ({"a": Tier((PASS,), 1)}, 0, "1 passed, 0 failed, 0 left out"),
        ({"a": Tier((PASS, FAIL), 1)}, 1, "0 passed, 1 failed, 0 left out"),
        ({"a": Tier((PASS,), 1, lambda: "no node")}, 1, "0 passed, 0 failed, 1 left out"),
        (
            {"a": Tier((PASS,), 1), "b": Tier((PASS,), 1, lambda: "no node")},
            0,
            "1 passed, 0 failed, 1 left out",
        ),
        (
            {"a": Tier((PASS,), 1), "b": Tier((FAIL,), 1, alongside=True)},
            1,
            "1 passed, 1 failed, 0 left out",
        ),
        (
            {"a": Tier((FAIL,), 1), "b": Tier((PASS,), 1, alongside=True)},
            1,
            "1 passed, 1 failed, 0 left out",
        ),
    ],
)
def test_every_tier_is_counted_once(
    given: dict[str, Tier],
    code: int,
    summary: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tiers, "TIERS", given)
    assert tiers.main(list(given)) == code
    assert capfd.readouterr().out.splitlines()[-1] == f"tiers: {summary}"


def test_a_tier_that_runs_alongside_overlaps_and_shows_its_output(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    meet = command(
        "import pathlib, sys, time\n"
        "mine, other = (pathlib.Path('a'), pathlib.Path('b'))[:: int(sys.argv[1])]\n"
        "mine.touch()\n"
        "while not other.exists(): time.sleep(0.01)\n"
        "print('met', mine)"
    )
    given = {
        "first": Tier(((*meet, "1"),), 1),
        "second": Tier(((*meet, "-1"),), 1, alongside=True),
    }
    monkeypatch.setattr(tiers, "TIERS", given)
    assert tiers.main(list(given)) == 0
    shown = capfd.readouterr().out
    assert shown.index("met a") < shown.index("=== second (ran alongside)") < shown.index("met b")
