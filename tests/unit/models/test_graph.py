"""The ONNX graph against the NumPy encoder, on a tiny random model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from e2e.models import minilm
from e2e.models.graph import serialize
from e2e.models.minilm import LinearHead
from e2e.models.reference import ReferenceEncoder, read_safetensors
from e2e.models.weights import EncoderConfig, Weights, load_weights

Run = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]
ROWS = ([1, 5, 9, 2], [1, 2], [1, 7, 7, 49, 30, 11, 2], list(range(16)))
HEAD = LinearHead(
    np.random.default_rng(3).normal(size=(24, 2)).astype(np.float32),
    np.array([0.25, -0.5], np.float32),
)


def runner(data: bytes) -> Run:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        result: NDArray[np.float32] = session.run(None, {"input_ids": ids, "attention_mask": mask})[
            0
        ]
        return result

    return run


def padded(
    rows: tuple[list[int], ...], length: int, filler: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows right-padded to one length, and their mask."""
    ids = np.full((len(rows), length), filler, np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    return ids, mask


@pytest.fixture(scope="module")
def encoder(weights: Weights, config: EncoderConfig) -> Run:
    return runner(serialize(minilm.build_model(weights, config)))


@pytest.fixture(scope="module")
def classifier(weights: Weights, config: EncoderConfig) -> Run:
    return runner(serialize(minilm.build_model(weights, config, HEAD)))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> ReferenceEncoder:
    return ReferenceEncoder(checkpoint)


def test_every_row_equals_the_reference_alone_and_in_a_padded_batch(
    encoder: Run, reference: ReferenceEncoder
) -> None:
    batch = encoder(*padded(ROWS, 16))
    for number, row in enumerate(ROWS):
        expected = reference.hidden_state(row)
        alone = encoder(*padded((row,), len(row)))[0]
        np.testing.assert_allclose(alone, expected, atol=1e-5, rtol=0)
        np.testing.assert_allclose(batch[number, : len(row)], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("filler", [0, 49])
def test_logits_do_not_depend_on_padding_or_neighbours(
    classifier: Run, reference: ReferenceEncoder, filler: int
) -> None:
    expected = np.stack(
        [reference.pooled(row) @ HEAD.weight.astype(np.float64) + HEAD.bias for row in ROWS]
    )
    np.testing.assert_allclose(classifier(*padded(ROWS, 16, filler)), expected, atol=1e-5, rtol=0)
    for length in (7, 12, 16):
        np.testing.assert_allclose(
            classifier(*padded(ROWS[:3], length, filler)), expected[:3], atol=1e-5, rtol=0
        )


def test_masked_token_in_the_middle_has_no_say(classifier: Run) -> None:
    """Check that the mask decides, not the id: any id under a mask of 0 gives the same answer."""
    ids, mask = padded(ROWS, 16)
    mask[:, 1] = 0
    other = ids.copy()
    other[:, 1] = 33
    np.testing.assert_array_equal(classifier(ids, mask), classifier(other, mask))


def test_fully_masked_row_is_finite_and_leaves_its_neighbours_alone(classifier: Run) -> None:
    ids, mask = padded(ROWS, 16)
    before = classifier(ids, mask)
    mask[1] = 0
    after = classifier(ids, mask)
    np.testing.assert_allclose(after[1], HEAD.bias, atol=1e-6)
    np.testing.assert_array_equal(np.delete(after, 1, axis=0), np.delete(before, 1, axis=0))


def test_sequence_beyond_the_position_table_is_an_error(encoder: Run) -> None:
    with pytest.raises(Exception, match=r"(?i)invalid argument|broadcast|dimension"):
        encoder(*padded(([1] * 17,), 17))


def test_same_weights_give_the_same_bytes_and_standard_operators_only(
    weights: Weights, config: EncoderConfig
) -> None:
    first, second = (serialize(minilm.build_model(weights, config, HEAD)) for _ in range(2))
    assert first == second
    model = onnx.load_from_string(first)
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert model.ir_version == 8
    assert {node.domain for node in model.graph.node} == {""}


def test_declared_inputs_and_outputs(weights: Weights, config: EncoderConfig) -> None:
    def shapes(values: Any) -> dict[str, tuple[int, list[Any]]]:
        return {
            value.name: (
                value.type.tensor_type.elem_type,
                [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim],
            )
            for value in values
        }

    embedding, classifier = (
        minilm.build_model(weights, config),
        minilm.build_model(weights, config, HEAD),
    )
    tokens = (onnx.TensorProto.INT64, ["batch", "sequence"])
    assert (
        shapes(embedding.graph.input)
        == shapes(classifier.graph.input)
        == {"input_ids": tokens, "attention_mask": tokens}
    )
    assert shapes(embedding.graph.output) == {
        "last_hidden_state": (onnx.TensorProto.FLOAT, ["batch", "sequence", 24])
    }
    assert shapes(classifier.graph.output) == {"logits": (onnx.TensorProto.FLOAT, ["batch", 2])}


def test_every_weight_counts(weights: Weights, config: EncoderConfig, encoder: Run) -> None:
    """Check that changing any tensor of the checkpoint changes the answer: the graph uses them all.

    The key's bias is the mathematical exception: it shifts all scores of a query alike. Token type
    1 is never used.
    """
    ids, mask = padded(ROWS, 16)
    before = encoder(ids, mask)
    for name, tensor in weights.items():
        changed = tensor.copy()
        changed.flat[0] += (
            0.5  # one element: a shift of a whole vector is undone by the normalisation
        )
        after = runner(serialize(minilm.build_model({**weights, name: changed}, config)))(ids, mask)
        assert (np.abs(after - before).max() > 1e-4) != name.endswith("key.bias"), name


def test_missing_tensor_is_named(weights: Weights, config: EncoderConfig) -> None:
    short = {
        name: tensor
        for name, tensor in weights.items()
        if name != "encoder.layer.1.output.dense.bias"
    }
    with pytest.raises(KeyError, match=r"encoder\.layer\.1\.output\.dense\.bias"):
        minilm.build_model(short, config)


def test_both_readers_see_the_same_checkpoint(checkpoint: Path) -> None:
    own, library = read_safetensors(checkpoint / "model.safetensors"), load_weights(checkpoint)
    assert own.keys() == library.keys()
    for name, tensor in library.items():
        np.testing.assert_array_equal(own[name], tensor)


def test_unknown_architecture_is_refused_by_name(
    checkpoint: Path, tmp_path: Path, config: EncoderConfig
) -> None:
    assert EncoderConfig.read(checkpoint / "config.json") == replace(config)
    content = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(
        json.dumps({**content, "hidden_act": "relu"}), encoding="utf-8"
    )
    with pytest.raises(ValueError, match="hidden_act is 'relu', only 'gelu'"):
        EncoderConfig.read(tmp_path / "config.json")
