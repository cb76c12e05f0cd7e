"""Runs on sample input while a model loads: what a run costs, and whether rows may share one.

Nothing here depends on Triton.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]
COST_TOKENS, COST_RUNS, MOST_COST_TOKENS = 16, 5, 10_000
# Numbers of rows that are timed against one row, until a run takes COST_FACTOR times as long.
# On an H100, MiniLM computes 8 rows of 16 tokens in the time of one row.
COST_ROWS, COST_FACTOR = (8, 64, 256), 2
# Allowed difference between a padded answer and the one computed alone, on a CPU. It covers the
# rounding of FP32 sums in another order.
RELATIVE, ABSOLUTE = 1e-4, 1e-5
# Allowed difference between the answer in a shared run and the one computed alone, as a share of
# the row's largest value. Half precision inside a graph rounds by 5e-4 at each step, and kernels
# for other shapes round differently. Dynamic quantization changes answers ten times as much.
# On a GPU this limit also applies to padded answers: the matrix products of FP32 graphs are rounded
# to TensorFloat-32 there (H100, MiniLM: by 2e-4).
COMPANY = 5e-3


def run_cost_tokens(
    run: Callable[[Feed], Any], sample: Feed, clock: Callable[[], float] = time.perf_counter
) -> int:
    """Measure the fixed cost of a run, in tokens.

    It follows from the best times of ``sample``, a row of ``COST_TOKENS``, alone and repeated
    ``COST_ROWS`` times.
    """
    alone = _best_time(run, sample, clock)
    row = 1e-9
    for rows in COST_ROWS:
        repeated = {name: np.repeat(array, rows, axis=0) for name, array in sample.items()}
        together = _best_time(run, repeated, clock)
        row = max((together - alone) / (rows - 1), 1e-9)
        if together >= COST_FACTOR * alone:
            break
    return round(min(max((alone / row - 1) * COST_TOKENS, 1), MOST_COST_TOKENS))


def _best_time(run: Callable[[Feed], Any], feed: Feed, clock: Callable[[], float]) -> float:
    """Return the shortest of ``COST_RUNS`` runs, in seconds."""
    times = []
    for _ in range(COST_RUNS):
        begin = clock()
        run(feed)
        times.append(clock() - begin)
    return min(times)


class SampleRuns:
    """Finds out on sample input whether rows may share a run of a model.

    Args:
        run: runs the model once: inputs by name to outputs in the order of ``outputs``.
        outputs: names of the outputs.
        warn: receives the reason when requests will not share runs.
        exact: whether the same product is rounded alike in every shape, as on a CPU.
    """

    def __init__(
        self,
        run: Callable[[Feed], list[Array]],
        outputs: Sequence[str],
        warn: Callable[[str], None],
        exact: bool,
    ) -> None:
        self._run = run
        self._outputs = outputs
        self._warn = warn
        self._exact = exact

    def has_entry_per_row(self, sample: Callable[[int], Feed]) -> bool | None:
        """Return whether every output has one entry per row.

        An output of another length could by chance be as long as a batch. It would then be cut into
        wrong answers. None if the model rejects the sample.
        """
        row = sample(4)
        for rows in (1, 2, 3):
            feed = {name: np.repeat(array, rows, axis=0) for name, array in row.items()}
            try:
                results = self._run(feed)
            except Exception:
                return None
            for name, result in zip(self._outputs, results, strict=True):
                if result.shape[:1] != (rows,):
                    self._warn(
                        f"requests will not share runs: output {name} does not have one entry per"
                        " row"
                    )
                    return False
        return True

    def is_independent(self, sample: Callable[[int], Feed]) -> bool | None:
        """Return whether a row gets the same answer beside another row of its length as alone.

        A scale that is computed over the whole batch changes the answer, as in a dynamically
        quantized graph. None if the model rejects the sample.
        """
        rows = [sample(4), _other_values(sample(4))]
        feed = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        try:
            alone = [self._run(row) for row in rows]
            together = self._run(feed)
        except Exception:
            return None
        for name, one, other, both in zip(self._outputs, *alone, together, strict=True):
            off = (
                _difference(np.concatenate([one, other]), both)
                if one.shape == other.shape
                else math.inf
            )
            if off > COMPANY:
                self._warn(
                    f"requests will not share runs: the {name} of a row depends on the other rows"
                    + (f" (by {off:.1%})" if math.isfinite(off) else "")
                    + ", as in a dynamically quantized graph, whose scales are computed over the"
                    " whole batch. Each request runs separately, so batching saves nothing; use a"
                    " float model, or quantize the model statically"
                )
                return False
        return True

    def is_same(self, alone: Array, padded: Array) -> bool:
        """Return whether two answers differ at most by rounding."""
        if alone.shape != padded.shape:
            return False
        if self._exact and alone.dtype.kind in "fc":
            return bool(np.allclose(alone, padded, RELATIVE, ABSOLUTE, equal_nan=True))
        return _difference(alone, padded) <= COMPANY


def _other_values(row: Feed) -> Feed:
    """Return a row of the same shapes with other values that every model accepts.

    Every second token becomes 0, also in its mask. Floats become ten times as large.
    """

    def other(array: Array) -> Array:
        if array.dtype.kind in "fc":
            return np.multiply(array, 10, dtype=array.dtype)
        made = array.copy()
        if array.dtype.kind in "iub":
            made.reshape(-1)[::2] = 0
        return made

    return {name: other(array) for name, array in row.items()}


def _difference(wanted: Array, got: Array) -> float:
    """Return by how much a row of an output differs, as a share of its largest value.

    Infinite if rounding cannot explain the difference.
    """
    if wanted.shape != got.shape:
        return math.inf
    if wanted.dtype.kind not in "fc":
        return 0.0 if bool((wanted == got).all()) else math.inf
    if not np.array_equal(np.isfinite(wanted), np.isfinite(got)):
        return math.inf
    finite = np.isfinite(wanted)
    one, other = (
        np.where(finite, array, 0).astype(np.complex128).reshape(len(array), -1)
        for array in (wanted, got)
    )
    own = np.abs(one).max(axis=1, initial=0.0)
    # A row that is nearly 0 by chance is as exact as the sums that it results from.
    largest = np.maximum(own, max(own.max() / 10, ABSOLUTE))
    return float((np.abs(one - other).max(axis=1, initial=0.0) / largest).max())
