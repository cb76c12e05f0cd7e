"""Answer the requests of one call in as few and as cheap runs of a model as is safe.

Nothing here depends on Triton.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from triton_pipelines.runtime.onnx_runner.sample_runs import Array, Feed, SampleRuns

# Most tokens of a run, as a number and as a multiple of the run's fixed cost; the larger one
# counts. Beyond that, a further run adds a hundredth of the work and needs less memory.
# For MiniLM on a CPU, a run of 64 rows of 512 tokens took 1.7 GiB, which ONNX Runtime keeps. Eight
# runs of 8 rows took 0.2 GiB and no more time.
MOST_TOKENS, MOST_COSTS = 4096, 64
# Tokens of the two rows that show whether padding is safe. Most of the padded short row is padding,
# so a graph that ignores its mask differs by far more than any rounding.
SHORT, LONG = 3, 16


def cheapest_runs(rows_by_length: dict[int, int], run_cost: int) -> list[list[int]]:
    """Return the lengths of each run of the cheapest partition.

    In tokens, a run costs ``run_cost`` + its rows x its longest length. An optimal partition
    consists of neighbours in sorted order. Its padding is at most ``run_cost`` for each length that
    shares a run.
    """
    lengths = sorted(rows_by_length)
    counts = [rows_by_length[length] for length in lengths]
    # Cheapest cost of the first n lengths, and where its last run begins.
    costs, begins = [0], [0]
    for end in range(1, len(lengths) + 1):
        longest, rows, cost, begin = lengths[end - 1], 0, sys.maxsize, end - 1
        for first in range(end - 1, -1, -1):
            if counts[first] * (longest - lengths[first]) > run_cost:
                # The padding would cost more than a separate run for the shorter lengths.
                break
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


def merge(arrays: Sequence[Array], pad: int | None) -> Array:
    """Concatenate the rows of all requests.

    With ``pad``, arrays [rows, tokens] of different length are padded on the right.
    """
    if len(arrays) == 1:
        return arrays[0]
    shapes = [array.shape for array in arrays]
    if pad is None or len({shape[1] for shape in shapes}) == 1:
        return np.concatenate(arrays)
    merged = np.full(
        (sum([shape[0] for shape in shapes]), max([shape[1] for shape in shapes])),
        pad,
        dtype=arrays[0].dtype,
    )
    end = 0
    for array, (rows, width) in zip(arrays, shapes, strict=True):
        merged[end : end + rows, :width] = array
        end += rows
    return merged


def cut_back(output: Array, axes: Sequence[int], length: int | None) -> Array:
    """Return the first ``length`` entries along each of ``axes``."""
    if not axes:
        return output
    return output[tuple(slice(length if axis in axes else None) for axis in range(output.ndim))]


class BatchRunner:
    """Runs a model for several requests at once where that is safe.

    Args:
        run: runs the model once: inputs by name to outputs in the order of ``outputs``.
        outputs: names of the outputs.
        pads: pad value of each input [rows, tokens] that may be padded.
        combine: whether requests may share a run at all (the model has a batch dimension).
        run_cost: fixed cost of a run, in tokens; may be set later.
        warn: receives the reason when requests will not share runs.
        exact: whether the same product is rounded alike in every shape, as on a CPU.
        pooled: outputs whose values at the padding positions of a request are never read. These
            values may be 0.
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
        self._samples = SampleRuns(run, list(outputs), warn, exact)
        self._outputs = list(outputs)
        self._pads = pads
        self._tokens = frozenset(pads)
        self._combine = combine
        # Whether rows of one request may be computed in different runs.
        self._split = False
        self._pooled = frozenset(pooled)
        # Whether they may also be computed without the padding that the request contains.
        self._sorts_rows = False
        self.run_cost = run_cost
        self._warn = warn
        self._length_axes: list[list[int]] = [[] for _ in outputs]
        self._proven: frozenset[str] = frozenset()  # inputs of the sample

    @property
    def pads(self) -> dict[str, int]:
        """Pad values in use; empty if requests of different length do not share runs."""
        return dict(self._pads)

    def check(self, sample: Callable[[int], Feed]) -> None:
        """Find out which rows may share runs, and which output axes follow the length.

        Args:
            sample: makes one row of the given number of tokens.
        """
        per_row = self._samples.has_entry_per_row(sample) if self._combine else False
        independent = per_row is not False and self._samples.is_independent(sample)
        # A rejected sample proves nothing. Requests may then share a run, and if it fails, they run
        # one by one. But no request is split.
        self._combine = independent is not False
        self._split = per_row is True and independent is True
        if not (self._combine and self._pads):
            self._pads = {}
            return
        reason = self._check_padding(sample(SHORT), sample(LONG))
        if reason:
            self._pads = {}
            self._warn(f"requests of different lengths will not share runs: {reason}")
            return
        columns = zip(self._outputs, self._length_axes, strict=True)
        self._sorts_rows = self._split and all(
            not axes or (axes == [1] and name in self._pooled) for name, axes in columns
        )

    def _check_padding(self, short: Feed, long: Feed) -> str:
        """Find the output axes that follow the length; return why padding is unsafe, or ``""``."""
        self._proven = frozenset(short)
        try:
            alone = [self._run(short), self._run(long)]
            if [a.ndim for a in alone[0]] != [a.ndim for a in alone[1]]:
                raise ValueError("the number of output dimensions depends on the length")
            self._length_axes = [
                [
                    axis
                    for axis in range(1, a.ndim)
                    if (a.shape[axis], b.shape[axis]) == (SHORT, LONG)
                ]
                for a, b in zip(*alone, strict=True)
            ]
            together = self._together([short, long], [SHORT, LONG])
        except Exception as error:
            return f"the sample input was rejected ({first_line(error)})"
        padded = [list(answer.values()) for answer in together]
        for name, *pairs in zip(self._outputs, *alone, *padded, strict=True):
            if not all(self._samples.is_same(pairs[i], pairs[i + 2]) for i in (0, 1)):
                return f"padding a row changes its {name}, so the graph ignores its mask"
        return ""

    def answer(self, feeds: list[Feed]) -> list[dict[str, Array] | Exception]:
        """Return the outputs of every request, or its error, in order."""
        lengths = [self._length(feed) for feed in feeds]
        own = (
            [self._row_lengths(feed, length) for feed, length in zip(feeds, lengths, strict=True)]
            if self._sorts_rows
            else []
        )
        padded = [
            (length or 0, end) for length, rows in zip(lengths, own, strict=False) for end in rows
        ]
        padding = sum([length - end for length, end in padded])
        if padding <= self.run_cost:
            return self._answers(feeds, lengths)  # a further run would cost more
        pieces: list[Feed] = []
        ends: list[int | None] = []
        for feed, length, rows in zip(feeds, lengths, own, strict=True):
            # Views; a run copies what it needs.
            pieces += [
                {
                    name: array[row : row + 1, :end] if name in self._pads else array[row : row + 1]
                    for name, array in feed.items()
                }
                for row, end in enumerate(rows)
            ] or [feed]
            ends += rows or [length]
        is_whole = [not rows for rows in own for _ in rows or [0]]
        found = iter(self._answers(pieces, ends, is_whole))
        return [
            self._joined(feed, rows, [next(found) for _ in rows]) if rows else next(found)
            for feed, rows in zip(feeds, own, strict=True)
        ]

    def _row_lengths(self, feed: Feed, length: int | None) -> list[int]:
        """Return the length of every row without its padding; nothing if no row is padded."""
        if length is None or _rows(feed) == 1:
            return []
        if any(length in array.shape[1:] for name, array in feed.items() if name not in self._pads):
            return []  # It probably has one value per token, and would have to be cut, too.
        tokens = np.zeros((_rows(feed), length), np.bool_)
        for name, pad in self._pads.items():
            tokens |= feed[name] != pad
        # A row that is all padding keeps its length: without a mask, its answer may depend on it.
        lengths: list[int] = (length - tokens[:, ::-1].argmax(axis=1)).tolist()
        return lengths if min(lengths) < length else []

    def _joined(
        self, feed: Feed, lengths: Sequence[int], answers: Sequence[dict[str, Array] | Exception]
    ) -> dict[str, Array] | Exception:
        """Join the outputs of a request's rows.

        If a run with one of them failed, the request is computed as a whole.
        """
        found = [answer for answer in answers if not isinstance(answer, Exception)]
        if len(found) < len(answers):
            return self._answers([feed], [None])[0]
        width = next(feed[name].shape[1] for name in self._pads)
        joined = {}
        for name, axes in zip(self._outputs, self._length_axes, strict=True):
            rows = [answer[name] for answer in found]
            leading = 1 + len(axes)  # the axes of rows and tokens
            rest = rows[0].shape[leading:]
            if any(
                row.shape != (1, length)[:leading] + rest
                for row, length in zip(rows, lengths, strict=True)
            ):
                # Long rows behave differently from the sample.
                return self._answers([feed], [None])[0]
            if not axes:
                joined[name] = np.concatenate(rows)
                continue
            output = joined[name] = np.empty((len(rows), width, *rest), rows[0].dtype)
            for place, row, length in zip(output, rows, lengths, strict=True):
                place[:length] = row[0]
                place[length:] = 0
        return joined

    def _answers(
        self,
        feeds: list[Feed],
        lengths: Sequence[int | None],
        is_whole: Sequence[bool] | None = None,
    ) -> list[dict[str, Array] | Exception]:
        """Return the answers of requests, or of rows of requests, of these lengths.

        If a run fails, its requests are computed alone. Its rows (``is_whole`` is false) get the
        error.
        """
        answers: list[Any] = [None] * len(feeds)
        for members in self._runs(feeds, lengths):
            try:
                results: list[Any] = self._together(
                    [feeds[i] for i in members], [lengths[i] for i in members]
                )
            except Exception as error:
                # One request may have made the run fail; the others must not fail with it.
                results = [
                    self._answers([feeds[i]], [lengths[i]])[0]
                    if len(members) > 1 and (is_whole is None or is_whole[i])
                    else error
                    for i in members
                ]
            for i, result in zip(members, results, strict=True):
                answers[i] = result
        return answers

    def _runs(self, feeds: list[Feed], lengths: Sequence[int | None]) -> list[list[int]]:
        """Return the indices of the requests of each run."""
        if not self._combine or len(feeds) == 1:
            return [[i] for i in range(len(feeds))]
        groups: dict[Any, dict[int, list[int]]] = {}
        for i, (feed, length) in enumerate(zip(feeds, lengths, strict=True)):
            key = tuple(
                [
                    name if length is not None and name in self._pads else (name, array.shape[1:])
                    for name, array in feed.items()
                ]
            )
            groups.setdefault(key, {}).setdefault(length or 0, []).append(i)
        runs = []
        for by_length in groups.values():
            rows = {
                length: sum([_rows(feeds[i]) for i in members])
                for length, members in by_length.items()
            }
            runs += [
                [i for length in run for i in by_length[length]]
                for run in cheapest_runs(rows, self.run_cost)
            ]
        return runs

    def _length(self, feed: Feed) -> int | None:
        """Return the tokens per row of a request; None if it cannot be padded.

        The inputs to pad must have the same shape. A request without an optional input cannot be
        padded, because only complete requests were tested. The default of the missing input may be
        a mask that ignores padding.
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
        results = self._bounded(
            {
                name: merge(
                    [feed[name] for feed in feeds], self._pads.get(name) if padded else None
                )
                for name in feeds[0]
            }
        )
        ends = list(accumulate(map(_rows, feeds)))
        if any(result.shape[:1] != (ends[-1],) for result in results):
            raise ValueError("an output does not have one entry per row")
        columns = list(zip(self._outputs, results, self._length_axes, strict=True))
        answers, begin = [], 0
        for length, end in zip(lengths, ends, strict=True):
            answers.append(
                {
                    name: cut_back(result[begin:end], axes if padded else (), length)
                    for name, result, axes in columns
                }
            )
            begin = end
        return answers

    def _bounded(self, feed: Feed) -> list[Array]:
        """Return the outputs for all rows of ``feed``.

        If one run would compute too many tokens and rows may be split, it takes several runs.
        """
        widths = [
            array.shape[1]
            for name, array in feed.items()
            if name in self._tokens and array.ndim > 1
        ]
        width = max(widths, default=0)
        rows = _rows(feed)
        most = max(max(MOST_TOKENS, MOST_COSTS * self.run_cost) // max(width, 1), 1)
        if not (self._split and width) or rows <= most:
            return self._run(feed)
        begins = range(0, rows, most)
        parts = [
            self._run({name: array[begin : begin + most] for name, array in feed.items()})
            for begin in begins
        ]
        columns = list(zip(*parts, strict=True))
        if any(
            array.shape[:1] != (min(most, rows - begin),)
            for column in columns
            for begin, array in zip(begins, column, strict=True)
        ):
            # Long rows behave differently from the sample: an output without one entry per row.
            return self._run(feed)
        if any(len({array.shape[1:] for array in column}) > 1 for column in columns):
            return self._run(feed)  # the width of an output depends on the rows in the run
        return [np.concatenate(column) for column in columns]


def _rows(feed: Feed) -> int:
    return len(next(iter(feed.values())))


def first_line(error: Exception) -> str:
    """Return the first line of an error's text.

    ONNX Runtime adds positions in its source code on further lines.
    """
    return str(error).strip().split("\n", 1)[0]
