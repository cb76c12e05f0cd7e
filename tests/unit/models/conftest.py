"""Build a tiny random encoder as a checkpoint folder.

Builder and reference are those of the real model, but take milliseconds.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from e2e.models import words
from e2e.models.weights import EncoderConfig, Weights, random_weights

TINY = EncoderConfig(
    vocab_size=50,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=16,
)

# Enough words for the tables of the small models; the special tokens stand first.
LISTED = [
    *(word for part in (words.TOPICS, words.TAGGED) for listed in part.values() for word in listed),
    *words.HALF,
]
VOCABULARY = [
    *words.SPECIAL,
    "the",
    "in",
    ",",
    ".",
    "##s",
    "##berg",
    "weather",
    "planet",
    *dict.fromkeys(LISTED),
]


@pytest.fixture(scope="session")
def config() -> EncoderConfig:
    return TINY


@pytest.fixture(scope="session")
def weights() -> Weights:
    return random_weights(TINY, seed=7)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, weights: Weights) -> Path:
    """``model.safetensors`` and ``config.json`` of the tiny encoder."""
    folder = tmp_path_factory.mktemp("checkpoint")
    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
    content = {
        **asdict(TINY),
        "model_type": "bert",
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
    }
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
