"""Every default that the graph decides."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.builders import built, graph, options
from triton_pipelines.compile.graph.graph import Graph, Implementation, Reference, Role, Step

VECTORS = {
    "outputs": [
        {"name": "hidden", "dataType": "FP32", "dims": [-1, 8]},
        {"name": "mask", "dataType": "INT64", "dims": [-1]},
    ]
}
POOLED = {"type": "MeanPooling", "labels": None}
CODE = {"platform": "python", "python": {"code": {"inline": "x = 1"}}}
RUNNER = {"platform": "python", "python": {"runner": "OnnxRuntime"}}


def step(of: Graph, name: str) -> Step:
    found = of.step(name)
    assert found is not None
    return found


def test_defaults_of_the_smallest_resource() -> None:
    built = graph()
    assert (built.pipeline, built.model_name, built.max_batch_size) == (
        "sentiment",
        "sentiment",
        64,
    )
    assert [str(tensor) for tensor in built.inputs] == ["TEXT STRING[1]"]
    assert [str(output.tensor) for output in built.outputs] == [
        "PROBABILITIES FP32[2]",
        "LABEL STRING[1]",
        "SCORE FP32[1]",
    ]
    assert [
        (item.name, item.role, item.model_name, item.max_batch_size) for item in built.steps
    ] == [
        ("tokenizer", Role.TOKENIZER, "tokenizer", 64),
        ("model", Role.MODEL, "model", 64),
        ("postprocess", Role.POSTPROCESS, "postprocess", 64),
    ]
    tokenizer, model, post = built.steps
    assert [str(tensor) for tensor in tokenizer.outputs] == [
        "input_ids INT64[-1]",
        "attention_mask INT64[-1]",
    ]
    assert [(str(entry.tensor), str(entry.source), entry.ragged) for entry in model.inputs] == [
        ("input_ids INT64[-1]", "tokenizer.input_ids", True),
        ("attention_mask INT64[-1]", "tokenizer.attention_mask", True),
    ]
    assert (
        tokenizer.instances.kinds,
        tokenizer.instances.counts.initial,
        tokenizer.instances.counts.min,
        tokenizer.instances.counts.max,
    ) == ({"KIND_CPU"}, 1, 1, 4)
    assert tokenizer.instances.scaled
    assert not model.instances.scaled
    assert (model.instances.kinds, model.backend, model.platform, model.file_name) == (
        {"KIND_GPU"},
        "onnxruntime",
        "onnxruntime_onnx",
        "model.onnx",
    )
    assert (post.instances.kinds, post.instances.counts.initial, post.source) == (
        {"KIND_CPU"},
        1,
        None,
    )
    assert post.parameters["tritonpipe.top_k"] == "1"
    assert tokenizer.parameters["tritonpipe.max_length"] == "512"


def test_without_postprocess_the_models_outputs_are_public() -> None:
    built = graph(postprocess=None, model=VECTORS)
    assert [(output.tensor.name, str(output.source)) for output in built.outputs] == [
        ("hidden", "model.hidden"),
        ("mask", "model.mask"),
    ]
    assert [item.name for item in built.steps] == ["tokenizer", "model"]


def texts_of(*dims: int, **fields: Any) -> dict[str, Any]:
    """The pipeline's input TEXT with these dims."""
    return {"inputs": [{"name": "TEXT", "dataType": "STRING", "dims": list(dims)}], **fields}


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({"ensemble": texts_of(-1)}, [-1, -1]),
        ({"ensemble": texts_of(3)}, [-1, 3]),
        ({"ensemble": texts_of(2, -1)}, [-1, 2, -1]),
        # As an import of what is rendered declares it.
        ({"ensemble": texts_of(-1, maxBatchSize=64), "tokenizer": {"maxBatchSize": 0}}, [-1, -1]),
        ({"ensemble": texts_of(1, maxBatchSize=64), "tokenizer": {"maxBatchSize": 0}}, [-1, 1]),
    ],
    ids=str,
)
def test_each_text_of_a_row_becomes_a_row_of_the_model(
    changes: dict[str, Any], whole: list[int]
) -> None:
    """The tokenizer reads whole requests; all else batches as usual, clients included."""
    rows = built(**changes)
    assert rows.findings == []
    tokenizer, model, post = rows.graph.steps
    assert [list(entry.tensor.dims) for entry in tokenizer.inputs] == [whole]
    assert [list(tensor.dims) for tensor in tokenizer.outputs] == [[-1, -1]] * 2
    assert [step.max_batch_size for step in (tokenizer, model, post)] == [0, 64, 64]
    assert tokenizer.batching is None
    assert rows.graph.max_batch_size == 64
    assert [list(tensor.dims) for tensor in rows.graph.inputs] == [whole[1:]]


def test_dims_are_the_whole_shape_without_a_batch_axis() -> None:
    """As before: texts of shape [n], which the model batches."""
    rows = built(ensemble=texts_of(-1), tokenizer={"maxBatchSize": 0})
    assert rows.findings == []
    assert rows.graph.max_batch_size == 0
    assert [list(entry.tensor.dims) for entry in rows.graph.steps[0].inputs] == [[-1]]


@pytest.mark.parametrize(
    ("changes", "substitute", "implementation", "backend", "kind", "padding"),
    [
        ({}, (), Implementation.BACKEND, "onnxruntime", "KIND_GPU", "Ragged"),
        ({}, ("onnxruntime_onnx",), Implementation.ONNX_RUNNER, "python", "KIND_CPU", "Ragged"),
        (
            {"model": {"instances": {"kind": "GPU"}}},
            ("onnxruntime_onnx",),
            Implementation.ONNX_RUNNER,
            "python",
            "KIND_CPU",
            "Ragged",
        ),
        (
            {"tokenizer": {"padding": "Auto"}},
            (),
            Implementation.BACKEND,
            "onnxruntime",
            "KIND_GPU",
            "Ragged",
        ),
        (
            {"tokenizer": {"padding": "Longest"}},
            ("onnxruntime_onnx",),
            Implementation.ONNX_RUNNER,
            "python",
            "KIND_CPU",
            "Longest",
        ),
        ({"model": RUNNER}, (), Implementation.ONNX_RUNNER, "python", "KIND_GPU", "Ragged"),
        (
            {"model": RUNNER, "server": {"gpu": {"count": 0}}},
            (),
            Implementation.ONNX_RUNNER,
            "python",
            "KIND_CPU",
            "Ragged",
        ),
        (
            {"model": CODE},
            ("onnxruntime_onnx",),
            Implementation.CODE,
            "python",
            "KIND_GPU",
            "Ragged",
        ),
        (
            {"model": {"platform": "tensorrt_plan"}},
            ("onnxruntime_onnx",),
            Implementation.BACKEND,
            "tensorrt",
            "KIND_GPU",
            "Fixed",
        ),
        (
            {"model": {"platform": "pytorch_libtorch"}, "server": {"gpu": {"count": 0}}},
            (),
            Implementation.BACKEND,
            "pytorch",
            "KIND_CPU",
            "Ragged",
        ),
    ],
)
def test_what_runs_the_model_and_how_rows_are_padded(
    changes: dict[str, Any],
    substitute: tuple[str, ...],
    implementation: Implementation,
    backend: str,
    kind: str,
    padding: str,
) -> None:
    built = graph(options(substitute_runner=frozenset(substitute)), **changes)
    model = step(built, "model")
    assert (
        model.implementation,
        model.backend,
        model.instances.kinds,
        built.padding.chosen.value,
    ) == (implementation, backend, {kind}, padding)
    assert all(
        entry.ragged == (implementation is not Implementation.BACKEND or model.flat is not None)
        for entry in model.inputs
    )
    assert step(built, "tokenizer").parameters["tritonpipe.padding"] == padding
    assert built.padding.reason


def test_buckets_end_with_the_longest_row() -> None:
    built = graph(tokenizer={"padding": "Bucketed", "buckets": [16, 64], "maxLength": 100})
    assert built.padding.buckets == (16, 64, 100)
    assert step(built, "tokenizer").parameters["tritonpipe.buckets"] == "16,64,100"
    assert graph(
        tokenizer={"padding": "Bucketed", "buckets": [100], "maxLength": 100}
    ).padding.buckets == (100,)


def test_shapes_of_token_tensors() -> None:
    names = ["input_ids", "offset_mapping", "lengths", "special_tokens_mask"]
    fixed = graph(tokenizer={"maxLength": 7, "outputs": [{"name": name} for name in names]})
    assert [tensor.dims for tensor in step(fixed, "tokenizer").outputs] == [
        (7,),
        (7, 2),
        (1,),
        (7,),
    ]
    assert [entry.tensor.dims for entry in step(fixed, "model").inputs] == [
        (-1,),
        (-1, 2),
        (1,),
        (-1,),
    ]
    longest = graph(tokenizer={"padding": "Longest", "outputs": [{"name": name} for name in names]})
    assert [tensor.dims for tensor in step(longest, "tokenizer").outputs] == [
        (-1,),
        (-1, 2),
        (1,),
        (-1,),
    ]


def test_token_types_follow_the_reading_input() -> None:
    built = graph(
        model={
            "inputs": [
                {"name": "ids", "dataType": "INT32", "dims": [-1], "from": "tokenizer.Input_IDs"}
            ]
        }
    )
    assert [str(tensor) for tensor in step(built, "tokenizer").outputs] == ["Input_IDs INT32[512]"]
    assert json.loads(step(built, "tokenizer").parameters["tritonpipe.outputs"]) == {
        "Input_IDs": "InputIds"
    }
    said = graph(tokenizer={"outputs": [{"name": "input_ids", "dataType": "INT32"}]})
    assert [str(entry.tensor) for entry in step(said, "model").inputs] == ["input_ids INT32[-1]"]


def test_usual_names_in_any_case_find_the_output_that_carries_them() -> None:
    built = graph(
        tokenizer={"outputs": [{"name": "ids", "tensor": "InputIds"}, {"name": "attention_mask"}]},
        model={
            "inputs": [
                {"name": "INPUT_IDS", "dataType": "INT64", "dims": [-1]},
                {"name": "Attention_Mask", "dataType": "INT64", "dims": [-1]},
            ]
        },
    )
    assert [entry.source for entry in step(built, "model").inputs] == [
        Reference("tokenizer", "ids"),
        Reference("tokenizer", "attention_mask"),
    ]


def test_a_reference_is_split_at_the_first_dot() -> None:
    built = graph(
        model={"outputs": [{"name": "a.b/c:0", "dataType": "FP32", "dims": [2]}]},
        postprocess={"from": "model.a.b/c:0"},
    )
    assert step(built, "postprocess").inputs[0].source == Reference("model", "a.b/c:0")
    assert step(built, "postprocess").inputs[0].tensor.name == "a.b/c:0"


def test_mean_pooling_asks_the_tokenizer_for_a_mask_that_the_model_does_not_read() -> None:
    built = graph(
        model={**VECTORS, "inputs": [{"name": "input_ids", "dataType": "INT64", "dims": [-1]}]},
        postprocess=POOLED,
    )
    assert [tensor.name for tensor in step(built, "tokenizer").outputs] == [
        "input_ids",
        "attention_mask",
    ]
    post = step(built, "postprocess")
    assert [(entry.tensor.name, str(entry.source), entry.ragged) for entry in post.inputs] == [
        ("hidden", "model.hidden", True),
        ("attention_mask", "tokenizer.attention_mask", True),
    ]
    assert (post.parameters["tritonpipe.mask"], post.parameters["tritonpipe.normalize"]) == (
        "attention_mask",
        "Enabled",
    )
    assert [str(tensor) for tensor in post.outputs] == ["EMBEDDING FP32[8]"]


def test_a_mask_that_only_postprocess_names_is_made() -> None:
    wanted = {**POOLED, "maskFrom": "tokenizer.special_tokens_mask"}
    built = graph(
        model={**VECTORS, "inputs": [{"name": "input_ids", "dataType": "INT64", "dims": [-1]}]},
        postprocess=wanted,
    )
    assert [tensor.name for tensor in step(built, "tokenizer").outputs] == [
        "input_ids",
        "special_tokens_mask",
    ]


def test_a_model_that_does_not_batch_is_pooled_as_a_whole() -> None:
    outputs = [{"name": "hidden", "dataType": "FP32", "dims": [-1, -1, 8]}]
    built = graph(model={"outputs": outputs, "maxBatchSize": 0}, postprocess=POOLED)
    post = step(built, "postprocess")
    assert [(item.tensor.dims, item.ragged) for item in post.inputs] == [
        ((-1, -1, 8), False),
        ((-1, -1), False),
    ]


def test_a_mask_named_like_the_pooled_tensor_gets_a_name_of_its_own() -> None:
    outputs = [{"name": "attention_mask", "dataType": "FP32", "dims": [-1, 8]}]
    post = step(graph(model={"outputs": outputs}, postprocess=POOLED), "postprocess")
    assert [(entry.tensor.name, str(entry.source)) for entry in post.inputs] == [
        ("attention_mask", "model.attention_mask"),
        ("attention_mask_mask", "tokenizer.attention_mask"),
    ]
    assert (post.parameters["tritonpipe.input"], post.parameters["tritonpipe.mask"]) == (
        "attention_mask",
        "attention_mask_mask",
    )


def test_the_runner_pads_only_what_the_mask_hides() -> None:
    names = ["input_ids", "attention_mask", "token_type_ids", "offset_mapping"]
    masked = graph(model=RUNNER, tokenizer={"outputs": [{"name": name} for name in names]})
    assert json.loads(step(masked, "model").parameters["tritonpipe.pad_inputs"]) == {
        "input_ids": 0,
        "attention_mask": 0,
        "token_type_ids": 0,
    }
    bare = graph(
        model={**RUNNER, "inputs": [{"name": "input_ids", "dataType": "INT64", "dims": [-1]}]}
    )
    assert json.loads(step(bare, "model").parameters["tritonpipe.pad_inputs"]) == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (64, 64, 64, 64)),
        ({"model": {"maxBatchSize": 8}}, (8, 8, 8, 8)),
        ({"model": {"maxBatchSize": 8}, "tokenizer": {"maxBatchSize": 32}}, (32, 8, 8, 8)),
        ({"model": {"maxBatchSize": 8}, "tokenizer": {"maxBatchSize": 4}}, (4, 8, 8, 4)),
        ({"model": {"maxBatchSize": 1}}, (1, 1, 1, 1)),
        ({"ensemble": {"maxBatchSize": 2}}, (64, 64, 64, 2)),
    ],
)
def test_batch_sizes(changes: dict[str, Any], expected: tuple[int, ...]) -> None:
    built = graph(**changes)
    assert (*(item.max_batch_size for item in built.steps), built.max_batch_size) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (1, 1, 4)),
        ({"min": 3}, (3, 3, 4)),
        ({"initial": 6}, (6, 1, 6)),
        ({"min": 2, "initial": 3, "max": 3}, (3, 2, 3)),
        ({"max": 1}, (1, 1, 1)),
    ],
)
def test_tokenizer_instances(given: dict[str, int], expected: tuple[int, int, int]) -> None:
    instances = step(graph(tokenizer={"instances": given}), "tokenizer").instances
    assert (instances.counts.initial, instances.counts.min, instances.counts.max) == expected
    assert instances.scaled == (expected[2] > expected[1])


def test_the_common_source_is_the_default_of_both_but_not_of_own_code() -> None:
    common = {
        "source": {"uri": "hf://o/common"},
        "tokenizer": {"source": None},
        "model": {"source": None},
    }
    both = graph(**common)
    assert [(item.source.uri, item.path) for item in both.fetches] == [
        ("hf://o/common", "spec.source")
    ] * 2
    code = graph(**{**common, "model": {"source": None, **CODE}})
    assert step(code, "model").source is None
    assert step(code, "model").code == "x = 1"
    own = graph(
        **{**common, "model": {**CODE, "source": {"uri": "https://host/a/w%20x.bin?version=1"}}}
    )
    assert step(own, "model").file_name == "w x.bin"
    assert [item.path for item in step(own, "model").fetches] == ["spec.model.source"]


def test_own_parameters_stand_beside_the_runners() -> None:
    parameters = step(graph(model={**RUNNER, "parameters": {"a": "no"}}), "model").parameters
    assert parameters["a"] == "no"
    assert parameters["tritonpipe.model_file"] == "model.onnx"
