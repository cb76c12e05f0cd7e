"""What an adapted model's config holds, and which declared steps cannot have one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from tests.support.raggedbackend import config_of
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.graph import Tensor
from triton_pipelines.compile.graph.ragged_config import (
    ragged_config,
    ragged_inputs,
    ragged_obstacles,
)
from triton_pipelines.compile.validation import validate_repository

IDS, MASK, TYPES = (
    Tensor(name, DataType.INT64, (-1,))
    for name in ("input_ids", "attention_mask", "token_type_ids")
)
AGE = Tensor("age", DataType.FP32, (1,))
LOGITS, HIDDEN = Tensor("logits", DataType.FP32, (2,)), Tensor("hidden", DataType.FP32, (-1, 8))


CONFIG = """
name: "model" backend: "onnxruntime" max_batch_size: 16
input { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }
input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }
input { name: "age" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "logits" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "hidden" data_type: TYPE_FP32 dims: [ -1, 8 ] }
dynamic_batching { }
batch_input { kind: BATCH_ITEM_SHAPE target_name: "input_ids__shape" \
data_type: TYPE_INT32 source_input: "input_ids" }
batch_input { kind: BATCH_ITEM_SHAPE target_name: "attention_mask__shape" \
data_type: TYPE_INT32 source_input: "attention_mask" }
batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "hidden" \
source_input: "input_ids" }
"""
"""The fields with which Triton's ONNX Runtime backend was seen to take ragged batches."""


def test_the_config_of_an_adapted_model() -> None:
    config = config_of([MASK, IDS, AGE], [LOGITS, HIDDEN], 16)
    assert config == text_format.Parse(CONFIG, model_config_pb2.ModelConfig())
    assert validate_repository({"model": config}) == []


def test_token_ids_come_first_whatever_their_order_and_name() -> None:
    assert [tensor.name for tensor in ragged_inputs([TYPES, MASK, IDS])] == [
        "input_ids",
        "token_type_ids",
        "attention_mask",
    ]
    assert (
        ragged_config([TYPES, replace(MASK, name="MASK"), replace(IDS, name="INPUT_IDS")], [HIDDEN])
        .batch_outputs[0]
        .source
        == "INPUT_IDS"
    )


def test_a_step_that_can_be_adapted_has_no_obstacle() -> None:
    assert list(ragged_obstacles([IDS, MASK, AGE], [LOGITS, HIDDEN], 1)) == []


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        ([replace(IDS, dims=(128,))], [LOGITS], "no input has dims [-1]"),
        (
            [IDS, replace(AGE, dims=(-1, 2))],
            [LOGITS],
            "input age has dims [-1, 2], but an input of variable length must have dims [-1]",
        ),
        (
            [IDS, replace(MASK, data_type=DataType.FP32)],
            [LOGITS],
            "input attention_mask is FP32, but token tensors are INT64 or INT32",
        ),
        ([IDS, replace(MASK, reshape=(-1, 1))], [LOGITS], "input attention_mask is reshaped"),
        (
            [IDS, replace(MASK, name="input_ids__shape")],
            [LOGITS],
            "input_ids__shape is reserved for the row lengths of input_ids",
        ),
        (
            [IDS],
            [replace(HIDDEN, dims=(12, -1, -1))],
            "output hidden has dims [12, -1, -1], but only the first axis",
        ),
        ([IDS], [replace(HIDDEN, reshape=(-1, 2, 4))], "output hidden is reshaped"),
        (
            [IDS],
            [replace(LOGITS, data_type=DataType.STRING)],
            "output logits is STRING, a type that has no value to mark rejected rows",
        ),
    ],
)
def test_declared_tensors_that_cannot_be(
    inputs: list[Tensor], outputs: list[Tensor], words: str
) -> None:
    (said,) = ragged_obstacles(inputs, outputs, 8)
    assert words in said


def test_a_step_without_batches() -> None:
    assert list(ragged_obstacles([IDS], [LOGITS], 0)) == [
        "maxBatchSize is 0, but batches require at least 1"
    ]
