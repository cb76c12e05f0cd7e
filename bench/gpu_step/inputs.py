"""Inputs of a graph: a batch laid out in the batch form of the graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.gpu_step.encoder import GROUPS, Array, Batch, Feeds, Form


def padded_view(lengths: Array, start: Array, width: int) -> tuple[Array, Array]:
    """Return (flat token of each cell, whether it is one), both [rows, width]."""
    places = np.arange(width)
    valid = places < lengths[:, None]
    return np.where(valid, start[:, None] + places, 0), valid


def prepare(form: Form, batch: Batch, width: int, dtype: type[np.floating[Any]]) -> Feeds:
    """Return the inputs of a graph; ``width`` is what padded forms pad to."""
    if form in (Form.FLAT, Form.PACKED):
        return {"input_ids": batch.ids, "lengths": batch.lengths.astype(np.int32)}
    lengths = batch.lengths
    start = np.cumsum(lengths) - lengths
    if form in (Form.PADDED, Form.PADDED_FUSED, Form.REMOVE_PADDING):
        gather, valid = padded_view(lengths, start, width)
        ids = np.where(valid, batch.ids[gather], 0)
        return {"input_ids": ids, "attention_mask": valid.astype(np.int64)}
    positions = np.arange(len(batch.ids)) - np.repeat(start, lengths)
    feeds: Feeds = {"input_ids": batch.ids, "positions": positions}
    if form is Form.FLAT_GROUPS:
        return feeds | _grouped(lengths, start, positions, dtype)
    gather, valid = padded_view(lengths, start, batch.longest)
    feeds |= {"gather_0": gather, "valid_0": valid.astype(dtype)}
    scatter = np.repeat(np.arange(batch.rows) * batch.longest, lengths) + positions
    if form is Form.FLAT_HOST:
        return feeds | {"scatter": scatter}
    offset = np.concatenate([scatter, np.flatnonzero(~valid)])
    return feeds | {
        "token_offset": offset.reshape(valid.shape).astype(np.int32),
        "cumulative": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
    }


def _grouped(
    lengths: Array, start: Array, positions: Array, dtype: type[np.floating[Any]]
) -> Feeds:
    rows = len(lengths)
    by_length = np.argsort(lengths, kind="stable")
    cuts = [rows - (rows >> group) for group in range(GROUPS)] + [rows]
    feeds: Feeds = {}
    first_cell = np.zeros(rows, np.int64)
    cells = 0
    for group in range(GROUPS):
        members = by_length[cuts[group] : cuts[group + 1]]
        width = int(lengths[members].max())
        gather, valid = padded_view(lengths[members], start[members], width)
        feeds |= {f"gather_{group}": gather, f"valid_{group}": valid.astype(dtype)}
        first_cell[members] = cells + np.arange(len(members)) * width
        cells += len(members) * width
    feeds["scatter"] = np.repeat(first_cell, lengths) + positions
    feeds["order"] = np.argsort(by_length, kind="stable")
    return feeds
