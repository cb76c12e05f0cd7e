"""Tests that the hooks of pre-commit are local and run the commands of the lint tier."""

from __future__ import annotations

import shlex
from pathlib import Path

import yaml

from hack import tiers

CONFIGURATION = yaml.safe_load((tiers.ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))


def test_hooks_are_local_and_need_no_environment_of_their_own() -> None:
    assert [repository["repo"] for repository in CONFIGURATION["repos"]] == ["local"]
    assert {hook["language"] for hook in CONFIGURATION["repos"][0]["hooks"]} == {"system"}


def test_hooks_run_what_lint_runs() -> None:
    hooks = [shlex.split(hook["entry"]) for hook in CONFIGURATION["repos"][0]["hooks"]]
    lint = [[f".venv/bin/{Path(tool).name}", *rest] for tool, *rest in tiers.TIERS["lint"].commands]
    # Hooks run one after the other, quick ones first; the tier starts with the longest.
    assert sorted(hooks) == sorted(lint)
