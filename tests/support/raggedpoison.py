"""Rows that a model cannot process, made from good ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.support.raggedgraphs import POSITIONS, TYPES, VOCABULARY, Encoder

Row = Mapping[str, Any]


def longer_mask(row: Row) -> Row:
    return {**row, "attention_mask": np.ones((1, row["input_ids"].shape[1] + 9), np.int64)}


def shorter_mask(row: Row) -> Row:
    return {**row, "attention_mask": row["attention_mask"][:, :2]}


def unknown_id(value: int) -> Callable[[Row], Row]:
    def change(row: Row) -> Row:
        return {
            **row,
            "input_ids": np.where(
                np.arange(row["input_ids"].shape[1]) == 1, value, row["input_ids"]
            ),
        }

    return change


def unknown_type(row: Row) -> Row:
    return {**row, "token_type_ids": row["token_type_ids"] + TYPES}


def too_long(row: Row) -> Row:
    return {name: np.ones((1, POSITIONS + 3), np.int64) for name in row}


POISON = {
    "a mask longer than its ids": longer_mask,
    "a mask shorter than its ids": shorter_mask,
    "an id one too high": unknown_id(VOCABULARY),
    "an id far too high": unknown_id(2**40),
    "a negative id": unknown_id(-1),
    "an unknown type": unknown_type,
    "more tokens than the model has positions for": too_long,
}


def without_tokens(encoder: Encoder, rows: int = 1) -> Row:
    """A request whose rows have no tokens."""
    return {name: np.ones((rows, 0), np.int64) for name in encoder.inputs}
