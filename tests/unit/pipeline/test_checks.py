"""Every check: the resource that it finds, the field that it names, and the words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import built, options
from triton_pipelines.api import Finding
from triton_pipelines.compile.graph import Options

TOKENS = [
    {"name": "input_ids", "dataType": "INT64", "dims": [-1]},
    {"name": "attention_mask", "dataType": "INT64", "dims": [-1]},
]
VECTORS = [
    {"name": "hidden", "dataType": "FP32", "dims": [-1, 8]},
    {"name": "mask", "dataType": "INT64", "dims": [-1]},
]
CODE = {"platform": "python", "python": {"code": {"inline": "class TritonPythonModel: ..."}}}


def inputs(*changed: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": [*TOKENS, *changed]}


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    # wiring
    "unknown step": ({"model": inputs({"name": "x", "dataType": "INT64", "dims": [-1], "from": "nosuch.x"})},
                     "spec.model.inputs[2]", "step 'nosuch', which does not exist; known are pipeline, tokenizer, model, postprocess"),
    "later step": ({"model": inputs({"name": "x", "dataType": "FP32", "dims": [2], "from": "postprocess.PROBABILITIES"})},
                   "spec.model.inputs[2]", "reads postprocess.PROBABILITIES, which is made by postprocess, which waits for model itself: data must not run in a circle"),
    "itself": ({"model": inputs({"name": "x", "dataType": "FP32", "dims": [2], "from": "model.logits"})},
               "spec.model.inputs[2]", "made by the same step"),
    "no such output": ({"tokenizer": {"outputs": [{"name": "ids", "tensor": "InputIds"}]},
                        "model": inputs({"name": "x", "dataType": "INT64", "dims": [-1], "from": "tokenizer.idz"})},
                       "spec.model.inputs[2]", "reads tokenizer.idz, but tokenizer has no such output; it has ids"),
    "no such input": ({"model": inputs({"name": "x", "dataType": "STRING", "dims": [1], "from": "pipeline.text"})},
                      "spec.model.inputs[2]", "reads pipeline.text, which differs from the input TEXT only in case; write pipeline.TEXT"),
    "data type": ({"tokenizer": {"outputs": [{"name": "input_ids", "dataType": "INT32"}, {"name": "attention_mask"}]}, "model": inputs()},
                  "spec.model.inputs[0]", "inconsistent data type: input_ids reads INT64, but tokenizer.input_ids is INT32"),
    "rank": ({"model": inputs({"name": "t", "dataType": "STRING", "dims": [1, 1], "from": "pipeline.TEXT"})},
             "spec.model.inputs[2]", "has dims [1, 1], but pipeline.TEXT has [1]; the number of dims must be equal"),
    "length": ({"tokenizer": {"maxLength": 128}, "model": {"inputs": [{**TOKENS[0], "dims": [64]}]}},
               "spec.model.inputs[0]", "has dims [64], but tokenizer.input_ids has [128]; only -1 fits any length"),
    "two types of one tensor": ({"model": inputs({"name": "x", "dataType": "INT32", "dims": [-1], "from": "tokenizer.input_ids"})},
                                "spec.model.inputs[2]", "inconsistent data type"),
    "tokens unread": ({"model": {**CODE, "source": None, "inputs": [{"name": "t", "dataType": "STRING", "dims": [1], "from": "pipeline.TEXT"}]}},
                      "spec.tokenizer", "no other step and no output of the pipeline reads what tokenizer makes"),
    "model unread": ({"postprocess": {"from": "tokenizer.input_ids"}}, "spec.model", "reads what model makes; read it (from: model.logits), or answer with it in ensemble.outputs"),
    "input like output": ({"tokenizer": {"inputs": {"text": "PROBABILITIES"}}},
                          "spec.tokenizer.inputs.text", "'PROBABILITIES' is an output of the pipeline, too"),
    # names
    "ensemble named like the tokenizer": ({"name": "tokenizer"}, "spec.tokenizer.modelName",
                                          "already the name given by spec.ensemble.modelName (metadata.name where that is left out)"),
    "zero dim": ({"model": {"outputs": [{"name": "logits", "dataType": "FP32", "dims": [2]}, {"name": "o", "dataType": "FP32", "dims": [0]}]}},
                 "spec.model.outputs[1].dims[0]", "must be at least 1, or -1 for any length, not 0"),
    # batching
    "ensemble above model": ({"ensemble": {"maxBatchSize": 65}}, "spec.ensemble.maxBatchSize",
                             "allows 65 rows, but model takes only 64; lower it or raise spec.model.maxBatchSize"),
    "preferred above default": ({"model": {"dynamicBatching": {"preferredBatchSizes": [8, 65]}}},
                                "spec.model.dynamicBatching.preferredBatchSizes", "65 is above maxBatchSize 64"),
    "preferred of postprocess": ({"model": {"maxBatchSize": 4}, "postprocess": {"dynamicBatching": {"preferredBatchSizes": [5]}}},
                                 "spec.postprocess.dynamicBatching.preferredBatchSizes", "5 is above maxBatchSize 4"),
    # tokenizer
    "unusual output": ({"tokenizer": {"outputs": [{"name": "ids"}, {"name": "attention_mask"}]}},
                       "spec.tokenizer.outputs[0].tensor", "is needed: 'ids' is no usual name; write one of InputIds, AttentionMask"),
    "unusual input": ({"model": {"inputs": [{"name": "tokens", "dataType": "INT64", "dims": [-1]}]}},
                      "spec.model.inputs[0]", "'tokens' is no usual name of a token tensor"),
    "from that names no token tensor": ({"model": {"inputs": [{"name": "mask", "dataType": "INT64", "dims": [-1], "from": "tokenizer.attention_masks"}]}},
                                        "spec.model.inputs[0]", "'attention_masks' is no usual name of a token tensor; from may name input_ids, attention_mask"),
    "batch axis in dims": ({"model": {"inputs": [{"name": "input_ids", "dataType": "INT64", "dims": [-1, -1]}]}}, "spec.model.inputs[0]",
                           "where the first -1 of input_ids is the batch axis, leave it out ([-1])"),
    "no batch axis in whole dims": ({"model": {"maxBatchSize": 0, "inputs": TOKENS}}, "spec.model.inputs[0]",
                                    "with maxBatchSize 0 dims are the whole shape, rows first: write [-1, -1] for input_ids, or another maxBatchSize"),
    "classes without rows": ({"model": {"maxBatchSize": 0}}, "spec.postprocess.from",
                             "dims [-1, C], or [-1, -1, C] per token (with maxBatchSize 0 dims are the whole shape, rows first); model.logits has [2]"),
    "pooling without rows": ({"model": {"maxBatchSize": 0}, "postprocess": {"type": "FirstToken", "labels": None}}, "spec.postprocess.from",
                             "one vector per token, dims [-1, -1, D] (with maxBatchSize 0"),
    "float tokens": ({"model": {"inputs": [TOKENS[0], {"name": "attention_mask", "dataType": "FP32", "dims": [-1]}]}},
                     "spec.model.inputs[1]", "attention_mask is FP32; tokens are INT64 or INT32"),
    "ragged for a backend": ({"tokenizer": {"padding": "Ragged"}, "model": {"platform": "tensorrt_plan"}}, "spec.tokenizer.padding",
                             "Ragged needs a model step that takes a request's own length; spec.model: tensorrt_plan batches equal shapes only"),
    # postprocess
    "softmax of text": ({"postprocess": {"from": "pipeline.TEXT"}}, "spec.postprocess.from",
                        "Softmax reads numbers (FP16, BF16, FP32, FP64), but pipeline.TEXT is STRING"),
    "postprocess of nobody": ({"postprocess": {"from": "nosuch.input_ids"}}, "spec.postprocess.from", "step 'nosuch', which does not exist"),
    "softmax of whole numbers": ({"model": {"outputs": [{"name": "logits", "dataType": "INT32", "dims": [2]}]}}, "spec.postprocess.from", "is INT32"),
    "softmax of rows of rows": ({"model": {"outputs": [{"name": "logits", "dataType": "FP32", "dims": [-1, -1, 2]}]}},
                                "spec.postprocess.from", "dims [C], or [-1, C] per token; model.logits has [-1, -1, 2]"),
    "softmax of any number": ({"model": {"outputs": [{"name": "logits", "dataType": "FP32", "dims": [-1]}]}},
                              "spec.postprocess.from", "dims [C], or [-1, C] per token; model.logits has [-1]"),
    "labels": ({"postprocess": {"labels": ["a", "b", "c"]}}, "spec.postprocess.labels", "has 3 labels, but model.logits has 2 classes"),
    "pooling of a class vector": ({"postprocess": {"type": "FirstToken", "labels": None}},
                                  "spec.postprocess.from", "FirstToken reads one vector per token, dims [-1, D]; model.logits has [2]"),
    "no mask": ({"tokenizer": {"outputs": [{"name": "input_ids"}]}, "model": {"outputs": VECTORS},
                 "postprocess": {"type": "MeanPooling", "labels": None}},
                "spec.postprocess.maskFrom", "reads tokenizer.attention_mask, but tokenizer has no such output; it has input_ids"),
    "float mask": ({"model": {"outputs": VECTORS}, "postprocess": {"type": "MeanPooling", "labels": None, "maskFrom": "model.hidden"}},
                   "spec.postprocess.maskFrom", "the mask must be INT64 or INT32, but model.hidden is FP32"),
    "mask of rank 2": ({"model": {"outputs": [VECTORS[0], {"name": "mask", "dataType": "INT64", "dims": [-1, 8]}]},
                        "postprocess": {"type": "MeanPooling", "labels": None, "maskFrom": "model.mask"}},
                       "spec.postprocess.maskFrom", "the number of dims must be equal"),
    # model
    "own parameter": ({"model": {"parameters": {"tritonpipe.type": "x"}}}, "spec.model.parameters", "'tritonpipe.type': names that start with"),
    "batch strategy": ({"model": {"parameters": {"TRITON_BATCH_STRATEGY_PATH": "/x.so"}}}, "spec.model.parameters", "write batchStrategy instead"),
    "TensorRT without GPU": ({"model": {"platform": "tensorrt_plan"}, "server": {"gpu": {"count": 0}}}, "spec.server.gpu.count", "on GPUs only"),
    "TensorRT on CPU": ({"model": {"platform": "tensorrt_plan", "instances": {"kind": "CPU"}}}, "spec.model.instances.kind", "on GPUs only"),
    # sources
    "path upwards": ({"model": {"source": {"path": "a/../b"}}}, "spec.model.source.path", "'a/../b' must be a plain path"),
    "path with a dot": ({"tokenizer": {"source": {"path": "./tokenizer.json"}}}, "spec.tokenizer.source.path", "must be a plain path"),
    "path with a backslash": ({"model": {"source": {"path": "a\\b"}}}, "spec.model.source.path", "must be a plain path"),
    "password in a URI": ({"model": {"source": {"uri": "https://me:secret@host/m.onnx"}}}, "spec.model.source.uri", "put them into a Secret"),
    "no host": ({"model": {"source": {"uri": "https:///m.onnx"}}}, "spec.model.source.uri", "names no host"),
    "no repository": ({"tokenizer": {"source": {"uri": "hf://@main"}}}, "spec.tokenizer.source.uri", "names no repository"),
    "revision twice": ({"tokenizer": {"source": {"uri": "hf://o/n@a", "revision": "b"}}}, "spec.tokenizer.source.revision", "the uri already says @a"),
    "bucket path upwards": ({"model": {"source": {"uri": "s3://models/a/../m.onnx"}}}, "spec.model.source.uri", "may not hold '..'"),
    "web path upwards": ({"model": {"source": {"uri": "https://h/a/%2e%2e/m.onnx"}}}, "spec.model.source.uri", "may not hold '..'"),
    "no bucket": ({"model": {"source": {"uri": "s3:///m.onnx"}}}, "spec.model.source.uri", "names no bucket"),
    "shared source": ({"source": {"uri": "s3:///folder"}, "model": {"source": None}}, "spec.source.uri", "names no bucket"),
    "model.py twice": ({"model": {**CODE, "source": {"uri": "s3://b/model.py"}, **inputs()}}, "spec.model.source", "brings a file model.py"),
    # server
    "no version": ({"server": {"image": "registry.example/triton:latest"}}, "spec.server.version",
                   "is needed: the tag of the image registry.example/triton:latest does not name a Triton release"),
    "old version": ({"server": {"version": "24.07"}}, "spec.server.version", "24.07 is too old"),
    "no month": ({"server": {"version": "24.13"}}, "spec.server.version", "24.13 is no Triton release"),
    "owned argument": ({"server": {"args": ["--log-verbose=1", "--http-port=1"]}}, "spec.server.args[1]", "--http-port belongs to the operator"),
    "owned, with a blank": ({"server": {"args": ["--load-model x"]}}, "spec.server.args[0]", "--load-model belongs to the operator"),
    "owned, abbreviated": ({"server": {"args": ["--load-mod=x"]}}, "spec.server.args[0]", "--load-model belongs to the operator"),
    "another front end": ({"server": {"args": ["--allow-sagemaker=true"]}}, "spec.server.args[0]", "belongs to the operator"),
    "no flag": ({"server": {"args": ["1"]}}, "spec.server.args[0]", "'1' is no flag; write --flag=value as one item"),
    "another front end by its switch": ({"server": {"env": [{"name": "AIP_MODE", "value": "PREDICTION"}]}}, "spec.server.env[0].name", "belongs to the operator"),
    "owned variable": ({"server": {"env": [{"name": "TRITONPIPE_CONTROL_KEY", "value": "x"}]}}, "spec.server.env[0].name", "belongs to the operator"),
    "both values": ({"server": {"env": [{"name": "A", "value": "x", "valueFrom": {}}]}}, "spec.server.env[0]", "both value and valueFrom"),
    "all GPUs": ({"server": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}}, "spec.server.env[0].name", "ask for GPUs with server.gpu"),
    "cpu request": ({"server": {"resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "2500m"}}}},
                    "spec.server.resources.requests.cpu", "3 is above limits.cpu 2500m"),
    "memory request": ({"server": {"resources": {"requests": {"memory": "4G"}, "limits": {"memory": "3Gi"}}}},
                       "spec.server.resources.requests.memory", "4G is above limits.memory 3Gi"),
    "shared memory": ({"server": {"sharedMemory": "2Gi", "resources": {"limits": {"memory": "2Gi"}}}},
                      "spec.server.resources.limits.memory", "2Gi is used up by the shared memory of 2Gi"),
    "node affinity": ({"server": {"affinity": {"nodeAffinity": "gpu"}}}, "spec.server.affinity.nodeAffinity", "must be a mapping"),
    "node terms": ({"server": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": {}}}}}},
                   "spec.server.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms", "must be a list"),
    "a node term": ({"server": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": ["x"]}}}}},
                    "spec.server.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]", "must be a mapping"),
    "expressions": (
        {"server": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": "x"}]}}}}},
        "spec.server.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions", "must be a list"),
    # size
    "too long": ({"model": {"outputs": [{"name": "logits", "dataType": "FP32", "dims": [4096]}]}, "postprocess": {"labels": ["字" * 30] * 4096}},
                 "spec.postprocess.labels", "must fit one ConfigMap"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_names_the_field_and_the_remedy(case: str) -> None:
    changes, path, words = WRONG[case]
    findings = built(**changes).findings
    assert [item for item in findings if item.path == path and words in item.message], [
        str(item) for item in findings
    ]


def test_a_right_resource_has_no_finding() -> None:
    assert built().findings == []


def test_all_findings_come_at_once() -> None:
    findings = built(
        postprocess={"labels": ["a"]}, server={"version": "23.01", "args": ["--http-port=1"]}
    ).findings
    assert {item.path for item in findings} == {
        "spec.postprocess.labels",
        "spec.server.version",
        "spec.server.args[0]",
    }


def test_a_password_is_not_repeated() -> None:
    findings = built(model={"source": {"uri": "https://me:secret@host/m.onnx"}}).findings
    assert findings
    assert not any("secret@" in item.message for item in findings)


def test_own_code_may_be_forbidden() -> None:
    forbidden: Options = options(custom_code_allowed=False)
    changes = {"model": {**CODE, "source": None, **inputs()}}
    assert built(**changes).findings == []
    assert [item.path for item in built(forbidden, **changes).findings] == [
        "spec.model.python.code"
    ]


@pytest.mark.parametrize("value", ["void", "none"])
def test_a_pod_without_gpu_may_hide_the_nodes_gpus(value: str) -> None:
    assert (
        built(
            server={
                "gpu": {"count": 0},
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}],
            }
        ).findings
        == []
    )


PINNED = {"tokenizer": {"source": {"revision": "1"}}, "model": {"source": {"revision": "1"}}}
QUEUE = {"dynamicBatching": {"queuePolicy": {"maxQueueSize": 9}}}
GOOD = {"tokenizer": {**PINNED["tokenizer"], **QUEUE}, "model": PINNED["model"]}
WARNED: dict[str, tuple[dict[str, Any], str, str]] = {
    "batching off": ({"tokenizer": {**GOOD["tokenizer"]}, "model": {**PINNED["model"], "dynamicBatching": {"mode": "Disabled"}}},
                     "spec.model.dynamicBatching.mode", "batching is off: model runs request by request"),
    "not pinned": ({**GOOD, "model": {"source": {"uri": "https://host/m.onnx?signature=abc"}}},
                   "spec.model.source", "https://host/m.onnx is not pinned"),
    "not pinned, shared": ({"source": {"uri": "hf://o/n"}, "tokenizer": {"source": None, **QUEUE}, "model": {"source": None}}, "spec.source", "hf://o/n is not pinned"),
    "longest": ({"tokenizer": {**GOOD["tokenizer"], "padding": "Longest"}, "model": {**GOOD["model"], "platform": "python", "python": {"runner": "OnnxRuntime"}}},
                "spec.tokenizer.padding", "Longest computes padding that Ragged does not"),
    "products": ({**GOOD, "model": {**GOOD["model"], "platform": "tensorrt_plan"}, "server": {"image": "x:24.10"}},
                 "spec.server.gpu.products", "runs only on the GPU model it was built for"),
    "plan version": ({**GOOD, "model": {**GOOD["model"], "platform": "tensorrt_plan"}, "server": {"gpu": {"products": ["A"]}}},
                     "spec.server.image", "pin the image"),
    "queue": (PINNED, "spec.tokenizer.dynamicBatching.queuePolicy", "the queue is unbounded"),
    "name that clients escape": ({**GOOD, "ensemble": {"modelName": "sst+2@v1"}}, "spec.ensemble.modelName", "'sst%2B2%40v1'"),
    "idle GPU": ({**GOOD, "model": {**GOOD["model"], "instances": {"kind": "CPU"}}}, "spec.server.gpu.count", "pods reserve a GPU that no step uses"),
}  # fmt: skip


@pytest.mark.parametrize("case", WARNED)
def test_lint_says_what_is_probably_not_meant(case: str) -> None:
    changes, path, words = WARNED[case]
    one = built(**changes)
    assert one.findings == []
    assert [(item.path, words in item.message) for item in one.warnings] == [(path, True)]
    assert all(
        isinstance(item, Finding) and item.severity.value == "Warning" for item in one.warnings
    )
    assert "signature" not in str(one.warnings)


@pytest.mark.parametrize("name", ["sst-2", "sst_2.v1", "SST~2"])
def test_lint_takes_a_name_that_no_client_escapes(name: str) -> None:
    assert built(**GOOD, ensemble={"modelName": name}).warnings == []


@pytest.mark.parametrize("uri", ["hf://o/n@1f2e", "pvc://claim/a", "configmap://name/key"])
def test_lint_takes_a_source_that_cannot_change_as_pinned(uri: str) -> None:
    assert built(tokenizer={"source": {"uri": uri}, **QUEUE}, model=PINNED["model"]).warnings == []
