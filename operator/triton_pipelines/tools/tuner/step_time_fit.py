"""Time of an execution as a function of what is in it: a linear law where it fits, else the
measured table. Pure.

The law is ``t = fixed + per_request·k + per_row·b + per_token·b·L`` (seconds) for k requests of
together b rows, each padded to L tokens: tau0, alpha (in its two parts: what a request costs to
hand over, what a row costs to compute) and gamma of the queueing model. Requests and rows are told
apart by profiling single requests of many rows beside many requests of few.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from triton_pipelines.tools.loadgen import Array

# Beyond this relative residual (root mean square over the points) steps such as those of tensor
# cores are not a line: the table is used.
MAX_RESIDUAL = 0.10
_FEATURES = 4


@dataclass(frozen=True, slots=True)
class TimingSample:
    """A mean of ``executions`` of one step, each of ``requests`` with together ``rows`` of
    ``tokens`` each: ``seconds`` of compute.
    """

    requests: float
    rows: float
    tokens: float
    seconds: float
    executions: int = 1


@dataclass(frozen=True)
class StepCost:
    """Seconds of one execution.

    ``spread``: 0 where rows of different length are computed at their own length (packed, ragged),
    1 where all are padded to the longest. ``scale``: by what every time is stretched under real
    load. ``contention``: the same for each number of instances that compute at once. ``table``:
    rows, tokens, seconds, ascending; used where ``fitted`` is false.
    """

    fixed: float
    per_request: float
    per_row: float
    per_token: float
    residual: float = 0.0
    fitted: bool = True
    table: tuple[tuple[float, float, float], ...] = ()
    spread: float = 1.0
    scale: float = 1.0
    contention: tuple[float, ...] = field(default=(1.0,))

    def seconds(self, requests: float, rows: float, tokens: float, instances: int = 1) -> float:
        """Of an execution of ``rows`` rows at ``tokens`` tokens each, while so many instances
        compute.
        """
        stretch = self.scale * self.contention[min(instances, len(self.contention)) - 1]
        if self.fitted:
            return stretch * (
                self.fixed
                + self.per_request * requests
                + (self.per_row + self.per_token * tokens) * rows
            )
        return stretch * (self._looked_up(rows, tokens) + self.per_request * max(0.0, requests - 1))

    def _looked_up(self, rows: float, tokens: float) -> float:
        """Bilinear in the table; beyond its last row or length the last slope goes on, but never
        down: that is noise.
        """
        lengths, curves = self._grid
        times = self._times.get(rows)
        if times is None:  # a search asks for the same few numbers of rows all the time
            known = max(curves, key=lambda curve: len(curve[0]))

            def at(xs: list[float], ys: list[float]) -> float:
                if (
                    len(xs) == 1 < len(known[0])
                ):  # timed with one number of rows: more cost as they do where that is known
                    return float(ys[0]) * _interpolated(*known, rows) / _interpolated(*known, xs[0])
                return _interpolated(xs, ys, rows)

            times = self._times[rows] = [at(xs, ys) for xs, ys in curves]
        return _interpolated(lengths, times, tokens)

    @functools.cached_property
    def _times(self) -> dict[float, list[float]]:
        """By rows that were asked for: seconds at each of the table's lengths."""
        return {}

    @functools.cached_property
    def _grid(self) -> tuple[list[float], list[tuple[list[float], list[float]]]]:
        """The table's lengths, and rows with their seconds at each."""
        lengths = sorted({length for _, length, _ in self.table})
        return lengths, [
            (
                [r for r, at, _ in self.table if at == length],
                [t for _, at, t in self.table if at == length],
            )
            for length in lengths
        ]

    def stretched(self, factor: float) -> StepCost:
        """The same, every time multiplied."""
        return replace(self, scale=self.scale * factor)


def _interpolated(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    if len(xs) == 1:
        return float(ys[0])
    index = min(max(bisect.bisect_left(xs, x), 1), len(xs) - 1)
    x0, x1, y0, y1 = xs[index - 1], xs[index], ys[index - 1], ys[index]
    return max(float(y0 + (y1 - y0) * (x - x0) / (x1 - x0)), float(y1) if x > x1 else 1e-6)


def fit(samples: Sequence[TimingSample]) -> StepCost:
    """The law with coefficients not below 0 that has the smallest relative error; refused
    (``fitted`` false) beyond 10 %.

    Raises:
        ValueError: no samples.
    """
    usable = [sample for sample in samples if sample.executions > 0 and sample.seconds > 0]
    if not usable:
        raise ValueError("nothing was measured")
    seconds = np.array([sample.seconds for sample in usable])
    features = np.array(
        [(1.0, sample.requests, sample.rows, sample.rows * sample.tokens) for sample in usable]
    )
    coefficients = _least_squares(features / seconds[:, None], np.ones(len(usable)))
    residual = float(np.sqrt(np.mean((features @ coefficients / seconds - 1.0) ** 2)))
    single: dict[tuple[float, float], tuple[float, int]] = {}
    for sample in usable:
        if sample.requests <= 1:
            total, count = single.get((sample.rows, sample.tokens), (0.0, 0))
            single[sample.rows, sample.tokens] = (
                total + sample.seconds * sample.executions,
                count + sample.executions,
            )
    table = tuple(
        (rows, tokens, total / count)
        for (rows, tokens), (total, count) in sorted(single.items(), key=lambda item: item[0])
    )
    fixed, per_request, per_row, per_token = (float(value) for value in coefficients)
    law = StepCost(
        fixed,
        per_request,
        per_row,
        per_token,
        residual,
        fitted=residual <= MAX_RESIDUAL or not table,
        table=table,
    )
    return (
        law
        if law.fitted
        else replace(
            law,
            per_request=_beyond_table(law, [sample for sample in usable if sample.requests > 1]),
        )
    )


def _beyond_table(law: StepCost, batches: Sequence[TimingSample]) -> float:
    """Seconds of each request beyond the first, by what batches of several took more than one
    request with as many rows: a law that is no line says nothing of it.
    """
    further = np.array([sample.requests - 1 for sample in batches])
    more = np.array([sample.seconds for sample in batches]) - np.array(
        [law._looked_up(sample.rows, sample.tokens) for sample in batches]
    )
    weights = np.array([sample.executions / sample.seconds**2 for sample in batches])
    return (
        max(0.0, float(np.sum(weights * more * further) / np.sum(weights * further**2)))
        if batches
        else 0.0
    )


def _least_squares(features: Array, wanted: Array) -> Array:
    """Non-negative least squares by trying every subset of the four features: exact, and needs no
    optimizer.
    """
    best, least = np.zeros(_FEATURES), float("inf")
    for size in range(1, _FEATURES + 1):
        for chosen in itertools.combinations(range(_FEATURES), size):
            some, *_ = np.linalg.lstsq(features[:, chosen], wanted, rcond=None)
            if (some < 0).any():
                continue
            error = float(np.sum((features[:, chosen] @ some - wanted) ** 2))
            if error < least * (1 - 1e-9):
                least = error
                best = np.zeros(_FEATURES)
                best[list(chosen)] = some
    return best
