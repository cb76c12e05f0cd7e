"""Encoders to measure: shapes, precisions, batch forms, and batches of drawn lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np

SEED = 7
CLASSES = 8
"""Outputs of the linear head."""
WORDS = 2048
"""Rows of the embedding table; fewer than in the real models, which a lookup does not notice."""
MOST_TOKENS = 512
MEDIAN_TOKENS, SIGMA = 32, 0.6
DOCUMENT_TOKENS = (400, 512)
GROUPS = 4
"""Length groups of the attention view: 1/2, 1/4, 1/8 and 1/8 of the rows, shortest first."""
BATCHES = 4
"""Drawn per number of rows; the rounds take turns."""
OFFLINE_TEXTS = 4096
OFFLINE_ROWS = 64
OFFLINE_TOKENS = 16384
"""Padded tokens per execution of the offline run that is cut by tokens instead of rows."""
NODE_COUNTS = ("providers", "copies", "onCpu")
RESULT = "gpu-step.json"
POISONED = 3
"""Exit status of a block in which a graph broke the CUDA context."""

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


class Precision(StrEnum):
    """How a block computes."""

    FP16 = "FP16"
    FP32 = "FP32"
    """TF32 off."""
    TF32 = "TF32"
    """FP32 weights, products with TF32, which is ONNX Runtime's default."""


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of a BERT-like encoder."""

    name: str
    hidden: int
    layers: int
    heads: int
    inner: int


MINILM = EncoderShape("MiniLM-L6", 384, 6, 12, 1536)
BERT = EncoderShape("BERT-base", 768, 12, 12, 3072)
TINY = EncoderShape("Tiny", 32, 2, 4, 64)
SHAPES = {shape.name: shape for shape in (MINILM, BERT, TINY)}


class Form(StrEnum):
    """A graph of the encoder; all have the same weights."""

    PADDED = "padded"
    PADDED_FUSED = "padded-fused"
    """Attention by com.microsoft MultiHeadAttention."""
    FLAT = "flat"
    """[tokens, hidden] outside attention, standard operators, index maps computed in the graph."""
    FLAT_HOST = "flat-host"
    """As FLAT, index maps computed on the host."""
    FLAT_GROUPS = "flat-groups"
    """As FLAT_HOST, attention in GROUPS length groups."""
    PACKED = "packed"
    """com.microsoft PackedMultiHeadAttention, index maps computed in the graph."""
    PACKED_HOST = "packed-host"
    REMOVE_PADDING = "remove-padding"
    """Padded inputs and outputs; RemovePadding, PackedMultiHeadAttention and RestorePadding."""


CUDA_ONLY = (Form.PACKED, Form.PACKED_HOST, Form.REMOVE_PADDING)


@dataclass(frozen=True)
class Batch:
    """Rows of token ids without padding."""

    ids: Array
    """All rows' ids one after the other, int64."""
    lengths: Array
    """Tokens per row, int64."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.lengths.max())

    def take(self, rows: Sequence[int]) -> Batch:
        """Return some rows as a batch of their own."""
        ends = np.cumsum(self.lengths)
        parts = [self.ids[ends[row] - self.lengths[row] : ends[row]] for row in rows]
        return Batch(np.concatenate(parts), self.lengths[list(rows)])


def draw_batch(rows: int, seed: int, documents: bool = False) -> Batch:
    """Return rows of random tokens: lognormal lengths, or those of documents cut off at 512."""
    order = np.random.default_rng(seed)
    lengths = (
        order.integers(*DOCUMENT_TOKENS, size=rows, endpoint=True)
        if documents
        else np.clip(np.rint(order.lognormal(np.log(MEDIAN_TOKENS), SIGMA, rows)), 1, MOST_TOKENS)
    ).astype(np.int64)
    return Batch(order.integers(0, WORDS, int(lengths.sum()), dtype=np.int64), lengths)


@cache
def draw_weights(shape: EncoderShape) -> dict[str, Array]:
    """Return the encoder's weights in FP32; attention is far from uniform with them."""
    order = np.random.default_rng(SEED)

    def normal(rows: int, columns: int, scale: float | None = None) -> Array:
        values = order.standard_normal((rows, columns), dtype=np.float32)
        return values * np.float32(scale or rows**-0.5)

    hidden, weights = shape.hidden, {}
    weights["words"] = normal(WORDS, hidden, 1.0)
    weights["places"] = normal(MOST_TOKENS, hidden, 0.3)
    for layer in range(shape.layers):
        for part, rows, columns in (
            ("query", hidden, hidden),
            ("key", hidden, hidden),
            ("value", hidden, hidden),
            ("output", hidden, hidden),
            ("inner", hidden, shape.inner),
            ("outer", shape.inner, hidden),
        ):
            weights[f"{layer}.{part}.weight"] = normal(rows, columns)
            weights[f"{layer}.{part}.bias"] = normal(1, columns, 0.1)[0]
    weights["head.weight"] = normal(hidden, CLASSES)
    weights["head.bias"] = normal(1, CLASSES, 0.1)[0]
    return weights
