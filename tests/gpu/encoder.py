"""The encoder that the tier serves, and its expected answers.

It consists of seeded weights as a checkpoint folder, and texts. The expected answers are computed
independently of PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from e2e.models.reference import ReferenceEncoder, read_safetensors
from tests.support import tinymodel

WEIGHTS, CONFIG = "model.safetensors", "config.json"
CLASSES, SEED = 3, 20
VOCABULARY = {word: index for index, word in enumerate((*tinymodel.SPECIAL, *tinymodel.WORDS))}


@dataclass(frozen=True)
class Shape:
    """Architecture, in the words of a Hugging Face ``config.json``."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-12


MINILM = Shape(384, 6, 12, 1536)
"""The shape of all-MiniLM-L6-v2: 10.6 million weights in the layers."""
SMALL = Shape(64, 2, 4, 128)
"""Small enough for the CPU of any machine."""


def weights(shape: Shape) -> dict[str, np.ndarray[Any, Any]]:
    """Return seeded FP32 weights, named as in BERT checkpoints.

    They are scaled so that activations and logits are of the order of 1.
    """
    # RandomState's streams are frozen by NumPy: the same numbers everywhere.
    random = np.random.RandomState(SEED)
    made: dict[str, np.ndarray[Any, Any]] = {}

    def normal(name: str, *size: int, scale: float = 1.0, mean: float = 0.0) -> None:
        made[name] = (mean + scale * random.standard_normal(size)).astype(np.float32)

    def linear(name: str, inputs: int, outputs: int) -> None:
        normal(f"{name}.weight", outputs, inputs, scale=inputs**-0.5)
        normal(f"{name}.bias", outputs, scale=0.1)

    def norm(name: str) -> None:
        normal(f"{name}.weight", width, scale=0.1, mean=1.0)
        normal(f"{name}.bias", width, scale=0.1)

    width = shape.hidden_size
    for name, rows in (
        ("word", len(VOCABULARY)),
        ("position", shape.max_position_embeddings),
        ("token_type", 1),
    ):
        normal(f"embeddings.{name}_embeddings.weight", rows, width)
    norm("embeddings.LayerNorm")
    for layer in range(shape.num_hidden_layers):
        prefix = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{prefix}.attention.{part}", width, width)
        norm(f"{prefix}.attention.output.LayerNorm")
        linear(f"{prefix}.intermediate.dense", width, shape.intermediate_size)
        linear(f"{prefix}.output.dense", shape.intermediate_size, width)
        norm(f"{prefix}.output.LayerNorm")
    linear("classifier", width, CLASSES)
    return made


def write(folder: Path, shape: Shape) -> None:
    """Write tokenizer, weights and configuration, as a model hub has them."""
    folder.mkdir(parents=True, exist_ok=True)
    tinymodel.tokenizer().save(str(folder / "tokenizer.json"))
    save_file(weights(shape), folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(asdict(shape)))


def sentences(count: int, longest: int = 120) -> list[str]:
    """Distinct texts of 1 to ``longest`` words."""
    random = np.random.default_rng(SEED)
    return [
        " ".join(random.choice(tinymodel.WORDS, size=1 + number * longest // count))
        for number in range(count)
    ]


class Reference:
    """Expected answers of the pipeline: token ids by rule, and the encoder in NumPy in FP64.

    It processes one row at a time, without padding.
    """

    def __init__(self, folder: Path) -> None:
        self._encoder = ReferenceEncoder(folder)
        tensors = read_safetensors(folder / WEIGHTS)
        self._weight, self._bias = tensors["classifier.weight"], tensors["classifier.bias"]
        self._known: dict[str, np.ndarray[Any, Any]] = {}

    def logits(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """Logits [texts, classes]."""
        for text in texts:
            if text not in self._known:
                ids = [VOCABULARY[word] for word in ("[CLS]", *text.split(), "[SEP]")]
                self._known[text] = self._encoder.pooled(ids) @ self._weight.T + self._bias
        return np.array([self._known[text] for text in texts])
