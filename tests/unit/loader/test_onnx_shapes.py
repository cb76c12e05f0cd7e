"""What the loader expects ONNX Runtime to infer about the shapes of a file."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.support.shapegraphs import CONSTANTS, constant_graph, save_beside, shape_graph
from triton_pipelines.loader import onnx_shapes
from triton_pipelines.loader.onnx_file import FileTensor, read_onnx
from triton_pipelines.loader.onnx_shapes import external_shape_constants
from triton_pipelines.loader.onnx_store import load_without_weights


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("a product with a weight", FileTensor("y", "FP32", ("batch", 4))),
        (
            "a shape of the tensor's own axis",
            FileTensor("y", "FP32", ("batch", 4), optional=frozenset({1})),
        ),
        ("a size that depends on values", FileTensor("y", "FP32", ("batch", "n"))),
        ("an operator of ONNX Runtime", FileTensor("y", "FP32", ("batch", "n"), is_certain=False)),
    ],
)
def test_outputs_have_the_sizes_that_follow_from_the_graph(
    graph: str, expected: FileTensor, tmp_path: Path
) -> None:
    onnx.save(shape_graph(graph), str(tmp_path / "model.onnx"))
    assert read_onnx(tmp_path / "model.onnx").outputs == (expected,)


def test_a_graph_that_needs_too_much_memory_is_not_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inference copies constants of nodes several times."""
    monkeypatch.setattr(onnx_shapes, "INFERRED_MAX", 100)
    file = tmp_path / "model.onnx"
    onnx.save(shape_graph("a product with a weight"), str(file))
    assert read_onnx(file).outputs == (FileTensor("y", "FP32", ("batch", "n"), is_certain=False),)
    save_beside(constant_graph("Reshape"), file)
    assert external_shape_constants(file, load_without_weights(file).model) == []


@pytest.mark.parametrize("case", CONSTANTS)
@pytest.mark.parametrize("threshold", [0, 1024])
def test_constants_in_side_files_that_a_shape_needs_are_found(
    case: str, threshold: int, tmp_path: Path
) -> None:
    file = tmp_path / "model.onnx"
    save_beside(constant_graph(case), file, threshold)
    is_needed = CONSTANTS[case][2] and threshold == 0
    found = external_shape_constants(file, load_without_weights(file).model)
    assert found == (["integers"] if is_needed else [])
