"""What makes a new revision and what must not."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.support.builders import SHA256, built, options
from triton_pipelines.api.loadplan import FetchKind, LoadPlan
from triton_pipelines.compile.render import render as _render_function  # noqa: F401
from triton_pipelines.compile.render.errors import RenderError
from triton_pipelines.compile.render.objects import revision_config_map
from triton_pipelines.compile.render.render import Revision

# The package's attribute of this name is a function.
MODULE = sys.modules[Revision.__module__]
CODE = {"platform": "python", "python": {"code": {"inline": "x = 1"}}, "source": None}

SAME: dict[str, dict[str, Any]] = {
    "replicas": {"replicas": 7},
    "no replicas": {"replicas": 0},
    "suspend": {"suspend": "Enabled"},
    "service": {"server": {"service": {"type": "NodePort", "annotations": {"a": "b"}}}},
    "network policy": {"server": {"networkPolicy": {"mode": "Disabled"}}},
    "peers": {"server": {"networkPolicy": {"inferenceFrom": [{"podSelector": {}}]}}},
    "egress": {"server": {"networkPolicy": {"egress": [{"to": [{"podSelector": {}}]}]}}},
    "exposed service": {"server": {"service": {"type": "LoadBalancer"}}},
    "headless service": {"server": {"service": {"headless": "Enabled"}}},
    "acting account": {"serviceAccountName": "writer"},
    "disruption budget": {"server": {"disruptionBudget": "Disabled"}},
    "strategy": {"rollout": {"strategy": "Recreate"}},
    "progress deadline": {"rollout": {"progressDeadlineSeconds": 86400}},
    "history": {"rollout": {"revisionHistoryLimit": 9}},
    "health": {"health": {"inference": "Disabled", "periodSeconds": 5}},
    "version": {"server": {"version": "24.10"}},
    "a default written out": {"tokenizer": {"maxLength": 512, "instances": {"min": 1, "max": 4}}},
}

OTHER: dict[str, dict[str, Any]] = {
    "initial count": {"tokenizer": {"instances": {"initial": 2}}},
    "bounds": {"tokenizer": {"instances": {"max": 9}}},
    "max length": {"tokenizer": {"maxLength": 64}},
    "truncation": {"tokenizer": {"truncation": "Refuse"}},
    "special tokens": {"tokenizer": {"specialTokens": "Disabled"}},
    "padding": {"tokenizer": {"padding": "Longest"}},
    "buckets": {"tokenizer": {"padding": "Bucketed", "buckets": [32]}},
    "text input": {"tokenizer": {"inputs": {"text": "QUERY"}}},
    "token type": {
        "tokenizer": {
            "outputs": [{"name": "input_ids", "dataType": "INT32"}, {"name": "attention_mask"}]
        }
    },
    "tokenizer name": {"tokenizer": {"modelName": "tok"}},
    "tokenizer source": {"tokenizer": {"source": {"uri": "hf://org/other"}}},
    "source revision": {"tokenizer": {"source": {"revision": "a"}}},
    "checksum": {"tokenizer": {"source": {"sha256": SHA256}}},
    "source path": {"model": {"source": {"path": "a.onnx"}}},
    "credentials": {"model": {"source": {"secretRef": {"name": "s"}}}},
    "other credentials": {"model": {"source": {"secretRef": {"name": "t"}}}},
    "certificates": {"model": {"source": {"caRef": {"name": "s"}}}},
    "certificate key": {"model": {"source": {"caRef": {"name": "s", "key": "k"}}}},
    "endpoint": {"model": {"source": {"endpoint": "https://e"}}},
    "region": {"model": {"source": {"region": "r"}}},
    "model name": {"model": {"modelName": "bert"}},
    "platform": {"model": {"platform": "tensorrt_plan"}},
    "runner": {"model": {"platform": "python", "python": {"runner": "OnnxRuntime"}}},
    "code": {"model": CODE},
    "other code": {"model": {**CODE, "python": {"code": {"inline": "x = 2"}}}},
    "outputs": {"model": {"outputs": [{"name": "logits", "dataType": "FP16", "dims": [2]}]}},
    "batch size": {"model": {"maxBatchSize": 63}},
    "tokenizer batch size": {"tokenizer": {"maxBatchSize": 63}},
    "delay": {"model": {"dynamicBatching": {"maxQueueDelayMicroseconds": 1}}},
    "no delay": {"model": {"dynamicBatching": {"maxQueueDelayMicroseconds": 0}}},
    "queue": {"postprocess": {"dynamicBatching": {"queuePolicy": {"maxQueueSize": 5}}}},
    "no batching": {"model": {"dynamicBatching": {"mode": "Disabled"}}},
    "instances": {"model": {"instances": {"count": 2}}},
    "kind": {"model": {"instances": {"kind": "CPU"}}},
    "parameters": {"model": {"parameters": {"a": "b"}}},
    "labels": {"postprocess": {"labels": ["positive", "negative"]}},
    "no labels": {"postprocess": {"labels": None}},
    "top k": {"postprocess": {"topK": 2}},
    "type": {"postprocess": {"type": "Sigmoid"}},
    "postprocess instances": {"postprocess": {"instances": {"count": 2}}},
    "no postprocess": {"postprocess": None},
    "ensemble name": {"ensemble": {"modelName": "public"}},
    "ensemble batch": {"ensemble": {"maxBatchSize": 3}},
    "instance resources": {"tokenizer": {"resourcesPerInstance": {"cpu": "2"}}},
    "image": {"server": {"image": "x:24.10"}},
    "pull policy": {"server": {"imagePullPolicy": "IfNotPresent"}},
    "pull secrets": {"server": {"imagePullSecrets": [{"name": "p"}]}},
    "service account": {"server": {"serviceAccountName": "s"}},
    "env": {"server": {"env": [{"name": "A", "value": "1"}]}},
    "other env": {"server": {"env": [{"name": "A", "value": "2"}]}},
    "args": {"server": {"args": ["--log-verbose=1"]}},
    "GPUs": {"server": {"gpu": {"count": 2}}},
    "GPU resource": {"server": {"gpu": {"resourceName": "nvidia.com/mig-1g.5gb"}}},
    "products": {"server": {"gpu": {"products": ["A"]}}},
    "node selector": {"server": {"nodeSelector": {"a": "b"}}},
    "tolerations": {"server": {"tolerations": [{"operator": "Exists"}]}},
    "affinity": {"server": {"affinity": {"podAffinity": {}}}},
    "spread": {
        "server": {
            "topologySpreadConstraints": [
                {"maxSkew": 2, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}
            ]
        }
    },
    "runtime class": {"server": {"runtimeClassName": "r"}},
    "priority": {"server": {"priorityClassName": "p"}},
    "requests": {"server": {"resources": {"requests": {"cpu": "1"}}}},
    "limits": {"server": {"resources": {"limits": {"cpu": "9"}}}},
    "shared memory": {"server": {"sharedMemory": "1Gi"}},
    "drain": {
        "rollout": {"drainSeconds": 31}
    },  # the pod's own grace period and sleep: no other way than new pods
    "namespace": {"namespace": "other"},
    "name": {"name": "other"},
}


ACCOUNTS = options(service_accounts=("s",))


@pytest.fixture(scope="module")
def base() -> str:
    return built().render().name


@pytest.mark.parametrize("case", SAME)
def test_keeps_the_revision(case: str, base: str) -> None:
    assert built(**SAME[case]).render().name == base


@pytest.mark.parametrize("case", OTHER)
def test_makes_a_new_revision(case: str, base: str) -> None:
    assert built(ACCOUNTS, **OTHER[case]).render().name != base


def test_no_two_changes_give_the_same_revision(base: str) -> None:
    names = [built(ACCOUNTS, **changes).render().name for changes in OTHER.values()]
    assert len({base, *names}) == len(names) + 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"server_image": "x:25.01"}, True),
        ({"loader_image": "x:9"}, True),
        ({"image_pull_policy": "Always"}, True),
        ({"operator_namespace": "elsewhere"}, True),
        ({"custom_code_allowed": False}, True),
        ({"source_map": ("https://elsewhere/=https://mirror/",)}, True),
        ({"source_map": ("hf://=http://mirror",)}, False),
        ({"substitute_runner": frozenset({"onnxruntime_onnx"})}, False),
        ({"substitute_runner": frozenset({"tensorrt_plan"})}, True),
    ],
)
def test_operator_settings(given: dict[str, Any], kept: bool, base: str) -> None:
    assert (built(options(**given)).render().name == base) == kept


def test_content_of_configmap_sources_counts() -> None:
    one = built(tokenizer={"source": {"uri": "configmap://a/tokenizer.json"}})
    names = {
        one.render(digests).name
        for digests in (None, {"tokenizer": "1"}, {"tokenizer": "2"}, {"model": "1"})
    }
    assert len(names) == 4
    assert one.render({}).name == one.render(None).name


def test_the_order_of_a_set_does_not_count() -> None:
    one, other = (
        built(server={"gpu": {"products": products}}).render().name
        for products in (["A", "B"], ["B", "A"])
    )
    assert one == other


def test_default_images_stand_in_the_template_all_the_same() -> None:
    revision = built(
        options(server_image="x:25.01", loader_image="y:9", image_pull_policy="Always")
    ).render()
    pod = revision.template["spec"]
    assert (pod["containers"][0]["image"], pod["initContainers"][0]["image"]) == ("x:25.01", "y:9")
    assert (
        pod["containers"][0]["imagePullPolicy"],
        pod["initContainers"][0]["imagePullPolicy"],
    ) == ("Always", "Always")
    assert revision.server_image == "x:25.01"


def test_the_config_map_holds_plan_files_and_template() -> None:
    one = built()
    revision = one.render()
    stored = revision_config_map(one.pipeline, revision.name, revision.data)
    assert stored["immutable"] is True
    assert stored["metadata"]["name"] == f"sentiment-{revision.name}"
    plan = LoadPlan.model_validate_json(stored["data"]["plan.json"])
    assert plan.revision == revision.name
    assert {item.path: stored["data"][item.key] for item in plan.files} == revision.files
    record = json.loads(stored["data"]["deployment.json"])
    assert record == {"template": revision.template, "serverImage": revision.server_image}


@pytest.mark.parametrize(
    "changed",
    [{}, *OTHER.values()],
    ids=["plain", *OTHER],
)
def test_a_config_map_that_is_too_large_is_refused_before_it_is_needed(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = built(ACCOUNTS, **changed).render().data
    size = sum(len(key) + len(value.encode()) for key, value in data.items())
    monkeypatch.setattr(MODULE, "CONFIG_MAP_LIMIT", size)
    built(ACCOUNTS, **changed).render()
    monkeypatch.setattr(MODULE, "CONFIG_MAP_LIMIT", size - 1)
    with pytest.raises(RenderError, match=f"{size} bytes"):
        built(ACCOUNTS, **changed).render()


def test_content_of_a_usual_revision_is_rendered_when_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Revisions that exist in the cluster do not need it."""
    rendered, content = list[None](), MODULE._content

    def counted(*arguments: Any) -> Any:
        rendered.append(None)
        return content(*arguments)

    monkeypatch.setattr(MODULE, "_content", counted)
    revision = built().render()
    assert rendered == []
    assert revision.template
    assert revision.data
    assert len(rendered) == 1


@pytest.mark.parametrize(
    ("tokenizer", "cuts"),
    [
        ({}, False),
        ({"inputs": {"text": "QUERY", "textPair": "PASSAGE"}}, True),
        ({"inputs": {"text": "QUERY", "textPair": "PASSAGE"}, "truncation": "OnlySecond"}, True),
        ({"inputs": {"text": "QUERY", "textPair": "PASSAGE"}, "truncation": "Refuse"}, False),
    ],
)
def test_the_load_plan_names_truncated_pairs(tokenizer: dict[str, Any], cuts: bool) -> None:
    """Not every tokenizer allows it. A plan without such pairs keeps its bytes."""
    text = built(tokenizer=tokenizer).render().data["plan.json"]
    (fetch,) = (
        item
        for item in LoadPlan.model_validate_json(text).fetch
        if item.kind is FetchKind.TOKENIZER
    )
    assert fetch.cuts_pairs is cuts
    assert ("cutsPairs" in text) is cuts


def test_rendering_changes_no_argument() -> None:
    server = {
        "tolerations": [{"key": "a"}],
        "affinity": {"nodeAffinity": {}},
        "gpu": {"products": ["A"]},
    }
    one = built(server=server)
    before = one.pipeline.model_dump_json(by_alias=True)
    first = one.render()
    first.template["spec"]["tolerations"].clear()
    first.template["spec"]["affinity"]["nodeAffinity"].clear()
    assert one.pipeline.model_dump_json(by_alias=True) == before
    assert one.render().data == built(server=server).render().data
