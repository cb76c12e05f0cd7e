"""Test how a model's source is resolved: a file, a folder with its main file, or a whole folder."""

from typing import Any

import pytest

from tests.support.meaning import rendered
from triton_pipelines.api.loadplan import FetchKind

HEAD = {
    "apiVersion": "tritonpipelines.io/v1alpha1",
    "kind": "InferencePipeline",
    "metadata": {"name": "p"},
}
INPUTS = [{"name": "x", "dataType": "FP32", "dims": [4]}]
OUTPUTS = [{"name": "y", "dataType": "FP32", "dims": [2]}]


def _fetch(source: dict[str, Any]) -> tuple[FetchKind, str | None, bool]:
    model = {"platform": "onnxruntime_onnx", "source": source, "inputs": INPUTS, "outputs": OUTPUTS}
    _, graph, _ = rendered({**HEAD, "spec": {"model": model}})
    (fetch,) = graph.steps[0].fetches
    return fetch.kind, fetch.file, fetch.whole


@pytest.mark.parametrize(
    ("source", "kind", "file", "whole"),
    [
        ({"uri": "s3://models/sst2/"}, FetchKind.MODEL, "model.onnx", True),
        ({"uri": "s3://models/sst2/", "fileName": "sst2.onnx"}, FetchKind.MODEL, "sst2.onnx", True),
        ({"uri": "hf://acme/sst2", "fileName": "sst2.onnx"}, FetchKind.MODEL, "sst2.onnx", False),
        # A web server has no listing: the one file is all that can be asked for.
        ({"uri": "https://models.example.com/sst2/"}, FetchKind.MODEL, "model.onnx", False),
        (
            {"uri": "https://models.example.com/sst2/", "fileName": "sst2.onnx"},
            FetchKind.MODEL,
            "sst2.onnx",
            False,
        ),
        ({"uri": "https://models.example.com/sst2.onnx"}, FetchKind.FILE, None, False),
    ],
)
def test_a_models_source(
    source: dict[str, Any], kind: FetchKind, file: str | None, whole: bool
) -> None:
    assert _fetch(source) == (kind, file, whole)
