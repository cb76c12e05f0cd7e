"""Regenerate all generated files and fail on a difference; ``--write`` keeps the new state.

python -m hack.verify [--write]
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
"""More threads of NumPy's library mostly wait for each other, which costs CPU time."""
CHECKS_AT_ONCE = 2


def _module(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *arguments)


def _text(module: str, target: str) -> Callable[[bool], str]:
    def run(write: bool) -> str:
        made = subprocess.run(
            _module(module),
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        ).stdout
        path = ROOT / target
        if path.exists() and path.read_text(encoding="utf-8") == made:
            return ""
        if write:
            path.write_text(made, encoding="utf-8")
            return ""
        return f"{target} differs from what python -m {module} prints"

    return run


def _command(check: tuple[str, ...], write: tuple[str, ...], what: str) -> Callable[[bool], str]:
    def run(keep: bool) -> str:
        done = subprocess.run(
            write if keep else check,
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        )
        return f"{what}: {(done.stdout + done.stderr).strip()[-2000:]}" if done.returncode else ""

    return run


CHECKS: dict[str, Callable[[bool], str]] = {
    # The longest first.
    "sample head and golden answers": _command(
        _module("e2e.models", "verify"), _module("e2e.models", "golden"), "sample models"
    ),
    "CRD": _text("triton_pipelines.api.crd", "crds/inferencepipelines.tritonpipelines.io.yaml"),
    "API reference": _text("triton_pipelines.api.reference", "docs/reference/api.md"),
    "field coverage": _text("hack.field_coverage", "docs/reference/field-coverage.md"),
    "Triton's ModelConfig, field by field": _text(
        "hack.modelconfig", "docs/reference/modelconfig.md"
    ),
    "compatibility matrix": _text("hack.compatibility", "docs/reference/compatibility.md"),
    "shape of a pod template": _text(
        "hack.podschema", "operator/triton_pipelines/compile/render/podschema.yaml"
    ),
    "rules, alerts and dashboards": _command(
        _module("hack.monitoring", "--check"), _module("hack.monitoring"), "monitoring"
    ),
    "chart and kustomize base": _command(
        _module("hack.chart", "--check"), _module("hack.chart"), "chart"
    ),
    "measured figures in the guide": _command(
        _module("hack.measured"), _module("hack.measured", "--write"), "measured figures"
    ),
    "results in the benchmarks' pages": _command(
        _module("bench.pages"), _module("bench.pages", "--write"), "pages of benchmarks"
    ),
    "plots of the benchmarks": _command(
        _module("bench.plots"), _module("bench.plots", "--write"), "plots of benchmarks"
    ),
}


def main(arguments: list[str]) -> int:
    """Check (or write) all; exit code 1 on a difference."""
    write = "--write" in arguments
    failed = 0
    if write:  # the unit tier compares these
        subprocess.run(
            _module("tests.golden"),
            cwd=ROOT,
            check=True,
            env={**ENVIRONMENT, "PYTHONPATH": "operator"},
        )
    # Some read what others write.
    with ThreadPoolExecutor(1 if write else CHECKS_AT_ONCE) as pool:
        messages = pool.map(lambda run: run(write), CHECKS.values())
        for name, message in zip(CHECKS, messages, strict=True):
            print(
                f"{'FAILED' if message else 'ok':7} {name}{f': {message}' if message else ''}",
                flush=True,
            )
            failed += bool(message)
    if failed:
        print("run `make golden` and look at the difference", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
