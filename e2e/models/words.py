"""Small ONNX models over MiniLM's word vectors, each smaller than 8 MB.

They are for samples whose shape matters and whose size does not.

A classifier (mean of a score per word), a tagger (a score per token, with a look at both
neighbours), and a scorer of text pairs (for each word of the one the most similar word of the
other). All mask what is padding, so that no answer depends on it. Inputs are INT64 ``[batch,
sequence]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper

from e2e.models.graph import Graph
from e2e.models.minilm import ATTENTION_MASK, INPUT_IDS, LOGITS, LinearHead
from e2e.models.weights import Array

TOKEN_TYPE_IDS: Final = "token_type_ids"
SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Classes of the topics classifier, and words that indicate each. Every word is a single token of
# the vocabulary.
TOPICS: Mapping[str, tuple[str, ...]] = {
    "business": (
        "market",
        "shares",
        "profit",
        "company",
        "bank",
        "investors",
        "trade",
        "prices",
        "economy",
        "revenue",
    ),
    "politics": (
        "election",
        "parliament",
        "minister",
        "vote",
        "government",
        "president",
        "senate",
        "law",
        "party",
        "campaign",
    ),
    "science": (
        "research",
        "scientists",
        "laboratory",
        "experiment",
        "physics",
        "cells",
        "species",
        "theory",
        "telescope",
        "energy",
    ),
    "sports": (
        "match",
        "goal",
        "team",
        "coach",
        "season",
        "league",
        "player",
        "championship",
        "stadium",
        "victory",
    ),
}
TOPIC_SCORE: Final = 40.0

# Classes of the tagger: class 0 is everything else.
TAGS: Final = ("O", "PERSON", "PLACE", "ORGANIZATION")
TAGGED: Mapping[str, tuple[str, ...]] = {
    "PERSON": (
        "john",
        "mary",
        "anna",
        "peter",
        "maria",
        "david",
        "smith",
        "johnson",
        "emma",
        "thomas",
    ),
    "PLACE": (
        "london",
        "paris",
        "berlin",
        "tokyo",
        "york",
        "france",
        "germany",
        "japan",
        "england",
        "rome",
    ),
    "ORGANIZATION": (
        "microsoft",
        "google",
        "toyota",
        "siemens",
        "nasa",
        "bbc",
        "ibm",
        "unesco",
        "intel",
        "nokia",
    ),
}
# Scores of the tagger: of class O for a whole word and for the rest of one (##), of a listed word
# for its class, and the share of it that its neighbors get. "new" is half part of a place: next to
# "york" it is one.
ORDINARY, CONTINUED, LISTED, NEIGHBOUR = 3.0, 0.5, 6.0, 0.2
HALF: Mapping[str, tuple[str, float]] = {"new": ("PLACE", 2.5)}

# The scorer of pairs. Its vectors are the word vectors, centered and projected onto this number of
# random directions.
PAIR_WIDTH: Final = 64
PAIR_SEED: Final = 7
# logit = PAIR_SCALE * (mean similarity - PAIR_MIDDLE)
PAIR_SCALE, PAIR_MIDDLE = 12.0, 0.6
# Ids below this are special tokens, letters and punctuation. The vocabulary's whole words follow,
# the most frequent first.
FIRST_WORD: Final = 1996


def read_vocabulary(path: Path) -> dict[str, int]:
    """Token → id of a ``vocab.txt``."""
    return {
        token: number
        for number, token in enumerate(path.read_text(encoding="utf-8").split("\n"))
        if token
    }


def topic_table(vocabulary: Mapping[str, int]) -> Array:
    """A score per token and topic, ``[vocabulary, topics]``."""
    table = np.zeros((max(vocabulary.values()) + 1, len(TOPICS)), np.float32)
    for number, words in enumerate(TOPICS.values()):
        table[[vocabulary[word] for word in words], number] = TOPIC_SCORE
    return table


def word_table(vectors: Array, head: LinearHead) -> Array:
    """Return each word's contribution to the logits, ``[vocabulary, classes]``.

    The logits are those of a linear classifier of the words' mean.
    """
    return (vectors.astype(np.float64) @ head.weight.astype(np.float64)).astype(np.float32)


def tag_table(vocabulary: Mapping[str, int]) -> Array:
    """A score per token and tag, ``[vocabulary, tags]``."""
    table = np.zeros((max(vocabulary.values()) + 1, len(TAGS)), np.float32)
    table[:, 0] = ORDINARY
    table[[number for token, number in vocabulary.items() if token.startswith("##")], 0] = CONTINUED
    for tag, words in TAGGED.items():
        table[[vocabulary[word] for word in words], TAGS.index(tag)] = LISTED
    for word, (tag, score) in HALF.items():
        table[vocabulary[word], TAGS.index(tag)] = score
    return table


def pair_tables(vectors: Array, special: Sequence[int]) -> tuple[Array, Array]:
    """Return unit vectors ``[vocabulary, PAIR_WIDTH]`` and the weight of each word.

    Rarer words weigh more. Special tokens have neither vector nor weight.
    """
    wide = vectors.astype(np.float64)
    directions = np.random.default_rng(PAIR_SEED).normal(size=(wide.shape[1], PAIR_WIDTH))
    projected = (wide - wide.mean(axis=0)) @ directions
    projected /= np.linalg.norm(projected, axis=1, keepdims=True)
    weights = np.log1p(np.maximum(np.arange(len(wide)) - FIRST_WORD, 0) / 100.0)
    projected[list(special)] = 0.0
    weights[list(special)] = 0.0
    return projected.astype(np.float32), weights.astype(np.float32)


def _tokens(*names: str) -> list[Any]:
    return [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in names
    ]


def build_classifier(
    table: Array,
    bias: Array,
    ids: str = INPUT_IDS,
    mask: str = ATTENTION_MASK,
    logits: str = LOGITS,
) -> Any:
    """Return a model with output ``logits`` ``[batch, classes]``.

    It is the mean of the tokens' rows of ``table``, plus ``bias``. The tensor names are as given.
    """
    graph = Graph()
    shown = graph.node("Cast", [mask], "mask/float", to=TensorProto.FLOAT)
    column = graph.node("Unsqueeze", [shown, graph.ints(2)], "mask/column")
    scores = graph.node("Gather", [graph.constant("table", table), ids], "scores", axis=0)
    total = graph.node(
        "ReduceSum",
        [graph.node("Mul", [scores, column], "kept"), graph.ints(1)],
        "total",
        keepdims=0,
    )
    count = graph.node("ReduceSum", [shown, graph.ints(1)], "count", keepdims=1)
    mean = graph.node(
        "Div", [total, graph.node("Max", [count, graph.scalar("one", 1.0)], "tokens")], "mean"
    )
    graph.node("Add", [mean, graph.constant("bias", bias)], logits)
    return graph.model(
        "words",
        _tokens(ids, mask),
        [helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["batch", table.shape[1]])],
    )


def build_tagger(table: Array) -> Any:
    """Return a model with output ``logits`` ``[batch, sequence, tags]``.

    It is each token's row of ``table`` plus a share of its neighbors' scores, except for class 0.
    """
    graph = Graph()
    shown = graph.node("Cast", [ATTENTION_MASK], "mask/float", to=TensorProto.FLOAT)
    column = graph.node("Unsqueeze", [shown, graph.ints(2)], "mask/column")
    own = graph.node("Gather", [graph.constant("table", table), INPUT_IDS], "own", axis=0)
    share = np.full(table.shape[1], NEIGHBOUR, np.float32)
    share[0] = 0.0
    given = graph.node(
        "Mul", [graph.node("Mul", [own, graph.constant("share", share)], "shared"), column], "given"
    )
    framed = graph.node("Pad", [given, graph.ints(0, 1, 0, 0, 1, 0)], "framed")
    before = graph.node("Slice", [framed, graph.ints(0), graph.ints(-2), graph.ints(1)], "before")
    after = graph.node(
        "Slice", [framed, graph.ints(2), graph.ints(2**31 - 1), graph.ints(1)], "after"
    )
    graph.node("Add", [graph.node("Add", [own, before], "with_before"), after], LOGITS)
    output = helper.make_tensor_value_info(
        LOGITS, TensorProto.FLOAT, ["batch", "sequence", table.shape[1]]
    )
    return graph.model("tagger", _tokens(INPUT_IDS, ATTENTION_MASK), [output])


def build_pair_scorer(vectors: Array, weights: Array) -> Any:
    """Return a model with output ``logits`` ``[batch, 1]``.

    It scores how well the second text (token type 1) covers the words of the first.
    """
    graph = Graph()
    mask = graph.node("Cast", [ATTENTION_MASK], "mask/float", to=TensorProto.FLOAT)
    second = graph.node(
        "Mul", [graph.node("Cast", [TOKEN_TYPE_IDS], "types", to=TensorProto.FLOAT), mask], "second"
    )
    first = graph.node("Sub", [mask, second], "first")
    meanings = graph.node(
        "Gather", [graph.constant("vectors", vectors), INPUT_IDS], "meanings", axis=0
    )
    across = graph.node("Transpose", [meanings], "across", perm=[0, 2, 1])
    similar = graph.node("MatMul", [meanings, across], "similar")
    # Words of the first text count 0 here: so no word is less covered than not at all.
    readable = graph.node(
        "Mul", [similar, graph.node("Unsqueeze", [second, graph.ints(1)], "second/row")], "readable"
    )
    best = graph.node("ReduceMax", [readable], "best", axes=[2], keepdims=0)
    weight = graph.node(
        "Mul",
        [
            graph.node("Gather", [graph.constant("weights", weights), INPUT_IDS], "weight", axis=0),
            first,
        ],
        "weighing",
    )
    total = graph.node(
        "ReduceSum",
        [graph.node("Mul", [best, weight], "covered"), graph.ints(1)],
        "total",
        keepdims=1,
    )
    every = graph.node("ReduceSum", [weight, graph.ints(1)], "every", keepdims=1)
    share = graph.node(
        "Div", [total, graph.node("Max", [every, graph.scalar("tiny", 1e-6)], "some")], "share"
    )
    moved = graph.node("Sub", [share, graph.scalar("middle", PAIR_MIDDLE)], "moved")
    graph.node("Mul", [moved, graph.scalar("scale", PAIR_SCALE)], LOGITS)
    inputs = _tokens(INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS)
    return graph.model(
        "pairs", inputs, [helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["batch", 1])]
    )
