"""S9: what the tokenizer step adds to Triton's own work.

One real Triton serves two models: a C backend that reads a text and returns zeros (what Triton's
HTTP server and queue cost) and the tokenizer, each with one instance and the same configuration.
Each round loads both, every second round in reversed order. The figure is CPU per request of the
server and the processes that it started, because throughput on a machine with other work says
little.
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
from e2e.models import tree
from tests.support.nullbackend import NAME, distribution
from tests.support.pipelines import config, tensor, write_tokenizer
from tests.support.triton import triton_server, write_model
from triton_pipelines.tools.loadgen import LoadSpec, LoadTarget, generate_texts, run_blocking
from triton_pipelines.triton.local_server import LocalTriton

ROUNDS = int(os.environ.get("ROUNDS", "7"))
SECONDS = float(os.environ.get("SECONDS", "3"))
CLIENTS = 8
WORDS = 12
TEXTS = 512
MOST = 1.4
FLOOR, NATIVE = "floor", "native"
MODELS = (FLOOR, NATIVE)
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
    ratios = _ratios(costs[NATIVE], costs[FLOOR])
    write(
        "S9",
        ratios,
        unit="times",
        goal=thresholds()["S9"]["goal"],
        met=statistics.median(ratios) <= MOST,
        workload=(
            f"WordPiece texts of {WORDS} words, one per request; {CLIENTS} clients over HTTP, one "
            f"instance, {ROUNDS} rounds of {SECONDS:g} s, interleaved"
        ),
        stand_ins=[],
        detail={
            "floorMicroseconds": _figures(costs[FLOOR]),
            "nativeMicroseconds": _figures(costs[NATIVE]),
            "requestsPerSecond": {name: _figures(rates[name]) for name in MODELS},
        },
    )
    print(f"S9: {statistics.median(ratios):.2f} times the floor (goal {MOST})")


@contextmanager
def served() -> Iterator[LocalTriton]:
    """A real Triton with both models."""
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
    if name == FLOOR:
        write_model(repository, name, text.replace('backend: "python"', f'backend: "{NAME}"'))
        return
    version = write_tokenizer(repository, name, text)
    tokenizer = tree.build() / tree.TOKENIZER_FOLDER / "tokenizer.json"
    (version / "tokenizer.json").write_bytes(tokenizer.read_bytes())


def _ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(first, second, strict=True)]


def _figures(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in (statistics.median(values), min(values), max(values))]
