"""What is known about a tensor of a stock graph: its axes, and whether it depends on the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Axis(Enum):
    """An axis whose length the inputs decide."""

    ROWS = "the rows of the batch"
    PLACES = "the places of a row, up to the longest"
    ALL_PLACES = "rows times places, merged"
    OTHER = "another length that changes with the inputs"


Dims = tuple[int | Axis, ...]
"""Shape of a tensor: fixed lengths as numbers."""


@dataclass(frozen=True)
class TokenAxes:
    """Where a tensor has its tokens, and its fixed axes before and behind."""

    before: tuple[int, ...]
    """Fixed axes in front of the tokens."""
    behind: tuple[int, ...]
    """Fixed axes after the tokens."""
    is_merged: bool
    """Whether rows and places are one axis."""

    @property
    def first(self) -> int:
        """Return the number of the first token axis."""
        return len(self.before)

    @property
    def last(self) -> int:
        """Return the number of the last token axis."""
        return self.first + (0 if self.is_merged else 1)

    @property
    def rank(self) -> int:
        """Return the number of all axes."""
        return self.last + 1 + len(self.behind)

    @property
    def from_end(self) -> int:
        """Return how many axes the tensor has from the last token axis on."""
        return len(self.behind) + 1

    def with_tokens(self, *lengths: int) -> list[int]:
        """Return a shape with ``lengths`` in place of the token axes."""
        return [*self.before, *lengths, *self.behind]

    def flat_shape(self) -> list[int]:
        """Return the shape of the tokens laid end to end, for Reshape (-1: number of tokens)."""
        return self.with_tokens(-1) if self.is_merged else self.with_tokens(1, -1)


@dataclass(frozen=True)
class TensorFacts:
    """What is known about one tensor."""

    dims: Dims
    """Its axes."""
    dtype: np.dtype[Any]
    """Element type."""
    is_neutral: bool
    """Whether it is the same for all inputs, shapes of inputs included."""
    value: NDArray[Any] | None = None
    """Its elements, if it is neutral and small."""
    filler: float | None = None
    """The value that it holds in all places behind its rows; ``None`` if there is none."""

    @property
    def tokens(self) -> TokenAxes | None:
        """Return where its tokens are; ``None`` if it does not hold one entry per token."""
        return token_axes(self.dims)


Facts = Mapping[str, TensorFacts]


def token_axes(dims: Dims) -> TokenAxes | None:
    """Return the axes of rows and places if these are adjacent and all others are fixed."""
    for place, dim in enumerate(dims):
        if isinstance(dim, int):
            continue
        merged = dim is Axis.ALL_PLACES
        if not merged and dims[place : place + 2] != (Axis.ROWS, Axis.PLACES):
            return None
        before, behind = dims[:place], dims[place + (1 if merged else 2) :]
        if not all(isinstance(other, int) for other in behind):
            return None
        return TokenAxes(_fixed(before), _fixed(behind), merged)
    return None


def _fixed(dims: Sequence[int | Axis]) -> tuple[int, ...]:
    return tuple(dim for dim in dims if isinstance(dim, int))
