"""Test steps that run the model of another step: what is loaded, counted, padded and tuned."""

from __future__ import annotations

from typing import Any

from tests.corpus import good
from tests.support import builders
from tests.support.messages import Messages
from triton_pipelines.api import parse
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Graph, Options, build, check
from triton_pipelines.compile.graph.container_resources import sizes
from triton_pipelines.compile.render.model_config import configs
from triton_pipelines.compile.render.model_config import parse as parse_config
from triton_pipelines.controllers.scaling_limits import limits_of
from triton_pipelines.tools.tuner.errors import NotTunableError
from triton_pipelines.tools.tuner.settings import tuned_step


def siamese(**spec: Any) -> tuple[InferencePipeline, Graph]:
    (document,) = [one.document for one in good() if one.name == "repeated-steps"]
    changed = builders.merge(document, {"spec": spec})
    pipeline, findings = parse(changed)
    assert pipeline is not None, findings
    return pipeline, build(pipeline, Options())


def test_a_model_is_loaded_once_and_called_twice() -> None:
    pipeline, graph = siamese()
    assert check(pipeline, graph, Options()) == []
    texts = configs(graph)
    assert list(texts) == ["tokenizer", "encoder", "compare", "repeated-steps"]
    called = [
        step.model_name for step in parse_config(texts["repeated-steps"]).ensemble_scheduling.step
    ]
    assert sorted(called) == sorted([*("tokenizer", "encoder", "compare") * 2])
    assert [one.step for one in graph.fetches] == ["tokenizer", "model"]


def test_figures_and_resources_count_a_model_once() -> None:
    pipeline, graph = siamese()
    once, single = siamese(
        repeatedSteps=None,
        steps=[
            {
                **pipeline.spec.steps[0].model_dump(mode="json", by_alias=True, exclude_unset=True),
                "inputs": [
                    {"name": "left", "dataType": "FP32", "dims": [384], "from": "model.embedding"}
                ],
            }
        ],
        ensemble={"outputs": [{"name": "score", "from": "compare.score"}]},
    )
    assert sizes(pipeline, graph) == sizes(once, single)
    limits = limits_of(pipeline, graph, "r")
    assert [step.model_name for step in limits.steps] == ["tokenizer"]
    assert limits.gpu_steps == ("encoder", "compare")
    assert graph.padding is not None
    assert single.padding is not None
    assert graph.padding.chosen is single.padding.chosen


def test_tokens_of_a_repeated_tokenizer_are_tokens() -> None:
    """A step that reads them is padded like any reader, and its tensors exist."""
    _, graph = siamese(
        model={
            "inputs": [
                {
                    "name": "ids",
                    "dataType": "INT32",
                    "dims": [-1],
                    "from": "title-tokenizer.input_ids",
                }
            ]
        },
        repeatedSteps=[
            {
                "name": "title-tokenizer",
                "step": "tokenizer",
                "inputs": [{"name": "QUERY", "from": "pipeline.TITLE"}],
            },
            {
                "name": "title-model",
                "step": "model",
                "inputs": [{"name": "ids", "from": "tokenizer.input_ids"}],
            },
        ],
        ensemble={"outputs": [{"name": "score", "from": "compare.score"}]},
    )
    assert graph.tokenizer is not None
    assert [str(tensor) for tensor in graph.tokenizer.outputs] == ["input_ids INT32[512]"]
    assert [step.name for step in graph.token_readers] == ["model"]
    assert [tensor.name for tensor in graph.inputs] == ["QUERY", "TITLE"]


def test_a_repeated_step_cannot_be_tuned(messages: Messages) -> None:
    with messages.raises(NotTunableError, match=r"spec\.repeatedSteps"):
        tuned_step(siamese()[1])


def test_a_model_with_sequences_cannot_be_repeated() -> None:
    pipeline, graph = siamese(
        model={"sequenceBatching": {"strategy": "Direct", "maxSequenceIdleMicroseconds": 1_000_000}}
    )
    found = [(one.path, one.message) for one in check(pipeline, graph, Options())]
    (message,) = (message for path, message in found if path == "spec.repeatedSteps[0].step")
    assert "has sequenceBatching" in message
