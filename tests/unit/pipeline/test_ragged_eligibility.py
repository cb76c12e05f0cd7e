"""Test which ONNX steps are adapted to ragged batches.

The tests also cover what prevents it for others, and what a rejection by the loader changes.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import builders
from triton_pipelines.api.parse import parse
from triton_pipelines.compile.graph import build
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.ragged_eligibility import rejection_key

MASK = {"name": "attention_mask", "dataType": "INT64", "dims": [-1]}
IDS = {"name": "input_ids", "dataType": "INT64", "dims": [-1]}


def graph(refused: str = "", **changes: Any) -> Graph:
    pipeline, findings = parse(builders.document(**changes))
    assert pipeline is not None
    assert findings == []
    key = rejection_key(pipeline.spec.model, pipeline.spec) if pipeline.spec.model else ""
    return build(pipeline, builders.options(), {key: refused} if refused else {})


def padding_choice(of: Graph) -> tuple[str, str]:
    assert of.padding is not None
    return of.padding.chosen.value, of.padding.reason


HINDRANCES: dict[str, tuple[dict[str, Any], str]] = {
    "tensorrt": ({"optimization": {"tensorrt": {}}}, "TensorRT inside ONNX Runtime"),
    "batching off": ({"dynamicBatching": {"mode": "Disabled"}}, "its batching is disabled"),
    "versions": (
        {"versionPolicy": {"all": {}}, "source": {"uri": "s3://models/folder"}},
        "multiple versions",
    ),
    "patched": ({"configPatch": {"batchInput": []}}, "configPatch sets batchInput"),
    "no mask": ({"inputs": [IDS]}, "it does not read an attention mask"),
    "own words": (
        {"inputs": [IDS, {**MASK, "ragged": "Disabled"}]},
        "its input attention_mask sets ragged or optional",
    ),
    "offsets": (
        {"inputs": [IDS, MASK, {"name": "offsets", "dataType": "INT64", "dims": [-1, 2]}]},
        "its input offsets has a different length",
    ),
    "odd output": (
        {"outputs": [{"name": "scores", "dataType": "FP32", "dims": [2, -1]}]},
        "output scores has dims [2, -1]",
    ),
}


@pytest.mark.parametrize("case", HINDRANCES)
def test_what_stands_in_the_way_is_told_and_rows_are_padded(case: str) -> None:
    changes, why = HINDRANCES[case]
    built = graph(model=changes, postprocess=None)
    chosen, reason = padding_choice(built)
    assert chosen == "Fixed"
    assert reason.startswith("Auto: spec.model: ")
    assert why in reason
    assert all(step.flat is None for step in built.steps)


def test_one_vector_per_token_and_other_inputs_go_with_it() -> None:
    built = graph(
        tokenizer={
            "outputs": [
                {"name": name}
                for name in ("input_ids", "attention_mask", "token_type_ids", "lengths")
            ]
        },
        model={
            "outputs": [
                {"name": "hidden", "dataType": "FP32", "dims": [-1, 8]},
                {"name": "pooled", "dataType": "FP32", "dims": [8]},
            ]
        },
        postprocess=None,
    )
    model = built.steps[1]
    assert padding_choice(built)[0] == "Ragged"
    assert model.flat == {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0}
    assert [entry.tensor.name for entry in model.inputs if entry.ragged] == [
        "input_ids",
        "attention_mask",
        "token_type_ids",
    ]


def test_on_cpu_each_request_keeps_its_length_and_the_file_is_left_alone() -> None:
    for changes in ({"server": {"gpu": {"count": 0}}}, {"model": {"instances": {"kind": "CPU"}}}):
        built = graph(**changes)
        chosen, reason = padding_choice(built)
        assert (chosen, built.steps[1].flat) == ("Ragged", None)
        assert "on a CPU, every padded token costs time" in reason
    fixed = graph(
        server={"gpu": {"count": 0}},
        model={"inputs": [{**IDS, "dims": [512]}, {**MASK, "dims": [512]}]},
    )
    assert padding_choice(fixed) == (
        "Fixed",
        "Auto: spec.model: its inputs are declared with a fixed length, so every row has "
        "512 tokens",
    )


def test_a_refused_file_is_padded_and_the_reason_kept() -> None:
    built = graph("axis 1 of input_ids is 128")
    chosen, reason = padding_choice(built)
    assert (chosen, built.steps[1].flat) == ("Fixed", None)
    assert "its file cannot be adapted to ragged batches (axis 1 of input_ids is 128)" in reason
    assert built.padding is not None
    assert list(built.padding.refused.values()) == ["axis 1 of input_ids is 128"]


def test_a_refusal_speaks_of_a_file_and_how_it_is_read() -> None:
    def key(**changes: Any) -> str:
        pipeline, _ = parse(builders.document(**changes))
        assert pipeline is not None
        assert pipeline.spec.model is not None
        return rejection_key(pipeline.spec.model, pipeline.spec)

    same = key()
    assert key(replicas=3, tokenizer={"maxLength": 9}) == same
    others = [
        key(model={"source": {"revision": "2"}}),
        key(model={"inputs": [IDS, MASK]}),
        key(model={"source": {"uri": "s3://models/other.onnx"}}),
    ]
    assert len({same, *others}) == 4
