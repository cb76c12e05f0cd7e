"""Test the request with which pods are probed.

Arrays come from the resource, texts are generated, and some pipelines get no request.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.builders import Built, built
from tests.support.messages import Messages
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.example_request import (
    EXAMPLE_BYTES_MAX,
    ExampleRequest,
    example_of,
    parse_element,
)

CODE = {"platform": "python", "python": {"code": {"inline": "class TritonPythonModel: ..."}}}
OUTPUTS = [{"name": "Y", "dataType": "FP32", "dims": [1]}]


def own(
    inputs: list[dict[str, Any]], *, health: dict[str, Any] | None = None, **model: Any
) -> Built:
    """A pipeline of one python step that reads these inputs."""
    changes: dict[str, Any] = {
        "tokenizer": None,
        "postprocess": None,
        "model": {**CODE, "source": None, "inputs": inputs, "outputs": OUTPUTS, **model},
    }
    return built(**changes, **({"health": health} if health is not None else {}))


def example(subject: Built) -> ExampleRequest:
    """Its example request, for a resource without findings."""
    assert not subject.findings
    found = example_of(subject.pipeline, subject.graph)
    assert found is not None
    return found


def health_findings(subject: Built) -> list[tuple[str, str]]:
    return [
        (item.path, item.message)
        for item in subject.findings
        if item.path.startswith("spec.health")
    ]


# --- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "batch", "shape"),
    [
        ([1], 8, (1, 1)),
        ([-1], 8, (1, 1)),
        ([-1], 0, (1,)),
        ([1], 0, (1,)),
        ([1, -1], 0, (1, 1)),
        ([-1, 1], 0, (1, 1)),
        ([2, -1], 4, (1, 2, 1)),
    ],
)
def test_a_text_has_the_shape_that_clients_send(
    dims: list[int], batch: int, shape: tuple[int, ...]
) -> None:
    subject = own([{"name": "TEXT", "dataType": "STRING", "dims": dims}], maxBatchSize=batch)
    found = example(subject)
    assert found.made_up
    assert found.inputs["TEXT"].shape == shape
    assert found.repeat == (2 if batch else 1)
    assert set(found.inputs["TEXT"].ravel()) == {b"Hello."}


@pytest.mark.proves("spec.health.text", "applied")
def test_a_pair_of_texts_gets_the_text_twice() -> None:
    subject = built(
        tokenizer={"inputs": {"text": "QUERY", "textPair": "PASSAGE"}},
        health={"text": "Gr\u00fc\u00dfe"},
    )
    found = example(subject)
    assert {name: array.tolist() for name, array in found.inputs.items()} == {
        name: [["Gr\u00fc\u00dfe".encode()]] for name in ("QUERY", "PASSAGE")
    }
    assert not found.made_up
    # Whoever wrote the text may know that the pipeline takes one row a request.
    assert found.repeat == 1
    # The project's own postprocess gives no infinities.
    assert found.finite == {"PROBABILITIES", "LABEL", "SCORE"}


def test_what_a_model_answers_itself_is_not_held_to_finite_numbers() -> None:
    assert example(built(postprocess=None)).finite == frozenset()


@pytest.mark.proves("spec.health.inference", "applied")
def test_disabled_asks_nothing_and_warns_of_nothing() -> None:
    subject = own(
        [{"name": "X", "dataType": "FP32", "dims": [4]}], health={"inference": "Disabled"}
    )
    assert example_of(subject.pipeline, subject.graph) is None
    assert not [item for item in subject.warnings if item.path.startswith("spec.health")]


# --- pipelines that are not asked -----------------------------------------------------------------


def test_without_an_example_for_numbers_only_readiness_is_asked_and_lint_says_so(
    messages: Messages,
) -> None:
    subject = own(
        [
            {"name": "TEXT", "dataType": "STRING", "dims": [1]},
            {"name": "K", "dataType": "INT32", "dims": [1]},
        ]
    )
    assert not subject.findings
    assert example_of(subject.pipeline, subject.graph) is None
    (warning,) = [item for item in subject.warnings if item.path == "spec.health.inputs"]
    assert "INT32[1]" in warning.message
    messages.check(warning.message)


@pytest.mark.parametrize("health", [{}, {"text": "hello"}])
def test_no_example_is_generated_for_an_input_of_very_many_texts(
    messages: Messages, health: dict[str, Any]
) -> None:
    """A short resource would make the operator allocate each of them."""
    most = own([{"name": "TEXT", "dataType": "STRING", "dims": [32, 32, -1]}], health=health)
    assert example_of(most.pipeline, most.graph) is not None
    subject = own([{"name": "TEXT", "dataType": "STRING", "dims": [2**24]}], health=health)
    assert not subject.findings
    assert example_of(subject.pipeline, subject.graph) is None
    (warning,) = [item for item in subject.warnings if item.path == "spec.health.inputs"]
    messages.check(warning.message)


def test_a_text_for_a_pipeline_that_reads_more_has_no_effect_and_lint_says_so() -> None:
    subject = own([{"name": "X", "dataType": "FP32", "dims": [4]}], health={"text": "hello"})
    assert [item.path for item in subject.warnings if item.path == "spec.health.text"]


SEQUENCES = {
    "sequenceBatching": {
        "strategy": "Direct",
        "controls": [{"name": "START", "kind": "START"}, {"name": "ID", "kind": "CORRID"}],
    }
}
TEXT = {"name": "TEXT", "dataType": "STRING", "dims": [1]}


def test_a_pipeline_with_sequences_is_asked_only_with_an_example_of_its_own(
    messages: Messages,
) -> None:
    subject = own([TEXT], **SEQUENCES)
    assert not subject.findings
    assert example_of(subject.pipeline, subject.graph) is None
    messages.check(
        next(item.message for item in subject.warnings if item.path == "spec.health.inputs")
    )
    found = example(
        own(
            [TEXT],
            health={"inputs": [{"name": "TEXT", "shape": [1, 1], "data": ["a"]}]},
            **SEQUENCES,
        )
    )
    assert (found.sequence, found.text_ids) == (True, False)


def test_ids_of_sequences_have_the_type_of_the_control() -> None:
    sequences = {
        "sequenceBatching": {
            "strategy": "Direct",
            "controls": [{"name": "ID", "kind": "CORRID", "dataType": "STRING"}],
        }
    }
    assert example(own([TEXT], health={"text": "a"}, **sequences)).text_ids


def test_a_decoupled_pipeline_is_asked_over_a_stream() -> None:
    assert example(own([TEXT], decoupled="Enabled", dynamicBatching={"mode": "Disabled"})).stream


def test_an_entry_point_is_asked_for_what_it_needs() -> None:
    inputs = [TEXT, {"name": "K", "dataType": "INT32", "dims": [1], "optional": "Enabled"}]
    changed = built(
        tokenizer=None,
        postprocess=None,
        model=None,
        steps=[{"name": "entry", **CODE, "inputs": inputs, "outputs": OUTPUTS}],
        ensemble={"entryPoint": "entry"},
    )
    assert list(example(changed).inputs) == ["TEXT"]


# --- examples as written --------------------------------------------------------------------------

TYPES = [
    ("BOOL", ["true", "False", "1", "0"], np.array([True, False, True, False])),
    ("UINT8", ["0", "255", "1", "2"], np.array([0, 255, 1, 2], np.uint8)),
    ("UINT16", ["0", "65535", "1", "2"], np.array([0, 65535, 1, 2], np.uint16)),
    ("UINT32", ["0", "4294967295", "1", "2"], np.array([0, 4294967295, 1, 2], np.uint32)),
    (
        "UINT64",
        ["0", "18446744073709551615", "1", "2"],
        np.array([0, 18446744073709551615, 1, 2], np.uint64),
    ),
    ("INT8", ["-128", "127", "+1", "2"], np.array([-128, 127, 1, 2], np.int8)),
    ("INT16", ["-32768", "32767", "1", "2"], np.array([-32768, 32767, 1, 2], np.int16)),
    ("INT32", ["-2147483648", "7", "1", "2"], np.array([-2147483648, 7, 1, 2], np.int32)),
    (
        "INT64",
        ["-9223372036854775808", "9223372036854775807", "1", "2"],
        np.array([-(2**63), 2**63 - 1, 1, 2], np.int64),
    ),
    ("FP16", ["0.5", "-65504", "1e-3", ".25"], np.array([0.5, -65504, 1e-3, 0.25], np.float16)),
    ("FP32", ["0.5", "-3e38", "1e-3", "2."], np.array([0.5, -3e38, 1e-3, 2], np.float32)),
    ("FP64", ["0.1", "-1e300", "1e-3", "2"], np.array([0.1, -1e300, 1e-3, 2], np.float64)),
    ("BF16", ["0.5", "-3e38", "1", "2"], np.array([0.5, -3e38, 1, 2], ml_dtypes.bfloat16)),
    ("STRING", ["a", "", "\u00e9", "d"], np.array([b"a", b"", "\u00e9".encode(), b"d"], object)),
]


@pytest.mark.proves("spec.health.inputs", "applied")
@pytest.mark.proves("spec.health.inputs[].name", "applied")
@pytest.mark.proves("spec.health.inputs[].shape", "applied")
@pytest.mark.proves("spec.health.inputs[].data", "applied")
@pytest.mark.parametrize(("kind", "data", "expected"), TYPES, ids=[kind for kind, _, _ in TYPES])
def test_elements_of_every_type(kind: str, data: list[str], expected: Any) -> None:
    subject = own(
        [{"name": "X", "dataType": kind, "dims": [2, -1]}],
        health={"inputs": [{"name": "X", "shape": [1, 2, 2], "data": data}]},
    )
    array = example(subject).inputs["X"]
    assert array.dtype == expected.dtype
    assert array.tolist() == expected.reshape(1, 2, 2).tolist()


def test_every_type_is_among_them() -> None:
    assert {kind for kind, _, _ in TYPES} == {kind.value for kind in DataType}


@pytest.mark.proves("spec.health.inputs[].data", "applied")
def test_a_single_element_stands_for_all() -> None:
    subject = own(
        [{"name": "X", "dataType": "FP32", "dims": [3, 4, 4]}],
        health={"inputs": [{"name": "X", "shape": [2, 3, 4, 4], "data": ["0.25"]}]},
    )
    array = example(subject).inputs["X"]
    assert array.shape == (2, 3, 4, 4)
    assert set(array.ravel().tolist()) == {0.25}


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("BOOL", "yes", "true"),
        ("INT8", "128", "128"),
        ("UINT8", "-1", "255"),
        ("INT32", "1.0", "integer"),
        ("INT32", "1_000", "integer"),
        ("INT32", "", "integer"),
        ("FP32", "nan", "finite"),
        ("FP32", "inf", "finite"),
        ("FP32", "1_0", "finite"),
        ("FP16", "65505", "65504"),
        ("FP64", "1e999", "exceeds"),
        ("BF16", "1e39", "exceeds"),
    ],
)
def test_what_is_none_of_its_type(kind: str, text: str, words: str, messages: Messages) -> None:
    with pytest.raises(ValueError, match=words):
        parse_element(text, DataType(kind))
    subject = own(
        [{"name": "X", "dataType": kind, "dims": [1]}],
        health={"inputs": [{"name": "X", "shape": [1, 1], "data": [text]}]},
    )
    ((path, message),) = health_findings(subject)
    assert path == "spec.health.inputs[0].data[0]"
    assert repr(text) in message
    assert words in message
    assert kind in message
    messages.check(message)


A = {"name": "A", "dataType": "FP32", "dims": [-1]}
B = {"name": "B", "dataType": "FP32", "dims": [-1]}


@pytest.mark.parametrize(
    ("inputs", "path", "words"),
    [
        (
            [{"name": "C", "shape": [1, 1], "data": ["1"]}],
            "spec.health.inputs[0].name",
            "'C' is not an input of the pipeline; use one of its inputs: A, B",
        ),
        ([{"name": "A", "shape": [1, 1], "data": ["1"]}], "spec.health.inputs", "add B"),
        (
            [{"name": name, "shape": [1, 2, 1], "data": ["1"]} for name in "AB"],
            "spec.health.inputs[0].shape",
            "does not match the shape [-1, -1] of input 'A'",
        ),
        (
            [{"name": name, "shape": [9, 1], "data": ["1"]} for name in "AB"],
            "spec.health.inputs[0].shape",
            "has 9 rows, but the pipeline accepts at most 8",
        ),
        (
            [{"name": name, "shape": [1, 3], "data": ["1", "2"]} for name in "AB"],
            "spec.health.inputs[0].data",
            "has 2 elements, but shape [1, 3] requires 3",
        ),
        (
            [
                {"name": "A", "shape": [1, 1], "data": ["1"]},
                {"name": "B", "shape": [2, 1], "data": ["1"]},
            ],
            "spec.health.inputs",
            "different numbers of rows (A 1, B 2)",
        ),
        (
            [{"name": name, "shape": [1, EXAMPLE_BYTES_MAX // 4], "data": ["1"]} for name in "AB"],
            "spec.health.inputs",
            f"has {2 * EXAMPLE_BYTES_MAX} bytes, but at most {EXAMPLE_BYTES_MAX} bytes",
        ),
    ],
)
def test_what_is_no_request_of_this_pipeline(
    inputs: list[dict[str, Any]], path: str, words: str
) -> None:
    found = health_findings(own([A, B], maxBatchSize=8, health={"inputs": inputs}))
    assert (path, True) in [(where, words in message) for where, message in found]


def test_a_huge_shape_is_refused_without_being_made() -> None:
    shape = [1, 2**31 - 1]
    subject = own([A], health={"inputs": [{"name": "A", "shape": shape, "data": ["1"]}]})
    assert [path for path, _ in health_findings(subject)] == ["spec.health.inputs"]
