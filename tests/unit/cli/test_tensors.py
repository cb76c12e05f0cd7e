"""Test ``tritonpipe infer``.

Covered are tensors from a command line, Triton's binary bodies, and the printed outputs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.messages import Messages
from triton_pipelines.cli.errors import CommandError
from triton_pipelines.cli.model_metadata import ModelMetadata, TensorMetadata
from triton_pipelines.cli.output_tensors import decode, format_row, json_value
from triton_pipelines.cli.tensors import encode, request_arrays

TEXT = TensorMetadata("TEXT", "BYTES", (-1, 1))
PASSAGE = TensorMetadata("PASSAGE", "BYTES", (-1, 1))
IMAGE = TensorMetadata("IMAGE", "FP32", (-1, 3, -1, -1))
IDS = TensorMetadata("IDS", "INT64", (-1, -1))


def ask(
    *inputs: TensorMetadata,
    texts: Any = (),
    pairs: Any = (),
    values: Any = (),
    files: Any = (),
    batched: bool = True,
) -> dict[str, Any]:
    return request_arrays(ModelMetadata(inputs, ("Y",), batched), texts, pairs, values, files)


def shown(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: array.tolist() for name, array in arrays.items()}


# --- texts


@pytest.mark.parametrize(
    ("shape", "batched", "shaped"),
    [
        ((-1, 1), True, [[b"a"], [b"b"]]),
        ((-1,), False, [b"a", b"b"]),
        ((1, -1), False, [[b"a", b"b"]]),
        ((-1, -1), True, [[b"a"], [b"b"]]),
    ],
)
def test_texts_take_the_shape_of_their_input(
    shape: tuple[int, ...], batched: bool, shaped: Any
) -> None:
    assert shown(
        ask(TensorMetadata("TEXT", "BYTES", shape), texts=["a", "b"], batched=batched)
    ) == {"TEXT": shaped}


def test_pairs_one_query_for_all_passages() -> None:
    assert shown(ask(TEXT, PASSAGE, texts=["q"], pairs=["a", "b"])) == {
        "TEXT": [[b"q"], [b"q"]],
        "PASSAGE": [[b"a"], [b"b"]],
    }


def test_a_text_by_name_leaves_the_other_input_to_texts() -> None:
    assert shown(ask(TEXT, PASSAGE, texts=["a"], values=["TEXT=q=1"])) == {
        "TEXT": [[b"q=1"]],
        "PASSAGE": [[b"a"]],
    }


# --- numbers


@pytest.mark.parametrize(
    ("shape", "text", "expected"),
    [
        ((-1, -1), "1,2,3", [[1, 2, 3]]),
        ((-1, -1), "[1, 2, 3]", [[1, 2, 3]]),
        ((-1, -1), "[[1, 2], [3, 4]]", [[1, 2], [3, 4]]),
        ((-1, 2), "1,2,3,4", [[1, 2], [3, 4]]),
        ((2,), "1,2", [1, 2]),
        ((-1, 2, 2), "7", [[[7, 7], [7, 7]]]),
        ((-1, 2, 2), "[[1, 2], [3, 4]]", [[[1, 2], [3, 4]]]),
        ((-1, -1), "9223372036854775807", [[2**63 - 1]]),
    ],
)
def test_numbers_take_the_shape_of_their_input(
    shape: tuple[int, ...], text: str, expected: Any
) -> None:
    array = ask(TensorMetadata("X", "INT64", shape), values=[f"X={text}"], batched=shape[0] == -1)[
        "X"
    ]
    assert array.dtype == np.int64
    assert array.tolist() == expected


@pytest.mark.parametrize(
    ("kind", "text", "dtype"),
    [
        ("FP16", "0.5", np.float16),
        ("BF16", "0.5", ml_dtypes.bfloat16),
        ("BOOL", "true", np.bool_),
        ("UINT8", "255", np.uint8),
    ],
)
def test_numbers_have_the_type_of_their_input(kind: str, text: str, dtype: Any) -> None:
    assert ask(TensorMetadata("X", kind, (-1, 1)), values=[f"X={text}"])["X"].dtype == dtype


def test_nested_lists_of_truths() -> None:
    assert shown(ask(TensorMetadata("X", "BOOL", (-1, 2)), values=["X=[true, false]"])) == {
        "X": [[True, False]]
    }


def test_an_optional_input_may_be_left_out() -> None:
    assert list(
        ask(TEXT, TensorMetadata("K", "INT32", (1,), optional=True), texts=["a"], batched=False)
    ) == ["TEXT"]


# --- files


def test_an_array_from_a_file_may_lack_the_batch_axis(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", np.ones((3, 2, 2), np.float32))
    assert ask(IMAGE, files=[f"IMAGE={tmp_path}/image.npy"])["IMAGE"].shape == (1, 3, 2, 2)


def test_bytes_of_an_image(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\xff")
    assert shown(ask(TEXT, files=[f"TEXT={tmp_path}/a.png"])) == {"TEXT": [[b"\x89PNG\xff"]]}
    assert shown(
        ask(TensorMetadata("RAW", "UINT8", (-1, -1)), files=[f"RAW={tmp_path}/a.png"])
    ) == {"RAW": [[137, 80, 78, 71, 255]]}


def test_texts_from_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "texts.npy", np.array([["a"], ["\u00e9"]]))
    assert shown(ask(TEXT, files=[f"TEXT={tmp_path}/texts.npy"])) == {
        "TEXT": [[b"a"], ["\u00e9".encode()]]
    }


# --- what does not fit


@pytest.mark.parametrize(
    ("inputs", "given", "words"),
    [
        ([TEXT], {}, "BYTES"),
        ([TEXT], {"values": ["NAME=a"]}, "BYTES"),
        ([TEXT], {"values": ["TEXT"]}, "NAME"),
        ([IDS], {"texts": ["a"]}, "no text input for this value"),
        ([TEXT], {"texts": ["a"], "pairs": ["b"]}, "--pair"),
        (
            [TEXT, PASSAGE],
            {"texts": ["a", "b"], "pairs": ["a", "b", "c"]},
            "PASSAGE",
        ),
        ([IDS], {"values": ["IDS=1,a"]}, "INT64"),
        (
            [IDS],
            {"values": ["IDS=[[1,2],[3]]"]},
            "must contain only numbers, in lists of the same length",
        ),
        ([IDS], {"values": ["IDS=[1,"]}, "JSON"),
        ([IDS], {"values": ["IDS=[[[1]]]"]}, "INT64"),
        ([IDS], {"values": ["IDS=1", "IDS=2"]}, "specified 2 times"),
        ([IMAGE], {"values": ["IMAGE=1,2"]}, "IMAGE"),
        ([IMAGE], {"files": ["IMAGE=no-such.npy"]}, r"no-such\.npy"),
        ([IMAGE], {"files": [f"IMAGE={__file__}"]}, r"numpy\.save"),
        ([TEXT], {"values": ["TEXT=a"], "files": ["TEXT=b"]}, "omit one"),
    ],
)
def test_what_does_not_fit_is_said(
    inputs: list[TensorMetadata], given: dict[str, Any], words: str, messages: Messages
) -> None:
    with messages.raises(CommandError, match=words):
        ask(*inputs, **given)


def test_an_array_of_another_type_is_refused(tmp_path: Path, messages: Messages) -> None:
    np.save(tmp_path / "a.npy", np.ones((1, 3, 2, 2)))
    with messages.raises(CommandError, match="float64"):
        ask(IMAGE, files=[f"IMAGE={tmp_path}/a.npy"])


# --- bodies and cells


def test_a_body_and_back() -> None:
    arrays = {
        "TEXT": np.array([[b"a\xff"], [b""]], object),
        "X": np.array([[0.5], [1]], ml_dtypes.bfloat16),
    }
    model = ModelMetadata((TEXT, TensorMetadata("X", "BF16", (-1, 1))), ("Y", "Z"), batched=True)
    body, length = encode(arrays, model)
    head = json.loads(body[:length])
    assert head["outputs"] == [
        {"name": name, "parameters": {"binary_data": True}} for name in ("Y", "Z")
    ]
    back = decode({"outputs": head["inputs"]}, body[length:])
    assert shown(back) == shown(arrays)
    assert back["X"].dtype == ml_dtypes.bfloat16


def test_an_answer_in_plain_json() -> None:
    answer = {
        "outputs": [
            {"name": "Y", "datatype": "FP32", "shape": [2, 1], "data": [0.5, 1]},
            {"name": "Z", "datatype": "BYTES", "shape": [1], "data": ["a"]},
        ]
    }
    assert shown(decode(answer, b"")) == {"Y": [[0.5], [1.0]], "Z": ["a"]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a\xff", "a\\xff"),
        (np.float32(0.1), 0.1),
        (np.float16(0.1), 0.1),
        (ml_dtypes.bfloat16(0.5), 0.5),
        (np.float32("nan"), "nan"),
        (np.uint64(2**63), 2**63),
    ],
)
def test_elements_as_json_has_them(value: Any, expected: Any) -> None:
    assert json_value(value) == expected
    assert json.loads(json.dumps(json_value(value), allow_nan=False)) == expected


def test_cells_are_short() -> None:
    assert format_row(np.array([0.25, 0.75], np.float32)) == "0.2500 0.7500"
    assert format_row(np.zeros(384, np.float32)) == " ".join(["0.0000"] * 6) + " … (384 values)"
    assert format_row(np.zeros((12, 9), np.int64)).endswith(" … (12\u00d79 values)")


def test_a_model_from_what_the_server_says() -> None:
    metadata = {
        "inputs": [{"name": "A", "datatype": "FP32", "shape": [4]}],
        "outputs": [{"name": "Y"}],
    }
    config = {
        "max_batch_size": 0,
        "input": [{"name": "A", "optional": True}],
        "model_transaction_policy": {"decoupled": True},
    }
    assert ModelMetadata.of(metadata, config) == ModelMetadata(
        (TensorMetadata("A", "FP32", (4,), optional=True),), ("Y",), batched=False, decoupled=True
    )
    assert not ModelMetadata.of(metadata, {}).batched
