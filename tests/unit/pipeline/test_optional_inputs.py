"""Test inputs that a request may omit: declared, derived, and read by steps that need them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import built
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.compile.graph.example_request import example_of
from triton_pipelines.compile.render.model_config import configs

FP32: dict[str, Any] = {"dataType": "FP32", "dims": [1]}
TEXT: dict[str, Any] = {"name": "TEXT", "dataType": "STRING", "dims": [1]}
LOGITS: dict[str, Any] = {"name": "logits", "dataType": "FP32", "dims": [2]}
TOKENS: list[dict[str, Any]] = [
    {"name": "input_ids", "dataType": "INT64", "dims": [-1]},
    {"name": "attention_mask", "dataType": "INT64", "dims": [-1]},
]


def scale(**fields: Any) -> dict[str, Any]:
    return {"name": "scale", **FP32, **fields}


def model(*inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        "platform": "python",
        "python": {"code": {"inline": "class TritonPythonModel: ..."}},
        "source": None,
        "inputs": [*TOKENS, *inputs],
        "outputs": [LOGITS],
    }


def reranker(*inputs: dict[str, Any], public: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A model that reads tokens and `inputs`; `public` are the declared inputs of the pipeline."""
    return {
        "model": model(*inputs),
        **({"ensemble": {"inputs": [TEXT, *public]}} if public is not None else {}),
    }


OPTIONAL = scale(optional="Enabled")
FROM = {"from": "pipeline.scale"}


@pytest.mark.parametrize(
    ("spec", "optional"),
    [
        (reranker(scale(**FROM)), set()),
        (reranker({**OPTIONAL, **FROM}), {"scale"}),
        (reranker(OPTIONAL, public=[scale()]), set()),
        (reranker(OPTIONAL, public=[OPTIONAL]), {"scale"}),
        (reranker({**OPTIONAL, **FROM}, {**scale(**FROM), "name": "needed"}), set()),
    ],
    ids=["required", "derived", "only for the step", "declared", "one reader needs it"],
)
def test_a_public_input_is_optional_if_nothing_needs_it(
    spec: dict[str, Any], optional: set[str]
) -> None:
    one = built(**spec)
    assert not one.findings
    assert one.graph.optional_inputs == optional
    assert {tensor.name for tensor in one.graph.required_inputs} == {"TEXT", "scale"} - optional
    config = configs(one.graph)[one.graph.model_name]
    assert config.count("optional: true") == len(optional)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (reranker(scale(), public=[OPTIONAL]), "spec.model.inputs[2]"),
        (
            {"ensemble": {"inputs": [{**TEXT, "optional": "Enabled"}]}},
            "spec.tokenizer.inputs.text",
        ),
    ],
    ids=["model", "tokenizer"],
)
def test_a_step_that_needs_an_optional_input_is_an_error(spec: dict[str, Any], path: str) -> None:
    (finding,) = built(**spec).findings
    assert (finding.path, finding.code) == (path, FindingCode.OPTIONAL_MISMATCH)


def test_a_step_that_may_get_no_input_is_a_warning() -> None:
    extra = {
        **model(),
        "name": "extra",
        "inputs": [{**OPTIONAL, **FROM}],
        "outputs": [{"name": "more", **FP32}],
    }
    spec = {
        "steps": [extra],
        "ensemble": {
            "outputs": [
                {"name": "more", "from": "extra.more"},
                {"name": "p", "from": "model.logits"},
            ]
        },
        "postprocess": None,
    }
    codes = {finding.code: finding.path for finding in built(**spec).warnings}
    assert codes[FindingCode.ALL_INPUTS_OPTIONAL] == "spec.steps[0].inputs"


def test_inputs_of_a_vllm_engine_are_connected_if_the_pipeline_lists_them() -> None:
    text = {**TEXT, "name": "text_input"}
    settings = {**TEXT, "name": "sampling_parameters", "optional": "Enabled"}
    one = built(
        tokenizer=None,
        postprocess=None,
        model={
            "platform": "vllm",
            "source": {"uri": "hf://org/model"},
            "outputs": None,
        },
        ensemble={"inputs": [text, settings]},
        server={"gpu": {"count": 1}},
    )
    assert not one.findings
    (engine,) = one.graph.steps
    read = {entry.tensor.name: entry.source for entry in engine.inputs if entry.source is not None}
    assert set(read) == {"text_input", "sampling_parameters"}
    assert one.graph.optional_inputs == {"sampling_parameters"}


def test_the_example_request_feeds_a_step_that_has_only_optional_inputs() -> None:
    python = {"platform": "python", "python": {"code": {"inline": "x"}}, "source": None}
    text = {"name": "text", "dataType": "STRING", "dims": [1]}
    hint = {**text, "name": "hint", "optional": "Enabled"}
    one = built(
        tokenizer=None,
        postprocess=None,
        model={**python, "inputs": [text], "outputs": [{**text, "name": "oa"}]},
        steps=[
            {
                **{key: value for key, value in python.items() if value is not None},
                "name": "extra",
                "inputs": [{**hint, "from": "pipeline.hint"}],
                "outputs": [{**text, "name": "ob"}],
            }
        ],
        ensemble={
            "outputs": [{"name": "a", "from": "model.oa"}, {"name": "b", "from": "extra.ob"}]
        },
    )
    assert not one.findings
    example = example_of(one.pipeline, one.graph)
    assert example is not None
    assert set(example.inputs) == {"text", "hint"}


def test_a_name_of_a_vllm_input_that_is_not_optional_stays_unconnected() -> None:
    text = {**TEXT, "name": "text_input"}
    settings = {**TEXT, "name": "sampling_parameters"}
    one = built(
        tokenizer=None,
        postprocess=None,
        model={"platform": "vllm", "source": {"uri": "hf://org/model"}, "outputs": None},
        ensemble={"inputs": [text, settings]},
        server={"gpu": {"count": 1}},
    )
    (engine,) = one.graph.steps
    assert {entry.tensor.name for entry in engine.inputs if entry.source} == {"text_input"}
