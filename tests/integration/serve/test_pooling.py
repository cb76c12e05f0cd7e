"""A pipeline answers the same wherever its embedding is computed, in a real Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper

from tests.support.builders import document
from tests.support.serving import served
from triton_pipelines.triton.client import TritonClient

pytestmark = pytest.mark.integration
WIDTH = 8
DIMS = [-1, WIDTH]


def write_model(file: Path) -> None:
    """Write a graph that returns its input as token vectors."""
    vectors = ["rows", "tokens", WIDTH]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["hidden"])],
        "vectors",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, vectors),
            helper.make_tensor_value_info("mask", TensorProto.INT64, ["rows", "tokens"]),
        ],
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, vectors)],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        str(file),
    )


def resource(placement: str) -> dict[str, Any]:
    inputs = [
        {"name": "x", "dataType": "FP32", "dims": DIMS},
        {"name": "mask", "dataType": "INT64", "dims": [-1]},
    ]
    return document(
        name="pooled",
        tokenizer=None,
        model={
            "source": {"uri": "pvc://models/model.onnx"},
            "inputs": inputs,
            "outputs": [{"name": "hidden", "dataType": "FP32", "dims": DIMS}],
        },
        postprocess={
            "type": "MeanPooling",
            "labels": None,
            "maskFrom": "pipeline.mask",
            "placement": placement,
        },
    )


async def answers(placement: str, folder: Path) -> tuple[Any, Any]:
    """Return the names of the outputs, and the embeddings of two rows."""
    file = folder / f"{placement}.yaml"
    file.write_text(yaml.safe_dump(resource(placement)), encoding="utf-8")
    write_model(folder / "model.onnx")
    random = np.random.default_rng(7)
    request = {
        "x": random.normal(size=(2, 5, WIDTH)).astype(np.float32),
        "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
    }
    mapped = f"--source-map=pvc://models/={folder.as_uri()}/"
    with served(file, mapped, log=folder / "serve.log") as running:
        async with TritonClient(running.endpoint.grpc) as client:
            answer = await client.infer("pooled", request)
    return sorted(answer), answer["EMBEDDING"]


async def test_both_placements_answer_the_same(tmp_path: Path) -> None:
    names, expected = await answers("Step", tmp_path)
    same, answer = await answers("Model", tmp_path)
    assert (same, answer.shape, answer.dtype) == (names, expected.shape, expected.dtype)
    np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(answer, axis=1), 1, rtol=1e-5)
