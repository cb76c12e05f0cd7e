"""Training of the sentiment head: the data, the solver, the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from e2e.models import sentiment
from e2e.models.reference import Matrix
from e2e.models.sentiment import DATA, LABELS, fit_logistic, load_head, read_sentences, write_head
from e2e.models.verify import differences


def test_data_is_balanced_large_enough_and_disjoint() -> None:
    known, unknown = read_sentences(DATA / "train.tsv"), read_sentences(DATA / "heldout.tsv")
    for part, least in ((known, 240), (unknown, 120)):
        assert len(part.texts) >= least
        assert part.targets.sum() * 2 == len(part.texts)
        assert len(set(part.texts)) == len(part.texts)
    assert not {text.casefold() for text in known.texts} & {
        text.casefold() for text in unknown.texts
    }


def test_training_pairs_stand_side_by_side() -> None:
    """Keep the two sentences of a pair adjacent.

    Cross-validation assigns them to one fold by their place in the file.
    """
    targets = read_sentences(DATA / "train.tsv").targets
    assert (targets[0::2] == 1).all()
    assert (targets[1::2] == 0).all()


def test_malformed_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text("# comment\npositive\tfine\nneutral\thm\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"bad\.tsv:3: expected <negative\|positive><TAB><sentence>, got 'neutral"
    ):
        read_sentences(path)


def test_solver_finds_the_optimum() -> None:
    """Against finite differences of the objective itself, written down here anew."""
    generator = np.random.default_rng(11)
    values, targets = generator.normal(size=(40, 3)), generator.integers(0, 2, 40)

    def objective(point: Matrix) -> float:
        scores = values @ point[:-1] + point[-1]
        return float(
            np.logaddexp(0, scores).sum() - scores @ targets + 0.5 * 2.0 * (point[:-1] ** 2).sum()
        )

    solution = fit_logistic(values, targets, penalty=2.0)
    for axis in range(4):
        step = np.zeros(4)
        step[axis] = 1e-3
        assert objective(solution) < objective(solution + step)
        assert objective(solution) < objective(solution - step)
        assert abs(objective(solution + step) - objective(solution - step)) < 1e-8


def test_solver_says_when_there_is_no_optimum() -> None:
    with pytest.raises((ArithmeticError, np.linalg.LinAlgError)), np.errstate(all="ignore"):
        fit_logistic(np.array([[1.0], [-1.0]]), np.array([1, 0]), penalty=0.0)


def test_head_file_round_trip(tmp_path: Path) -> None:
    content = {
        "labels": list(LABELS),
        "weight": [[0.5, -0.5], [0.25, -0.25]],
        "bias": [0.125, -0.125],
    }
    write_head(content, tmp_path / "head.json")
    head = load_head(tmp_path / "head.json")
    assert head.weight.tolist() == content["weight"]
    assert head.bias.tolist() == content["bias"]


def test_stored_head_fits_the_model_and_meets_its_accuracy() -> None:
    head = load_head()
    assert head.weight.shape == (384, 2)
    assert head.bias.shape == (2,)
    # Only what the file claims: the full-model tests compute it anew.
    assert json.loads(sentiment.HEAD_FILE.read_text(encoding="utf-8"))["heldoutAccuracy"] >= 0.85


def test_differences_name_the_path() -> None:
    stored = {"cases": [{"score": 0.5, "label": "a"}]}
    assert differences(stored, {"cases": [{"score": 0.5 + 1e-9, "label": "a"}]}, 1e-8) == []
    assert differences(stored, {"cases": [{"score": 0.6, "label": "b"}]}, 1e-8) == [
        ".cases[0].score: 0.5 instead of 0.6",
        ".cases[0].label: 'a' instead of 'b'",
    ]
    assert differences(stored, {"cases": []}, 1e-8) == [".cases: 1 items instead of 0"]
    assert differences(stored, {}, 1e-8) == [": keys ['cases'] instead of []"]
