"""Pooling moves into the model's file where the resource asks for it and the graph allows it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import built, options
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.loadplan import PlanPool
from triton_pipelines.compile.graph.example_request import example_of
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.render.model_config import configs
from triton_pipelines.compile.render.model_repository import load_plan, repository

HIDDEN = {"name": "hidden", "dataType": "FP16", "dims": [-1, 8]}
OTHER = {"name": "other", "dataType": "FP32", "dims": [2]}
MODEL = {"outputs": [HIDDEN, OTHER]}
POOLED = {"type": "MeanPooling", "labels": None, "placement": "Model"}
FIRST = {**POOLED, "type": "FirstToken"}
BOTH = [
    {"name": "VECTOR", "from": "postprocess.EMBEDDING"},
    {"name": "TOKENS", "from": "model.hidden"},
]
READER = {
    "name": "reader",
    "platform": "onnxruntime_onnx",
    "source": {"uri": "s3://models/reader.onnx"},
    "inputs": [{"name": "v", "dataType": "FP32", "dims": [8], "from": "postprocess.EMBEDDING"}],
    "outputs": [{"name": "score", "dataType": "FP32", "dims": [1]}],
}
READS_TOKENS = {
    **READER,
    "inputs": [{"name": "v", "dataType": "FP16", "dims": [-1, 8], "from": "model.hidden"}],
}
AGAIN = [
    {"name": "query", "step": "tokenizer", "inputs": [{"name": "TEXT", "from": "pipeline.QUERY"}]},
    {
        "name": "again",
        "step": "model",
        "inputs": [
            {"name": name, "from": f"query.{name}"} for name in ("input_ids", "attention_mask")
        ],
    },
]


def pooled(**spec: Any) -> Any:
    return built(**{"model": MODEL, "postprocess": POOLED, **spec})


def plan(graph: Graph) -> tuple[PlanPool, ...]:
    return load_plan(graph, repository(graph), "nlp", "r1").pool


def test_the_model_returns_the_embedding_and_there_is_no_further_step() -> None:
    made = pooled()
    assert made.findings == []
    graph = made.graph
    assert [step.name for step in graph.steps] == ["tokenizer", "model"]
    assert [str(one) for one in graph.steps[1].outputs] == ["EMBEDDING FP32[8]", "other FP32[2]"]
    assert plan(graph) == (
        PlanPool(
            step="model",
            path="model/1/model.onnx",
            tokens="hidden",
            mask="attention_mask",
            embedding="EMBEDDING",
            width=8,
            normalize=True,
        ),
    )


@pytest.mark.parametrize("postprocess", [POOLED, FIRST, {**POOLED, "normalize": "Disabled"}])
def test_clients_see_the_same_pipeline(postprocess: dict[str, Any]) -> None:
    """Names, types, dims, batch size and inputs of the ensemble do not depend on the placement."""
    inside = pooled(postprocess=postprocess).graph
    outside = pooled(postprocess={**postprocess, "placement": "Step"}).graph
    assert [one.tensor for one in inside.outputs] == [one.tensor for one in outside.outputs]
    assert inside.inputs == outside.inputs
    assert inside.max_batch_size == outside.max_batch_size
    assert inside.model_name == outside.model_name
    assert inside.padding == outside.padding


def test_the_file_is_checked_as_it_is_fetched() -> None:
    graph = pooled().graph
    (check,) = load_plan(graph, repository(graph), "nlp", "r1").checks
    assert [(one.name, one.dims) for one in check.outputs] == [("hidden", (-1, 8)), ("other", (2,))]


def test_an_adapted_file_has_no_output_per_token_left() -> None:
    graph = pooled(tokenizer={"padding": "Ragged"}).graph
    (adapt,) = load_plan(graph, repository(graph), "nlp", "r1").adapt
    assert adapt.token_outputs == ()
    assert "batch_output" not in configs(graph)["model"]


def test_normalize_and_the_first_token_reach_the_loader() -> None:
    (first,) = plan(pooled(postprocess={**FIRST, "normalize": "Disabled"}).graph)
    assert (first.mask, first.normalize) == (None, False)


def test_the_substituted_runner_runs_the_same_file() -> None:
    given = options(substitute_runner=frozenset({"onnxruntime_onnx"}))
    made = built(given, model=MODEL, postprocess=POOLED)
    assert made.findings == []
    assert len(plan(made.graph)) == 1
    assert "tritonpipe.pooled_outputs" not in made.graph.steps[1].parameters


def test_readers_of_the_embedding_read_the_model() -> None:
    graph = pooled(
        steps=[READER],
        ensemble={
            "outputs": [
                {"name": "SCORE", "from": "reader.score"},
                BOTH[0],
            ]
        },
    ).graph
    assert [str(one.source) for one in graph.outputs] == ["reader.score", "model.EMBEDDING"]
    assert [str(one.source) for one in graph.steps[-1].inputs] == ["model.EMBEDDING"]


@pytest.mark.parametrize("placement", ["Step", "Model"])
def test_a_probe_expects_a_finite_embedding(placement: str) -> None:
    made = pooled(postprocess={**POOLED, "placement": placement})
    example = example_of(made.pipeline, made.graph)
    assert example is not None
    assert example.finite == {"EMBEDDING"}


def test_without_the_field_nothing_changes() -> None:
    for postprocess in ({**POOLED, "placement": "Step"}, {**POOLED, "placement": None}):
        made = pooled(postprocess=postprocess)
        assert made.findings == []
        assert [step.name for step in made.graph.steps] == ["tokenizer", "model", "postprocess"]
        assert plan(made.graph) == ()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"model": {**MODEL, "platform": "tensorrt_plan"}}, "step model does not run an ONNX file"),
        ({"model": {**MODEL, "platform": "pytorch_libtorch"}}, "does not run an ONNX file"),
        ({"ensemble": {"outputs": BOTH}}, "the pipeline's output TOKENS also reads model.hidden"),
        ({"steps": [READS_TOKENS]}, "step reader also reads model.hidden"),
        (
            {"model": {"outputs": [HIDDEN, {**OTHER, "name": "EMBEDDING"}]}},
            "step model already has a tensor EMBEDDING",
        ),
        (
            {"model": {"outputs": [{**HIDDEN, "dataType": "BF16"}]}},
            "model.hidden is BF16, but one of FP16, FP32, FP64 is needed",
        ),
        (
            {"model": {"outputs": [{**HIDDEN, "dims": [-1, -1]}]}},
            "model.hidden has dims [-1, -1], but [-1, D] is needed",
        ),
        (
            {
                "tokenizer": {
                    "outputs": [
                        {"name": name}
                        for name in ("input_ids", "attention_mask", "special_tokens_mask")
                    ]
                },
                "model": {
                    **MODEL,
                    "inputs": [
                        {"name": name, "dataType": "INT64", "dims": [-1]}
                        for name in ("input_ids", "attention_mask")
                    ],
                },
                "postprocess": {**POOLED, "maskFrom": "tokenizer.special_tokens_mask"},
            },
            "step model does not read the mask tokenizer.special_tokens_mask",
        ),
        ({"repeatedSteps": AGAIN}, "step again repeats model"),
        ({"model": {**MODEL, "configPatch": {"output": []}}}, "configPatch sets output"),
        ({"model": {**MODEL, "maxBatchSize": 0}}, "maxBatchSize is 0"),
    ],
)
def test_what_keeps_pooling_in_a_step_is_reported(spec: dict[str, Any], reason: str) -> None:
    found = [one for one in pooled(**spec).findings if one.path == "spec.postprocess.placement"]
    assert [reason in one.message for one in found] == [True], found
    assert found[0].message.endswith("; remove placement to use a postprocess step")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("instances", {"count": 2}),
        ("resourcesPerInstance", {"cpu": "1", "memory": "1Gi"}),
        ("dynamicBatching", {"mode": "Disabled"}),
        ("configPatch", {"version_policy": {}}),
    ],
)
def test_fields_of_the_step_that_is_gone_are_reported(field: str, value: Any) -> None:
    (found,) = pooled(postprocess={**POOLED, field: value}).findings
    assert (found.path, found.code) == (f"spec.postprocess.{field}", FindingCode.NO_EFFECT)
    assert pooled(postprocess={**POOLED, "placement": "Step", field: value}).findings == []


@pytest.mark.parametrize("kind", ["Softmax", None])
@pytest.mark.parametrize("placement", ["Step", "Model"])
def test_a_placement_needs_a_pooling(kind: str | None, placement: str) -> None:
    postprocess = {"type": kind, "labels": None, "placement": placement}
    (found,) = built(postprocess=postprocess).findings
    assert (found.path, found.code) == ("spec.postprocess.placement", FindingCode.NO_EFFECT)
