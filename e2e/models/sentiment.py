"""Train the heads of the sentiment classifiers on sentences written by hand.

The heads are logistic regressions on mean-pooled MiniLM embeddings, or on the mean of the model's
bare word vectors.

The only free choice, the strength of the regularization, was made by cross-validation on
``train.tsv``; ``heldout.tsv`` is only ever scored. The problem is convex and solved to convergence
in FP64, so the weights do not depend on the machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from e2e.models.minilm import LinearHead
from e2e.models.reference import Matrix, ReferenceEncoder, read_safetensors
from e2e.models.weights import TOKENIZER_FILES, model_folder
from e2e.models.wordpiece import WordPiece

DATA: Final = Path(__file__).parent / "data"
HEAD_FILE: Final = DATA / "sentiment_head.json"
# The same on bare word vectors, for the small classifier (words.build_classifier).
WORDS_HEAD_FILE: Final = DATA / "words_head.json"
# Model order: class 0 is negative, class 1 positive.
LABELS: Final = ("negative", "positive")
MAX_LENGTH: Final = 512
SEED: Final = 20240914
FOLDS: Final = 6
# Candidates for the L2 penalty on standardised features.
PENALTIES: Final = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# Digits kept of the trained weights. The rounding is far too small to change an answer, and far
# larger than the noise between machines.
DECIMALS: Final = 6
NEWTON_STEPS: Final = 50
NEWTON_TOLERANCE: Final = 1e-12

Targets = NDArray[np.int64]


@dataclass(frozen=True)
class Sentences:
    """Texts and their classes (indices into ``LABELS``), in the order of the file."""

    texts: list[str]
    targets: Targets


def read_sentences(path: Path) -> Sentences:
    """Read ``label<TAB>sentence`` lines; ``#`` starts a comment line.

    Raises:
        ValueError: a line is malformed; the error names file and line.
    """
    texts, targets = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        label, _, text = line.partition("\t")
        if label not in LABELS or not text.strip():
            raise ValueError(
                f"{path}:{number}: expected <{'|'.join(LABELS)}><TAB><sentence>, got {line[:60]!r}"
            )
        texts.append(text)
        targets.append(LABELS.index(label))
    return Sentences(texts, np.array(targets, np.int64))


def features(texts: list[str], folder: Path | None = None) -> Matrix:
    """Return mean-pooled embeddings by the reference encoder.

    The result is ``[texts, hidden]``, FP64, not normalized.
    """
    where = folder or model_folder()
    tokenizer, encoder = WordPiece(where / TOKENIZER_FILES[3]), ReferenceEncoder(where)
    return np.stack([encoder.pooled(tokenizer.encode(text, MAX_LENGTH)) for text in texts])


def word_features(texts: list[str], folder: Path | None = None) -> Matrix:
    """Means of the tokens' word vectors, ``[texts, hidden]``, FP64."""
    where = folder or model_folder()
    tokenizer = WordPiece(where / TOKENIZER_FILES[3])
    vectors = read_safetensors(where / "model.safetensors")["embeddings.word_embeddings.weight"]
    return np.stack([vectors[tokenizer.encode(text, MAX_LENGTH)].mean(axis=0) for text in texts])


def fit_logistic(values: Matrix, targets: Targets, penalty: float) -> Matrix:
    """Fit an L2-penalized logistic regression by Newton's method.

    The intercept is not penalized.

    Returns:
        The weights and, last, the intercept: ``[features + 1]``.

    Raises:
        ArithmeticError: the method does not converge.
    """
    design = np.hstack([values, np.ones((len(values), 1))])
    ridge = np.full(design.shape[1], penalty)
    ridge[-1] = 0.0
    solution = np.zeros(design.shape[1])
    for _ in range(NEWTON_STEPS):
        share = 1.0 / (1.0 + np.exp(-design @ solution))
        gradient = design.T @ (share - targets) + ridge * solution
        curvature = (design * (share * (1.0 - share))[:, None]).T @ design + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        solution = solution - step
        if np.abs(step).max() < NEWTON_TOLERANCE:
            return solution
    raise ArithmeticError(
        f"logistic regression with penalty {penalty} did not converge in {NEWTON_STEPS} steps"
    )


def accuracy(scores: Matrix, targets: Targets) -> float:
    """Share of rows whose score has the sign of its class (positive above 0)."""
    return float(np.mean((scores > 0) == (targets == 1)))


def choose_penalty(values: Matrix, targets: Targets) -> float:
    """The penalty with the best cross-validated log loss.

    A sentence and its counterpart of the other class stand side by side in the file and share a
    fold: one must not help with the other.
    """
    pairs = np.random.default_rng(SEED).permutation(len(values) // 2)
    folds = np.empty(len(values), np.int64)
    folds[0::2] = folds[1::2] = pairs % FOLDS
    losses = []
    for penalty in PENALTIES:
        loss = 0.0
        for fold in range(FOLDS):
            held = folds == fold
            solution = fit_logistic(values[~held], targets[~held], penalty)
            scores = values[held] @ solution[:-1] + solution[-1]
            loss += float(np.logaddexp(0.0, np.where(targets[held] == 1, -scores, scores)).sum())
        losses.append(loss)
    return PENALTIES[int(np.argmin(losses))]


def train(
    folder: Path | None = None, described: Callable[[list[str], Path | None], Matrix] = features
) -> dict[str, Any]:
    """Train on ``train.tsv`` and score ``heldout.tsv``.

    Returns the content of the head's file. ``described`` turns texts into rows of numbers.
    """
    known, unknown = read_sentences(DATA / "train.tsv"), read_sentences(DATA / "heldout.tsv")
    raw = described(known.texts, folder)
    centre, spread = raw.mean(axis=0), raw.std(axis=0)
    values = (raw - centre) / spread
    penalty = choose_penalty(values, known.targets)
    solution = fit_logistic(values, known.targets, penalty)
    # The standardization is folded in, so that the head works directly on the pooled output, half
    # for each class.
    weight = solution[:-1] / spread
    bias = float(solution[-1] - centre @ weight)
    both = np.round(np.stack([-weight, weight], axis=1) / 2, DECIMALS)
    biases = np.round(np.array([-bias, bias]) / 2, DECIMALS)

    def score(values: Matrix, targets: Targets) -> float:
        logits = values @ both + biases
        return round(accuracy(logits[:, 1] - logits[:, 0], targets), 4)

    return {
        "labels": list(LABELS),
        "penalty": penalty,
        "trainSentences": len(known.texts),
        "trainAccuracy": score(raw, known.targets),
        "heldoutSentences": len(unknown.texts),
        "heldoutAccuracy": score(described(unknown.texts, folder), unknown.targets),
        "weight": both.tolist(),
        "bias": biases.tolist(),
    }


def load_head(path: Path = HEAD_FILE) -> LinearHead:
    """The trained head from its file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return LinearHead(
        np.array(content["weight"], np.float32), np.array(content["bias"], np.float32)
    )


def write_head(content: dict[str, Any], path: Path = HEAD_FILE) -> None:
    """Write what ``train`` returned, one class pair a line."""
    lines = [
        f"  {json.dumps(key)}: {json.dumps(value)}"
        for key, value in content.items()
        if key != "weight"
    ]
    rows = ",\n".join(f"    {json.dumps(row)}" for row in content["weight"])
    path.write_text(
        "{\n" + ",\n".join(lines) + f',\n  "weight": [\n{rows}\n  ]\n}}\n', encoding="utf-8"
    )


# Each head's file, and what it was trained on.
HEADS: Final[dict[Path, Callable[[list[str], Path | None], Matrix]]] = {
    HEAD_FILE: features,
    WORDS_HEAD_FILE: word_features,
}
