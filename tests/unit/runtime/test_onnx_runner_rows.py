"""Test that the rows of a request are sorted by their own lengths, and only where that is safe."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import tinymodel
from tests.support.python_backend import InferenceRequest, start_model
from tests.unit.runtime.test_onnx_runner import PARAMETERS, VOCABULARY, config, feed, row_strategy
from triton_pipelines.runtime.onnx_runner import batches

POOLED = {**PARAMETERS, "tritonpipe.pooled_outputs": '["hidden"]'}
PADS = {"input_ids": 0, "attention_mask": 0}
requests_strategy = st.lists(st.lists(row_strategy, min_size=1, max_size=6), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx")
    tinymodel.write(path / "1")
    return path


@pytest.fixture(scope="module", params=[0, 8, 1000])
def model(folder: Path, request: pytest.FixtureRequest) -> Any:
    parameters = {**POOLED, "tritonpipe.run_cost_tokens": str(request.param)}
    return start_model("onnx_runner", folder, config(), parameters)


@settings(deadline=None, max_examples=60)
@given(requests=requests_strategy, wider=st.integers(0, 9))
def test_every_row_has_the_answer_that_it_has_alone(
    model: Any, requests: list[list[list[int]]], wider: int
) -> None:
    """Also in requests that are wider than their longest row."""
    feeds = [
        {name: np.pad(array, ((0, 0), (0, wider))) for name, array in feed(rows).items()}
        for rows in requests
    ]
    responses = model.execute([InferenceRequest(one) for one in feeds])
    for response, rows, sent in zip(responses, requests, feeds, strict=True):
        answer = response.arrays()
        assert answer["hidden"].shape == (*sent["input_ids"].shape, tinymodel.WIDTH)
        for i, row in enumerate(rows):
            ids = np.array(row)
            for name, expected in (
                ("logits", tinymodel.classify(ids)),
                ("hidden", tinymodel.encode(ids)),
            ):
                found = answer[name][i] if name == "logits" else answer[name][i, : len(row)]
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def shapes_of(runner: batches.BatchRunner, feeds: list[dict[str, np.ndarray]]) -> list[Any]:
    """Return the shapes of the runs for some requests."""
    shapes: list[Any] = []
    run = runner._run
    runner._run = lambda given: shapes.append(given["input_ids"].shape) or run(given)
    runner.answer(feeds)
    runner._run = run
    return sorted(shapes)


def runner_of(
    folder: Path, pooled: Collection[str], run_cost: int = 4, outputs: Collection[str] = ()
) -> batches.BatchRunner:
    """Return a runner that computes some outputs of the model, all by default."""
    model = start_model("onnx_runner", folder, config(), {})
    names = list(outputs or ("hidden", "logits"))
    runner = batches.BatchRunner(
        lambda given: model._session.run(names, given),
        names,
        PADS,
        True,
        run_cost,
        lambda _: None,
        pooled=pooled,
    )
    runner.check(lambda length: feed([[1] * length]))
    return runner


ROWS = feed([[2] * 3, [3] * 20, [4] * 3, [5] * 4])


@pytest.mark.parametrize(
    ("pooled", "outputs", "shapes"),
    [
        pytest.param(["hidden"], (), [(1, 20), (3, 4)], id="pooled"),
        pytest.param([], (), [(4, 20)], id="vectors at padding are read"),
        pytest.param([], ("logits",), [(1, 20), (3, 4)], id="no output follows the length"),
    ],
)
def test_rows_go_apart_only_where_no_answer_changes(
    folder: Path, pooled: list[str], outputs: tuple[str, ...], shapes: list[Any]
) -> None:
    assert shapes_of(runner_of(folder, pooled, outputs=outputs), [ROWS]) == shapes


def test_rows_of_several_requests_share_runs(folder: Path) -> None:
    other = feed([[7] * 20, [8] * 4])
    assert shapes_of(runner_of(folder, ["hidden"]), [ROWS, other]) == [(2, 20), (4, 4)]
    assert shapes_of(runner_of(folder, ["hidden"], 1000), [ROWS, other]) == [(6, 20)]


def test_a_row_of_padding_keeps_its_length(folder: Path) -> None:
    """Without any token to attend to, its answer may depend on its length."""
    empty = {name: array * [[1], [1], [0], [1]] for name, array in ROWS.items()}
    assert shapes_of(runner_of(folder, ["hidden"]), [empty]) == [(2, 4), (2, 20)]


def test_only_what_is_padding_in_every_input_is_cut(folder: Path) -> None:
    """A token that the mask hides stays, and so does one of id 0 that it does not hide."""
    for name in ("input_ids", "attention_mask"):
        changed = {**ROWS, name: ROWS[name].copy()}
        changed[name][0, 5] = 1
        assert shapes_of(runner_of(folder, ["hidden"]), [changed]) == [(1, 20), (3, 6)]


def test_a_wrong_row_fails_only_its_request(folder: Path) -> None:
    wrong = feed([[2] * 3, [VOCABULARY + 5] * 4, [3] * 9])
    runner = runner_of(folder, ["hidden"])
    first, error, last = runner.answer([ROWS, wrong, ROWS])
    assert isinstance(error, Exception)
    assert "out of data bounds" in str(error)
    for answer in (first, last):
        assert not isinstance(answer, Exception)
        np.testing.assert_allclose(
            answer["logits"][1], tinymodel.classify(np.array([3] * 20)), rtol=1e-4, atol=1e-5
        )


def test_a_wrong_row_costs_one_more_run_per_request(folder: Path) -> None:
    wrong = feed([[VOCABULARY + 5] * 3, [3] * 20])
    runner, requests = runner_of(folder, ["hidden"]), [ROWS] * 8 + [wrong]
    shapes = shapes_of(runner, requests)
    assert len(shapes) <= 3 + len(requests)  # one of each length, then each request alone


def test_rows_all_shorter_than_the_request_are_cut(folder: Path) -> None:
    wide = {name: np.pad(array, ((0, 0), (0, 30))) for name, array in ROWS.items()}
    same = {name: array[[0, 2]] for name, array in wide.items()}
    assert shapes_of(runner_of(folder, ["hidden"]), [same]) == [(2, 3)]


def test_a_request_stays_whole_if_another_input_has_a_value_per_token() -> None:
    def run(given: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [(given["x"] * given["position"]).sum(axis=1, keepdims=True)]

    runner = batches.BatchRunner(run, ["y"], {"x": 0}, True, 1, lambda _: None)
    ones = np.ones((1, 1), np.int64)
    runner.check(lambda length: {"x": np.ones((1, length), np.int64), "position": ones})
    x = np.array([[2, 2, 0, 0, 0, 0, 0, 0], [3, 3, 3, 3, 3, 3, 3, 3]])
    position = np.arange(16).reshape(2, 8)
    (answer,) = runner.answer([{"x": x, "position": position}])
    assert not isinstance(answer, Exception)
    np.testing.assert_array_equal(answer["y"], run({"x": x, "position": position})[0])


def test_a_request_is_computed_whole_where_its_rows_do_not_fit() -> None:
    """The output of each row is as wide as its largest value."""

    def run(given: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [given["x"][:, : int(given["x"].max())]]

    runner = batches.BatchRunner(run, ["y"], {"x": 0}, True, 1, lambda _: None, pooled=["y"])
    runner.check(lambda length: {"x": np.ones((1, length), np.int64)})
    x = np.repeat(np.arange(2, 6)[:, None], 40, axis=1)
    x[0, 31:] = x[1, 35:] = 0
    (answer,) = runner.answer([{"x": x}])
    assert not isinstance(answer, Exception)
    np.testing.assert_array_equal(answer["y"], run({"x": x})[0])


def test_nothing_of_other_requests_stands_at_padding(folder: Path) -> None:
    runner = runner_of(folder, ["hidden"])
    for _ in range(3):
        for answer in runner.answer([ROWS, feed([[7] * 20, [8] * 4])]):
            assert not isinstance(answer, Exception)
            assert not answer["hidden"][-1, 4:].any()


def test_rows_stay_together_where_their_padding_costs_less_than_a_run(folder: Path) -> None:
    """ROWS have 50 places of padding, which the graph computes if the rows stay together."""
    for run_cost, computed in ((49, False), (50, True)):
        (answer,) = runner_of(folder, ["hidden"], run_cost).answer([ROWS])
        assert not isinstance(answer, Exception)
        assert answer["hidden"][0, 3:].any() == computed
