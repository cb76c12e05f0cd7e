"""The indices that lead from padded matrices to flat tokens and back."""

from __future__ import annotations

from dataclasses import dataclass, replace

from triton_pipelines.loader.onnx_graph.node_builder import NodeBuilder
from triton_pipelines.loader.ragged.padding_free.length_groups import (
    RowGroup,
    SortedRows,
    cut_rows,
    sort_rows,
)


@dataclass(frozen=True)
class PaddedView:
    """Rows that are padded to a common length. Names of index tensors."""

    to_padded: str
    """[rows, places]: for each place the flat token; behind a row its last token."""
    is_token: str
    """[rows, places]: whether a place holds a token."""
    places: str
    """[places]: 0, 1, 2, …"""
    rows: str = ""
    """[rows]: numbers of its rows in the batch; empty if these are all, in their order."""
    width: str = ""
    """Number of its places; empty if these are all."""
    is_empty: str = ""
    """Whether it has no rows of its own; empty if it always has some."""


@dataclass(frozen=True)
class TokenMaps:
    """Names of the index tensors of a batch."""

    views: tuple[PaddedView, ...]
    """The padded views, one for each group of rows."""
    whole: PaddedView
    """The view of all rows, in the order of the batch."""
    to_flat: str
    """[tokens]: for each flat token its place among all places of all views."""
    place_of: str
    """[1, tokens]: for each flat token its place among the places of a row of each view."""
    row_of: str
    """[1, tokens]: for each flat token its row among the rows of all views."""
    row_order: str = ""
    """[rows]: for each row of the batch its number among the rows of all views."""


def build_token_maps(build: NodeBuilder, taken: str, width: str, cuts: int = 0) -> TokenMaps:
    """Add the nodes that make the index tensors.

    Args:
        build: where the nodes are added.
        taken: [rows, 1]: tokens of each row.
        width: number of places of the longest row.
        cuts: how often rows of similar length are cut in two.
    """
    if not cuts:
        starts = build.add("CumSum", taken, build.scalar(0), exclusive=1)
        whole = _view(build, starts, taken, width)
        return _maps(build, (whole,), whole)
    rows = sort_rows(build, taken)
    column = build.unsqueeze(rows.lengths, 1)
    starts = build.add("CumSum", column, build.scalar(0), exclusive=1)
    groups = cut_rows(build, rows, cuts)
    views = tuple(_group_view(build, rows, group, starts, column) for group in groups)
    # Rows are cut so that the first group always has some.
    views = (replace(views[0], is_empty=""), *views[1:])
    # Sorting the numbers of sorted rows tells where each row of the batch is among them.
    _, place = build.add_many(
        "TopK", rows.order, build.unsqueeze(rows.count, 0), outputs=2, largest=0
    )
    whole = _view(build, build.add("Gather", starts, place, axis=0), taken, width)
    return _maps(build, views, whole, _row_order(build, views, groups, place))


def _view(build: NodeBuilder, starts: str, taken: str, width: str) -> PaddedView:
    """Return the view of rows that start at flat token ``starts`` and have ``taken`` tokens."""
    one = build.scalar(1)
    places = build.add("Range", build.scalar(0), width, one)
    last = build.add("Sub", taken, one)
    # Behind a row stands its own last token: no other row's values, and none of a new kind.
    to_padded = build.add("Add", starts, build.add("Min", places, last))
    return PaddedView(to_padded, build.add("Less", places, taken), places)


def _group_view(
    build: NodeBuilder, rows: SortedRows, group: RowGroup, starts: str, lengths: str
) -> PaddedView:
    def own(values: str) -> str:
        limits = (build.unsqueeze(limit, 0) for limit in (group.first, group.end))
        return build.add("Slice", values, *limits)

    view = _view(build, own(starts), own(lengths), group.width)
    is_token = build.add("And", view.is_token, build.add("Not", group.is_empty))
    return PaddedView(
        view.to_padded, is_token, view.places, own(rows.order), group.width, group.is_empty
    )


def _row_order(
    build: NodeBuilder, views: tuple[PaddedView, ...], groups: list[RowGroup], place: str
) -> str:
    """Return for each row of the batch its number among the rows of all views."""
    real = [
        build.add(
            "And",
            build.add("GreaterOrEqual", view.rows, build.scalar(0)),
            build.add("Not", group.is_empty),
        )
        for view, group in zip(views, groups, strict=True)
    ]
    is_real = build.add("Concat", *real, axis=0)
    every = build.add("Range", build.scalar(0), build.add("Size", is_real), build.scalar(1))
    return build.add("Gather", build.add("Compress", every, is_real, axis=0), place, axis=0)


def _maps(
    build: NodeBuilder, views: tuple[PaddedView, ...], whole: PaddedView, row_order: str = ""
) -> TokenMaps:
    """Return the maps of flat tokens that are in the order of the views."""
    zero, one = build.scalar(0), build.scalar(1)
    lists = [build.add("Reshape", view.is_token, build.integers(-1)) for view in views]
    is_token = build.join(lists)
    every = build.add("Range", zero, build.add("Size", is_token), one)
    place_of, row_of = [], []
    first_place = first_row = zero
    for view in views:
        shape = build.add("Shape", view.to_padded)
        rows, places = (build.add("Gather", shape, build.scalar(axis), axis=0) for axis in (0, 1))
        numbers = build.add("Range", zero, rows, one)
        own = build.add("Add", view.places, first_place)
        place_of.append(_over_places(build, own, shape))
        own = build.unsqueeze(build.add("Add", numbers, first_row), 1)
        row_of.append(_over_places(build, own, shape))
        first_place, first_row = (
            build.add("Add", first_place, places),
            build.add("Add", first_row, rows),
        )
    place, row = (
        build.unsqueeze(build.add("Compress", build.join(parts), is_token, axis=0), 0)
        for parts in (place_of, row_of)
    )
    to_flat = build.add("Compress", every, is_token, axis=0)
    return TokenMaps(views, whole, to_flat, place, row, row_order)


def _over_places(build: NodeBuilder, values: str, shape: str) -> str:
    """Return values of rows, or of places, as a list over all places."""
    return build.add("Reshape", build.add("Expand", values, shape), build.integers(-1))
