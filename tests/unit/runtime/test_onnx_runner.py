"""The ONNX runner against a numpy computation of the same encoder, one row at a time."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime import quantization

from tests.support import tinymodel
from tests.support.python_backend import InferenceRequest, Logger, load_runtime, start_model
from triton_pipelines.runtime.onnx_runner import batches, sample_runs

module = load_runtime("onnx_runner")
PADS = '{"input_ids": 0, "attention_mask": 0}'
PARAMETERS = {
    "tritonpipe.pad_inputs": PADS,
    "tritonpipe.run_cost_tokens": "8",
}  # not measured: the same runs on every machine
VOCABULARY = len(tinymodel.SPECIAL) + len(tinymodel.WORDS)


def config(**changes: Any) -> dict[str, Any]:
    return {
        "max_batch_size": 64,
        "input": [
            {"name": name, "data_type": "TYPE_INT64", "dims": [-1]}
            for name in ("input_ids", "attention_mask")
        ],
        "output": [
            {"name": "hidden", "data_type": "TYPE_FP32", "dims": [-1, tinymodel.WIDTH]},
            {"name": "logits", "data_type": "TYPE_FP32", "dims": [tinymodel.CLASSES]},
        ],
        **changes,
    }


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx")
    tinymodel.write(path / "1")
    return path


@pytest.fixture(scope="session")
def padding_model(folder: Path) -> Any:
    return start_model("onnx_runner", folder, config(), PARAMETERS)


@pytest.fixture(scope="session")
def plain_model(folder: Path) -> Any:
    return start_model("onnx_runner", folder, config(), {})


def feed(rows: list[list[int]]) -> dict[str, np.ndarray]:
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], np.int64)
    return {
        "input_ids": ids,
        "attention_mask": np.array(
            [[1] * len(row) + [0] * (width - len(row)) for row in rows], np.int64
        ),
    }


def expect(response: Any, rows: list[list[int]]) -> None:
    answer = response.arrays()
    assert answer["hidden"].shape == (len(rows), max(map(len, rows)), tinymodel.WIDTH)
    for i, row in enumerate(rows):
        np.testing.assert_allclose(
            answer["logits"][i], tinymodel.classify(np.array(row)), rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            answer["hidden"][i, : len(row)], tinymodel.encode(np.array(row)), rtol=1e-4, atol=1e-5
        )


row_strategy = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=20)
batches_strategy = st.lists(st.lists(row_strategy, min_size=1, max_size=4), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(batches=batches_strategy, padding=st.booleans())
def test_every_answer_is_the_one_alone(
    padding_model: Any, plain_model: Any, batches: list[list[list[int]]], padding: bool
) -> None:
    model = padding_model if padding else plain_model
    responses = model.execute([InferenceRequest(feed(rows)) for rows in batches])
    for response, rows in zip(responses, batches, strict=True):
        expect(response, rows)
        alone = model.execute([InferenceRequest(feed(rows))])[0].arrays()
        for name, array in response.arrays().items():
            np.testing.assert_allclose(array, alone[name], rtol=1e-5, atol=1e-5)


def count_runs(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Shapes of input_ids of the runs from now on."""
    shapes: list[tuple[int, int]] = []
    run = model._runner._run
    monkeypatch.setattr(
        model._runner,
        "_run",
        lambda inputs: shapes.append(inputs["input_ids"].shape) or run(inputs),
    )
    return shapes


def test_requests_share_runs(
    padding_model: Any, plain_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [InferenceRequest(feed([[2] * length])) for length in (3, 20, 4, 3, 20)]
    shapes = count_runs(padding_model, monkeypatch)
    padding_model.execute(requests)
    assert sorted(shapes) == [(2, 20), (3, 4)]
    shapes = count_runs(plain_model, monkeypatch)
    plain_model.execute(requests)
    assert sorted(shapes) == [(1, 4), (2, 3), (2, 20)]


def test_a_wrong_request_fails_alone(padding_model: Any) -> None:
    rows = [[5, 6, 7], [8]]
    bad_id = feed([[5, VOCABULARY + 5, 6]])
    too_long = feed([[5] * (tinymodel.POSITIONS + 1)])
    other_mask = {**feed([[5, 6, 7]]), "attention_mask": np.ones((1, 4), np.int64)}
    mask_of_1 = {**feed([[5, 6, 7]]), "attention_mask": np.ones((1, 1), np.int64)}
    empty = {"input_ids": np.zeros((1, 0), np.int64), "attention_mask": np.zeros((1, 0), np.int64)}
    wrong_type = {**feed(rows), "attention_mask": np.ones((2, 3), np.int32)}
    missing = {"input_ids": feed(rows)["input_ids"]}
    uneven = {**feed(rows), "attention_mask": np.ones((1, 3), np.int64)}
    wrong = [bad_id, too_long, other_mask, mask_of_1, empty, wrong_type, missing, uneven]
    responses = padding_model.execute(
        [InferenceRequest(inputs) for inputs in [feed(rows), *wrong, feed([[9, 9]])]]
    )
    expect(responses[0], rows)
    expect(responses[-1], [[9, 9]])
    messages = [response.error().message() for response in responses[1:-1]]
    fragments = [
        "indices element out of data bounds",
        "the model failed",
        "different shapes",
        "different shapes",
        "has no elements",
        "has type int32",
        "is missing",
        "different numbers of rows",
    ]
    for message, fragment in zip(messages, fragments, strict=True):
        assert fragment in message


def test_a_graph_that_ignores_its_mask_never_shares_padded_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tinymodel.write(tmp_path / "1", masked=False)
    Logger.lines.clear()
    model = start_model("onnx_runner", tmp_path, config(), {"tritonpipe.pad_inputs": PADS})
    assert "the graph ignores its mask" in Logger.lines[0]
    shapes = count_runs(model, monkeypatch)
    model.execute([InferenceRequest(feed([[2] * length])) for length in (3, 5, 3)])
    assert sorted(shapes) == [(1, 5), (2, 3)]


@pytest.mark.parametrize("exact", [True, False])
def test_no_device_excuses_a_graph_that_ignores_its_mask(tmp_path: Path, exact: bool) -> None:
    tinymodel.write(tmp_path / "1", masked=False)
    model = start_model("onnx_runner", tmp_path, config(), {})
    warnings: list[str] = []
    pads = {"input_ids": 0, "attention_mask": 0}
    runner = batches.BatchRunner(
        model._run, list(model._outputs), pads, True, 8, warnings.append, exact=exact
    )
    runner.check(sample_row)
    assert runner.pads == {}
    assert "the graph ignores its mask" in warnings[0]


@pytest.mark.parametrize(("kind", "shared"), [("GPU", True), ("CPU", False)])
def test_only_instances_on_a_gpu_may_round_as_a_gpu_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shared: bool
) -> None:
    """A run with padding in it is 2e-4 off, as with TensorFloat-32."""
    compute = module.TritonPythonModel._run

    def rounded(model: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        mask = inputs["attention_mask"]
        padded = mask[:, 0].all() and not mask.all()
        return [array * np.float32(1 + 2e-4 * padded) for array in compute(model, inputs)]

    monkeypatch.setattr(module.TritonPythonModel, "_run", rounded)
    model = start_model("onnx_runner", folder, config(), PARAMETERS, kind)
    assert bool(model._runner.pads) == shared


def sample_row(length: int) -> dict[str, np.ndarray]:
    return feed([[1] * length])


def mean_of_ids(
    inputs: dict[str, np.ndarray], rounding: float = 0.0, unmasked: float = 0.0
) -> list[np.ndarray]:
    """One output [rows, 1]: the mean id of the tokens in the mask.

    Args:
        inputs: ids and mask.
        rounding: relative error of a row that is padded.
        unmasked: share of the mean over all tokens, padding included, in the output.
    """
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    masked = (ids * mask).sum(axis=1, keepdims=True) / np.maximum(mask.sum(axis=1)[:, None], 1)
    padded = (mask[:, -1:] == 0) & (mask.sum(axis=1)[:, None] > 0)
    mixed = (1 - unmasked) * masked + unmasked * ids.mean(axis=1, keepdims=True)
    return [(mixed * np.where(padded, 1 + rounding, 1)).astype(np.float32)]


def shared_run_shapes(
    exact: bool, rounding: float = 0.0, unmasked: float = 0.0
) -> list[tuple[int, ...]]:
    """Shapes of the runs for rows of 3, 20 and 3 tokens, after the check of the runner."""
    shapes: list[tuple[int, ...]] = []

    def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        shapes.append(inputs["input_ids"].shape)
        return mean_of_ids(inputs, rounding, unmasked)

    pads = {"input_ids": 0, "attention_mask": 0}
    runner = batches.BatchRunner(run, ["y"], pads, True, 1000, lambda _: None, exact=exact)
    runner.check(sample_row)
    shapes.clear()
    runner.answer([feed([[2] * length]) for length in (3, 20, 3)])
    return sorted(shapes)


PADDED, APART = [(3, 20)], [(1, 20), (2, 3)]


@pytest.mark.parametrize(
    ("exact", "rounding", "shapes"),
    [
        (False, 2e-4, PADDED),  # TensorFloat-32 on an H100, MiniLM
        (True, 2e-4, APART),
        (True, 2e-5, PADDED),  # FP32 sums in another order
        (False, 2e-2, APART),
    ],
)
def test_rounding_on_a_gpu_does_not_bar_padding(
    exact: bool, rounding: float, shapes: list[tuple[int, int]]
) -> None:
    assert shared_run_shapes(exact, rounding=rounding) == shapes


@pytest.mark.parametrize("exact", [True, False])
def test_padding_that_shows_weakly_in_an_answer_is_not_rounding(exact: bool) -> None:
    """One hundredth of the answer ignores the mask: far less than in any graph without a mask."""
    assert shared_run_shapes(exact, unmasked=0.01) == APART


def test_a_sample_that_the_model_refuses_only_ends_padding() -> None:
    warnings: list[str] = []

    def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        raise ValueError("no ones please")

    runner = batches.BatchRunner(run, ["y"], {"x": 0}, True, 8, warnings.append)
    runner.check(lambda length: {"x": np.ones((1, length))})
    assert runner.pads == {}
    assert "no ones please" in warnings[0]


def test_without_batch_dimension_every_request_runs_alone(tmp_path: Path) -> None:
    calls = []

    def run(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        calls.append(1)
        return [inputs["x"] * 2]

    runner = batches.BatchRunner(run, ["y"], {}, False, 8, print)
    answers = runner.answer([{"x": np.array([1, 2])}, {"x": np.array([3, 4])}])
    assert [answer["y"].tolist() for answer in answers] == [[2, 4], [6, 8]]
    assert len(calls) == 2


@given(
    st.dictionaries(st.integers(1, 30), st.integers(1, 5), min_size=1, max_size=6),
    st.integers(0, 60),
)
def test_cheapest_runs_is_the_best_of_all_partitions(rows: dict[int, int], run_cost: int) -> None:
    def cost(runs: list[list[int]]) -> int:
        return sum(run_cost + max(run) * sum(rows[length] for length in run) for run in runs)

    runs = batches.cheapest_runs(rows, run_cost)
    lengths = sorted(rows)
    assert sorted(itertools.chain(*runs)) == lengths
    partitions = [
        [lengths[a:b] for a, b in itertools.pairwise((0, *cuts, len(lengths)))]
        for size in range(len(lengths))
        for cuts in itertools.combinations(range(1, len(lengths)), size)
    ]
    assert cost(runs) == min(map(cost, partitions))


@given(
    rows=st.dictionaries(st.integers(1, 512), st.integers(1, 20), min_size=1, max_size=12),
    run_cost=st.integers(1, 3000),
)
def test_padding_costs_no_more_than_the_runs_it_saves(rows: dict[int, int], run_cost: int) -> None:
    for run in batches.cheapest_runs(rows, run_cost):
        assert sum((max(run) - length) * rows[length] for length in run) <= run_cost * (
            len(run) - 1
        )


def test_one_long_row_does_not_pad_many_short_ones() -> None:
    """31 rows x 480 tokens of padding cost more than a launch, on a GPU too."""
    for run_cost in module.RUN_COST_TOKENS.values():
        assert [512] in batches.cheapest_runs({30: 15, 32: 16, 512: 1}, run_cost)


@pytest.mark.parametrize(
    ("fixed", "per_token", "tokens"),
    [
        (2e-3, 1.5e-6, 1333),
        (1e-4, 20e-6, 5),
        (0.0, 1e-5, 1),
        (1.0, 0.0, sample_runs.MOST_COST_TOKENS),
    ],
)
def test_the_cost_of_a_run_is_measured(fixed: float, per_token: float, tokens: int) -> None:
    now = 0.0

    def run(feed: dict[str, np.ndarray]) -> None:
        nonlocal now
        now += fixed + per_token * feed["x"].size

    assert (
        sample_runs.run_cost_tokens(run, {"x": np.ones((1, sample_runs.COST_TOKENS))}, lambda: now)
        == tokens
    )


@pytest.mark.parametrize(
    ("free", "per_token", "least", "most"),
    [
        (512, 0.6e-6, 1900, 2600),  # MiniLM in FP32 on an H100: about 2 000 tokens
        (0, 4.3e-6, 250, 320),
    ],
)
def test_a_gpu_that_computes_few_rows_for_free_is_measured_with_more(
    free: int, per_token: float, least: int, most: int
) -> None:
    now = 0.0
    shapes: list[int] = []

    def run(feed: dict[str, np.ndarray]) -> None:
        nonlocal now
        shapes.append(len(feed["x"]))
        now += 1.2e-3 + per_token * max(feed["x"].size - free, 0)

    cost = sample_runs.run_cost_tokens(
        run, {"x": np.ones((1, sample_runs.COST_TOKENS))}, lambda: now
    )
    assert least <= cost <= most
    assert max(shapes) <= 256


def test_a_measured_cost_decides_how_requests_are_cut(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Share one run among requests of very different length if launches are expensive.

    A model that rejects the sample keeps the assumed cost.
    """
    requests = [InferenceRequest(feed([[2] * length])) for length in (3, 20, 4)]
    for measured, expected in ((1000, [(3, 20)]), (1, [(1, 20), (2, 4)])):
        monkeypatch.setattr(module, "run_cost_tokens", lambda *_, measured=measured: measured)
        model = start_model("onnx_runner", folder, config(), {"tritonpipe.pad_inputs": PADS})
        shapes = count_runs(model, monkeypatch)
        model.execute(requests)
        assert sorted(shapes) == expected

    def refuse(*_: object) -> int:
        raise ValueError("too many tokens")

    monkeypatch.setattr(module, "run_cost_tokens", refuse)
    model = start_model("onnx_runner", folder, config(), {"tritonpipe.pad_inputs": PADS})
    assert model._runner.run_cost == module.RUN_COST_TOKENS["CPU"]


def changed(role: str, index: int, **changes: Any) -> dict[str, Any]:
    """The config with one tensor changed."""
    made = config()
    made[role][index] = {**made[role][index], **changes}
    return made


@pytest.mark.parametrize(
    ("broken", "parameters", "fragment"),
    [
        (
            changed("input", 0, name="ids"),
            {},
            "input names differ: the config has ['attention_mask', 'ids'], the graph "
            "['attention_mask', 'input_ids']",
        ),
        (changed("output", 1, name="scores"), {}, "output names differ"),
        (
            changed("input", 0, data_type="TYPE_INT32"),
            {},
            "input input_ids is TYPE_INT32 in the config, TYPE_INT64 in the graph",
        ),
        (
            changed("output", 0, dims=[8]),
            {},
            "output hidden has 2 dimensions in the config (batch included), but ['batch', "
            "'sequence', 8]",
        ),
        (config(), {"tritonpipe.pad_inputs": '{"ids": 0}'}, "tritonpipe.pad_inputs lists ['ids']"),
        (
            config(),
            {"tritonpipe.model_file": "tokenizer.json"},
            "tokenizer.json: ONNX Runtime cannot load it",
        ),
        (
            config(),
            {"tritonpipe.model_file": "absent.onnx"},
            "absent.onnx: ONNX Runtime cannot load it",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_refused_at_load(
    folder: Path, broken: dict[str, Any], parameters: dict[str, str], fragment: str
) -> None:
    with pytest.raises(ValueError) as caught:
        start_model("onnx_runner", folder, broken, parameters)
    assert fragment in str(caught.value)


def test_an_image_without_onnxruntime_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RuntimeError, match="this runner requires the Python package onnxruntime"):
        start_model("onnx_runner", folder, config(), {})


@pytest.mark.parametrize("parameters", [{}, {"tritonpipe.pad_inputs": PADS}])
def test_requests_of_a_dynamically_quantized_graph_are_computed_alone(
    tmp_path: Path, parameters: dict[str, str]
) -> None:
    tinymodel.write(tmp_path / "1")
    quantization.quantize_dynamic(
        str(tmp_path / "1" / "model.onnx"), str(tmp_path / "1" / "quantized.onnx")
    )
    Logger.lines.clear()
    model = start_model(
        "onnx_runner", tmp_path, config(), {"tritonpipe.model_file": "quantized.onnx", **parameters}
    )
    assert any("of a row depends on the other rows" in line for line in Logger.lines), Logger.lines
    requests = [InferenceRequest(feed([row])) for row in ([2, 3, 4], [9, 9, 5], [7, 1, 30])]
    for request, together in zip(requests, model.execute(requests), strict=True):
        alone = model.execute([request])[0].arrays()
        for name, array in together.arrays().items():
            np.testing.assert_array_equal(array, alone[name])
