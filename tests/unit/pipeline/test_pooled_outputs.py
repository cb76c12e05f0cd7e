"""Test which outputs of the ONNX runner may be empty at padding: those that are only pooled."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.builders import graph

RUNNER = {
    "platform": "python",
    "python": {"runner": "OnnxRuntime"},
    "outputs": [
        {"name": "hidden", "dataType": "FP32", "dims": [-1, 8]},
        {"name": "logits", "dataType": "FP32", "dims": [2]},
    ],
}
POOLED = {"type": "MeanPooling", "labels": None}
FIRST = {"type": "FirstToken", "labels": None}
CODE = {
    "name": "more",
    "platform": "python",
    "python": {"code": {"inline": "x = 1"}},
    "inputs": [{"name": "hidden", "dataType": "FP32", "dims": [-1, 8], "from": "model.hidden"}],
    "outputs": [{"name": "more", "dataType": "FP32", "dims": [8]}],
}
CALLS = {
    **CODE,
    "inputs": [{"name": "logits", "dataType": "FP32", "dims": [2], "from": "model.logits"}],
}
LENGTHS = [{"name": name} for name in ("input_ids", "attention_mask", "special_tokens_mask")]


def pooled(**spec: Any) -> list[str] | None:
    step = graph(**{"model": RUNNER, "postprocess": POOLED, **spec}).step("model")
    assert step is not None
    text = step.parameters.get("tritonpipe.pooled_outputs")
    return None if text is None else json.loads(text)


@pytest.mark.parametrize("postprocess", [POOLED, FIRST])
def test_an_output_that_only_pooling_reads(postprocess: dict[str, Any]) -> None:
    assert pooled(postprocess=postprocess) == ["hidden"]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"postprocess": {"type": "Softmax"}}, id="a classifier of tokens"),
        pytest.param({"steps": [CODE]}, id="another step reads it"),
        pytest.param({"steps": [CALLS]}, id="custom code may call the model"),
        pytest.param(
            {
                "ensemble": {
                    "outputs": [
                        {"name": "EMBEDDING", "from": "postprocess.EMBEDDING"},
                        {"name": "VECTORS", "from": "model.hidden"},
                    ]
                }
            },
            id="clients read it",
        ),
        pytest.param(
            {
                "tokenizer": {"outputs": LENGTHS},
                "postprocess": {**POOLED, "maskFrom": "tokenizer.special_tokens_mask"},
            },
            id="the mask counts padding",
        ),
        pytest.param({"postprocess": {**POOLED, "from": "model.logits"}}, id="another output"),
        pytest.param({"model": {**RUNNER, "platform": "onnxruntime_onnx", "python": None}}),
    ],
)
def test_an_output_that_others_may_read(spec: dict[str, Any]) -> None:
    assert "hidden" not in (pooled(**spec) or [])


def test_first_token_needs_no_mask() -> None:
    spec = {"tokenizer": {"outputs": LENGTHS}, "postprocess": FIRST}
    assert pooled(**spec) == ["hidden"]
