"""The indices that lead from padded matrices to flat tokens and back."""

from __future__ import annotations

from dataclasses import dataclass

from triton_pipelines.loader.ragged.node_builder import NodeBuilder


@dataclass(frozen=True)
class TokenMaps:
    """Names of the index tensors."""

    to_padded: str
    """[rows, places]: for each place the flat token; behind a row its last token."""
    to_padded_list: str
    """The same as a list."""
    to_flat: str
    """[1, tokens]: for each flat token its place among all places."""
    to_flat_list: str
    """The same as a list."""
    place_of: str
    """[1, tokens]: the place of each token in its row."""
    row_of: str
    """[1, tokens]: the row of each token."""
    is_token: str
    """[rows, places]: whether a place holds a token."""


def build_token_maps(build: NodeBuilder, taken: str, width: str) -> TokenMaps:
    """Add the nodes that make the index tensors.

    Args:
        build: where the nodes are added.
        taken: [rows, 1]: tokens of each row.
        width: number of places.
    """
    zero, one = build.scalar(0), build.scalar(1)
    places = build.add("Range", zero, width, one)
    is_token = build.add("Less", places, taken)
    starts = build.add("CumSum", taken, zero, exclusive=1)
    last = build.add("Sub", taken, one)
    # Behind a row stands its own last token: no other row's values, and none of a new kind.
    to_padded = build.add("Add", starts, build.add("Min", places, last))
    listed = build.add("Reshape", is_token, build.integers(-1))
    every = build.add("Range", zero, build.add("Size", is_token), one)
    to_flat_list = build.add("Compress", every, listed, axis=0)
    to_flat = build.unsqueeze(to_flat_list, 0)
    return TokenMaps(
        to_padded=to_padded,
        to_padded_list=build.add("Reshape", to_padded, build.integers(-1)),
        to_flat=to_flat,
        to_flat_list=to_flat_list,
        place_of=build.add("Mod", to_flat, width),
        row_of=build.add("Div", to_flat, width),
        is_token=is_token,
    )
