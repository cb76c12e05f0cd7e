"""Test which requests share a run of the ONNX runner.

Covered are boundary cases of rows, lengths and outputs, with functions in place of models.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_pipelines.runtime.onnx_runner import batches


def plain_feed(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array(values, np.float32).reshape(-1, 1)}


@pytest.mark.parametrize(
    "of_others",
    [
        pytest.param(
            lambda x: np.array([1.0, 2.0, 3.0, 4.0], np.float32),
            id="as long as the batch by chance",
        ),
        pytest.param(lambda x: np.float32(x.sum()).reshape(()), id="a scalar"),
        pytest.param(lambda x: np.zeros((1, 4), np.float32), id="one entry"),
    ],
)
def test_requests_share_no_runs_where_an_output_has_no_rows(
    of_others: Callable[[np.ndarray], np.ndarray],
) -> None:
    warnings: list[str] = []
    runner = batches.BatchRunner(
        lambda feed: [feed["x"], of_others(feed["x"])],
        ["x", "of_others"],
        {},
        True,
        8,
        warnings.append,
    )
    runner.check(lambda length: plain_feed(1))
    assert warnings == [
        "requests will not share runs: output of_others does not have one entry per row"
    ]
    feeds = [plain_feed(1), plain_feed(2, 3), plain_feed(4)]
    for feed, answer in zip(feeds, runner.answer(feeds), strict=True):
        assert not isinstance(answer, Exception)
        np.testing.assert_array_equal(answer["x"], feed["x"])
        np.testing.assert_array_equal(answer["of_others"], of_others(feed["x"]))


def test_rows_without_a_length_share_a_run_as_they_are() -> None:
    shapes: list[tuple[int, ...]] = []

    def run(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        shapes.append(feed["x"].shape)
        return [feed["x"] * 2]

    runner = batches.BatchRunner(run, ["y"], {"x": 0}, True, 8, print)
    feeds = [
        {"x": np.array(values)} for values in ([1], [2, 3], [4])
    ]  # [rows], and not [rows, tokens]
    assert [
        answer["y"].tolist() for answer in runner.answer(feeds) if not isinstance(answer, Exception)
    ] == [[2], [4, 6], [8]]
    assert shapes == [(4,)]


def sums(run_cost: int) -> tuple[batches.BatchRunner, list[tuple[int, int]]]:
    """Return a runner and the list of shapes that its model is run on.

    The model returns the sum of each row, and the row.
    """
    shapes: list[tuple[int, int]] = []

    def run(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        shapes.append(feed["x"].shape)
        return [feed["x"].sum(axis=1, keepdims=True), feed["x"]]

    runner = batches.BatchRunner(run, ["total", "same"], {"x": 0}, True, 8, print)
    runner.check(lambda length: {"x": np.ones((1, length), np.int64)})
    runner.run_cost = run_cost
    shapes.clear()
    return runner, shapes


def check_sums(runner: batches.BatchRunner, feeds: list[dict[str, np.ndarray]]) -> None:
    for feed, answer in zip(feeds, runner.answer(feeds), strict=True):
        assert not isinstance(answer, Exception)
        np.testing.assert_array_equal(answer["same"], feed["x"])
        np.testing.assert_array_equal(answer["total"], feed["x"].sum(axis=1, keepdims=True))


@settings(deadline=None, max_examples=80)
@given(
    lengths=st.lists(st.sampled_from([1, 2, 7, 8, 9, 63, 64]), min_size=1, max_size=10),
    rows=st.integers(1, 3),
    run_cost=st.sampled_from([0, 1, 7, 8, 9, 10_000]),
)
def test_no_run_computes_more_padding_than_the_runs_it_saves(
    lengths: list[int], rows: int, run_cost: int
) -> None:
    runner, shapes = sums(run_cost)
    feeds = [{"x": np.full((rows, length), number + 1)} for number, length in enumerate(lengths)]
    check_sums(runner, feeds)
    padding = sum(many * width for many, width in shapes) - rows * sum(lengths)
    assert padding <= run_cost * (len(set(lengths)) - len(shapes))
    assert len(shapes) <= len(set(lengths)), "rows of one length never go apart"


def scaled_over_the_batch(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """As a dynamically quantized layer: 127 steps up to the largest value of all rows."""
    x = feed["x"].astype(np.float32) + 0.37
    step = np.abs(x).max() / 127
    return [np.round(x / step).sum(axis=1, keepdims=True) * step]


@pytest.mark.parametrize("pads", [{}, {"x": 0}])
def test_requests_share_no_runs_where_company_changes_an_answer(pads: dict[str, int]) -> None:
    warnings: list[str] = []
    runner = batches.BatchRunner(scaled_over_the_batch, ["y"], pads, True, 8, warnings.append)
    runner.check(lambda length: {"x": np.ones((1, length), np.float32)})
    (said,) = warnings
    assert said.startswith(
        "requests will not share runs: the y of a row depends on the other rows (by "
    )
    assert "Each request runs separately" in said
    assert "quantize the model statically" in said
    assert runner.pads == {}
    feeds = [{"x": np.full((1, 4), value, np.float32)} for value in (0.1, 0.2, 50.0)]
    for feed, answer in zip(feeds, runner.answer(feeds), strict=True):
        assert not isinstance(answer, Exception)
        np.testing.assert_array_equal(answer["y"], scaled_over_the_batch(feed)[0])


@pytest.mark.parametrize("dtype", [np.int64, np.float16, np.float32, np.bool_])
def test_rounding_is_no_other_answer(dtype: type) -> None:
    """Accept rounding differences between batched and single rows.

    Half precision adds in another order in a batch, and what is NaN alone may be NaN in a batch.
    """

    def run(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        rounded = feed["x"].astype(np.float32).mean(axis=1, keepdims=True) * (
            1 + 1e-3 * (len(feed["x"]) - 1)
        )
        return [rounded, np.full((len(feed["x"]), 1), np.nan, np.float16)]

    warnings: list[str] = []
    runner = batches.BatchRunner(run, ["y", "nothing"], {}, True, 8, warnings.append)
    runner.check(lambda length: {"x": np.ones((1, length), dtype)})
    assert not warnings
    assert len(runner._runs([{"x": np.ones((1, 4), dtype)}] * 3, [None] * 3)) == 1


@pytest.mark.parametrize("axes", [(), (4,)])
def test_whole_numbers_differ_by_any_step(axes: tuple[int, ...]) -> None:
    """Such as the best class; a row without any axis has another value, too."""
    warnings: list[str] = []
    runner = batches.BatchRunner(
        lambda feed: [feed["x"] + feed["x"].min()], ["best"], {}, True, 8, warnings.append
    )
    runner.check(lambda length: {"x": np.ones((1, *axes), np.int64)})
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("requests", "run_cost", "most"),
    [
        pytest.param([(64, 512)], 8, 4096, id="one request"),
        pytest.param([(1, 512)] * 64, 8, 4096, id="many requests"),
        pytest.param(
            [(2, length) for length in (512, 500, 511, 40, 7) * 8], 1, 4096, id="of many lengths"
        ),
        pytest.param(
            [(3, 5000)], 8, 5000, id="rows that are longer than all that a run should compute"
        ),
        pytest.param([(64, 512)], 128, 8192, id="a run that costs more"),
        pytest.param([(64, 512)], 1300, 64 * 512, id="a GPU"),
    ],
)
def test_a_run_computes_so_many_tokens_and_no_more(
    requests: list[tuple[int, int]], run_cost: int, most: int
) -> None:
    runner, shapes = sums(run_cost)
    random = np.random.default_rng(3)
    feeds = [{"x": random.integers(1, 9, shape)} for shape in requests]
    check_sums(runner, feeds)
    assert max(rows * width for rows, width in shapes) <= most
    # Nor any fewer than it takes.
    fewest = (
        len({length for _, length in requests})
        + sum(rows * length for rows, length in requests) / most
    )
    assert len(shapes) <= np.ceil(fewest * 1.25)


@pytest.mark.parametrize(
    ("output", "pads", "combine"),
    [
        pytest.param(lambda x: x + x.min(), {"x": 0}, True, id="company changes an answer"),
        pytest.param(
            lambda x: x[:, : int(x.max())],
            {"x": 0},
            True,
            id="an output as wide as the largest value of all rows",
        ),
        pytest.param(lambda x: x, {}, True, id="no tokens"),
        pytest.param(lambda x: x, {"x": 0}, False, id="no batches"),
    ],
)
def test_rows_stay_together_where_a_part_of_them_is_no_part_of_the_answer(
    output: Callable[[np.ndarray], np.ndarray], pads: dict[str, int], combine: bool
) -> None:
    shapes: list[tuple[int, ...]] = []

    def run(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        shapes.append(feed["x"].shape)
        return [output(feed["x"])]

    runner = batches.BatchRunner(run, ["y"], pads, combine, 8, lambda _: None)
    runner.check(lambda length: {"x": np.ones((1, length), np.int64)})
    large = np.repeat(np.arange(1, 65)[:, None], 512, axis=1)
    (answer,) = runner.answer([{"x": large}])
    assert not isinstance(answer, Exception)
    np.testing.assert_array_equal(answer["y"], output(large))
    assert shapes[-1] == large.shape


def mean(x: np.ndarray) -> np.ndarray:
    """One entry for the whole batch."""
    return x.mean(axis=0, keepdims=True)


def below_8_tokens(x: np.ndarray) -> bool:
    return x.shape[1] < 8


@pytest.mark.parametrize(
    ("refuses", "output"),
    [
        pytest.param(below_8_tokens, mean, id="short rows refused, one entry for all rows"),
        pytest.param(below_8_tokens, lambda x: x.sum(), id="short rows refused, a scalar"),
        pytest.param(
            below_8_tokens,
            lambda x: x + x.min(),
            id="short rows refused, company changes an answer",
        ),
        pytest.param(
            lambda x: not x.all(), lambda x: x + x.min(), id="the second sample row refused"
        ),
        pytest.param(
            lambda _: False,
            lambda x: x if below_8_tokens(x) else mean(x),
            id="one entry for all long rows",
        ),
        pytest.param(
            lambda _: False,
            lambda x: x if below_8_tokens(x) else x.sum(),
            id="a scalar for all long rows",
        ),
    ],
)
@pytest.mark.parametrize("rows", [8, 9, 64])
def test_rows_stay_together_unless_samples_and_parts_prove_that_they_may_go_apart(
    refuses: Callable[[np.ndarray], bool], output: Callable[[np.ndarray], np.ndarray], rows: int
) -> None:
    def run(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        if refuses(feed["x"]):
            raise ValueError("not these rows")
        return [output(feed["x"])]

    runner = batches.BatchRunner(run, ["y"], {"x": 0}, True, 8, lambda _: None)
    runner.check(lambda length: {"x": np.ones((1, length), np.int64)})
    large = np.repeat(np.arange(1, rows + 1)[:, None], 512, axis=1)
    (answer,) = runner.answer([{"x": large}])
    assert not isinstance(answer, Exception)
    np.testing.assert_array_equal(answer["y"], output(large))


@settings(deadline=None, max_examples=200)
@given(
    rows=st.dictionaries(st.integers(1, 200), st.integers(1, 9), min_size=1, max_size=12),
    run_cost=st.integers(0, 3000),
)
def test_the_search_for_runs_leaves_out_no_cheaper_one(rows: dict[int, int], run_cost: int) -> None:
    """The search that stops early finds the cost of the one that tries every last run."""

    def cheapest(lengths: tuple[int, ...]) -> int:
        return min(
            (
                cheapest(lengths[:begin])
                + run_cost
                + lengths[-1] * sum(rows[length] for length in lengths[begin:])
                for begin in range(len(lengths))
            ),
            default=0,
        )

    runs = batches.cheapest_runs(rows, run_cost)
    found = sum(run_cost + max(run) * sum(rows[length] for length in run) for run in runs)
    assert found == cheapest(tuple(sorted(rows)))
