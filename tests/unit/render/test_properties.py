"""Test building and checking with random resources.

Neither ever raises, and whatever passes the checks renders completely and is valid.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.support.builders import document, merge, options
from tests.support.schemas import validate
from triton_pipelines.api import parse
from triton_pipelines.api.loadplan import LoadPlan
from triton_pipelines.api.rollout_strategy import RolloutStrategy
from triton_pipelines.compile.graph import build, check, lint
from triton_pipelines.compile.render import render
from triton_pipelines.compile.render.errors import RefusedError
from triton_pipelines.compile.render.model_config import parse as parse_config
from triton_pipelines.compile.render.objects import deployment, revision_config_map
from triton_pipelines.compile.validation import validate_repository

QUICK = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

printable = st.characters(exclude_characters="\x7f", exclude_categories=["Cs", "Cc"])
tensor_name = st.one_of(
    st.sampled_from(["input_ids", "Attention_Mask", "854", "a/b:0", "input.1", "q\"uo'te", "ü 字"]),
    st.text(printable, min_size=1, max_size=12),
)
model_name = st.from_regex(r"[A-Za-z0-9_+=@~-]{1,8}(\.[A-Za-z0-9_+=@~-]{1,4})?", fullmatch=True)
data_type = st.sampled_from(["INT32", "INT64", "FP16", "FP32", "BF16", "STRING"])
dims = st.lists(st.integers(-1, 9), min_size=1, max_size=3)
step = st.sampled_from(["pipeline", "tokenizer", "model", "postprocess", "nosuch"])
reference = st.builds(
    lambda left, right: f"{left}.{right}", step, st.one_of(st.just("TEXT"), tensor_name)
)
uri = st.sampled_from(
    [
        "hf://org/name",
        "hf://name@rev",
        "s3://bucket/a/model.onnx",
        "s3://bucket",
        "https://host/x?y=1",
        "https://u:p@h/x",
        "pvc://claim/x",
        "pvc://claim",
        "configmap://name/key",
    ]
)
quantity = st.sampled_from(["0", "1", "1500m", "0.5", "3Gi", "700M", "12Ti"])
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any choice of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def unique(items: st.SearchStrategy[Any], **sizes: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, unique_by=lambda item: item["name"], **sizes)


batching = some(
    preferredBatchSizes=st.lists(st.integers(1, 80), unique=True, max_size=3),
    maxQueueDelayMicroseconds=st.integers(0, 10),
    preserveOrdering=st.sampled_from(["Enabled", "Disabled"]),
    queuePolicy=some(
        maxQueueSize=st.integers(0, 9),
        defaultTimeoutMicroseconds=st.integers(0, 9),
        timeoutAction=st.sampled_from(["REJECT", "DELAY"]),
    ),
)
source = st.builds(
    lambda uri, more: {"uri": uri, **more},
    uri,
    some(
        path=st.sampled_from(["a.onnx", "d/a.onnx", "../a", "a//b", "x\\y", "model.py"]),
        sha256=st.just("0" * 64),
    ),
)
tokenizer = some(
    modelName=model_name,
    source=source,
    inputs=some(text=tensor_name),
    outputs=unique(
        st.fixed_dictionaries(
            {"name": tensor_name},
            optional={
                "tensor": st.sampled_from(
                    ["InputIds", "AttentionMask", "TokenTypeIds", "Offsets", "Lengths"]
                ),
                "dataType": st.sampled_from(["INT32", "INT64"]),
            },
        ),
        max_size=3,
    ),
    maxLength=st.integers(1, 600),
    padding=st.sampled_from(["Auto", "Ragged", "Fixed", "Longest"]),
    maxBatchSize=st.integers(1, 70),
    dynamicBatching=batching,
    instances=st.sampled_from([{}, {"max": 1}, {"min": 2, "max": 9}, {"initial": 5}]),
    resourcesPerInstance=some(cpu=quantity, memory=quantity),
)
output = st.fixed_dictionaries({"name": tensor_name, "dataType": data_type, "dims": dims})
group = some(
    count=st.integers(1, 3),
    kind=st.sampled_from(["GPU", "CPU", "MODEL", "Auto"]),
    gpus=st.lists(st.integers(0, 2), unique=True, max_size=2),
    hostPolicy=st.sampled_from(["numa-0", "numa-1"]),
)
model = some(
    modelName=model_name,
    source=source,
    inputs=unique(
        st.fixed_dictionaries(
            {"name": tensor_name, "dataType": data_type, "dims": dims}, optional={"from": reference}
        ),
        max_size=3,
    ),
    outputs=unique(
        st.one_of(
            output, st.sampled_from([{"name": "hidden", "dataType": "FP32", "dims": [-1, 4]}])
        ),
        min_size=1,
        max_size=3,
    ),
    maxBatchSize=st.integers(1, 70),
    dynamicBatching=batching,
    instances=st.one_of(
        some(count=st.integers(1, 3), kind=st.sampled_from(["GPU", "CPU"])),
        st.fixed_dictionaries({"groups": st.lists(group, min_size=1, max_size=3)}),
    ),
    parameters=st.dictionaries(text, text, max_size=2),
)
platform = st.sampled_from(
    [
        {"platform": "onnxruntime_onnx"},
        {"platform": "tensorrt_plan"},
        {"platform": "pytorch_libtorch"},
        {"platform": "python", "python": {"runner": "OnnxRuntime"}},
        {"platform": "python", "python": {"code": {"inline": 'x = "ü"\n'}}},
    ]
)
postprocess = st.one_of(
    st.none(),
    some(
        modelName=model_name,
        type=st.sampled_from(["Softmax", "Sigmoid"]),
        labels=st.lists(text.filter(bool), min_size=2, max_size=2),
    ),
    st.builds(
        lambda base, more: {"labels": None, **base, **more},
        st.sampled_from([{"type": "MeanPooling"}, {"type": "FirstToken"}, {"type": "Sigmoid"}]),
        st.fixed_dictionaries({}, optional={"from": reference}),
    ),
    st.builds(lambda given: {"type": "MeanPooling", "labels": None, "maskFrom": given}, reference),
)
server = some(
    gpu=some(count=st.integers(0, 3), products=st.lists(st.sampled_from(["A", "B"]), unique=True)),
    env=unique(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(
                    [
                        "A",
                        "HOME",
                        "NVIDIA_VISIBLE_DEVICES",
                        "OPENBLAS_NUM_THREADS",
                        "RAYON_NUM_THREADS",
                    ]
                )
            },
            optional={"value": text},
        ),
        max_size=3,
    ),
    args=st.lists(st.sampled_from(["--log-verbose=1", "--http-port=1", "x"]), max_size=2),
    affinity=st.sampled_from([{}, {"nodeAffinity": {}}, {"podAffinity": {}}]),
    tolerations=st.just([{"operator": "Exists"}]),
    resources=some(
        requests=some(cpu=quantity, memory=quantity), limits=some(cpu=quantity, memory=quantity)
    ),
    sharedMemory=quantity,
    image=st.sampled_from(["x:24.10", "x:latest"]),
)
rollout = some(drainSeconds=st.integers(0, 3600), progressDeadlineSeconds=st.integers(10, 86400))
operators = st.builds(
    lambda substitute, source_map: options(
        substitute_runner=frozenset(substitute), source_map=tuple(source_map)
    ),
    st.sampled_from([[], ["onnxruntime_onnx"]]),
    st.lists(
        st.sampled_from(["hf://=http://m", "s3://=pvc://c/", "https://host/=configmap://n/"]),
        unique=True,
    ),
)


@st.composite
def resources(draw: st.DrawFn, *parts: str) -> dict[str, Any]:
    """Draw a resource that satisfies its schema, with some parts chosen at random.

    Its wiring may make no sense.
    """
    random: dict[str, Any] = {
        "tokenizer": tokenizer,
        "model": model,
        "postprocess": postprocess,
        "server": server,
        "rollout": rollout,
    }
    changes = {name: draw(random[name]) for name in parts}
    if "model" in parts:
        changes["model"] |= draw(platform)
    return document(**changes)


def examine(resource: dict[str, Any], given_options: Any) -> None:
    """The property itself."""
    pipeline, broken = parse(resource)
    if pipeline is None or broken:
        event("broken rule")
        assert broken
        return
    graph = build(pipeline, given_options)
    findings = check(pipeline, graph, given_options)
    lint(pipeline, graph)
    assert all(item.path.startswith("spec.") and item.message for item in findings)
    if findings:
        event("finding")
        return
    event("rendered")
    try:
        revision = render(pipeline, graph, given_options)
    except RefusedError as refused:
        event("refused")
        named = all(item.path.startswith("spec.") and item.message for item in refused.findings)
    else:
        named = True
        _rendered(pipeline, graph, given_options, resource, revision)
    assert named


def _rendered(
    pipeline: Any, graph: Any, given_options: Any, resource: dict[str, Any], revision: Any
) -> None:
    configs = {
        path.split("/")[0]: parse_config(text)
        for path, text in revision.files.items()
        if path.endswith(".pbtxt")
    }
    assert validate_repository(configs) == []
    plan = LoadPlan.model_validate_json(revision.data["plan.json"])
    assert {item.path for item in plan.files} == set(revision.files)
    assert json.loads(revision.data["deployment.json"])["template"] == revision.template
    for item in (
        deployment(pipeline, revision.template, RolloutStrategy.SURGE, 1),
        revision_config_map(pipeline, revision.name, revision.data),
    ):
        validate(item)
    again, _ = parse(json.loads(json.dumps(resource)))
    assert again is not None
    assert render(again, build(again, given_options), given_options).data == revision.data


@QUICK
@given(
    resource=resources("tokenizer", "model", "postprocess", "server", "rollout"),
    given_options=operators,
)
def test_anything_at_once(resource: dict[str, Any], given_options: Any) -> None:
    examine(resource, given_options)


@QUICK
@given(resource=resources("tokenizer", "rollout"), given_options=operators)
def test_any_tokenizer(resource: dict[str, Any], given_options: Any) -> None:
    examine(resource, given_options)


@QUICK
@given(resource=resources("model", "postprocess"), given_options=operators)
def test_any_model(resource: dict[str, Any], given_options: Any) -> None:
    examine(resource, given_options)


@QUICK
@given(resource=resources("server"), given_options=operators)
def test_any_server(resource: dict[str, Any], given_options: Any) -> None:
    examine(resource, given_options)


BREAKS: list[tuple[dict[str, Any], str]] = [
    ({"server": {"args": ["--http-port=9"]}}, "spec.server.args[0]"),
    ({"server": {"version": "22.01"}}, "spec.server.version"),
    (
        {"server": {"env": [{"name": "TRITONPIPE_CONTROL_KEY", "value": ""}]}},
        "spec.server.env[0].name",
    ),
    (
        {"tokenizer": {"source": {"uri": "https://u:p@h/x", "revision": None, "path": None}}},
        "spec.tokenizer.source.uri",
    ),
    ({"model": {"source": {"uri": "s3:///x", "path": None}}}, "spec.model.source.uri"),
    ({"model": {"source": {"path": "../x"}}}, "spec.model.source.path"),
    ({"model": {"parameters": {"tritonpipe.x": "y"}}}, "spec.model.parameters"),
    (
        {
            "model": {
                "inputs": [{"name": "x", "dataType": "INT64", "dims": [-1], "from": "nosuch.x"}]
            }
        },
        "spec.model.inputs[0]",
    ),
    (
        {
            "tokenizer": {"inputs": {"text": "text"}},
            "model": {
                "inputs": [{"name": "x", "dataType": "INT64", "dims": [1], "from": "pipeline.text"}]
            },
        },
        "spec.model.inputs[0]",
    ),
    ({"ensemble": {"maxBatchSize": 65536}}, "spec.ensemble.maxBatchSize"),
    (
        {
            "postprocess": {
                "type": "Softmax",
                "from": "nosuch.x",
                "maskFrom": None,
                "normalize": None,
            }
        },
        "spec.postprocess.from",
    ),
]


@QUICK
@given(data=st.data(), given_options=operators, broken=st.sampled_from(BREAKS))
def test_a_broken_field_is_named(
    data: st.DataObject, given_options: Any, broken: tuple[dict[str, Any], str]
) -> None:
    changes, path = broken
    drawn = data.draw(resources("tokenizer", "postprocess", "rollout"))
    valid, wrong = parse(drawn)
    if valid is None or wrong:
        return
    pipeline, findings = parse(merge(drawn, {"spec": changes}))
    if pipeline is not None and not findings:
        findings = check(pipeline, build(pipeline, given_options), given_options)
    assert path in [item.path for item in findings]
