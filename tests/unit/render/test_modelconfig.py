"""config.pbtxt: names, quoting, counts, and the last look before a server sees it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from tests.support.builders import built, graph, options
from triton_pipelines.pipeline import Graph
from triton_pipelines.pipeline.graph import Reference
from triton_pipelines.render import RenderError
from triton_pipelines.render.modelconfig import configs, parse, tensor_names, verify, with_count

ODD = ["a.b", "a/b:0", "854", 'quo"te', "it's", "back\\slash", "ünï 字 😀", "{{ x }}", "${HOME}", "%s", "#", " blank ", "\u2028", "PROBABILITIES"]


def parsed(of: Graph) -> dict[str, Any]:
    return {name: parse(text) for name, text in configs(of).items()}


@pytest.mark.parametrize("name", ODD)
def test_any_tensor_name_survives(name: str) -> None:
    one = graph(
        tokenizer={"inputs": {"text": f"in {name}"}, "outputs": [{"name": name, "tensor": "InputIds"}, {"name": "attention_mask"}]},
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


@pytest.mark.parametrize("value", ["no", "8", "${x}", "", "a\nb", '"', "'", "\\", "\\n", "ü字", "\x00\x01", "}} {%"])
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
    revision = built(model={"modelName": "a+b"}, tokenizer={"modelName": "a=b"}, ensemble={"modelName": "a_b"}).render()
    assert len(revision.data) == len(revision.files) + 2


def test_intermediate_names_never_meet_public_ones() -> None:
    one = graph(tokenizer={"inputs": {"text": "tokenizer.input_ids"}}, model={"outputs": [{"name": "logits", "dataType": "FP32", "dims": [2]}]})
    names = tensor_names(one)
    assert names[Reference("pipeline", "tokenizer.input_ids")] == "tokenizer.input_ids"
    assert names[Reference("tokenizer", "input_ids")] == "tokenizer.input_ids_"
    assert len(set(names.values())) == len(names)
    parsed(one)


def test_unread_outputs_stay_unmapped() -> None:
    one = graph(tokenizer={"outputs": [{"name": "input_ids"}, {"name": "attention_mask"}, {"name": "lengths"}]},
                model={"inputs": [{"name": "input_ids", "dataType": "INT64", "dims": [-1]}],
                       "outputs": [{"name": "logits", "dataType": "FP32", "dims": [2]}, {"name": "unread", "dataType": "FP32", "dims": [1]}]})  # fmt: skip
    steps = parsed(one)["sentiment"].ensemble_scheduling.step
    assert [sorted(step.output_map) for step in steps] == [["input_ids"], ["logits"], ["LABEL", "PROBABILITIES", "SCORE"]]


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


def test_a_count_changes_nothing_but_the_count() -> None:
    for config in parsed(graph(tokenizer={"instances": {"initial": 2}, "dynamicBatching": {"queuePolicy": {"maxQueueSize": 4}}})).values():
        if config.platform == "ensemble":
            with pytest.raises(RenderError, match="one instance_group is expected, 0 found"):
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


def _break_name(got: dict[str, Any]) -> None:
    got["model"].name = "other"


def _break_batch(got: dict[str, Any]) -> None:
    got["sentiment"].max_batch_size = 65


def _break_map(got: dict[str, Any]) -> None:
    got["sentiment"].ensemble_scheduling.step[1].input_map["nosuch"] = "TEXT"


def _break_output_map(got: dict[str, Any]) -> None:
    got["sentiment"].ensemble_scheduling.step[1].output_map["nosuch"] = "x"


def _break_input(got: dict[str, Any]) -> None:
    del got["sentiment"].ensemble_scheduling.step[1].input_map["input_ids"]


def _break_order(got: dict[str, Any]) -> None:
    steps = got["sentiment"].ensemble_scheduling.step
    steps[0].CopyFrom(steps[2])


def _break_kind(got: dict[str, Any]) -> None:
    got["tokenizer"].instance_group[0].kind = model_config_pb2.ModelInstanceGroup.KIND_GPU


def _break_auto(got: dict[str, Any]) -> None:
    got["model"].instance_group[0].kind = model_config_pb2.ModelInstanceGroup.KIND_AUTO


def _break_count(got: dict[str, Any]) -> None:
    got["model"].instance_group[0].count = 0


def _break_backend(got: dict[str, Any]) -> None:
    got["model"].backend = ""


def _break_dims(got: dict[str, Any]) -> None:
    got["model"].output[0].dims[0] = 0


def _break_preferred(got: dict[str, Any]) -> None:
    got["model"].dynamic_batching.preferred_batch_size.append(65)


def _break_group(got: dict[str, Any]) -> None:
    got["sentiment"].instance_group.add(count=1)


def _break_steps(got: dict[str, Any]) -> None:
    del got["sentiment"].ensemble_scheduling.step[:]


def _break_missing(got: dict[str, Any]) -> None:
    got["sentiment"].ensemble_scheduling.step[1].model_name = "gone"


def _break_type(got: dict[str, Any]) -> None:
    got["model"].input[0].data_type = model_config_pb2.TYPE_INT32


def _break_shape(got: dict[str, Any]) -> None:
    got["model"].input[0].dims[0] = 511


def _break_public_shape(got: dict[str, Any]) -> None:
    got["sentiment"].output[0].dims[0] = 3


def _break_unused(got: dict[str, Any]) -> None:
    got["model"].output.add(name="u", data_type=model_config_pb2.TYPE_FP32, dims=[1])
    got["sentiment"].ensemble_scheduling.step[1].output_map["u"] = "u"


def _break_twice(got: dict[str, Any]) -> None:
    got["sentiment"].ensemble_scheduling.step[1].output_map["logits"] = "tokenizer.input_ids"


def _break_distinct(got: dict[str, Any]) -> None:
    got["model"].output.add().CopyFrom(got["model"].output[0])


def _break_unwritten(got: dict[str, Any]) -> None:
    got["sentiment"].output.add(name="u", data_type=model_config_pb2.TYPE_FP32, dims=[1])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_break_name, "directory name must equal model name"),
        (_break_batch, "allows maximum batch size 65"),
        (_break_map, "non-existing input nosuch"),
        (_break_output_map, "non-existing output nosuch"),
        (_break_input, "input_ids of model is not mapped"),
        (_break_order, "not written before it is read"),
        (_break_kind, "must be KIND_CPU"),
        (_break_auto, "explicit kind"),
        (_break_count, "count of at least 1"),
        (_break_backend, "backend must be set"),
        (_break_dims, "must be integer >= 1, or -1"),
        (_break_preferred, "preferred batch sizes"),
        (_break_group, "should not be specified for ensemble"),
        (_break_steps, "must specify 'step'"),
        (_break_missing, "step gone is not in the repository"),
        (_break_type, "inconsistent data type or shape: input_ids"),
        (_break_shape, "inconsistent data type or shape: input_ids"),
        (_break_public_shape, "inconsistent data type or shape of output PROBABILITIES"),
        (_break_unused, "u is unused"),
        (_break_twice, "more than once"),
        (_break_distinct, "tensor names must be distinct"),
        (_break_unwritten, "u is not written"),
    ],
)
def test_a_defect_of_the_renderer_reaches_no_server(damage: Any, words: str) -> None:
    one = graph()
    got = parsed(one)
    damage(got)
    with pytest.raises(RenderError, match=re.escape(words)):
        verify(one, got)


@pytest.mark.parametrize("text", ["nosuch: 1", "name: 1", "max_batch_size: -", "dynamic_batching {} ensemble_scheduling {}"])
def test_text_that_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(RenderError, match="no ModelConfig"):
        parse(text)
