"""Run test tiers in turn and report their times against their budgets.

The report also names the tiers that were skipped and why. A skipped tier never counts as passed.

python -m hack.tiers lint unit integration e2e
"""

from __future__ import annotations

import concurrent.futures
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from e2e.local import binaries, native
from hack import gpu

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CORES = min(4, os.cpu_count() or 1)
WORKERS = str(CORES)
WAITING_WORKERS = str(CORES + 1)
"""For tests that wait for servers half of the time."""
LOW_PRIORITY = ("nice", "-n", "5")
ENVIRONMENT = {"GOGC": "400", **os.environ}
"""Of all commands: Go programs collect garbage less often.

Tests on API servers take a seventh less CPU time. An API server takes half as much memory again.
"""


@dataclass(frozen=True)
class Tier:
    """A test tier.

    Attributes:
        commands: Run in turn; the first that fails ends the tier.
        minutes: Budget on a warm two-core machine, when ``make test`` runs all tiers.
        obstacle: Return why the tier cannot run here, or an empty string.
        alongside: The tier mostly waits, so it runs next to the others when there are any. Its
            output is printed when it has ended.
        toolchains: Raise if a compiler is missing that the tier needs for a build not yet made.
            No tier starts then: a first build may come only after minutes.
        low_priority: Leaves the CPU to tiers that run alongside, which take longest.
        parallel: All commands run, as many at once as there are cores. The output of each is
            printed when it has ended.
    """

    commands: tuple[tuple[str, ...], ...]
    minutes: int
    obstacle: Callable[[], str] = field(default=lambda: "")
    alongside: bool = False
    toolchains: tuple[Callable[[], None], ...] = ()
    low_priority: bool = False
    parallel: bool = False


def _python(*arguments: str) -> tuple[str, ...]:
    return (str(BIN / "python"), *arguments)


def _pytest(*arguments: str) -> tuple[str, ...]:
    """A run of pytest that says at its end where the time went."""
    return _python("-m", "pytest", *arguments, "--durations=15", "--durations-min=5")


# What `codespell` reads; its exceptions are in pyproject.toml.
SPELLED = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "changelog.d",
    "docs",
    "operator",
    "bench",
    "e2e",
    "hack",
    "crds",
    "charts",
    "manifests",
    "native",
    "tests/golden/messages.yaml",
)
ON_CLUSTER = (*binaries.CONTROL_PLANE, *binaries.NODE, "helm")
BUILT = (
    # Those of the e2e tier as well: servers that a test starts next to a cold build get too little
    # CPU time to start within its limit.
    *ON_CLUSTER,
    "kind",
    "kstatus",
    "argodiff",
    "versitygw",
    "fake-gcs-server",
    "registry",
)
API_SERVERS = (
    *binaries.API_SERVER,
    *map(binaries.api_server, binaries.OLDER_KUBERNETES),
    "helm",
)


def _real_parts() -> str:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return (
            f"a local Triton and control plane need Linux on x86-64, this is {sys.platform} on "
            f"{platform.machine()}"
        )
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
            # The longest first.
            _python("-m", "hack.verify"),
            (str(BIN / "mypy"),),
            (str(BIN / "ruff"), "check", "."),
            (str(BIN / "ruff"), "format", "--check", "."),
            (str(BIN / "lint-imports"),),
            _python("-m", "hack.function_length"),
            _python("-m", "hack.terminology"),
            (str(BIN / "codespell"), *SPELLED),
        ),
        3,
        low_priority=True,
        parallel=True,
    ),
    # Measured on two cores: 6 000 tests in 224 s.
    "unit": Tier((_pytest("tests/unit", "-q", "-n", WORKERS),), 5, low_priority=True),
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
    # Cold builds take minutes and show their progress. Inside a test they would exceed its time
    # limit.
    "integration": Tier(
        (
            _python("-m", "e2e.local.binaries", *BUILT),
            _python("-m", "e2e.local.native"),
            _pytest(
                "tests/integration",
                "-m",
                "not older_kubernetes",
                "-q",
                "-n",
                WAITING_WORKERS,
                "--dist=loadfile",
                "--no-loadscope-reorder",
                "--timeout=600",
            ),
        ),
        18,
        _real_parts,
        toolchains=(native.require, lambda: binaries.require(BUILT)),
        low_priority=True,
    ),
    # The API servers of older versions of Kubernetes. Their cold builds take longer than the tests,
    # so `make test` runs these tests for the pinned version only.
    "compatibility": Tier(
        (
            _python("-m", "e2e.local.binaries", *API_SERVERS),
            _pytest("tests/integration/compatibility", "-q", "--timeout=600"),
        ),
        3,
        _real_parts,
        toolchains=(lambda: binaries.require(API_SERVERS),),
    ),
    # A third of the time is waiting: for drains that have to outlast clients, and for pods that
    # start and stop one after the other. The tests run in turn because they share one operator,
    # which some of them kill and one requires to be idle. Two clusters at a time take 1,180 s
    # instead of 1,740 s, but leave no time to the integration tests, which then end later.
    "e2e": Tier(
        (_pytest("e2e/suite", "-q", "--maxfail=5", "--timeout=900"),),
        25,
        _cluster,
        alongside=True,
        toolchains=(native.require, lambda: binaries.require(ON_CLUSTER)),
    ),
    "gpu": Tier(
        (_pytest("tests/gpu", "-q", "--timeout=600"),), 10, _gpu, toolchains=(native.require,)
    ),
}


def main(wanted: list[str]) -> int:
    """Run the tiers; exit code 1 when one failed, or when none of those asked for could run."""
    unknown = [name for name in wanted if name not in TIERS]
    if unknown or not wanted:
        names = ", ".join(unknown) or "nothing"
        print(f"tiers: {', '.join(TIERS)}; not {names}", file=sys.stderr)
        return 2
    obstacles = {name: TIERS[name].obstacle() for name in wanted}
    runnable = [name for name in wanted if not obstacles[name]]
    if missing := _missing_toolchains(runnable):
        print(*missing, sep="\n", file=sys.stderr)
        return 2
    alongside = [name for name in runnable if TIERS[name].alongside and len(runnable) > 1]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        started = {name: pool.submit(_run_alongside, name) for name in alongside}
        outcomes = {
            name: _run_tier(name, is_beside=bool(started))
            for name in runnable
            if name not in started
        }
        for name, future in started.items():
            if not future.done():
                print(f"\nwaiting for {name}: {_log(name)} shows its progress", flush=True)
            outcomes[name] = future.result()
            print(
                f"\n=== {name} (ran alongside)\n{_log(name).read_text(errors='replace')}",
                flush=True,
            )
    return _summary(wanted, obstacles, outcomes)


def _missing_toolchains(names: Sequence[str]) -> list[str]:
    """Return a message for each compiler that one of these tiers needs and that is missing."""
    needed: dict[str, list[str]] = {}
    for name in names:
        for require in TIERS[name].toolchains:
            try:
                require()
            except (binaries.BinaryError, native.NativeBuildError) as error:
                needed.setdefault(str(error), []).append(name)
    return [f"error: {', '.join(tiers)}: {message}" for message, tiers in needed.items()]


def _summary(
    wanted: list[str], obstacles: dict[str, str], outcomes: dict[str, tuple[str, float]]
) -> int:
    print("\n=== tiers")
    for name in wanted:
        outcome, seconds = outcomes.get(name, (f"LEFT OUT: {obstacles[name]}", 0.0))
        budget = TIERS[name].minutes * 60
        over = " (over budget)" if seconds > budget else ""
        print(f"{name:12} {seconds:7.0f} s of {budget} s{over}  {outcome}")
    passed = sum(outcome == "passed" for outcome, _ in outcomes.values())
    failed = len(outcomes) - passed
    left_out = len(wanted) - len(outcomes)
    print(f"tiers: {passed} passed, {failed} failed, {left_out} left out", flush=True)
    return 1 if failed or not passed else 0


def _run_tier(
    name: str, output: TextIO | None = None, *, is_beside: bool = False
) -> tuple[str, float]:
    """Run the commands of a tier; return its outcome and how long it took in seconds.

    Args:
        name: The tier.
        output: Where its output goes; ``None`` is the standard output.
        is_beside: Whether another tier runs alongside.
    """
    tier = TIERS[name]
    print(f"\n=== {name} (budget {tier.minutes} min)", file=output, flush=True)
    began = time.monotonic()
    priority = LOW_PRIORITY if tier.low_priority and is_beside else ()
    commands = [(*priority, *command) for command in tier.commands]
    failed = _run_in_parallel(commands) if tier.parallel else _run_in_turn(commands, output)
    outcome = f"FAILED: {'; '.join(failed)}" if failed else "passed"
    return outcome, time.monotonic() - began


def _run_in_turn(commands: Sequence[Sequence[str]], output: TextIO | None) -> list[str]:
    """Run commands until one fails; return that one."""
    for command in commands:
        line = " ".join(command)
        print(f"--- {line}", file=output, flush=True)
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=ENVIRONMENT,
            check=False,
            stdout=output,
            stderr=output and subprocess.STDOUT,
        )
        if done.returncode:
            return [line]
    return []


def _run_in_parallel(commands: Sequence[Sequence[str]]) -> list[str]:
    """Run all commands, as many at once as there are cores; return those that failed."""

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=ENVIRONMENT,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )

    failed = []
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        for done in pool.map(run, commands):
            line = " ".join(done.args)
            print(f"--- {line}\n{done.stdout}", end="", flush=True)
            if done.returncode:
                failed.append(line)
    return failed


def _run_alongside(name: str) -> tuple[str, float]:
    _log(name).parent.mkdir(exist_ok=True)
    with _log(name).open("w", encoding="utf-8") as output:
        return _run_tier(name, output)


def _log(name: str) -> Path:
    return ROOT / "out" / f"{name}.log"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
