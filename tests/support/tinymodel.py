"""A tiny tokenizer and a tiny encoder graph, created on demand.

Their expected answers are computed independently.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

WORDS = [
    "the",
    "a",
    "fox",
    "dog",
    "cat",
    "bird",
    "tree",
    "river",
    "stone",
    "cloud",
    "runs",
    "jumps",
    "sleeps",
    "sings",
    "falls",
    "over",
    "under",
    "near",
    "far",
    "and",
    "or",
    "not",
    "very",
    "quick",
    "slow",
    "red",
    "blue",
    "green",
    "old",
    "new",
    "good",
    "bad",
    "happy",
    "sad",
    "big",
    "small",
]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WIDTH, CLASSES, POSITIONS, SEED = 8, 3, 64, 7


def tokenizer(*, baked_in: bool = True) -> Tokenizer:
    """Return a word-level tokenizer with BERT's template.

    ``baked_in`` adds the padding and truncation that many published files contain.
    """
    made = Tokenizer(
        WordLevel({word: i for i, word in enumerate((*SPECIAL, *WORDS))}, unk_token="[UNK]")
    )
    made.normalizer = Lowercase()
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    if baked_in:
        made.enable_padding(length=32, pad_id=0, pad_token="[PAD]")
        made.enable_truncation(16)
    return made


def weights() -> dict[str, np.ndarray[Any, Any]]:
    """Seeded weights of the encoder."""
    random = np.random.default_rng(SEED)
    shapes = {
        "words": (len(SPECIAL) + len(WORDS), WIDTH),
        "positions": (POSITIONS, WIDTH),
        "query": (WIDTH, WIDTH),
        "head": (WIDTH, CLASSES),
    }
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def encode(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the encoder's expected answer for one row of unpadded token ids.

    The result is token vectors [tokens, width], computed in numpy in double precision.
    """
    w = {name: array.astype(np.float64) for name, array in weights().items()}
    x = w["words"][ids] + w["positions"][: len(ids)]
    scores = (x @ w["query"]) @ x.T
    attention = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(x + (attention / attention.sum(axis=1, keepdims=True)) @ x)


def classify(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Logits [classes] of one row: the head on the first token."""
    return np.asarray(encode(ids)[0] @ weights()["head"].astype(np.float64))


def graph(*, masked: bool = True) -> onnx.ModelProto:
    """Return the same encoder in ONNX, batched and masked.

    The inputs are input_ids and attention_mask [batch, sequence], the outputs hidden [.., width]
    and logits [batch, classes].

    Args:
        masked: False makes a faulty export that ignores its mask.
    """
    node = helper.make_node
    nodes = [
        node("Gather", ["words", "input_ids"], ["embedded"]),
        node("Shape", ["input_ids"], ["length"], start=1, end=2),
        node("Slice", ["positions", "zero", "length", "zero"], ["placed"]),
        node("Add", ["embedded", "placed"], ["x"]),
        node("MatMul", ["x", "query"], ["q"]),
        node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "xt"], ["scores"]),
        node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        node("Sub", ["mask", "one"], ["off"]),
        node("Mul", ["off", "large"], ["bias"]),
        node("Unsqueeze", ["bias", "axis1"], ["bias3"]),
        node("Add", ["scores", "bias3" if masked else "zero_f"], ["masked"]),
        node("Softmax", ["masked"], ["attention"], axis=-1),
        node("MatMul", ["attention", "x"], ["mixed"]),
        node("Add", ["x", "mixed"], ["hidden"]),
        node("Gather", ["hidden", "first"], ["cls"], axis=1),
        node("MatMul", ["cls", "head"], ["logits"]),
    ]
    constants = {
        **weights(),
        "zero": np.array([0], np.int64),
        "axis1": np.array([1], np.int64),
        "first": np.array(0, np.int64),
        "one": np.array(1, np.float32),
        "zero_f": np.array(0, np.float32),
        "large": np.array(1e9, np.float32),
    }
    tokens = ["batch", "sequence"]
    made = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, tokens)
            for name in ("input_ids", "attention_mask")
        ],
        [
            helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [*tokens, WIDTH]),
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def write(version_folder: Path, *, masked: bool = True) -> None:
    """Write tokenizer.json and model.onnx into a version folder."""
    version_folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(version_folder / "tokenizer.json"))
    onnx.save(graph(masked=masked), str(version_folder / "model.onnx"))
