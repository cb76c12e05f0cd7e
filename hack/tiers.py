"""Runs test tiers in turn, says what each took against its budget, what was left out and why. A left-out tier never counts as passed.

python -m hack.tiers lint unit integration e2e
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hack import gpu

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
WORKERS = str(min(4, os.cpu_count() or 1))


@dataclass(frozen=True)
class Tier:
    """A tier: its commands in turn, its budget in minutes on a warm two-core machine, and why it cannot run here (empty: it can)."""

    commands: tuple[tuple[str, ...], ...]
    minutes: int
    obstacle: Callable[[], str] = field(default=lambda: "")


def _python(*arguments: str) -> tuple[str, ...]:
    return (str(BIN / "python"), *arguments)


def _pytest(*arguments: str) -> tuple[str, ...]:
    """A run of pytest that says at its end where the time went."""
    return _python("-m", "pytest", *arguments, "--durations=15", "--durations-min=5")


BUILT = (
    "etcd",
    "kube-apiserver",
    "kubectl",
    "kube-controller-manager",
    "kube-scheduler",
    "helm",
    "kind",
    "kstatus",
    "argodiff",
    "versitygw",
    "fake-gcs-server",
    "registry",
)


def _real_parts() -> str:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"a local Triton and control plane need Linux on x86-64, this is {sys.platform} on {platform.machine()}"
    return ""


def _cluster() -> str:
    if os.environ.get("KUBECONFIG"):
        return ""
    if _real_parts():
        return _real_parts()
    if os.geteuid() != 0:
        return "a local node needs root; give a cluster with KUBECONFIG=... instead"
    return ""


def _gpu() -> str:
    return _real_parts() or gpu.obstacle()


TIERS = {
    "lint": Tier(
        (
            (str(BIN / "ruff"), "check", "."),
            (str(BIN / "ruff"), "format", "--check", "."),
            (str(BIN / "mypy"),),
            (str(BIN / "lint-imports"),),
            _python("-m", "hack.terminology"),
            _python("-m", "hack.verify"),
        ),
        3,
    ),
    # Measured on two cores: 6 000 tests in 224 s.
    "unit": Tier((_pytest("tests/unit", "-q", "-n", WORKERS),), 5),
    # The unit tier with branches counted: fail_under and exclusions are in pyproject.toml.
    "coverage": Tier(
        (
            _pytest(
                "tests/unit",
                "-q",
                "-n",
                WORKERS,
                "--cov",
                "--cov-report=term",
                "--cov-report=html",
            ),
        ),
        12,
    ),
    # Measured on two cores: 916 s, the closed loops on a real Triton and Prometheus in it.
    # Cold builds take minutes and show their progress; inside a test they would only run into its time limit.
    "integration": Tier(
        (
            _python("-m", "e2e.local.binaries", *BUILT),
            _pytest(
                "tests/integration",
                "-q",
                "-n",
                WORKERS,
                "--dist=loadfile",
                "--no-loadscope-reorder",
                "--timeout=600",
            ),
        ),
        18,
        _real_parts,
    ),
    # Most of it is waiting: drains that have to outlast clients, pods that come and go one after the other. The tests share one operator, which
    # some of them kill and one watches for silence, so they run in turn. Measured on two cores: 1 267 s.
    "e2e": Tier((_pytest("e2e/suite", "-q", "--maxfail=5", "--timeout=900"),), 23, _cluster),
    "gpu": Tier((_pytest("tests/gpu", "-q", "--timeout=600"),), 10, _gpu),
}


def main(wanted: list[str]) -> int:
    """Run the tiers; exit code 1 when one failed, or when none of those asked for could run."""
    unknown = [name for name in wanted if name not in TIERS]
    if unknown or not wanted:
        print(f"tiers: {', '.join(TIERS)}; not {', '.join(unknown) or 'nothing'}", file=sys.stderr)
        return 2
    results: list[tuple[str, str, float]] = []
    for name in wanted:
        obstacle = TIERS[name].obstacle()
        if obstacle:
            results.append((name, f"LEFT OUT: {obstacle}", 0.0))
            continue
        print(f"\n=== {name} (budget {TIERS[name].minutes} min)", flush=True)
        began = time.monotonic()
        failed = next(
            (" ".join(command) for command in TIERS[name].commands if _run(command)), None
        )
        results.append(
            (name, f"FAILED: {failed}" if failed else "passed", time.monotonic() - began)
        )
    print("\n=== tiers")
    for name, outcome, seconds in results:
        over = " (over budget)" if seconds > TIERS[name].minutes * 60 else ""
        print(f"{name:12} {seconds:7.0f} s of {TIERS[name].minutes * 60} s{over}  {outcome}")
    passed = sum(outcome == "passed" for _, outcome, _ in results)
    broken = sum(outcome.startswith("FAILED") for _, outcome, _ in results)
    print(
        f"tiers: {passed} passed, {broken} failed, {len(results) - passed - broken} left out",
        flush=True,
    )
    return 1 if broken or not passed else 0


def _run(command: tuple[str, ...]) -> int:
    print(f"--- {' '.join(command)}", flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
