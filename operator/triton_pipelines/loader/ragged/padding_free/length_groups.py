"""Cut the rows of a batch into groups of similar length.

Attention costs rows times the square of the longest row. Sorted by length and cut where that is
least, a batch with one long row costs little more than its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from triton_pipelines.loader.onnx_graph.node_builder import NodeBuilder


@dataclass(frozen=True)
class SortedRows:
    """The rows of a batch, longest first. Names of tensors."""

    order: str
    """[rows]: number of each row in the batch."""
    lengths: str
    """[rows]: its tokens."""
    count: str
    """Number of rows."""


@dataclass(frozen=True)
class RowGroup:
    """Adjacent sorted rows. Names of tensors.

    A group without rows of its own has one place of another row, which no token is read from.
    """

    first: str
    """Number of its first sorted row."""
    end: str
    """Number behind its last sorted row."""
    is_empty: str
    """Whether it has no rows of its own."""
    width: str
    """Places of its longest row."""


def sort_rows(build: NodeBuilder, taken: str) -> SortedRows:
    """Add the nodes that sort rows by length.

    Args:
        build: where the nodes are added.
        taken: [rows, 1]: tokens of each row.
    """
    listed = build.add("Reshape", taken, build.integers(-1))
    count = build.add("Size", listed)
    lengths, order = build.add_many("TopK", listed, build.unsqueeze(count, 0), outputs=2)
    return SortedRows(order, lengths, count)


def cut_rows(build: NodeBuilder, rows: SortedRows, cuts: int) -> list[RowGroup]:
    """Add the nodes that cut sorted rows ``cuts`` times in two; return the 2^cuts groups."""
    limits = [build.scalar(0), rows.count]
    for _ in range(cuts):
        middles = [_best_cut(build, rows.lengths, *pair) for pair in pairwise(limits)]
        limits = [limits[0]] + [
            limit for pair in zip(middles, limits[1:], strict=True) for limit in pair
        ]
    return [_group(build, rows, *pair) for pair in pairwise(limits)]


def _best_cut(build: NodeBuilder, lengths: str, first: str, end: str) -> str:
    """Return where to cut the sorted rows from ``first`` to ``end``.

    The first part costs its rows times the square of the longest, as does the second. Where no cut
    costs less, all rows are in the first part.
    """
    one = build.scalar(1)
    limits = (build.unsqueeze(limit, 0) for limit in (first, end))
    own = build.add("Slice", lengths, *limits)
    squares = build.add("Mul", own, own)
    longest = build.add(
        "ReduceMax", build.add("Concat", squares, build.integers(0), axis=0), keepdims=0
    )
    count = build.add("Sub", end, first)
    before = build.add("Range", build.scalar(0), count, one)
    behind = build.add("Sub", count, before)
    costs = build.add("Add", build.add("Mul", before, longest), build.add("Mul", behind, squares))
    # The first entry stands for no cut. The last keeps the list from being empty.
    none = build.unsqueeze(build.add("Mul", count, longest), 0)
    every = build.add("Concat", costs, none, axis=0)
    # ONNX Runtime 1.19 has no ArgMin of INT64. TopK takes the first of equal costs.
    _, least = build.add_many("TopK", every, build.integers(1), outputs=2, largest=0)
    rows = build.add("Squeeze", least)
    is_none = build.add("Equal", rows, build.scalar(0))
    return build.add("Where", is_none, end, build.add("Add", first, rows))


def _group(build: NodeBuilder, rows: SortedRows, first: str, end: str) -> RowGroup:
    one = build.scalar(1)
    is_empty = build.add("Equal", first, end)
    start = build.add("Min", first, build.add("Sub", rows.count, one))
    stop = build.add("Max", end, build.add("Add", start, one))
    width = build.add("Where", is_empty, one, build.add("Gather", rows.lengths, start, axis=0))
    return RowGroup(start, stop, is_empty, width)
