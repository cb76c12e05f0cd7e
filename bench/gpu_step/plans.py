"""Plans: into which executions a batch is cut, and the variants that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.gpu_step.encoder import GROUPS, MOST_TOKENS, Batch, Form


@dataclass(frozen=True)
class StepCost:
    """The law of a padded step, from two measured shapes."""

    launch_s: float
    """Seconds per execution."""
    token_s: float
    """Seconds per padded token."""


@dataclass(frozen=True)
class Execution:
    """One run of a graph."""

    batch: Batch
    width: int
    """Tokens that padded forms pad to."""
    rows: Sequence[int]
    """Which rows of the whole batch these are."""


def whole_batch(batch: Batch, width: int | None = None) -> list[Execution]:
    """Return one execution of all rows, padded to ``width`` or to the longest row."""
    return [Execution(batch, width or batch.longest, range(batch.rows))]


def split_batch(
    batch: Batch, parts: Iterable[Sequence[int]], bucket: bool = False
) -> list[Execution]:
    """Return one execution per part; with ``bucket``, padded to the next bucket of lengths."""
    executions = []
    for rows in parts:
        one = batch.take(rows)
        width = bucket_of(one.longest) if bucket else one.longest
        executions.append(Execution(one, width, rows))
    return executions


def bucket_of(tokens: int) -> int:
    """Return the next power of two, at least 16."""
    return max(16, 1 << (tokens - 1).bit_length())


def plan_alone(batch: Batch, _: StepCost) -> list[Execution]:
    """Every row by itself."""
    return split_batch(batch, [[row] for row in range(batch.rows)])


def plan_fixed(batch: Batch, _: StepCost) -> list[Execution]:
    """One execution, padded to the most tokens that the model takes."""
    return whole_batch(batch, MOST_TOKENS)


def plan_longest(batch: Batch, _: StepCost) -> list[Execution]:
    """One execution, as wide as its longest row."""
    return whole_batch(batch)


def plan_buckets(batch: Batch, _: StepCost) -> list[Execution]:
    """One execution for each power of two that a length falls under."""
    parts: dict[int, list[int]] = {}
    for row, length in enumerate(batch.lengths.tolist()):
        parts.setdefault(bucket_of(length), []).append(row)
    return split_batch(batch, parts.values(), bucket=True)


def plan_sorted(batch: Batch, cost: StepCost) -> list[Execution]:
    """Sorted by length and cut where that makes the sum of the executions cheapest."""
    order = np.argsort(batch.lengths, kind="stable").tolist()
    lengths = [int(batch.lengths[row]) for row in order]
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end, width in enumerate(lengths, 1):
        best.append(
            min(
                (best[first][0] + cost.launch_s + cost.token_s * width * (end - first), first)
                for first in range(end)
            )
        )
    parts, end = [], batch.rows
    while end:
        first = best[end][1]
        parts.append(order[first:end])
        end = first
    return split_batch(batch, parts)


Plan = Callable[[Batch, StepCost], list[Execution]]


@dataclass(frozen=True)
class StepVariant:
    """A way to compute a batch of rows of different lengths."""

    name: str
    form: Form
    plan: Plan
    meaning: str


BASELINE = "padded-longest"
VARIANTS = (
    StepVariant(BASELINE, Form.PADDED, plan_longest, "one execution, padded to its longest row"),
    StepVariant("fixed-512", Form.PADDED, plan_fixed, "one execution, padded to 512 tokens"),
    StepVariant("row-alone", Form.PADDED, plan_alone, "one execution per row, no padding"),
    StepVariant("buckets", Form.PADDED, plan_buckets, "one execution per power-of-two bucket"),
    StepVariant(
        "sorted", Form.PADDED, plan_sorted, "sorted by length, cut into the cheapest executions"
    ),
    StepVariant(
        "padded-fused", Form.PADDED_FUSED, plan_longest, "padded, com.microsoft MultiHeadAttention"
    ),
    StepVariant(
        "padding-free", Form.FLAT, plan_longest, "standard operators, index maps in the graph"
    ),
    StepVariant(
        "padding-free-host",
        Form.FLAT_HOST,
        plan_longest,
        "standard operators, index maps from the host",
    ),
    StepVariant(
        "padding-free-groups",
        Form.FLAT_GROUPS,
        plan_longest,
        f"as padding-free-host, attention in {GROUPS} length groups",
    ),
    StepVariant(
        "packed", Form.PACKED, plan_longest, "PackedMultiHeadAttention, index maps in the graph"
    ),
    StepVariant(
        "packed-host",
        Form.PACKED_HOST,
        plan_longest,
        "PackedMultiHeadAttention, index maps from the host",
    ),
    StepVariant(
        "remove-padding",
        Form.REMOVE_PADDING,
        plan_longest,
        "padded inputs, RemovePadding, PackedMultiHeadAttention, RestorePadding",
    ),
    StepVariant(
        "padding-free-sorted",
        Form.FLAT,
        plan_sorted,
        "padding-free, sorted and cut into executions as in sorted",
    ),
)
