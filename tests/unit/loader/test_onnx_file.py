"""Comparison of an ONNX file with what is declared."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tests.support.messages import Messages
from triton_pipelines.api.loadplan import PlanCheck, PlanTensor
from triton_pipelines.loader.onnx_file import FileTensor, OnnxFile, compare, read_onnx

IDS = FileTensor("input_ids", "INT64", ("batch", "sequence"))
MASK = FileTensor("attention_mask", "INT64", ("batch", None))
LOGITS = FileTensor("logits", "FP32", ("batch", 2))
HIDDEN = FileTensor("hidden", "FP32", ("batch", "sequence", 384))
FILE = OnnxFile((IDS, MASK), (LOGITS, HIDDEN), ())


def tensor(name: str, data_type: str, *dims: int) -> PlanTensor:
    return PlanTensor(name=name, data_type=data_type, dims=dims)


def check(
    *, batch: int = 8, inputs: tuple[PlanTensor, ...] = (), outputs: tuple[PlanTensor, ...] = ()
) -> PlanCheck:
    axis = () if batch else (-1,)
    return PlanCheck(
        step="model",
        path="model/1/model.onnx",
        field="spec.model",
        max_batch_size=batch,
        inputs=inputs
        or (tensor("input_ids", "INT64", *axis, -1), tensor("attention_mask", "INT64", *axis, -1)),
        outputs=outputs or (tensor("logits", "FP32", *axis, 2),),
    )


@pytest.mark.parametrize(
    ("declared", "file"),
    [
        (check(), FILE),
        (check(batch=0), FILE),
        (check(outputs=(tensor("hidden", "TYPE_FP32", -1, 384),)), FILE),
        # A dynamic axis of the file takes any declared number.
        (
            check(
                inputs=(tensor("input_ids", "INT64", 128), tensor("attention_mask", "INT64", 128))
            ),
            FILE,
        ),
        (
            check(inputs=(tensor("t", "BYTES", 1),)),
            OnnxFile((FileTensor("t", "STRING", ("n", 1)),), (LOGITS,), ()),
        ),
        # ONNX Runtime may know the shapes of operators that the loader does not know.
        (
            check(),
            OnnxFile((IDS, MASK), (FileTensor("logits", "FP32", None, is_certain=False),), ()),
        ),
        (
            check(),
            OnnxFile(
                (IDS, MASK), (FileTensor("logits", "FP32", ("batch", "n"), is_certain=False),), ()
            ),
        ),
        # A size that ONNX Runtime may or may not infer.
        *(
            (
                check(outputs=(tensor("logits", "FP32", size),)),
                OnnxFile(
                    (IDS, MASK),
                    (FileTensor("logits", "FP32", ("batch", 2), optional=frozenset({1})),),
                    (),
                ),
            )
            for size in (2, -1)
        ),
        (
            check(batch=0, inputs=(tensor("s", "FP32", 1),)),
            OnnxFile((FileTensor("s", "FP32", ()),), (LOGITS,), ()),
        ),
    ],
)
def test_what_fits(declared: PlanCheck, file: OnnxFile) -> None:
    assert compare(declared, file, "hf://a/b") is None


@pytest.mark.parametrize(
    ("declared", "file", "says"),
    [
        (
            check(inputs=(tensor("input_ids", "INT64", -1),)),
            FILE,
            ["input 'attention_mask' is not declared", "attention_mask | absent"],
        ),
        (
            check(
                inputs=(
                    tensor("input_ids", "INT64", -1),
                    tensor("mask", "INT64", -1),
                    tensor("attention_mask", "INT64", -1),
                )
            ),
            FILE,
            ["input 'mask' is not in the file", "INT64 [-1, -1] | absent"],
        ),
        (
            check(outputs=(tensor("output", "FP32", 2),)),
            FILE,
            ["output 'output' is not in the file", "spec.model.outputs: [{name: logits,"],
        ),
        (
            check(outputs=(tensor("logits", "FP32", 3),)),
            FILE,
            ["the fixed dimensions of output 'logits' differ", "dims: [2]}]"],
        ),
        # Triton refuses -1 where the file is fixed.
        (
            check(outputs=(tensor("logits", "FP32", -1),)),
            FILE,
            ["the fixed dimensions of output 'logits' differ", "dims: [2]}]"],
        ),
        (
            check(outputs=(tensor("logits", "FP32", 3),)),
            OnnxFile(
                (IDS, MASK),
                (FileTensor("logits", "FP32", ("batch", 2), optional=frozenset({1})),),
                (),
            ),
            ["the fixed dimensions of output 'logits' differ", "dims: [2]}]"],
        ),
        # Triton compares outputs exactly: -1 with what is dynamic in the file.
        (
            check(),
            OnnxFile((IDS, MASK), (FileTensor("logits", "FP32", ("batch", "n")),), ()),
            [
                "output 'logits' has a dynamic axis, which must be declared as -1",
                "FP32 [-1, 2]",
                "dims: [-1]}]",
            ],
        ),
        (
            check(),
            OnnxFile(
                (FileTensor("input_ids", "INT64", None), MASK),
                (FileTensor("logits", "FP32", None),),
                (),
            ),
            [
                "input 'input_ids' has no shape in the file",
                "output 'logits' has no shape in the file",
                "Export the model with shapes for input_ids and logits.",
            ],
        ),
        (
            check(outputs=(tensor("logits", "FP16", 2),)),
            FILE,
            ["type of output 'logits' is FP32", "dataType: FP32"],
        ),
        (
            check(outputs=(tensor("hidden", "FP32", 384),)),
            FILE,
            [
                "output 'hidden' has rank 3 in the file, but is declared with rank 2",
                "dims: [-1, 384]",
            ],
        ),
        (
            check(batch=0, outputs=(tensor("logits", "FP32", 2),)),
            FILE,
            [
                "output 'logits' has rank 2 in the file, but is declared with rank 1",
                "dims: [-1, 2]",
            ],
        ),
        (
            check(),
            OnnxFile((FileTensor("input_ids", "INT64", (1, "s")), MASK), (LOGITS,), ()),
            [
                "fixed batch axis of size 1",
                "set spec.model.maxBatchSize to 0 and list all axes in dims:",
                "{name: input_ids, dataType: INT64, dims: [1, -1]}",
            ],
        ),
        (
            check(),
            OnnxFile((IDS, MASK), (FileTensor("logits", "FP32", ()),), ()),
            ["output 'logits' is a scalar and has no batch axis"],
        ),
        (
            check(),
            OnnxFile((IDS, MASK), (FileTensor("logits", "sequence", None),), ()),
            [
                "type of output 'logits' is sequence",
                "Triton has no data type for logits",
                "disable zipmap",
            ],
        ),
    ],
)
def test_what_does_not_fit_shows_both_sides_and_the_cure(
    declared: PlanCheck, file: OnnxFile, says: list[str], messages: Messages
) -> None:
    message = compare(declared, file, "hf://a/b")
    assert message is not None
    assert "spec.model" in message
    messages.check(message)
    for part in (*says, "declared", "in file"):
        assert part in message


def test_a_named_axis_of_an_adapted_file_gets_its_declared_size() -> None:
    file = OnnxFile((IDS, MASK), (FileTensor("logits", "FP32", ("batch", "n")),), ())
    assert compare(check(), file, "hf://a/b", is_adapted=True) is None


SEQUENCES = check(inputs=(tensor("x", "FP32", 4),), outputs=(tensor("y", "FP32", 4),)).model_copy(
    update={
        "controls": (tensor("START", "INT32", 1), tensor("ID", "UINT64", 1)),
        "state_inputs": (tensor("state", "FP32", 4),),
        "state_outputs": (tensor("next", "FP32", 4),),
    }
)
SEQUENCE_INPUTS = (
    FileTensor("x", "FP32", ("batch", 4)),
    FileTensor("START", "INT32", ("batch", 1)),
    FileTensor("ID", "UINT64", ("batch", 1)),
    FileTensor("state", "FP32", ("batch", 4)),
)
SEQUENCE_OUTPUTS = (
    FileTensor("y", "FP32", ("batch", 4)),
    FileTensor("next", "FP32", ("batch", "n")),
)


def test_what_the_sequence_batcher_fills_counts_as_declared() -> None:
    file = OnnxFile(SEQUENCE_INPUTS, SEQUENCE_OUTPUTS, ())
    assert compare(SEQUENCES, file, "hf://a/b") is None


@pytest.mark.parametrize(
    "file",
    [
        OnnxFile(SEQUENCE_INPUTS[:1] + SEQUENCE_INPUTS[2:], SEQUENCE_OUTPUTS, ()),
        OnnxFile(SEQUENCE_INPUTS, SEQUENCE_OUTPUTS[:1], ()),
        OnnxFile(
            (*SEQUENCE_INPUTS[:3], FileTensor("state", "FP16", ("batch", 4))),
            SEQUENCE_OUTPUTS,
            (),
        ),
        OnnxFile(
            (
                *SEQUENCE_INPUTS[:2],
                FileTensor("ID", "UINT64", ("batch", None)),
                SEQUENCE_INPUTS[3],
            ),
            SEQUENCE_OUTPUTS,
            (),
        ),
    ],
)
def test_controls_and_states_that_do_not_fit_are_corrected_where_they_are_declared(
    file: OnnxFile, messages: Messages
) -> None:
    message = compare(SEQUENCES, file, "hf://a/b")
    assert message is not None
    assert "spec.model.sequenceBatching" in message
    assert "spec.model.inputs" not in message
    messages.check(message)


def test_controls_and_states_are_not_suggested_as_inputs() -> None:
    inputs = (FileTensor("x", "FP16", ("batch", 4)), *SEQUENCE_INPUTS[2:])
    message = compare(SEQUENCES, OnnxFile(inputs, SEQUENCE_OUTPUTS, ()), "hf://a/b")
    assert message is not None
    assert "\nspec.model.inputs: [{name: x, dataType: FP16, dims: [4]}]\n" in message


def external(path: Path, location: str) -> Path:
    """A model whose one weight lies in another file."""
    weight = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL
    )
    weight.external_data.add(key="location", value=location)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


@pytest.mark.parametrize(
    "location",
    [
        "model.onnx_data",
        "model.onnx.data",
        "weights/0001.bin",
        "w",
        "Constant_7_attr__value",
        "layers.0.python",
    ],
)
def test_side_files_of_weights_are_found(tmp_path: Path, location: str) -> None:
    assert read_onnx(external(tmp_path / "model.onnx", location)).side_files == (location,)


@pytest.mark.parametrize(
    "location",
    [
        "model.py",  # the runner itself
        # what the runner imports; the version folder stands before the backend's
        "triton_python_backend_utils.py",
        "triton_python_backend_utils.cpython-310-x86_64-linux-gnu.so",
        "triton_python_backend_utils/__init__.pyc",
        "__pycache__/model.cpython-310.pyc",
        "__pycache__/weights.bin",
        "/etc/passwd",
        "../config.pbtxt",
        "a/../../config.pbtxt",
        "..\\config.pbtxt",
        "model.onnx",
    ],
)
def test_side_files_that_would_be_run_or_lie_elsewhere_are_refused(
    tmp_path: Path, location: str, messages: Messages
) -> None:
    with messages.raises(ValueError):
        read_onnx(external(tmp_path / "model.onnx", location))


def test_a_file_of_zeros_is_told_at_once(tmp_path: Path, messages: Messages) -> None:
    # What an interrupted copy leaves of a file whose room was taken beforehand. Its fields are
    # never counted: that would take hours.
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(64 << 30)
    with messages.raises(ValueError, match="ONNX"):
        read_onnx(path)
