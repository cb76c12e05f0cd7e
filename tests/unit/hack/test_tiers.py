"""``make test``: what counts as passed, failed and left out."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from e2e.local import binaries, native
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
        ({"a": Tier((PASS, FAIL), 1, parallel=True)}, 1, "0 passed, 1 failed, 0 left out"),
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


MEET = command(
    "import pathlib, sys, time\n"
    "mine, other = (pathlib.Path('a'), pathlib.Path('b'))[:: int(sys.argv[1])]\n"
    "mine.touch()\n"
    "while not other.exists(): time.sleep(0.01)\n"
    "print('met', mine)"
)
"""Ends only if the same command with the other argument, 1 or -1, runs at the same time."""


def test_a_tier_that_runs_alongside_overlaps_and_shows_its_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {
        "first": Tier(((*MEET, "1"),), 1),
        "second": Tier(((*MEET, "-1"),), 1, alongside=True),
    }
    monkeypatch.setattr(tiers, "TIERS", given)
    assert tiers.main(list(given)) == 0
    shown = capfd.readouterr().out
    assert shown.index("met a") < shown.index("=== second (ran alongside)") < shown.index("met b")


def test_commands_of_a_parallel_tier_overlap_and_every_failure_is_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiers, "CORES", 2)
    commands = ((*MEET, "1"), (*MEET, "-1"), (*FAIL, "c"), PASS, (*FAIL, "d"))
    monkeypatch.setattr(tiers, "TIERS", {"a": Tier(commands, 1, parallel=True)})
    assert tiers.main(["a"]) == 1
    shown = capfd.readouterr().out
    assert shown.index("met a") < shown.index("met b") < shown.index("fine")
    (outcome,) = [line for line in shown.splitlines() if "FAILED" in line]
    assert " c; " in outcome
    assert outcome.endswith(" d")


def test_low_priority_is_for_tiers_next_to_one_that_runs_alongside(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    show = command("import os, sys; print(sys.argv[1], os.nice(0))")
    given = {
        "low": Tier(((*show, "low"),), 1, low_priority=True),
        "other": Tier(((*show, "other"),), 1),
        "beside": Tier(((*show, "beside"),), 1, alongside=True),
    }
    monkeypatch.setattr(tiers, "TIERS", given)
    own = os.nice(0)
    assert tiers.main(["low"]) == 0
    assert f"low {own}\n" in capfd.readouterr().out
    assert tiers.main(list(given)) == 0
    shown = capfd.readouterr().out
    assert f"low {min(own + 5, 19)}\n" in shown
    assert f"other {own}\n" in shown
    assert f"beside {own}\n" in shown


def test_no_tier_starts_without_a_compiler_that_a_later_one_needs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def rust() -> None:
        raise native.NativeBuildError("no Rust toolchain found")

    def go() -> None:
        raise binaries.BinaryError("no Go toolchain found")

    given = {
        "first": Tier((PASS,), 1),
        "second": Tier((PASS,), 1, toolchains=(rust, go)),
        "third": Tier((PASS,), 1, alongside=True, toolchains=(rust,)),
        "elsewhere": Tier((PASS,), 1, lambda: "no node", toolchains=(go,)),
    }
    monkeypatch.setattr(tiers, "TIERS", given)
    assert tiers.main(list(given)) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "error: second, third: no Rust toolchain found",
        "error: second: no Go toolchain found",
    ]
    assert tiers.main(["first"]) == 0


@pytest.mark.parametrize("name", ["integration", "e2e", "gpu"])
def test_tiers_that_serve_a_tokenizer_need_rust_until_it_is_built(name: str) -> None:
    assert native.require in tiers.TIERS[name].toolchains


def test_a_toolchain_is_needed_only_for_what_is_not_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(native.NativeBuildError, match="no Rust toolchain found: install Rust"):
        native.require()
    with pytest.raises(binaries.BinaryError, match="no Go toolchain found: install Go"):
        binaries.require(["helm"])
    for built in (native.built_library(), binaries.built("helm")):
        built.parent.mkdir(parents=True)
        built.touch()
    native.require()
    binaries.require(["helm"])
