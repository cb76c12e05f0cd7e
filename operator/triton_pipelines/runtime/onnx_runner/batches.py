"""Requests of one call in as few and as cheap runs of a model as is safe. Knows nothing of Triton."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Feed = dict[str, Array]
COST_TOKENS, COST_RUNS, MOST_COST_TOKENS = 16, 5, 10_000
# Rows that are timed against one row, until they take COST_FACTOR times as long: on an H100, 8 rows of 16 tokens take MiniLM no longer than one row.
COST_ROWS, COST_FACTOR = (8, 64, 256), 2
# No run computes more tokens than these, or than so many times its fixed cost: beyond that another run costs a hundredth of the work, and less memory.
# A run of 64 rows of 512 tokens took MiniLM 1.7 GiB, which ONNX Runtime keeps, eight runs of 8 rows 0.2 GiB and no more time (CPU).
MOST_TOKENS, MOST_COSTS = 4096, 64
RELATIVE, ABSOLUTE = 1e-4, 1e-5  # a padded answer may be so far from the one alone on a CPU: rounding of FP32 sums in another order
# An answer in company may be so far from the one alone, as a share of the row's largest value: half precision inside a graph rounds by 5e-4 at
# each step, and kernels for other shapes in another way. What a dynamically quantized graph changes is ten times as much. On a GPU a padded answer
# may be so far from the one alone, too: the matrix products of FP32 graphs round to TensorFloat-32 there (H100, MiniLM: by 2e-4).
COMPANY = 5e-3
# Tokens of the two rows that show whether padding is safe. A graph that ignores its mask differs by far more than any rounding: most of the short row is padding.
SHORT, LONG = 3, 16


def cheapest_runs(rows_by_length: dict[int, int], run_cost: int) -> list[list[int]]:
    """Lengths of each run of the cheapest partition; a run costs ``run_cost`` + its rows x its longest length, in tokens.

    An optimal partition consists of neighbours in sorted order. Its padding never exceeds ``run_cost`` for every length that shares a run.
    """
    lengths = sorted(rows_by_length)
    counts = [rows_by_length[length] for length in lengths]
    costs, begins = [0], [0]  # cheapest cost of the first n lengths, and where its last run begins
    for end in range(1, len(lengths) + 1):
        longest, rows, cost, begin = lengths[end - 1], 0, sys.maxsize, end - 1
        for first in range(end - 1, -1, -1):
            if counts[first] * (longest - lengths[first]) > run_cost:
                break  # a run of its own for this length and the shorter ones is cheaper than their padding
            rows += counts[first]
            together = costs[first] + run_cost + rows * longest
            if together <= cost:
                cost, begin = together, first
        costs.append(cost)
        begins.append(begin)
    runs: list[list[int]] = []
    end = len(lengths)
    while end:
        begin = begins[end]
        runs.append(lengths[begin:end])
        end = begin
    return runs[::-1]


def run_cost_tokens(run: Callable[[Feed], Any], sample: Feed, clock: Callable[[], float] = time.perf_counter) -> int:
    """What a run costs beside its tokens, in tokens: from the best times of ``sample``, a row of ``COST_TOKENS``, alone and ``COST_ROWS`` times."""
    alone = _best_time(run, sample, clock)
    row = 1e-9
    for rows in COST_ROWS:
        together = _best_time(run, {name: np.repeat(array, rows, axis=0) for name, array in sample.items()}, clock)
        row = max((together - alone) / (rows - 1), 1e-9)
        if together >= COST_FACTOR * alone:
            break
    return round(min(max((alone / row - 1) * COST_TOKENS, 1), MOST_COST_TOKENS))


def _best_time(run: Callable[[Feed], Any], feed: Feed, clock: Callable[[], float]) -> float:
    """The shortest of ``COST_RUNS`` runs, in seconds."""
    times = []
    for _ in range(COST_RUNS):
        begin = clock()
        run(feed)
        times.append(clock() - begin)
    return min(times)


def merge(arrays: Sequence[Array], pad: int | None) -> Array:
    """Rows of all requests in one array; with ``pad``, arrays [rows, tokens] of different length are filled up on the right."""
    if len(arrays) == 1:
        return arrays[0]
    shapes = [array.shape for array in arrays]
    if pad is None or len({shape[1] for shape in shapes}) == 1:
        return np.concatenate(arrays)
    merged = np.full((sum([shape[0] for shape in shapes]), max([shape[1] for shape in shapes])), pad, dtype=arrays[0].dtype)
    end = 0
    for array, (rows, width) in zip(arrays, shapes, strict=True):
        merged[end : end + rows, :width] = array
        end += rows
    return merged


def cut_back(output: Array, axes: Sequence[int], length: int | None) -> Array:
    """The first ``length`` entries along each of ``axes``."""
    if not axes:
        return output
    return output[tuple(slice(length if axis in axes else None) for axis in range(output.ndim))]


class BatchRunner:
    """Runs a model for several requests at once where that is safe; knows nothing of Triton.

    Args:
        run: runs the model once: inputs by name to outputs in the order of ``outputs``, which are their names.
        pads: pad value of each input [rows, tokens] that may be padded.
        combine: whether requests may share a run at all (the model has a batch dimension).
        run_cost: fixed cost of a run, in tokens; may be set later.
        warn: told in words when requests will not share runs.
        exact: whether the same product is rounded alike in every shape, as on a CPU.
        pooled: outputs of which nobody reads what stands at padding that a request brings; it may be 0 then.
    """

    def __init__(
        self,
        run: Callable[[Feed], list[Array]],
        outputs: Sequence[str],
        pads: dict[str, int],
        combine: bool,
        run_cost: int,
        warn: Callable[[str], None],
        exact: bool = True,
        pooled: Collection[str] = (),
    ) -> None:
        self._run = run
        self._exact = exact
        self._outputs = list(outputs)
        self._pads = pads
        self._tokens = frozenset(pads)
        self._combine = combine
        self._split = False  # whether rows of one request may go apart
        self._pooled = frozenset(pooled)
        self._sorts_rows = False  # whether they may also be computed without the padding between them
        self.run_cost = run_cost
        self._warn = warn
        self._length_axes: list[list[int]] = [[] for _ in outputs]
        self._proven: frozenset[str] = frozenset()  # inputs of the sample

    @property
    def pads(self) -> dict[str, int]:
        """Pad values in use; empty when requests of different length do not share runs."""
        return dict(self._pads)

    def check(self, sample: Callable[[int], Feed]) -> None:
        """Find out whether rows may go apart, whether padding is safe, and which output axes follow the length; ``sample`` makes one row of so many tokens."""
        by_rows = self._by_rows(sample) if self._combine else False
        in_company = by_rows is not False and self._in_company(sample)
        # What was refused proved nothing: requests may share a run, which fails for all of them if it does, but none is taken apart.
        self._combine, self._split = in_company is not False, by_rows is True and in_company is True
        if not (self._combine and self._pads):
            self._pads = {}
            return
        short, long = sample(SHORT), sample(LONG)
        self._proven = frozenset(short)
        try:
            alone = [self._run(short), self._run(long)]
            if [a.ndim for a in alone[0]] != [a.ndim for a in alone[1]]:
                raise ValueError("the number of output dimensions depends on the length")
            self._length_axes = [
                [axis for axis in range(1, a.ndim) if (a.shape[axis], b.shape[axis]) == (SHORT, LONG)] for a, b in zip(*alone, strict=True)
            ]
            together = self._together([short, long], [SHORT, LONG])
        except Exception as error:
            self._pads = {}
            self._warn(f"requests of different lengths will not share runs: the sample input was rejected ({first_line(error)})")
            return
        for name, *pairs in zip(self._outputs, *alone, *(list(answer.values()) for answer in together), strict=True):
            if not all(self._same(pairs[i], pairs[i + 2]) for i in (0, 1)):
                self._pads = {}
                self._warn(f"requests of different lengths will not share runs: padding a row changes its {name}, so the graph ignores its mask")
                return
        columns = zip(self._outputs, self._length_axes, strict=True)
        self._sorts_rows = self._split and all(not axes or (axes == [1] and name in self._pooled) for name, axes in columns)

    def _same(self, alone: Array, padded: Array) -> bool:
        """Whether two answers differ by rounding at most."""
        if alone.shape != padded.shape:
            return False
        if self._exact and alone.dtype.kind in "fc":
            return bool(np.allclose(alone, padded, RELATIVE, ABSOLUTE, equal_nan=True))
        return _off(alone, padded) <= COMPANY

    def _by_rows(self, sample: Callable[[int], Feed]) -> bool | None:
        """Whether every output has one entry per row: one of another length could have that of a batch by chance, and be cut into wrong answers.

        None where the model refuses the sample.
        """
        row = sample(4)
        for rows in (1, 2, 3):
            try:
                results = self._run({name: np.repeat(array, rows, axis=0) for name, array in row.items()})
            except Exception:
                return None
            if odd := [name for name, result in zip(self._outputs, results, strict=True) if result.shape[:1] != (rows,)]:
                self._warn(f"requests will not share runs: output {odd[0]} does not have one entry per row")
                return False
        return True

    def _in_company(self, sample: Callable[[int], Feed]) -> bool | None:
        """Whether a row gets the answer beside another one of its length that it gets alone: a scale that is taken over the whole batch, as of a
        dynamically quantized graph, changes it. None where the model refuses the sample."""
        rows = [sample(4), _another(sample(4))]
        try:
            alone = [self._run(row) for row in rows]
            together = self._run({name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
        except Exception:
            return None
        for name, one, other, both in zip(self._outputs, *alone, together, strict=True):
            off = _off(np.concatenate([one, other]), both) if one.shape == other.shape else math.inf
            if off > COMPANY:
                self._warn(
                    f"requests will not share runs: the {name} of a row depends on the other rows"
                    + (f" (by {off:.1%})" if math.isfinite(off) else "")
                    + ", as in a dynamically quantized graph, whose scales are computed over the whole batch. Each request runs separately, so batching"
                    " saves nothing; use a float model, or quantize the model statically"
                )
                return False
        return True

    def answer(self, feeds: list[Feed]) -> list[dict[str, Array] | Exception]:
        """Outputs of every request, or the error of the ones that failed, in order."""
        lengths = [self._length(feed) for feed in feeds]
        own = [self._row_lengths(feed, length) for feed, length in zip(feeds, lengths, strict=True)] if self._sorts_rows else []
        padding = sum([len(rows) * max(rows) - sum(rows) for rows in own if rows])
        if padding <= self.run_cost:
            return self._answers(feeds, lengths)  # less than what a further run costs
        pieces: list[Feed] = []
        ends: list[int | None] = []
        for feed, length, rows in zip(feeds, lengths, own, strict=True):
            # Views, of which a run copies what it needs.
            pieces += [
                {name: array[row : row + 1, :end] if name in self._pads else array[row : row + 1] for name, array in feed.items()}
                for row, end in enumerate(rows)
            ] or [feed]
            ends += rows or [length]
        found = iter(self._answers(pieces, ends))
        return [self._joined(feed, rows, [next(found) for _ in rows]) if rows else next(found) for feed, rows in zip(feeds, own, strict=True)]

    def _row_lengths(self, feed: Feed, length: int | None) -> list[int]:
        """Every row's own length, where the request pads some; else nothing."""
        if length is None or _rows(feed) == 1:
            return []
        tokens = np.zeros((_rows(feed), length), np.bool_)
        for name, pad in self._pads.items():
            tokens |= feed[name] != pad
        # A row of nothing but padding stays as long as it is: without a mask it may depend on its length.
        lengths: list[int] = (length - tokens[:, ::-1].argmax(axis=1)).tolist()
        return lengths if min(lengths) < length else []

    def _joined(self, feed: Feed, lengths: Sequence[int], answers: Sequence[dict[str, Array] | Exception]) -> dict[str, Array] | Exception:
        """The outputs of a request from those of its rows, or the error of one of them."""
        found: list[dict[str, Array]] = []
        for answer in answers:
            if isinstance(answer, Exception):
                return answer
            found.append(answer)
        width = next(feed[name].shape[1] for name in self._pads)
        joined = {}
        for name, axes in zip(self._outputs, self._length_axes, strict=True):
            rows = [answer[name] for answer in found]
            leading = 1 + len(axes)  # the axis of rows, and that of tokens
            rest = rows[0].shape[leading:]
            if any(row.shape != (1, length)[:leading] + rest for row, length in zip(rows, lengths, strict=True)):
                return self._answers([feed], [None])[0]  # long rows do otherwise than the sample
            if not axes:
                joined[name] = np.concatenate(rows)
                continue
            output = joined[name] = np.empty((len(rows), width, *rest), rows[0].dtype)
            for place, row, length in zip(output, rows, lengths, strict=True):
                place[:length] = row[0]
                place[length:] = 0
        return joined

    def _answers(self, feeds: list[Feed], lengths: Sequence[int | None]) -> list[dict[str, Array] | Exception]:
        """Answers of requests of these lengths, whose rows stay together."""
        answers: list[Any] = [None] * len(feeds)
        for members in self._runs(feeds, lengths):
            try:
                results: list[Any] = self._together([feeds[i] for i in members], [lengths[i] for i in members])
            except Exception as error:
                # One request may have made the run fail: only that one may suffer.
                results = [error] if len(members) == 1 else [self._answers([feeds[i]], [lengths[i]])[0] for i in members]
            for i, result in zip(members, results, strict=True):
                answers[i] = result
        return answers

    def _runs(self, feeds: list[Feed], lengths: Sequence[int | None]) -> list[list[int]]:
        """Indices of the requests of each run."""
        if not self._combine or len(feeds) == 1:
            return [[i] for i in range(len(feeds))]
        groups: dict[Any, dict[int, list[int]]] = {}
        for i, (feed, length) in enumerate(zip(feeds, lengths, strict=True)):
            key = tuple([name if length is not None and name in self._pads else (name, array.shape[1:]) for name, array in feed.items()])
            groups.setdefault(key, {}).setdefault(length or 0, []).append(i)
        runs = []
        for by_length in groups.values():
            rows = {length: sum([_rows(feeds[i]) for i in members]) for length, members in by_length.items()}
            runs += [[i for length in run for i in by_length[length]] for run in cheapest_runs(rows, self.run_cost)]
        return runs

    def _length(self, feed: Feed) -> int | None:
        """Tokens per row of a request whose padded inputs agree in shape; None when it cannot be padded.

        Nothing was proven for a request that leaves an optional input out (its default may be a mask that does not know of padding).
        """
        if not (self._pads and feed.keys() >= self._proven):
            return None
        shapes = {feed[name].shape for name in self._pads if name in feed}
        if len(shapes) != 1:
            return None
        (shape,) = shapes
        return shape[1] if len(shape) == 2 else None

    def _together(self, feeds: list[Feed], lengths: Sequence[int | None]) -> list[dict[str, Array]]:
        if len(feeds) == 1:
            return [dict(zip(self._outputs, self._bounded(feeds[0]), strict=True))]
        padded = len(set(lengths)) > 1
        results = self._bounded({name: merge([feed[name] for feed in feeds], self._pads.get(name) if padded else None) for name in feeds[0]})
        ends = list(accumulate(map(_rows, feeds)))
        if any(result.shape[:1] != (ends[-1],) for result in results):
            raise ValueError("an output does not have one entry per row")
        columns = list(zip(self._outputs, results, self._length_axes, strict=True))
        answers, begin = [], 0
        for length, end in zip(lengths, ends, strict=True):
            answers.append({name: cut_back(result[begin:end], axes if padded else (), length) for name, result, axes in columns})
            begin = end
        return answers

    def _bounded(self, feed: Feed) -> list[Array]:
        """The outputs for all rows of ``feed``, in several runs where one would compute too many tokens and rows may go apart."""
        width = max((array.shape[1] for name, array in feed.items() if name in self._tokens and array.ndim > 1), default=0)
        rows, most = _rows(feed), max(max(MOST_TOKENS, MOST_COSTS * self.run_cost) // max(width, 1), 1)
        if not (self._split and width) or rows <= most:
            return self._run(feed)
        begins = range(0, rows, most)
        parts = [self._run({name: array[begin : begin + most] for name, array in feed.items()}) for begin in begins]
        columns = list(zip(*parts, strict=True))
        if any(array.shape[:1] != (min(most, rows - begin),) for column in columns for begin, array in zip(begins, column, strict=True)):
            return self._run(feed)  # long rows do otherwise than the sample: an output without an entry per row
        if any(len({array.shape[1:] for array in column}) > 1 for column in columns):
            return self._run(feed)  # an output as wide as the rows that were together
        return [np.concatenate(column) for column in columns]


def _rows(feed: Feed) -> int:
    return len(next(iter(feed.values())))


def _another(row: Feed) -> Feed:
    """A row of the same shapes with other values that every model takes: 0 for every second token (its mask is 0 there, too), floats ten times as large."""

    def other(array: Array) -> Array:
        if array.dtype.kind in "fc":
            return np.multiply(array, 10, dtype=array.dtype)
        made = array.copy()
        if array.dtype.kind in "iub":
            made.reshape(-1)[::2] = 0
        return made

    return {name: other(array) for name, array in row.items()}


def _off(wanted: Array, got: Array) -> float:
    """By how much a row of an output differs, as a share of its largest value; infinite where that is no question of rounding."""
    if wanted.shape != got.shape:
        return math.inf
    if wanted.dtype.kind not in "fc":
        return 0.0 if bool((wanted == got).all()) else math.inf
    if not np.array_equal(np.isfinite(wanted), np.isfinite(got)):
        return math.inf
    finite = np.isfinite(wanted)
    one, other = (np.where(finite, array, 0).astype(np.complex128).reshape(len(array), -1) for array in (wanted, got))
    own = np.abs(one).max(axis=1, initial=0.0)
    largest = np.maximum(own, max(own.max() / 10, ABSOLUTE))  # a row that is nearly 0 by chance is as exact as the sums it comes from
    return float((np.abs(one - other).max(axis=1, initial=0.0) / largest).max())


def first_line(error: Exception) -> str:
    """What an error says in its first line: ONNX Runtime adds where in its sources it came from."""
    return str(error).strip().split("\n", 1)[0]
