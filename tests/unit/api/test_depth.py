"""The depth of documents and of open fields is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import builders, libyaml
from triton_pipelines.api import crd, parse
from triton_pipelines.api.depth import deep_path, expanded_size, is_deeper_than
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.open_fields import MAX_ITEMS, PRESERVE, OpenForm, outside

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"


def nested(depth: int, leaf: Any = 1) -> Any:
    """Return maps and lists in turn, ``depth`` levels deep."""
    value = leaf
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


@pytest.mark.parametrize("depth", [0, 1, 7, 64, 5_000])
def test_depth_is_counted_in_maps_and_lists(depth: int) -> None:
    value = nested(depth)
    assert not is_deeper_than(value, depth)
    assert deep_path(value, depth) is None
    if depth:
        assert is_deeper_than(value, depth - 1)
        path = deep_path(value, depth - 1)
        assert path is not None
        assert len(path) == depth - 1


def test_aliases_do_not_multiply_the_work() -> None:
    value: Any = [1]
    for _ in range(60):
        value = [value, value]
    assert not is_deeper_than(value, 61)
    assert deep_path(value, 61) is None
    assert expanded_size(value, 1_000) == 1_001
    own: dict[str, Any] = {}
    own["self"] = own
    assert is_deeper_than(own, 1_000)


@pytest.mark.parametrize("depth", [61, 500, 1_000, 5_000, 9_990])
def test_a_deep_resource_is_a_finding_of_its_field(depth: int) -> None:
    document = builders.document()
    document["spec"]["server"] = {"podTemplate": {"spec": nested(depth)}}
    pipeline, findings = parse(document)
    assert pipeline is None
    assert [(item.path, item.code) for item in findings] == [
        ("spec.server.podTemplate.spec", FindingCode.TOO_LARGE)
    ]


def _raw_nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for child in schema.values():
            yield from _raw_nodes(child)


def test_no_part_of_the_definition_is_of_any_depth() -> None:
    """What may hold anything has bounds for its items and its keys."""
    open_nodes = [node for node in _raw_nodes(crd.root_schema()) if node.get(PRESERVE)]
    assert open_nodes
    for node in open_nodes:
        assert "items" in node or node["maxItems"] == 0
        assert "additionalProperties" in node or node["maxProperties"] == 0


# The deepest part of each API that a field passes on, as users write it.
DEEPEST = {
    OpenForm.REFERENCE: {"secretKeyRef": {"name": "s", "key": "k", "optional": True}},
    OpenForm.TOLERATION: {"key": "k", "operator": "Exists", "tolerationSeconds": 5},
    OpenForm.SELECTING: {
        "labelSelector": {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]},
        "podSelector": {"matchLabels": {"a": "b"}},
        "ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]},
        "matchLabelKeys": ["k"],
        "maxSkew": 1,
    },
    OpenForm.EGRESS_RULE: {
        "to": [
            {
                "namespaceSelector": {"matchLabels": {"a": "b"}},
                "podSelector": {
                    "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]
                },
            },
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]}},
        ],
        "ports": [{"port": 443, "endPort": 444, "protocol": "TCP"}],
    },
    OpenForm.AFFINITY: {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}
                ]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "preference": {
                        "matchFields": [{"key": "k", "operator": "In", "values": ["v"]}]
                    },
                }
            ],
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchExpressions": [{"key": "k", "values": ["v"]}]}}
            ],
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "namespaceSelector": {"matchExpressions": [{"key": "k", "values": ["v"]}]},
                        "topologyKey": "zone",
                    },
                }
            ],
        },
    },
    OpenForm.MODEL_CONFIG: {
        "optimization": {
            "cuda": {
                "graphs": True,
                "graph_spec": [
                    {
                        "batch_size": 1,
                        "input": {"X": {"dim": [1, 2]}},
                        "graph_lower_bound": {"batch_size": 1, "input": {"X": {"dim": [1]}}},
                    }
                ],
            },
            "execution_accelerators": {
                "gpu_execution_accelerator": [{"name": "tensorrt", "parameters": {"a": "b"}}]
            },
        },
        "sequence_batching": {
            "control_input": [{"name": "X", "control": [{"fp32_false_true": [0.0, 1.0]}]}],
            "state": [{"initial_state": [{"name": "s", "dims": [1], "zero_data": True}]}],
        },
        "model_warmup": [{"name": "w", "inputs": {"X": {"dims": [1], "zero_data": True}}}],
        "instance_group": [
            {"rate_limiter": {"resources": [{"name": "r", "count": 1}]}, "secondary_devices": []}
        ],
        "parameters": {"a": {"string_value": "b"}},
        "dynamic_batching": None,
    },
    OpenForm.CPU_MODEL_CONFIG: {
        "model_warmup": [{"name": "w", "inputs": {"X": {"dims": [1], "zero_data": True}}}],
        "instance_group": [{"rate_limiter": {"resources": [{"name": "r", "count": 1}]}}],
        "optimization": {"input_pinned_memory": {"enable": False}, "priority": 1},
        "parameters": {"a": {"string_value": "b"}},
        "batch_input": [{"kind": 0, "target_name": ["X"]}],
        "dynamic_batching": None,
    },
    OpenForm.ENGINE_ARGS: {
        "hf_overrides": {"rope_scaling": {"factor": 2.0, "short_factor": [1.0, 1.5]}},
        "limit_mm_per_prompt": {"image": 4},
        "enforce_eager": True,
        "cuda_graph_sizes": [1, 2],
    },
}
SELECTOR = {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}
DEEPEST[OpenForm.POD_TEMPLATE] = {
    "metadata": {"labels": {"a": "b"}, "annotations": None},
    "spec": {
        "affinity": DEEPEST[OpenForm.AFFINITY],
        "securityContext": {"sysctls": [{"name": "n", "value": "v"}]},
        "dnsConfig": {"options": [{"name": "ndots", "value": "1"}], "searches": ["a"]},
        "tolerations": [{"key": "k"}],
        "schedulingGates": [{"name": "g"}],
        "topologySpreadConstraints": [{"labelSelector": SELECTOR, "matchLabelKeys": ["k"]}],
        "containers": [
            {
                "name": "triton",
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "a", "value": "b"}]}},
                "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
                "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},
                "resources": {"claims": [{"name": "gpu"}], "limits": {"memory": "1Gi"}},
            }
        ],
        "volumes": [
            {
                "name": "token",
                "projected": {
                    "sources": [
                        {
                            "downwardAPI": {
                                "items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]
                            }
                        },
                        {"configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}},
                        {"clusterTrustBundle": {"labelSelector": SELECTOR, "path": "p"}},
                    ]
                },
            },
            {
                "name": "claim",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "metadata": {"labels": {"a": "b"}},
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "resources": {"requests": {"storage": "1Gi"}},
                            "selector": SELECTOR,
                        },
                    }
                },
            },
        ],
    },
}


@pytest.mark.parametrize("form", OpenForm)
def test_the_deepest_parts_of_the_apis_are_allowed(form: OpenForm) -> None:
    assert outside(DEEPEST[form], form) is None


@pytest.mark.parametrize("form", OpenForm)
def test_more_levels_and_items_are_rejected(form: OpenForm) -> None:
    deep = outside({"a": nested(12)}, form)
    assert deep is not None
    assert "too deeply" in deep.message
    deep = outside(
        {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {}, "b": {"c": 1}}}}}}}}}}, form
    )
    assert deep is not None


def test_long_lists_are_rejected() -> None:
    long = {"spec": {"containers": [{"name": str(number)} for number in range(MAX_ITEMS + 1)]}}
    found = outside(long, OpenForm.POD_TEMPLATE)
    assert found is not None
    assert found.path == ".spec.containers"
    assert str(MAX_ITEMS) in found.message


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_samples_are_within_the_bounds(sample: Path) -> None:
    for document in libyaml.load_all(sample.read_text(encoding="utf-8")):
        assert not is_deeper_than(document, 32)
        if document.get("kind") == "InferencePipeline":
            assert parse(document)[1] == []
