"""Test graphs as an exporter writes them.

Batching, padding and an invalid row in the batch change no answer; a mask of ones over the padding
does.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.raggedbackend import SimulatedBackend, config_of, session
from triton_pipelines.api.loadplan import PlanAdapt, PlanRaggedInput
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.graph import Tensor
from triton_pipelines.loader.onnx_graph.model_runner import Evaluator
from triton_pipelines.loader.ragged import AdaptedFile, adapt_file, equivalence

FILES = sorted((Path(__file__).parents[3] / "corpus" / "exported").glob("*.onnx.gz"))
POSITIONS = 36
VOCABULARY = 120


def request(names: list[str], ids: np.ndarray) -> dict[str, Any]:
    made = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids % 2}
    return {name: made[name] for name in names}


@pytest.mark.parametrize("means", [Evaluator.ONNX_RUNTIME, Evaluator.REFERENCE])
@pytest.mark.parametrize("packed", FILES, ids=lambda path: path.name.removesuffix(".onnx.gz"))
def test_exported_graphs(
    packed: Path, means: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "choose_evaluator", lambda weights: means)
    file = tmp_path / "model.onnx"
    file.write_bytes(gzip.decompress(packed.read_bytes()))
    stock = onnx.load(str(file))
    names = [value.name for value in stock.graph.input]
    outputs = [
        Tensor(
            value.name,
            DataType.FP32,
            tuple(dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim[1:]),
        )
        for value in stock.graph.output
    ]
    alone = session(stock)
    plan = PlanAdapt(
        step="model",
        path="model/1/model.onnx",
        inputs=tuple(PlanRaggedInput(name=name) for name in names),
        token_outputs=tuple(tensor.name for tensor in outputs if tensor.variable),
        max_length=POSITIONS,
    )
    done = adapt_file(file, plan)
    assert isinstance(done, AdaptedFile), str(done)
    assert done.verification.evaluator is means
    assert done.adaptable.sizes["input_ids"] == VOCABULARY

    random = np.random.default_rng(2)
    rows = [
        request(names, random.integers(2, VOCABULARY, (1, length))) for length in (3, 30, 1, 17, 8)
    ]
    broken = [request(names, np.full((1, 90), 5)), request(names, np.array([[5, VOCABULARY, 6]]))]
    backend = SimulatedBackend(
        file, config_of([Tensor(name, DataType.INT64, (-1,)) for name in names], outputs)
    )
    answers = backend.execute([*rows[:2], *broken, *rows[2:]])
    for marked in (answers.pop(2), answers.pop(2)):
        assert all(np.isnan(value).all() for value in marked.values())
    for row, answer in zip(rows, answers, strict=True):
        for tensor, wanted in zip(
            outputs, alone.run([tensor.name for tensor in outputs], row), strict=True
        ):
            assert answer[tensor.name].shape == wanted.shape
            np.testing.assert_allclose(answer[tensor.name], wanted, rtol=0, atol=1e-5)

    # The same rows with a mask that does not hide the padding are answered otherwise: the
    # comparison above can fail.
    short, length = rows[0], rows[1]["input_ids"].shape[1]
    padded = {
        name: np.pad(
            value, ((0, 0), (0, length - value.shape[1])), constant_values=int("mask" in name)
        )
        for name, value in short.items()
    }
    seen, wanted = alone.run([outputs[0].name], padded)[0], answers[0][outputs[0].name]
    assert (
        np.abs((seen[:, : wanted.shape[1]] if outputs[0].variable else seen) - wanted).max() > 1e-3
    )
