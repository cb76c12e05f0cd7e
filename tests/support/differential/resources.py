"""Hypothesis strategies for whole resources, and their path to a real Triton."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from tests.support import builders, libyaml
from triton_pipelines.api import Finding, parse
from triton_pipelines.compile.graph import Graph, build, check
from triton_pipelines.compile.graph.options import PodTemplateMode
from triton_pipelines.compile.render.config_patch import patch
from triton_pipelines.compile.render.errors import RefusedError, RenderError
from triton_pipelines.compile.render.model_config import ensemble_config, step_config
from triton_pipelines.compile.render.model_repository import repository as rendered
from triton_pipelines.compile.render.render import facts, review

from .engine import RELEASE, Repository
from .models import chance

Draw = st.DrawFn
Document = dict[str, Any]

_VERSION: Final = f"{RELEASE[0]}.{RELEASE[1]}"
_ROOT: Final = Path(__file__).resolve().parents[3]
_TYPES: Final = ("FP32", "FP16", "INT64", "INT32", "BOOL", "STRING", "UINT8", "BF16")
_DIMS: Final = st.lists(st.sampled_from((1, 2, 3, 8, -1)), min_size=1, max_size=3)
_PLATFORMS: Final = ("onnxruntime_onnx", "pytorch_libtorch", "tensorrt_plan", "python")
_SOURCES: Final = {
    "onnxruntime_onnx": "model.onnx",
    "pytorch_libtorch": "model.pt",
    "tensorrt_plan": "model.plan",
}
_CODE: Final = (
    "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    def "
    "execute(self, requests):\n        return []\n"
)
_PATCHES: Final[tuple[Document, ...]] = (
    {"metric_tags": {"a": "b"}},
    {"metric_tags": {"9_a": "b", "": "c"}},
    {"metric_tags": {"cost-centre": "b"}},
    {"metric_tags": {"_a": "b"}},
    {"optimization": {"eager_batching": True}},
    {"optimization": {"priority": "PRIORITY_MAX", "input_pinned_memory": {"enable": False}}},
    {"max_batch_size": 4},
    {"response_cache": {"enable": True}},
    {"runtime": "model.py"},
    {"runtime": "libnone.so"},
    {"output": [{"name": "o0", "label_filename": "labels.txt"}]},
    {"model_repository_agents": {"agents": [{"name": "checksum"}]}},
    {"model_transaction_policy": {"decoupled": True}},
    {"parameters": {"own": {"string_value": "x"}}},
    {"instance_group": [{"rate_limiter": {"priority": 1}}]},
    {
        "model_warmup": [
            {
                "name": "w",
                "batch_size": 1,
                "inputs": {
                    "i0": {"data_type": "TYPE_FP32", "dims": [1], "input_data_file": "none"}
                },
            }
        ]
    },
    {
        "batch_input": [
            {
                "kind": "BATCH_ELEMENT_COUNT",
                "target_name": ["n"],
                "data_type": "TYPE_INT32",
                "source_input": ["i0"],
            }
        ]
    },
)
_VALUES: Final[tuple[Any, ...]] = (
    None,
    0,
    1,
    2,
    3,
    8,
    16,
    -1,
    "",
    "x",
    "Enabled",
    "Disabled",
    "INT64",
    "FP32",
    "INT32",
    "BOOL",
    [],
    [1],
    [-1],
    [2, 3],
    [0],
)


@cache
def samples() -> tuple[Document, ...]:
    """The resources of the corpus and the samples."""
    files = [
        *sorted((_ROOT / "tests" / "corpus" / "good").glob("*.yaml")),
        *sorted((_ROOT / "manifests" / "samples").glob("*.yaml")),
    ]
    found = [
        document for file in files for document in libyaml.load_all(file.read_text()) if document
    ]
    return tuple(document for document in found if document.get("kind") == "InferencePipeline")


@st.composite
def documents(draw: Draw) -> Document:
    """A resource: one of the samples or a made one, with a few random changes in half of them."""
    found = draw(st.sampled_from(samples())) if chance(draw, 60) else _made(draw)
    # A copy without any part in common with the samples, the patches or itself: a change of one
    # part then changes neither another one nor later examples.
    document: Document = json.loads(json.dumps(found))
    if chance(draw, 60):
        for _ in range(draw(st.integers(1, 3))):
            _change(draw, document["spec"])
    return document


def _made(draw: Draw) -> Document:
    """Draw a pipeline of one to four steps of any platform.

    Each step has its own batchers, groups and tensors.
    """
    size = draw(st.sampled_from((0, 1, 8)))
    inputs = [
        {
            "name": f"IN{index}",
            "dataType": draw(st.sampled_from(_TYPES)),
            "dims": draw(_DIMS),
            **_optional(draw, 30),
        }
        for index in range(draw(st.integers(1, 2)))
    ]
    pool = [(f"pipeline.{tensor['name']}", tensor) for tensor in inputs]
    steps = []
    for index in range(draw(st.integers(1, 4))):
        read = draw(
            st.lists(
                st.sampled_from(pool), min_size=1, max_size=2, unique_by=lambda entry: entry[0]
            )
        )
        step = _step(draw, f"s{index}", read, size)
        steps.append(step)
        pool += [(f"s{index}.{tensor['name']}", tensor) for tensor in step["outputs"]]
    repeated = [_repeated(draw, steps, pool)] if chance(draw, 25) else []
    pool += [
        (f"again.{tensor['name']}", tensor)
        for one in repeated
        for step in steps
        if step["name"] == one["step"]
        for tensor in step["outputs"]
    ]
    used = {tensor["from"] for step in (*steps, *repeated) for tensor in step["inputs"]}
    outputs = [
        {"name": f"OUT{index}", "from": name}
        for index, (name, _) in enumerate(pool)
        if not name.startswith("pipeline.") and name not in used
    ]
    ensemble = {
        "inputs": [tensor for tensor in inputs if f"pipeline.{tensor['name']}" in used],
        "outputs": outputs,
        "maxBatchSize": size,
    }
    if chance(draw, 20):
        ensemble["responseCache"] = "Enabled"
    return {
        "apiVersion": "tritonpipelines.io/v1alpha1",
        "kind": "InferencePipeline",
        "metadata": {"name": "made", "namespace": "nlp"},
        "spec": {
            "steps": steps,
            **({"repeatedSteps": repeated} if repeated else {}),
            "ensemble": ensemble,
        },
    }


def _step(draw: Draw, name: str, read: list[tuple[str, Document]], size: int) -> Document:
    platform = draw(st.sampled_from(_PLATFORMS))
    step: Document = {
        "name": name,
        "platform": platform,
        "maxBatchSize": size * draw(st.sampled_from((1, 1, 2))),
    }
    if platform == "python":
        step["python"] = {"code": {"inline": _CODE}}
    else:
        step["source"] = {"uri": f"s3://models/{name}/{_SOURCES[platform]}"}
    step["inputs"] = [
        {
            "name": f"i{index}",
            **{key: entry[key] for key in ("dataType", "dims")},
            "from": source,
            **_optional(draw, 80 if "optional" in entry else 10),
        }
        for index, (source, entry) in enumerate(read)
    ]
    step["outputs"] = [
        {"name": f"o{index}", "dataType": draw(st.sampled_from(_TYPES)), "dims": draw(_DIMS)}
        for index in range(draw(st.integers(1, 2)))
    ]
    if chance(draw, 30):
        step["dynamicBatching"] = _batching(draw, step["maxBatchSize"])
    elif chance(draw, 25):
        step["sequenceBatching"] = _sequences(draw)
    if chance(draw, 30):
        step["instances"] = {
            "count": draw(st.integers(1, 3)),
            "kind": draw(st.sampled_from(("CPU", "MODEL"))),
        }
    elif chance(draw, 25):
        step["instances"] = {
            "groups": [_group(draw, platform) for _ in range(draw(st.integers(1, 3)))]
        }
    if chance(draw, 20):
        step["parameters"] = {"k": draw(st.sampled_from(("", "v", 'a "b"', "${x}")))}
    if chance(draw, 15):
        step["warmup"] = {"mode": "Enabled", "batchSizes": [max(1, step["maxBatchSize"])]}
    if chance(draw, 10):
        step["decoupled"] = "Enabled"
    if chance(draw, 15):
        step["configPatch"] = draw(st.sampled_from(_PATCHES))
    return step


def _repeated(draw: Draw, steps: list[Document], pool: list[tuple[str, Document]]) -> Document:
    """Draw a step that runs the model of another one on tensors that mostly fit."""
    step = draw(st.sampled_from(steps))
    inputs = []
    for tensor in step["inputs"]:
        fitting = [
            name
            for name, other in pool
            if (other["dataType"], other["dims"]) == (tensor["dataType"], tensor["dims"])
        ]
        others = fitting if fitting and chance(draw, 95) else [name for name, _ in pool]
        if "optional" not in tensor or chance(draw, 50):
            inputs.append({"name": tensor["name"], "from": draw(st.sampled_from(others))})
    first = {"name": step["inputs"][0]["name"], "from": step["inputs"][0]["from"]}
    return {"name": "again", "step": step["name"], "inputs": inputs or [first]}


def _group(draw: Draw, platform: str) -> Document:
    """Draw one instance group; some list a GPU or a profile that the model cannot have."""
    group: Document = {}
    if chance(draw, 70):
        group["count"] = draw(st.integers(1, 3))
    if chance(draw, 80):
        group["kind"] = draw(st.sampled_from(("CPU", "CPU", "MODEL", "GPU", "Auto")))
    if group.get("kind", "GPU") == "GPU" and chance(draw, 50):
        group["gpus"] = [draw(st.sampled_from((0, 0, 0, 1)))]
    if chance(draw, 50 if platform == "tensorrt_plan" else 5):
        group["profiles"] = draw(st.lists(st.sampled_from(("0", "1", "7")), max_size=2))
    if chance(draw, 30):
        group["hostPolicy"] = draw(st.sampled_from(("numa-0", "numa-1")))
    return group


def _optional(draw: Draw, percent: int) -> Document:
    return {"optional": "Enabled"} if chance(draw, percent) else {}


def _batching(draw: Draw, size: int) -> Document:
    batching: Document = {"maxQueueDelayMicroseconds": draw(st.sampled_from((0, 100, 5000)))}
    if size:
        batching["preferredBatchSizes"] = sorted(
            draw(st.sets(st.integers(1, size), min_size=1, max_size=2))
        )
    if chance(draw, 30):
        batching |= {
            "priorityLevels": 3,
            "defaultPriorityLevel": 2,
            "priorityQueuePolicies": [{"priority": 1, "maxQueueSize": 4}],
        }
    elif chance(draw, 30):
        batching["preserveOrdering"] = "Enabled"
    if chance(draw, 30):
        batching["queuePolicy"] = {
            "maxQueueSize": 64,
            "timeoutAction": "REJECT",
            "defaultTimeoutMicroseconds": 1000,
        }
    return batching


def _sequences(draw: Draw) -> Document:
    result: Document = {"strategy": draw(st.sampled_from(("Direct", "Oldest")))}
    if result["strategy"] == "Oldest":
        result["maxCandidateSequences"] = draw(st.integers(1, 8))
    kinds = draw(
        st.lists(st.sampled_from(("START", "END", "READY", "CORRID")), max_size=3, unique=True)
    )
    result["controls"] = [{"name": f"c-{kind}", "kind": kind} for kind in kinds]
    if chance(draw, 30):
        result["states"] = [
            {
                "inputName": "si",
                "outputName": "so",
                "dataType": "FP32",
                "dims": [draw(st.sampled_from((1, -1)))],
            }
        ]
    return result


def _change(draw: Draw, value: Any) -> None:
    """Replace, remove or double something somewhere below a mapping or list."""
    keys = sorted(value) if isinstance(value, dict) else list(range(len(value)))
    if not keys:
        return
    key = draw(st.sampled_from(keys))
    inner = value[key]
    if isinstance(inner, (dict, list)) and inner and chance(draw, 80):
        _change(draw, inner)
        return
    what = draw(st.sampled_from(("replace", "replace", "remove", "double")))
    if what == "remove":
        del value[key]
    elif what == "double" and isinstance(value, list):
        value.append(copy.deepcopy(inner))
    else:
        value[key] = copy.deepcopy(draw(st.sampled_from(_VALUES)))


@dataclass
class Passage:
    """What the product makes of a resource.

    Attributes:
        findings: why it is refused; empty for one that is rendered.
        repository: what is, or would be, rendered of it; None where nothing can be.
    """

    findings: list[Finding] = field(default_factory=list)
    repository: Repository | None = None


def through(document: Document) -> Passage:
    """Parse, build, check and render a resource; past the checks, too, where that is possible."""
    pipeline, findings = parse(_for_the_local_server(document))
    if pipeline is None:
        return Passage(findings)
    options = builders.options(pod_template=PodTemplateMode.ALLOW)
    try:
        graph = build(pipeline, options)
    except (LookupError, ValueError, StopIteration):
        if not findings:
            raise
        return Passage(findings)  # what breaks the rules of a resource need not make a graph
    findings = findings + check(pipeline, graph, options)
    findings += [] if findings else review(pipeline, graph, options)
    if not findings:
        texts = {
            path.split("/", 1)[0]: text
            for path, text in rendered(graph, facts(pipeline, builders.SERVER_IMAGE)).items()
            if path.endswith("/config.pbtxt")
        }
        return Passage([], _repository(graph, texts))
    try:
        return Passage(findings, _repository(graph, _past_the_checks(graph)))
    except (RenderError, RefusedError, LookupError, ValueError, TypeError, AttributeError):
        return Passage(findings)


def _for_the_local_server(document: Document) -> Document:
    """Return the resource with the local Triton's release, whose rules are compared."""
    spec = document["spec"]
    server = spec.get("server") or {}
    if not isinstance(server, dict):
        return document
    return {
        **document,
        "spec": {
            **spec,
            "server": {
                **{key: value for key, value in server.items() if key != "image"},
                "version": _VERSION,
            },
        },
    }


def _past_the_checks(graph: Graph) -> dict[str, str]:
    texts = {step.model_name: step_config(step) for step in graph.models}
    if graph.entry is None:
        texts[graph.model_name] = ensemble_config(graph)
    for step in graph.models:
        if step.config_patch:
            message = text_format.Parse(texts[step.model_name], pb.ModelConfig())
            if patch(message, step.config_patch, ""):
                raise RenderError("the patch is none")
            texts[step.model_name] = text_format.MessageToString(message)
    return texts


def _repository(graph: Graph, texts: dict[str, str]) -> Repository:
    """Return the configs with the version folders that the loader creates.

    A machine without GPUs replaces one with GPUs, so KIND_GPU becomes KIND_CPU.
    """
    configs = {name: text_format.Parse(text, pb.ModelConfig()) for name, text in texts.items()}
    files = {name: {"1/": b""} for name in configs}
    for step in graph.models:
        versions = {
            1,
            *(step.version_policy.specific if step.version_policy is not None else ()),
            step.version or 1,
        }
        files[step.model_name] = {f"{version}/": b"" for version in versions}
        config = configs[step.model_name]
        for group in config.instance_group:
            if group.kind == pb.ModelInstanceGroup.KIND_GPU:
                group.kind = pb.ModelInstanceGroup.KIND_CPU
                group.ClearField("gpus")
        # The library lies in the model's folder in a pod, at a path of the pod.
        if "TRITON_BATCH_STRATEGY_PATH" in config.parameters:
            del config.parameters["TRITON_BATCH_STRATEGY_PATH"]
    return Repository(configs, files)
