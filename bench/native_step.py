"""S9: what a tokenizer step adds to Triton's own work, for the Python and the native step.

One real Triton serves three models: a C backend that reads a text and returns zeros (what Triton's
HTTP server and queue cost), the Python tokenizer step and the native one, each with one instance
and the same configuration. Each round loads all three, every second round in reversed order. The
figure is CPU per request of the server and the processes that it started, because throughput on a
machine with other work says little.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.process_tree import cpu_seconds
from bench.results import thresholds, write
from e2e.local import native
from e2e.models import tree
from tests.support.nullbackend import NAME, distribution
from tests.support.pipelines import config, tensor
from tests.support.triton import triton_server, write_model
from triton_pipelines import runtime
from triton_pipelines.api import names
from triton_pipelines.tools.loadgen import LoadSpec, LoadTarget, generate_texts, run_blocking
from triton_pipelines.triton.local_server import LocalTriton

ROUNDS = int(os.environ.get("ROUNDS", "7"))
SECONDS = float(os.environ.get("SECONDS", "3"))
CLIENTS = 8
WORDS = 12
TEXTS = 512
MOST = 1.4
FLOOR, PYTHON, NATIVE = "floor", "python", "native"
MODELS = (FLOOR, PYTHON, NATIVE)
OUTPUTS = {"input_ids": "InputIds", "attention_mask": "AttentionMask"}


def run() -> None:
    """Measure, print and write S9; about 2 minutes."""
    costs: dict[str, list[float]] = {name: [] for name in MODELS}
    rates: dict[str, list[float]] = {name: [] for name in MODELS}
    texts = generate_texts([WORDS] * TEXTS, 1)
    with served() as server:
        for number in range(ROUNDS):
            for name in MODELS if number % 2 == 0 else reversed(MODELS):
                cost, rate = measured(server, name, texts)
                costs[name].append(cost)
                rates[name].append(rate)
            print(
                f"round {number + 1}: "
                + ", ".join(
                    f"{name} {costs[name][-1]:.0f} us, {rates[name][-1]:.0f}/s" for name in MODELS
                ),
                flush=True,
            )
    ratios = {name: _ratios(costs[name], costs[FLOOR]) for name in (PYTHON, NATIVE)}
    write(
        "S9",
        ratios[NATIVE],
        unit="times",
        goal=thresholds()["S9"]["goal"],
        met=statistics.median(ratios[NATIVE]) <= MOST,
        workload=(
            f"WordPiece texts of {WORDS} words, one per request; {CLIENTS} clients over HTTP, one "
            f"instance, {ROUNDS} rounds of {SECONDS:g} s, interleaved"
        ),
        stand_ins=[],
        detail={
            "floorMicroseconds": _figures(costs[FLOOR]),
            "pythonMicroseconds": _figures(costs[PYTHON]),
            "nativeMicroseconds": _figures(costs[NATIVE]),
            "pythonOverFloor": _figures(ratios[PYTHON]),
            "pythonOverNative": _figures(_ratios(costs[PYTHON], costs[NATIVE])),
            "requestsPerSecond": {name: _figures(rates[name]) for name in MODELS},
        },
    )
    native_ratio, python_ratio = (statistics.median(ratios[name]) for name in (NATIVE, PYTHON))
    print(f"S9: native {native_ratio:.2f} times the floor (goal {MOST}), Python {python_ratio:.2f}")


@contextmanager
def served() -> Iterator[LocalTriton]:
    """A real Triton with the three models."""
    with tempfile.TemporaryDirectory(prefix="tritonpipe-bench-") as folder:
        repository = Path(folder) / "repository"
        for name in MODELS:
            _write(repository, name)
        with triton_server(
            repository, MODELS, distribution=distribution(Path(folder) / "backends")
        ) as server:
            yield server


def measured(server: LocalTriton, model: str, texts: Sequence[str]) -> tuple[float, float]:
    """Return the server's CPU per request in microseconds, and requests per second."""
    requests = [{"TEXT": np.array([[text.encode()]], dtype=np.object_)} for text in texts]
    target = LoadTarget(server.http_url, model, requests)
    run_blocking(target, LoadSpec(concurrency=CLIENTS, duration_s=0.5, warmup_s=0.0))
    before = cpu_seconds()
    result = run_blocking(target, LoadSpec(concurrency=CLIENTS, duration_s=SECONDS, warmup_s=0.0))
    done = max(1, len(result.due))
    return (cpu_seconds() - before) / done * 1e6, done / SECONDS


def _write(repository: Path, name: str) -> None:
    inputs = [tensor("TEXT", "TYPE_STRING", "1")]
    outputs = [tensor(one, "TYPE_INT64", "-1") for one in OUTPUTS]
    parameters = {"max_length": "512", "padding": "Ragged", "outputs": json.dumps(OUTPUTS)}
    text = config(name, inputs, outputs, parameters, count=1, max_batch_size=64)
    tokenizer = (tree.build() / tree.TOKENIZER_FOLDER / "tokenizer.json").read_bytes()
    files: dict[str, str | bytes] = {"tokenizer.json": tokenizer}
    if name == FLOOR:
        text, files = text.replace('backend: "python"', f'backend: "{NAME}"'), {}
    elif name == NATIVE:
        text = text.replace('backend: "python"', f'backend: "{names.NATIVE_TOKENIZER_BACKEND}"')
        files[names.NATIVE_TOKENIZER_LIBRARY] = native.library().read_bytes()
    else:
        files["model.py"] = runtime.source("tokenizer")
    write_model(repository, name, text, files)


def _ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(first, second, strict=True)]


def _figures(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in (statistics.median(values), min(values), max(values))]
