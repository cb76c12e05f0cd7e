"""Every check: the resource that violates it, the field and the code of the finding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import built, options
from triton_pipelines.api import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.compile.graph import Options

TOKENS = [
    {"name": "input_ids", "dataType": "INT64", "dims": [-1]},
    {"name": "attention_mask", "dataType": "INT64", "dims": [-1]},
]
VECTORS = [
    {"name": "hidden", "dataType": "FP32", "dims": [-1, 8]},
    {"name": "mask", "dataType": "INT64", "dims": [-1]},
]
SEVERAL_TEXTS = {"name": "TEXT", "dataType": "STRING", "dims": [-1]}
CODE = {"platform": "python", "python": {"code": {"inline": "class TritonPythonModel: ..."}}}


def inputs(*changed: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": [*TOKENS, *changed]}


WRONG: dict[str, tuple[dict[str, Any], str, FindingCode]] = {
    # wiring
    "unknown step": (
        {"model": inputs({"name": "x", "dataType": "INT64", "dims": [-1], "from": "nosuch.x"})},
        "spec.model.inputs[2]",
        FindingCode.UNKNOWN_STEP,
    ),
    "later step": (
        {
            "model": inputs(
                {"name": "x", "dataType": "FP32", "dims": [2], "from": "postprocess.PROBABILITIES"}
            )
        },
        "spec.model.inputs[2]",
        FindingCode.CYCLE,
    ),
    "itself": (
        {"model": inputs({"name": "x", "dataType": "FP32", "dims": [2], "from": "model.logits"})},
        "spec.model.inputs[2]",
        FindingCode.CYCLE,
    ),
    "no such output": (
        {
            "tokenizer": {"outputs": [{"name": "ids", "tensor": "InputIds"}]},
            "model": inputs(
                {"name": "x", "dataType": "INT64", "dims": [-1], "from": "tokenizer.idz"}
            ),
        },
        "spec.model.inputs[2]",
        FindingCode.UNKNOWN_TENSOR,
    ),
    "no such input": (
        {
            "model": inputs(
                {"name": "x", "dataType": "STRING", "dims": [1], "from": "pipeline.text"}
            )
        },
        "spec.model.inputs[2]",
        FindingCode.UNKNOWN_TENSOR,
    ),
    "data type": (
        {
            "tokenizer": {
                "outputs": [{"name": "input_ids", "dataType": "INT32"}, {"name": "attention_mask"}]
            },
            "model": inputs(),
        },
        "spec.model.inputs[0]",
        FindingCode.DATA_TYPE_MISMATCH,
    ),
    "rank": (
        {
            "model": inputs(
                {"name": "t", "dataType": "STRING", "dims": [1, 1], "from": "pipeline.TEXT"}
            )
        },
        "spec.model.inputs[2]",
        FindingCode.SHAPE_MISMATCH,
    ),
    "length": (
        {"tokenizer": {"maxLength": 128}, "model": {"inputs": [{**TOKENS[0], "dims": [64]}]}},
        "spec.model.inputs[0]",
        FindingCode.SHAPE_MISMATCH,
    ),
    "two types of one tensor": (
        {
            "model": inputs(
                {"name": "x", "dataType": "INT32", "dims": [-1], "from": "tokenizer.input_ids"}
            )
        },
        "spec.model.inputs[2]",
        FindingCode.DATA_TYPE_MISMATCH,
    ),
    "tokens unread": (
        {
            "model": {
                **CODE,
                "source": None,
                "inputs": [
                    {"name": "t", "dataType": "STRING", "dims": [1], "from": "pipeline.TEXT"}
                ],
            }
        },
        "spec.tokenizer",
        FindingCode.UNUSED,
    ),
    "model unread": (
        {"postprocess": {"from": "tokenizer.input_ids"}},
        "spec.model",
        FindingCode.UNUSED,
    ),
    "input like output": (
        {"tokenizer": {"inputs": {"text": "PROBABILITIES"}}},
        "spec.tokenizer.inputs.text",
        FindingCode.DUPLICATE,
    ),
    # names
    "ensemble named like the tokenizer": (
        {"name": "tokenizer"},
        "spec.tokenizer.modelName",
        FindingCode.DUPLICATE,
    ),
    "zero dim": (
        {
            "model": {
                "outputs": [
                    {"name": "logits", "dataType": "FP32", "dims": [2]},
                    {"name": "o", "dataType": "FP32", "dims": [0]},
                ]
            }
        },
        "spec.model.outputs[1].dims[0]",
        FindingCode.OUT_OF_RANGE,
    ),
    # batching
    "ensemble above model": (
        {"ensemble": {"maxBatchSize": 65}},
        "spec.ensemble.maxBatchSize",
        FindingCode.BATCH_SIZE_MISMATCH,
    ),
    "preferred above default": (
        {"model": {"dynamicBatching": {"preferredBatchSizes": [8, 65]}}},
        "spec.model.dynamicBatching.preferredBatchSizes",
        FindingCode.BATCH_SIZE_MISMATCH,
    ),
    "preferred of postprocess": (
        {
            "model": {"maxBatchSize": 4},
            "postprocess": {"dynamicBatching": {"preferredBatchSizes": [5]}},
        },
        "spec.postprocess.dynamicBatching.preferredBatchSizes",
        FindingCode.BATCH_SIZE_MISMATCH,
    ),
    # tokenizer
    "unusual output": (
        {"tokenizer": {"outputs": [{"name": "ids"}, {"name": "attention_mask"}]}},
        "spec.tokenizer.outputs[0].tensor",
        FindingCode.REQUIRED,
    ),
    "unusual input": (
        {"model": {"inputs": [{"name": "tokens", "dataType": "INT64", "dims": [-1]}]}},
        "spec.model.inputs[0]",
        FindingCode.UNKNOWN_TENSOR,
    ),
    "from that names no token tensor": (
        {
            "model": {
                "inputs": [
                    {
                        "name": "mask",
                        "dataType": "INT64",
                        "dims": [-1],
                        "from": "tokenizer.attention_masks",
                    }
                ]
            }
        },
        "spec.model.inputs[0]",
        FindingCode.UNKNOWN_TENSOR,
    ),
    "batch axis in dims": (
        {"model": {"inputs": [{"name": "input_ids", "dataType": "INT64", "dims": [-1, -1]}]}},
        "spec.model.inputs[0]",
        FindingCode.SHAPE_MISMATCH,
    ),
    "no batch axis in whole dims": (
        {"model": {"maxBatchSize": 0, "inputs": TOKENS}},
        "spec.model.inputs[0]",
        FindingCode.SHAPE_MISMATCH,
    ),
    "several texts per row of a tokenizer that batches": (
        {"ensemble": {"inputs": [SEVERAL_TEXTS]}, "tokenizer": {"maxBatchSize": 8}},
        "spec.tokenizer.inputs.text",
        FindingCode.SHAPE_MISMATCH,
    ),
    "several texts per row without a batch axis": (
        {"ensemble": {"inputs": [SEVERAL_TEXTS], "maxBatchSize": 0}},
        "spec.tokenizer.inputs.text",
        FindingCode.SHAPE_MISMATCH,
    ),
    "rows of the request beside several texts per row": (
        {
            "ensemble": {
                "inputs": [SEVERAL_TEXTS, {"name": "AGE", "dataType": "FP32", "dims": [1]}]
            },
            "model": inputs(
                {"name": "AGE", "dataType": "FP32", "dims": [1], "from": "pipeline.AGE"}
            ),
        },
        "spec.model.inputs[2]",
        FindingCode.SHAPE_MISMATCH,
    ),
    "classes without rows": (
        {"model": {"maxBatchSize": 0}},
        "spec.postprocess.from",
        FindingCode.SHAPE_MISMATCH,
    ),
    "pooling without rows": (
        {"model": {"maxBatchSize": 0}, "postprocess": {"type": "FirstToken", "labels": None}},
        "spec.postprocess.from",
        FindingCode.SHAPE_MISMATCH,
    ),
    "float tokens": (
        {
            "model": {
                "inputs": [TOKENS[0], {"name": "attention_mask", "dataType": "FP32", "dims": [-1]}]
            }
        },
        "spec.model.inputs[1]",
        FindingCode.DATA_TYPE_MISMATCH,
    ),
    "ragged for a backend": (
        {"tokenizer": {"padding": "Ragged"}, "model": {"platform": "tensorrt_plan"}},
        "spec.tokenizer.padding",
        FindingCode.PADDING_UNSUPPORTED,
    ),
    # postprocess
    "softmax of text": (
        {"postprocess": {"from": "pipeline.TEXT"}},
        "spec.postprocess.from",
        FindingCode.DATA_TYPE_MISMATCH,
    ),
    "postprocess of nobody": (
        {"postprocess": {"from": "nosuch.input_ids"}},
        "spec.postprocess.from",
        FindingCode.UNKNOWN_STEP,
    ),
    "softmax of whole numbers": (
        {"model": {"outputs": [{"name": "logits", "dataType": "INT32", "dims": [2]}]}},
        "spec.postprocess.from",
        FindingCode.DATA_TYPE_MISMATCH,
    ),
    "softmax of rows of rows": (
        {"model": {"outputs": [{"name": "logits", "dataType": "FP32", "dims": [-1, -1, 2]}]}},
        "spec.postprocess.from",
        FindingCode.SHAPE_MISMATCH,
    ),
    "softmax of any number": (
        {"model": {"outputs": [{"name": "logits", "dataType": "FP32", "dims": [-1]}]}},
        "spec.postprocess.from",
        FindingCode.SHAPE_MISMATCH,
    ),
    "labels": (
        {"postprocess": {"labels": ["a", "b", "c"]}},
        "spec.postprocess.labels",
        FindingCode.LABEL_COUNT,
    ),
    "pooling of a class vector": (
        {"postprocess": {"type": "FirstToken", "labels": None}},
        "spec.postprocess.from",
        FindingCode.SHAPE_MISMATCH,
    ),
    "no mask": (
        {
            "tokenizer": {"outputs": [{"name": "input_ids"}]},
            "model": {"outputs": VECTORS},
            "postprocess": {"type": "MeanPooling", "labels": None},
        },
        "spec.postprocess.maskFrom",
        FindingCode.UNKNOWN_TENSOR,
    ),
    "float mask": (
        {
            "model": {"outputs": VECTORS},
            "postprocess": {"type": "MeanPooling", "labels": None, "maskFrom": "model.hidden"},
        },
        "spec.postprocess.maskFrom",
        FindingCode.SHAPE_MISMATCH,
    ),
    "mask of rank 2": (
        {
            "model": {
                "outputs": [VECTORS[0], {"name": "mask", "dataType": "INT64", "dims": [-1, 8]}]
            },
            "postprocess": {"type": "MeanPooling", "labels": None, "maskFrom": "model.mask"},
        },
        "spec.postprocess.maskFrom",
        FindingCode.SHAPE_MISMATCH,
    ),
    # model
    "own parameter": (
        {"model": {"parameters": {"tritonpipe.type": "x"}}},
        "spec.model.parameters",
        FindingCode.RESERVED,
    ),
    "batch strategy": (
        {"model": {"parameters": {"TRITON_BATCH_STRATEGY_PATH": "/x.so"}}},
        "spec.model.parameters",
        FindingCode.FIELD_COMBINATION,
    ),
    "TensorRT without GPU": (
        {"model": {"platform": "tensorrt_plan"}, "server": {"gpu": {"count": 0}}},
        "spec.server.gpu.count",
        FindingCode.GPU_UNAVAILABLE,
    ),
    "TensorRT on CPU": (
        {"model": {"platform": "tensorrt_plan", "instances": {"kind": "CPU"}}},
        "spec.model.instances.kind",
        FindingCode.GPU_UNAVAILABLE,
    ),
    # sources
    "path upwards": (
        {"model": {"source": {"path": "a/../b"}}},
        "spec.model.source.path",
        FindingCode.INVALID_SOURCE,
    ),
    "path with a dot": (
        {"tokenizer": {"source": {"path": "./tokenizer.json"}}},
        "spec.tokenizer.source.path",
        FindingCode.INVALID_SOURCE,
    ),
    "path with a backslash": (
        {"model": {"source": {"path": "a\\b"}}},
        "spec.model.source.path",
        FindingCode.INVALID_SOURCE,
    ),
    "password in a URI": (
        {"model": {"source": {"uri": "https://me:secret@host/m.onnx"}}},
        "spec.model.source.uri",
        FindingCode.CREDENTIALS_IN_URI,
    ),
    "no host": (
        {"model": {"source": {"uri": "https:///m.onnx"}}},
        "spec.model.source.uri",
        FindingCode.INVALID_SOURCE,
    ),
    "no repository": (
        {"tokenizer": {"source": {"uri": "hf://@main"}}},
        "spec.tokenizer.source.uri",
        FindingCode.INVALID_SOURCE,
    ),
    "revision twice": (
        {"tokenizer": {"source": {"uri": "hf://o/n@a", "revision": "b"}}},
        "spec.tokenizer.source.revision",
        FindingCode.FIELD_COMBINATION,
    ),
    "bucket path upwards": (
        {"model": {"source": {"uri": "s3://models/a/../m.onnx"}}},
        "spec.model.source.uri",
        FindingCode.INVALID_SOURCE,
    ),
    "web path upwards": (
        {"model": {"source": {"uri": "https://h/a/%2e%2e/m.onnx"}}},
        "spec.model.source.uri",
        FindingCode.INVALID_SOURCE,
    ),
    "no bucket": (
        {"model": {"source": {"uri": "s3:///m.onnx"}}},
        "spec.model.source.uri",
        FindingCode.INVALID_SOURCE,
    ),
    "shared source": (
        {"source": {"uri": "s3:///folder"}, "model": {"source": None}},
        "spec.source.uri",
        FindingCode.INVALID_SOURCE,
    ),
    "model.py twice": (
        {"model": {**CODE, "source": {"uri": "s3://b/model.py"}, **inputs()}},
        "spec.model.source",
        FindingCode.FILE_CONFLICT,
    ),
    # server
    "no version": (
        {"server": {"image": "registry.example/triton:latest"}},
        "spec.server.version",
        FindingCode.REQUIRED,
    ),
    "old version": (
        {"server": {"version": "24.07"}},
        "spec.server.version",
        FindingCode.UNSUPPORTED_RELEASE,
    ),
    "no month": (
        {"server": {"version": "24.13"}},
        "spec.server.version",
        FindingCode.UNSUPPORTED_RELEASE,
    ),
    "owned argument": (
        {"server": {"args": ["--log-verbose=1", "--http-port=1"]}},
        "spec.server.args[1]",
        FindingCode.RESERVED,
    ),
    "owned, with a blank": (
        {"server": {"args": ["--load-model x"]}},
        "spec.server.args[0]",
        FindingCode.RESERVED,
    ),
    "owned, abbreviated": (
        {"server": {"args": ["--load-mod=x"]}},
        "spec.server.args[0]",
        FindingCode.RESERVED,
    ),
    "another front end": (
        {"server": {"args": ["--allow-sagemaker=true"]}},
        "spec.server.args[0]",
        FindingCode.RESERVED,
    ),
    "no flag": ({"server": {"args": ["1"]}}, "spec.server.args[0]", FindingCode.INVALID_FORMAT),
    "another front end by its switch": (
        {"server": {"env": [{"name": "AIP_MODE", "value": "PREDICTION"}]}},
        "spec.server.env[0].name",
        FindingCode.RESERVED,
    ),
    "owned variable": (
        {"server": {"env": [{"name": "TRITONPIPE_CONTROL_KEY", "value": "x"}]}},
        "spec.server.env[0].name",
        FindingCode.RESERVED,
    ),
    "both values": (
        {"server": {"env": [{"name": "A", "value": "x", "valueFrom": {}}]}},
        "spec.server.env[0]",
        FindingCode.FIELD_COMBINATION,
    ),
    "all GPUs": (
        {"server": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}},
        "spec.server.env[0].name",
        FindingCode.RESERVED,
    ),
    "cpu request": (
        {"server": {"resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "2500m"}}}},
        "spec.server.resources.requests.cpu",
        FindingCode.OUT_OF_RANGE,
    ),
    "memory request": (
        {"server": {"resources": {"requests": {"memory": "4G"}, "limits": {"memory": "3Gi"}}}},
        "spec.server.resources.requests.memory",
        FindingCode.OUT_OF_RANGE,
    ),
    "shared memory": (
        {"server": {"sharedMemory": "2Gi", "resources": {"limits": {"memory": "2Gi"}}}},
        "spec.server.resources.limits.memory",
        FindingCode.OUT_OF_RANGE,
    ),
    "node affinity": (
        {"server": {"affinity": {"nodeAffinity": "gpu"}}},
        "spec.server.affinity.nodeAffinity",
        FindingCode.WRONG_TYPE,
    ),
    "node terms": (
        {
            "server": {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": {}}
                    }
                }
            }
        },
        "spec.server.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
        FindingCode.WRONG_TYPE,
    ),
    "a node term": (
        {
            "server": {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": ["x"]
                        }
                    }
                }
            }
        },
        "spec.server.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]",
        FindingCode.WRONG_TYPE,
    ),
    "expressions": (
        {
            "server": {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": "x"}]
                        }
                    }
                }
            }
        },
        "spec.server.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions",
        FindingCode.WRONG_TYPE,
    ),
    # size
}


@pytest.mark.parametrize("case", WRONG)
def test_names_the_field_and_the_remedy(case: str) -> None:
    changes, path, code = WRONG[case]
    findings = built(**changes).findings
    assert [item for item in findings if (item.path, item.code) == (path, code)], [
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
WARNED: dict[str, tuple[dict[str, Any], str, FindingCode]] = {
    "batching off": (
        {
            "tokenizer": {**GOOD["tokenizer"]},
            "model": {**PINNED["model"], "dynamicBatching": {"mode": "Disabled"}},
        },
        "spec.model.dynamicBatching.mode",
        FindingCode.BATCHING_DISABLED,
    ),
    "longest": (
        {
            "tokenizer": {**GOOD["tokenizer"], "padding": "Longest"},
            "model": {**GOOD["model"], "platform": "python", "python": {"runner": "OnnxRuntime"}},
        },
        "spec.tokenizer.padding",
        FindingCode.PADDING_COSTS_COMPUTE,
    ),
    "products": (
        {
            **GOOD,
            "model": {**GOOD["model"], "platform": "tensorrt_plan"},
            "server": {"image": "x:24.10"},
        },
        "spec.server.gpu.products",
        FindingCode.PLAN_NEEDS_GPU_PRODUCT,
    ),
    "plan version": (
        {
            **GOOD,
            "model": {**GOOD["model"], "platform": "tensorrt_plan"},
            "server": {"gpu": {"products": ["A"]}},
        },
        "spec.server.image",
        FindingCode.PLAN_NEEDS_IMAGE,
    ),
    "queue": (
        {**PINNED, "slo": {"p99Milliseconds": 50}},
        "spec.tokenizer.dynamicBatching.queuePolicy",
        FindingCode.QUEUE_UNBOUNDED,
    ),
    "name that clients escape": (
        {**GOOD, "ensemble": {"modelName": "sst+2@v1"}},
        "spec.ensemble.modelName",
        FindingCode.NAME_NEEDS_ESCAPING,
    ),
    "idle GPU": (
        {**GOOD, "model": {**GOOD["model"], "instances": {"kind": "CPU"}}},
        "spec.server.gpu.count",
        FindingCode.UNUSED_GPU,
    ),
}


@pytest.mark.parametrize("case", WARNED)
def test_lint_says_what_is_probably_not_meant(case: str) -> None:
    changes, path, code = WARNED[case]
    one = built(**changes)
    assert one.findings == []
    assert [(item.path, item.code) for item in one.warnings] == [(path, code)]
    assert all(
        isinstance(item, Finding) and item.severity.value == "Warning" for item in one.warnings
    )
    assert "signature" not in str(one.warnings)


@pytest.mark.parametrize(
    ("policy", "bounded"),
    [
        ({"maxQueueSize": 9}, True),
        ({"defaultTimeoutMicroseconds": 9}, True),
        ({"defaultTimeoutMicroseconds": 9, "timeoutAction": "REJECT"}, True),
        ({"defaultTimeoutMicroseconds": 9, "timeoutAction": "DELAY"}, False),
        ({"maxQueueSize": 0, "defaultTimeoutMicroseconds": 0}, False),
    ],
)
def test_a_queue_is_bounded_by_its_length_or_by_a_time_limit(
    policy: dict[str, Any], bounded: bool
) -> None:
    tokenizer = {**PINNED["tokenizer"], "dynamicBatching": {"queuePolicy": policy}}
    one = built(tokenizer=tokenizer, model=PINNED["model"], slo={"p99Milliseconds": 50})
    assert [item.code for item in one.warnings] == (
        [] if bounded else [FindingCode.QUEUE_UNBOUNDED]
    )


@pytest.mark.parametrize("name", ["sst-2", "sst_2.v1", "SST~2"])
def test_lint_takes_a_name_that_no_client_escapes(name: str) -> None:
    assert built(**GOOD, ensemble={"modelName": name}).warnings == []


@pytest.mark.parametrize("uri", ["hf://o/n@1f2e", "pvc://claim/a", "configmap://name/key"])
def test_lint_takes_a_source_that_cannot_change_as_pinned(uri: str) -> None:
    assert built(tokenizer={"source": {"uri": uri}, **QUEUE}, model=PINNED["model"]).warnings == []
