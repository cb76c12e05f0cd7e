"""Test config.pbtxt: names, quoting, counts, and the last check before a server gets it."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from tests.support.builders import built, graph, options
from tests.support.messages import Messages
from triton_pipelines.compile.graph import Graph
from triton_pipelines.compile.graph.graph import Reference
from triton_pipelines.compile.render import RenderError
from triton_pipelines.compile.render.model_config import configs, parse, tensor_names, with_count

ODD = [
    "a.b",
    "a/b:0",
    "854",
    'quo"te',
    "it's",
    "back\\slash",
    "ünï 字 😀",
    "{{ x }}",
    "${HOME}",
    "%s",
    "#",
    " blank ",
    "\u2028",
    "PROBABILITIES",
]


def parsed(of: Graph) -> dict[str, Any]:
    return {name: parse(text) for name, text in configs(of).items()}


@pytest.mark.parametrize("name", ODD)
def test_any_tensor_name_survives(name: str) -> None:
    one = graph(
        tokenizer={
            "inputs": {"text": f"in {name}"},
            "outputs": [{"name": name, "tensor": "InputIds"}, {"name": "attention_mask"}],
        },
        model={"outputs": [{"name": name, "dataType": "FP32", "dims": [2]}]},
        postprocess={"labels": [name, "\n\t\x01\x7f"]},
    )
    got = parsed(one)
    assert [tensor.name for tensor in got["sentiment"].input] == [f"in {name}"]
    assert [tensor.name for tensor in got["tokenizer"].output] == [name, "attention_mask"]
    assert [tensor.name for tensor in got["model"].input] == [name, "attention_mask"]
    assert got["postprocess"].parameters["tritonpipe.input"].string_value == name
    first, second, third = got["sentiment"].ensemble_scheduling.step
    assert first.input_map[f"in {name}"] == f"in {name}"
    assert first.output_map[name] == second.input_map[name] == f"tokenizer.{name}"
    assert second.output_map[name] == third.input_map[name] == f"model.{name}"


@pytest.mark.parametrize(
    "value", ["no", "8", "${x}", "", "a\nb", '"', "'", "\\", "\\n", "ü字", "\x00\x01", "}} {%"]
)
def test_parameters_are_passed_on_unchanged(value: str) -> None:
    got = parsed(graph(model={"parameters": {"key": value, value[:100] or "k": "v"}}))["model"]
    assert got.parameters["key"].string_value == value
    assert got.parameters[value[:100] or "k"].string_value == "v"


@pytest.mark.parametrize("name", ["a+b", "a=b@c~d", "-x_", "A.B.c", "1", "x" * 128])
def test_any_model_name_is_the_folders(name: str) -> None:
    one = built(model={"modelName": name}, ensemble={"modelName": f"e{name}"[:128]})
    revision = one.render()
    assert f"{name}/config.pbtxt" in revision.files
    probe = revision.template["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"]
    # Triton takes the path as it stands and decodes nothing (measured on 24.10).
    assert probe == f"/v2/models/{one.graph.model_name}/ready"


def test_config_map_keys_stay_distinct() -> None:
    revision = built(
        model={"modelName": "a+b"}, tokenizer={"modelName": "a=b"}, ensemble={"modelName": "a_b"}
    ).render()
    assert len(revision.data) == len(revision.files) + 2


def test_intermediate_names_never_meet_public_ones() -> None:
    one = graph(
        tokenizer={"inputs": {"text": "tokenizer.input_ids"}},
        model={"outputs": [{"name": "logits", "dataType": "FP32", "dims": [2]}]},
    )
    names = tensor_names(one)
    assert names[Reference("pipeline", "tokenizer.input_ids")] == "tokenizer.input_ids"
    assert names[Reference("tokenizer", "input_ids")] == "tokenizer.input_ids_"
    assert len(set(names.values())) == len(names)
    parsed(one)


def test_unread_outputs_stay_unmapped() -> None:
    one = graph(
        tokenizer={
            "outputs": [{"name": "input_ids"}, {"name": "attention_mask"}, {"name": "lengths"}]
        },
        model={
            "inputs": [{"name": "input_ids", "dataType": "INT64", "dims": [-1]}],
            "outputs": [
                {"name": "logits", "dataType": "FP32", "dims": [2]},
                {"name": "unread", "dataType": "FP32", "dims": [1]},
            ],
        },
    )
    steps = parsed(one)["sentiment"].ensemble_scheduling.step
    assert [sorted(step.output_map) for step in steps] == [
        ["input_ids"],
        ["logits"],
        ["LABEL", "PROBABILITIES", "SCORE"],
    ]


def test_batching_stands_on_the_composing_models_only() -> None:
    got = parsed(graph(postprocess={"dynamicBatching": {"mode": "Disabled"}}))
    assert {name: config.WhichOneof("scheduling_choice") for name, config in got.items()} == {
        "tokenizer": "dynamic_batching",
        "model": "dynamic_batching",
        "postprocess": None,
        "sentiment": "ensemble_scheduling",
    }


def test_the_tokenizer_is_always_on_cpu() -> None:
    for given in (options(), options(substitute_runner=frozenset({"onnxruntime_onnx"}))):
        groups = parsed(graph(given))["tokenizer"].instance_group
        assert [group.kind for group in groups] == [model_config_pb2.ModelInstanceGroup.KIND_CPU]


def test_a_count_changes_nothing_but_the_count(messages: Messages) -> None:
    for config in parsed(
        graph(
            tokenizer={
                "instances": {"initial": 2},
                "dynamicBatching": {"queuePolicy": {"maxQueueSize": 4}},
            }
        )
    ).values():
        if config.platform == "ensemble":
            with messages.raises(RenderError, match="instance_group"):
                with_count(config, 3)
            continue
        before = model_config_pb2.ModelConfig()
        before.CopyFrom(config)
        changed = with_count(config, 7)
        assert config == before
        assert changed.instance_group[0].count == 7
        assert changed != config
        changed.instance_group[0].count = config.instance_group[0].count
        assert changed == config


@pytest.mark.parametrize(
    "text",
    ["nosuch: 1", "name: 1", "max_batch_size: -", "dynamic_batching {} ensemble_scheduling {}"],
)
def test_text_that_is_no_config_is_refused(text: str, messages: Messages) -> None:
    with messages.raises(RenderError, match="ModelConfig"):
        parse(text)
