"""Fit the time of an execution to what is in it: a linear model, else the measured table. Pure.

The model is ``t = fixed + per_request·k + per_row·b + per_token·b·L`` (seconds) for k requests of
together b rows, each padded to L tokens: tau0, alpha (in its two parts: the cost of handing over a
request and of computing a row) and gamma of the queueing model. The costs of requests and rows are
separated by profiling single requests of many rows as well as many requests of few.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from triton_pipelines.tools.loadgen import Array

# Relative residual (root mean square over the points) above which the table is used: the times of
# such steps, for example on tensor cores, are not linear.
MAX_RESIDUAL = 0.10
_FEATURES = 4


@dataclass(frozen=True, slots=True)
class TimingSample:
    """A mean over executions of one step."""

    requests: float
    """Requests of an execution."""
    rows: float
    """Rows of all requests together."""
    tokens: float
    """Tokens of each row."""
    seconds: float
    """Seconds of compute."""
    executions: int = 1
    """Number of executions."""


@dataclass(frozen=True)
class StepCost:
    """The cost model of a step: seconds of one execution."""

    fixed: float
    """Seconds of an execution, whatever its size."""
    per_request: float
    """Seconds of a request besides its rows."""
    per_row: float
    """Seconds of a row."""
    per_token: float
    """Seconds of a token."""
    residual: float = 0.0
    """Relative error of the fit."""
    fitted: bool = True
    """Whether the linear model is used; otherwise ``table`` is."""
    table: tuple[tuple[float, float, float], ...] = ()
    """Rows, tokens, seconds, ascending."""
    spread: float = 1.0
    """0 if rows of different length are computed at their own length (packed, ragged); 1 if all are
    padded to the longest.
    """
    scale: float = 1.0
    """Factor by which every time is stretched under real load."""
    contention: tuple[float, ...] = field(default=(1.0,))
    """The same for each number of instances that compute at once."""

    def seconds(self, requests: float, rows: float, tokens: float, instances: int = 1) -> float:
        """Return the seconds of an execution while that number of instances compute."""
        stretch = self.scale * self.contention[min(instances, len(self.contention)) - 1]
        if self.fitted:
            return stretch * (
                self.fixed
                + self.per_request * requests
                + (self.per_row + self.per_token * tokens) * rows
            )
        return stretch * (self._looked_up(rows, tokens) + self.per_request * max(0.0, requests - 1))

    def _looked_up(self, rows: float, tokens: float) -> float:
        """Return the bilinear interpolation in the table.

        Beyond its last row or length the last slope continues, but never falls: that is noise.
        """
        lengths, curves = self._grid
        times = self._times.get(rows)
        if times is None:  # a search looks up the same few row counts repeatedly
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
        """Cache: rows that were looked up → seconds at each length of the table."""
        return {}

    @functools.cached_property
    def _grid(self) -> tuple[list[float], list[tuple[list[float], list[float]]]]:
        """The table's lengths, and for each length the rows and their seconds."""
        lengths = sorted({length for _, length, _ in self.table})
        return lengths, [
            (
                [r for r, at, _ in self.table if at == length],
                [t for _, at, t in self.table if at == length],
            )
            for length in lengths
        ]

    def stretched(self, factor: float) -> StepCost:
        """Return the same cost with every time multiplied."""
        return replace(self, scale=self.scale * factor)


def _interpolated(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    if len(xs) == 1:
        return float(ys[0])
    index = min(max(bisect.bisect_left(xs, x), 1), len(xs) - 1)
    x0, x1, y0, y1 = xs[index - 1], xs[index], ys[index - 1], ys[index]
    return max(float(y0 + (y1 - y0) * (x - x0) / (x1 - x0)), float(y1) if x > x1 else 1e-6)


def fit(samples: Sequence[TimingSample]) -> StepCost:
    """Return the model with coefficients not below 0 that has the smallest relative error.

    If the error is more than 10 %, the table is used instead (``fitted`` is false).

    Raises:
        ValueError: There are no samples.
    """
    usable = [sample for sample in samples if sample.executions > 0 and sample.seconds > 0]
    if not usable:
        raise ValueError("no execution was measured; use a longer --duration")
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
    """Return the seconds of each request beyond the first, for a cost that uses the table.

    It is by how much batches of several requests took longer than one request with as many rows.
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


def _least_squares(features: Array, targets: Array) -> Array:
    """Return the non-negative least squares solution.

    Every subset of the four features is tried: that is exact and needs no optimizer.
    """
    best, least = np.zeros(_FEATURES), float("inf")
    for size in range(1, _FEATURES + 1):
        for chosen in itertools.combinations(range(_FEATURES), size):
            some, *_ = np.linalg.lstsq(features[:, chosen], targets, rcond=None)
            if (some < 0).any():
                continue
            error = float(np.sum((features[:, chosen] @ some - targets) ** 2))
            if error < least * (1 - 1e-9):
                least = error
                best = np.zeros(_FEATURES)
                best[list(chosen)] = some
    return best
