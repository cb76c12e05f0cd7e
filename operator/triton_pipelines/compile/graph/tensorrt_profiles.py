"""Optimization profiles of a TensorRT plan: the batches that they accept, and their buckets.

A plan accepts a batch if one of the profiles that its instances load covers the batch's rows and
tokens. Only TensorRT can read profiles from the file, so the resource declares them. Instances load
the first profile unless ``instances.profiles`` names others (tensorrt_backend), and Triton chooses
among those by the shape of each batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triton_pipelines.api.optimization import TokenLengths


@dataclass(frozen=True, slots=True)
class Box:
    """One profile that instances load."""

    index: int
    """Index of the profile."""
    tokens: tuple[int, int]
    """Fewest and most tokens of a row."""
    rows: tuple[int, int]
    """Fewest and most rows of a batch."""

    def __str__(self) -> str:
        return (
            f"profile {self.index}: {self.rows[0]}-{self.rows[1]} rows x"
            f" {self.tokens[0]}-{self.tokens[1]} tokens"
        )


def boxes(lengths: TokenLengths | None, named: Sequence[str]) -> tuple[Box, ...]:
    """Return the declared profiles that instances load; ``named`` is ``instances.profiles``.

    Empty if none is declared.
    """
    declared = lengths.profiles if lengths is not None else ()
    chosen = sorted({int(name) for name in named} or {0})
    return tuple(
        Box(index, (one.min or 1, one.max), (one.min_batch_size or 1, one.max_batch_size))
        for index in chosen
        if index < len(declared) and (one := declared[index])
    )


def unfit(held: Sequence[Box], tokens: int, rows: int) -> int | None:
    """Return the largest batch of up to ``rows`` rows of this length that no profile accepts.

    ``None`` if profiles accept them all.
    """
    taken = [box.rows for box in held if box.tokens[0] <= tokens <= box.tokens[1]]
    # Only next to an end of a profile something can be missing.
    sizes = {rows, *(end for low, high in taken for end in (low - 1, high + 1))}
    missing = [
        size
        for size in sizes
        if 1 <= size <= rows and not any(low <= size <= high for low, high in taken)
    ]
    return max([*missing, 1] if not taken else missing, default=None)


def uncovered(held: Sequence[Box], longest: int, rows: int) -> Iterator[tuple[int, int]]:
    """Return lengths up to ``longest`` tokens with a batch that is not accepted, with its rows.

    There is one length for each gap.
    """
    for tokens in sorted(
        {
            1,
            longest,
            *(
                end
                for box in held
                for end in (box.tokens[0] - 1, box.tokens[0], box.tokens[1], box.tokens[1] + 1)
            ),
        }
    ):
        if 1 <= tokens <= longest and (size := unfit(held, tokens, rows)) is not None:
            yield tokens, size


def bucket_lengths(held: Sequence[Box], longest: int) -> tuple[int, ...]:
    """Return buckets from profiles: the maximum tokens of each below ``longest``, ascending."""
    return tuple(sorted({box.tokens[1] for box in held if box.tokens[1] < longest}))
