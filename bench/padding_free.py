"""S8: a batch computed without padding against the same batch padded to its longest row.

ONNX Runtime runs the sample's real model in three forms, with one thread: as it is, one row at a
time; adapted to ragged batches and padded; adapted and computing only real tokens. Each batch is
run in all forms in turn, and only runs of the same batch are compared.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from bench.results import thresholds, write
from bench.variants import LENGTHS
from e2e.models import minilm, weights
from triton_pipelines.api.loadplan import PlanAdapt, PlanRaggedInput
from triton_pipelines.loader.onnx_graph.graph_walk import inputs
from triton_pipelines.loader.ragged import AdaptedFile, adapt_file
from triton_pipelines.loader.ragged.eligibility import Adaptable, check_eligibility
from triton_pipelines.loader.ragged.equivalence import join_batch
from triton_pipelines.loader.ragged.graph_adapter import adapt

ROWS = tuple(int(item) for item in os.environ.get("ROWS_PER_BATCH", "1,2,4,8,16,32").split(","))
BATCHES = int(os.environ.get("BATCHES", "4"))
TURNS = 4
"""How often a batch of many rows is timed in each form; more often where it has few."""
SMALL_TURNS = 48
FILL = 0.5
GAIN, PLAIN = 1.6, 0.98
Run = Callable[[], object]
Feed = Mapping[str, Any]


def run() -> None:
    """Measure, print and write S8; 2 minutes."""
    random = np.random.default_rng(8)
    with tempfile.TemporaryDirectory() as folder:
        plain, padded, free = _sessions(Path(folder))
    measured = []
    for rows in ROWS:
        for seed in range(BATCHES):
            lengths = LENGTHS.sample(rows, 100 * rows + seed)
            requests = [_request(random, length) for length in lengths]
            measured.append(_measure(requests, plain, padded, free))
            print(measured[-1], flush=True)
    low = [one["paddedOverFree"] for one in measured if one["fill"] <= FILL] or [0.0]
    against_plain = {rows: _spread(measured, rows, "plainOverFree")[0] for rows in ROWS}
    least = min(against_plain.values())
    met = statistics.median(low) >= GAIN and least >= PLAIN
    write(
        "S8",
        low,
        unit=f"times (at least {least:.2f} times one row at a time)",
        goal=thresholds()["S8"]["goal"],
        met=met,
        workload=(
            f"{BATCHES} batches each of {', '.join(map(str, ROWS))} rows, lognormal lengths "
            f"(median {LENGTHS.median:g} tokens, sigma {LENGTHS.sigma:g}); the sample's real model "
            f"in ONNX Runtime {onnxruntime.__version__} on CPU, one thread; CPU time; the "
            f"median of at least {TURNS} turns per batch"
        ),
        stand_ins=["Triton's ONNX Runtime backend: ONNX Runtime itself, without a server"],
        detail={
            "rows": {
                str(rows): {
                    name: _spread(measured, rows, name)
                    for name in ("fill", "paddedOverFree", "plainOverFree")
                }
                for rows in ROWS
            },
            "batches": measured,
        },
    )
    print(f"S8: {statistics.median(low):.2f} times, by rows against plain {against_plain}")


def _sessions(folder: Path) -> list[onnxruntime.InferenceSession]:
    """Return the model plain, padded, and without padding."""
    source = weights.model_folder()
    config = weights.EncoderConfig.read(source / "config.json")
    path = folder / "model.onnx"
    model = minilm.build_model(weights.load_weights(source), config)
    onnx.save(model, str(path))
    plain = _session(path)
    plan = PlanAdapt(
        step="model",
        path=path.name,
        inputs=tuple(PlanRaggedInput(name=name) for name in inputs(model.graph)),
        token_outputs=(minilm.HIDDEN_STATE,),
    )
    adaptable = check_eligibility(model, plan)
    assert isinstance(adaptable, Adaptable), str(adaptable)
    padded_path = folder / "padded.onnx"
    onnx.save(adapt(model, adaptable), str(padded_path))
    done = adapt_file(path, plan, on_cpu=True)
    assert isinstance(done, AdaptedFile), str(done)
    print(done)
    return [plain, _session(padded_path), _session(path)]


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _request(random: np.random.Generator, length: int) -> dict[str, Any]:
    ids = random.integers(1000, 30000, (1, length))
    return {minilm.INPUT_IDS: ids, minilm.ATTENTION_MASK: np.ones_like(ids)}


def _measure(requests: Sequence[Feed], *sessions: onnxruntime.InferenceSession) -> dict[str, Any]:
    """Return the ratios of one batch; all forms run once before they are timed."""
    plain, padded, free = sessions
    feed = join_batch(requests, list(requests[0]))
    forms: dict[str, Run] = {
        "plain": lambda: [plain.run(None, request) for request in requests],
        "padded": lambda: padded.run(None, feed),
        "free": lambda: free.run(None, feed),
    }
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(1 + max(TURNS, SMALL_TURNS // len(requests))):
        order = list(forms)[turn % len(forms) :] + list(forms)[: turn % len(forms)]
        for name in order:
            # CPU time of this thread, which computes alone: other work on the machine counts less.
            start = time.thread_time()
            forms[name]()
            if turn:
                seconds[name].append(time.thread_time() - start)

    def ratio(name: str) -> float:
        pairs = zip(seconds[name], seconds["free"], strict=True)
        return round(statistics.median(one / free for one, free in pairs), 2)

    lengths = [request[minilm.INPUT_IDS].shape[1] for request in requests]
    return {
        "rows": len(requests),
        "longest": max(lengths),
        "fill": round(sum(lengths) / len(lengths) / max(lengths), 2),
        "freeMilliseconds": round(statistics.median(seconds["free"]) * 1000, 2),
        "paddedOverFree": ratio("padded"),
        "plainOverFree": ratio("plain"),
    }


def _spread(measured: Sequence[Mapping[str, Any]], rows: int, name: str) -> list[float]:
    """Return median, minimum and maximum of a figure over the batches with so many rows."""
    values = [float(one[name]) for one in measured if one["rows"] == rows]
    return [round(statistics.median(values), 2), min(values), max(values)]
