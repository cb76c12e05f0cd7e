"""Interleaved timing of functions, and comparison with a baseline."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bench.gpu_step.encoder import BATCHES, SEED, WORDS, Batch, Form
from bench.gpu_step.plans import StepCost, whole_batch
from bench.gpu_step.sessions import Sessions


def summarize(seconds: Sequence[float]) -> dict[str, float]:
    """Return median, 10th and 90th percentile in milliseconds, and the number of samples."""
    low, middle, high = np.percentile(np.asarray(seconds) * 1e3, [10, 50, 90])
    return {
        "medianMs": round(float(middle), 4),
        "p10Ms": round(float(low), 4),
        "p90Ms": round(float(high), 4),
        "samples": len(seconds),
    }


def time_run(function: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def repeat(function: Callable[[], object], seconds: float, most: int = 40) -> list[float]:
    """Return the seconds of calls: two to warm up, then at least 5 and until the time is over."""
    for _ in range(2):
        function()
    end = time.monotonic() + seconds
    samples: list[float] = []
    while len(samples) < 5 or (time.monotonic() < end and len(samples) < most):
        samples.append(time_run(function))
    return samples


def interleave(
    cases: Mapping[str, Sequence[Callable[[], object]]], seconds: float, most: int = 60
) -> dict[str, list[float]]:
    """Return the seconds of every case by round.

    Each round runs every case once, in another order; a case is a sequence of calls that the
    rounds take in turn, one per drawn batch.
    """
    order = random.Random(SEED)
    samples: dict[str, list[float]] = {name: [] for name in cases}
    end = time.monotonic() + seconds
    rounds = 0
    while rounds < BATCHES or (time.monotonic() < end and rounds < most):
        for name in order.sample(list(cases), len(cases)):
            calls = cases[name]
            samples[name].append(time_run(calls[rounds % len(calls)]))
        rounds += 1
    return samples


def compare(samples: Mapping[str, Sequence[float]], baseline: str) -> dict[str, Any]:
    """Return each case's step time, and how many times faster than the baseline, by round."""
    found: dict[str, Any] = {}
    for name, seconds in samples.items():
        gains = [base / one for base, one in zip(samples[baseline], seconds, strict=True)]
        found[name] = summarize(seconds) | {
            "gain": round(statistics.median(gains), 3),
            "gainP10": round(float(np.percentile(gains, 10)), 3),
            "gainP90": round(float(np.percentile(gains, 90)), 3),
        }
    return found


def step_cost(sessions: Sessions) -> StepCost:
    """Measure a small and a large shape of the plain graph."""
    small, large = Batch(np.ones(16, np.int64), np.array([16])), equal_batch(32, 128)
    times = [
        statistics.median(
            repeat(lambda b=one: sessions.run(Form.PADDED, whole_batch(b)[0]), 0.2)  # type: ignore[misc]
        )
        for one in (small, large)
    ]
    token = max(1e-9, (times[1] - times[0]) / (32 * 128 - 16))
    return StepCost(max(1e-6, times[0] - 16 * token), token)


def equal_batch(rows: int, tokens: int) -> Batch:
    """Return rows of equal length."""
    ids = np.random.default_rng(SEED).integers(0, WORDS, rows * tokens, dtype=np.int64)
    return Batch(ids, np.full(rows, tokens, np.int64))
