"""Check that the CRD follows the conventions of Kube-API-Linter (tests/support/crdlint.py).

Each exception states its reason, and each rule is shown to detect a violation.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import cel, crdlint
from triton_pipelines.api import crd, structural_schema

EXCEPTIONS = {
    "names": {"spec.*.allowTimeoutOverride": "Triton's own name; an enum all the same"},
    "enums": {
        "spec.*.dataType": "element types as Triton's protocol writes them",
        "spec.*.timeoutAction": "Triton's own words",
        "spec.*.instances.kind": "Triton's own words, and abbreviations that everybody knows",
        "spec.*.instances.groups[].kind": "as instances.kind",
        "spec.*.platform": "Triton's own words",
        "spec.*.controls[].kind": "Triton's own words",
        "spec.*.tensorrt.precision": "number formats, as Triton and TensorRT write them",
    },
    "yaml traps": {"status.conditions[].status": "metav1.Condition; written by the operator alone"},
    "maps": {
        "spec.*.parameters": "Triton's own string-to-string parameters",
        "spec.server.nodeSelector": "as in a Pod",
        "spec.server.service.annotations": "annotations, as in ObjectMeta",
    },
    "open objects": {
        "spec.server.env[].valueFrom": "as in a Pod",
        "spec.server.affinity": "as in a Pod",
        "spec.server.tolerations[]": "as in a Pod",
        "spec.server.topologySpreadConstraints[]": "as in a Pod",
        "spec.server.podTemplate": "a part of a Pod",
        "spec.*.configPatch": "a part of Triton's ModelConfig, parsed by its own proto",
        "spec.*.engineArgs": "vLLM's own arguments",
        "spec.server.networkPolicy.inferenceFrom[]": "peers, as in a NetworkPolicy",
        "spec.server.networkPolicy.metricsFrom[]": "peers, as in a NetworkPolicy",
        "spec.server.networkPolicy.egress[]": "rules, as in a NetworkPolicy",
    },
    "atomic lists": {
        "spec.tokenizer.buckets": "the order has a meaning",
        "spec.*.dims": "a shape",
        "spec.*.reshape": "a shape",
        "spec.health.inputs[].shape": "a shape",
        "spec.health.inputs[].data": "elements in their order",
        "spec.*.instances.groups": "groups have no key, as in Triton",
        "spec.*.profiles": "the order is the one in which TensorRT is asked",
        "spec.*.files": "items have no key that is always there",
        "spec.postprocess.labels": "the order is the model's; two classes may share a name",
        "spec.server.args": "a command line",
        "spec.server.tolerations": "as in a Pod",
        "spec.server.topologySpreadConstraints": "items have no key that is always there",
        "spec.server.networkPolicy.*From": "as in a NetworkPolicy",
        "spec.server.networkPolicy.egress": "as in a NetworkPolicy",
        "status.ensemble.*puts": "in the order in which clients see them; one writer",
        "status.ensemble.*puts[].shape": "a shape",
        "status.padding.measured": "no key; one writer",
        "status.padding.measured[].buckets": "the order has a meaning",
        "status.warnings": "no key; one writer",
        "status.scaling.history": "no key; one writer",
        "status.tuning.points": "no key; one writer",
    },
    "defaults": {
        "status": "until the operator has looked, kstatus must not take the object for current"
    },
    "tested defaults": {
        "spec.*.modelName": (
            "names have to be distinct with the defaults filled in, which is what the rule asks"
        ),
        "spec.*.mode": "the default is the side that the rule has nothing against",
        "spec.health.inference": "the default is the side that the rule has nothing against",
        "spec.server.gpu.resourceName": "the default is the side that the rule has nothing against",
        "spec.tokenizer.truncation": "the default is the side that the rule has nothing against",
        "spec.tokenizer.inputs.text": "the rule says the default itself",
        "spec.server.gpu.count": "the default has a GPU, which is what the rule asks for",
    },
}

DEFINITION = crd.definition()
Doctor = Callable[[dict[str, Any]], object]


def test_the_definition_keeps_all_conventions() -> None:
    assert crdlint.findings(DEFINITION, EXCEPTIONS) == []


def _small() -> dict[str, Any]:
    """Return a valid definition, small enough that each change below breaks only its own rule."""
    text = {"type": "string", "maxLength": 10}
    condition = {
        **{
            name: {**text, "description": "As in metav1.Condition."}
            for name in ("type", "reason", "message", "lastTransitionTime")
        },
        "status": {
            "type": "string",
            "enum": ["True", "False", "Unknown"],
            "description": "Whether it holds.",
        },
        "observedGeneration": {
            "type": "integer",
            "format": "int64",
            "minimum": 0,
            "maximum": 9,
            "description": "Judged spec.",
        },
    }
    spec = {
        "size": {
            "type": "integer",
            "format": "int32",
            "minimum": 0,
            "maximum": 9,
            "description": "How many run.",
        },
        "limit": {
            "type": "integer",
            "format": "int32",
            "minimum": 0,
            "maximum": 9,
            "description": "Most that run.",
        },
        "waitSeconds": {
            "type": "integer",
            "format": "int32",
            "minimum": 0,
            "maximum": 9,
            "default": 1,
            "description": "Longest pause, in seconds.",
        },
        "side": {
            "type": "string",
            "enum": ["Left", "RightHand"],
            "description": "Where it stands.",
        },
        "label": {**text, "description": "Shown to people."},
        "memory": {
            structural_schema.INT_OR_STRING: True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 9,
            "description": "Most bytes.",
        },
        "tags": {
            "type": "array",
            "maxItems": 3,
            "x-kubernetes-list-type": "set",
            "items": text,
            "description": "Words to find it by.",
        },
        "parts": {
            **{
                "type": "array",
                "maxItems": 3,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "description": "Made of these.",
            },
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {**text, "description": "What people call it."}},
            },
        },
        "dataRef": {
            **{"type": "object", "required": ["name"], "description": "Where the data lie."},
            "properties": {"name": {**text, "description": "What the ConfigMap is called."}},
        },
    }
    rule = {
        "rule": "!has(self.limit) || self.size <= self.limit",
        "message": "size must be at most limit",
        "fieldPath": ".size",
    }
    conditions = {
        **{
            "type": "array",
            "maxItems": 9,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "description": "What is known.",
        },
        "items": {
            "type": "object",
            "required": list(crdlint.CONDITION_FIELDS),
            "properties": condition,
        },
    }
    count = {
        "type": "integer",
        "format": "int32",
        "minimum": 0,
        "maximum": 9,
        "description": "How many run now.",
    }
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "description": "What is wanted.",
                "required": ["size"],
                "properties": spec,
                crdlint.RULES: [rule],
            },
            "status": {
                "type": "object",
                "description": "What was seen.",
                "properties": {"conditions": conditions, "replicas": count},
            },
        },
    }
    version = {
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": {"statusReplicasPath": ".status.replicas"}},
        "additionalPrinterColumns": [
            {"name": "Ready", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'}
        ],
    }
    return {"spec": {"versions": [version]}}


def _root(definition: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _spec(definition: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = _root(definition)["properties"]["spec"]
    return spec


def _set(name: str, **values: Any) -> Doctor:
    """Write keywords of a field of spec (``list_type`` for ``x-kubernetes-list-type``)."""
    return lambda definition: (
        _spec(definition)["properties"]
        .setdefault(name, {"description": "Something new."})
        .update(
            {
                key.replace("list_type", "x-kubernetes-list-type"): value
                for key, value in values.items()
            }
        )
    )


def _drop(name: str, keyword: str) -> Doctor:
    return lambda definition: _spec(definition)["properties"][name].pop(keyword)


def _rename(old: str, new: str) -> Doctor:
    return lambda definition: _spec(definition)["properties"].update(
        {new: _spec(definition)["properties"].pop(old)}
    )


def _rule(**values: str) -> Doctor:
    return lambda definition: _spec(definition)[crdlint.RULES][0].update(values)


def _rule_without_path(message: str) -> Doctor:
    def change(definition: dict[str, Any]) -> None:
        rule = _spec(definition)[crdlint.RULES][0]
        del rule["fieldPath"]
        rule["message"] = message

    return change


def _conditions(**values: Any) -> Doctor:
    return lambda definition: _root(definition)["properties"]["status"]["properties"][
        "conditions"
    ].update(
        {
            key.replace("list_map_keys", "x-kubernetes-list-map-keys"): value
            for key, value in values.items()
        }
    )


def _conditions_last(definition: dict[str, Any]) -> None:
    properties = _root(definition)["properties"]["status"]["properties"]
    properties["conditions"] = properties.pop("conditions")


def _condition_required(definition: dict[str, Any]) -> None:
    _root(definition)["properties"]["status"]["properties"]["conditions"]["items"][
        "required"
    ].remove("reason")


def _default_below_a_list(definition: dict[str, Any]) -> None:
    items = _spec(definition)["properties"]["parts"]["items"]
    items["properties"]["weight"] = {
        "type": "string",
        "maxLength": 3,
        "default": "low",
        "description": "How heavy.",
    }


MAP = {
    "type": "object",
    "additionalProperties": {"type": "string", "maxLength": 9},
    "maxProperties": 3,
    "description": "Free words.",
}
UNBOUNDED = {key: value for key, value in MAP.items() if key != "maxProperties"}
KEYS = {
    "rule": "self.all(key, size(key) <= 9)",
    "message": "each key must have at most 9 characters",
}

DOCTORED: list[tuple[str, str, Doctor]] = [
    ("description", "has no description", _drop("size", "description")),
    ("description", "says nothing", _set("size", description="The size.")),
    ("description", "full stop", _set("size", description="How many run")),
    ("names", "not camelCase", _rename("label", "the_label")),
    ("names", "abbreviated: cfg", _rename("label", "cfgLabel")),
    ("names", "like a boolean", _rename("label", "enableLabel")),
    ("names", "phase", _rename("label", "phase")),
    ("types", "keywords", _set("label", nullable=True)),
    ("types", "is a boolean", _set("label", type="boolean")),
    ("types", "is a number", _set("label", type="number")),
    ("types", "is a null", _set("label", type="null")),
    ("types", "has no type", _drop("side", "type")),
    ("types", "no schema", _set("label", additionalProperties=False)),
    ("integers", "format", _drop("size", "format")),
    ("integers", "lacks a bound", _drop("size", "maximum")),
    ("integers", "do not fit", _set("size", maximum=2**31)),
    ("strings", "maxLength", _drop("label", "maxLength")),
    ("strings", "maxLength", _drop("memory", "maxLength")),
    ("lists", "maxItems", _drop("tags", "maxItems")),
    ("lists", "how it merges", _drop("tags", "x-kubernetes-list-type")),
    (
        "lists",
        "map keys",
        lambda definition: _spec(definition)["properties"]["parts"]["items"].pop("required"),
    ),
    ("lists", "neither text nor number", _set("parts", list_type="set")),
    ("atomic lists", "replaced as a whole", _set("tags", list_type="atomic")),
    ("maps", "free keys", _set("words", **MAP, **{crdlint.RULES: [KEYS]})),
    ("map bounds", "maxProperties", _set("words", **UNBOUNDED, **{crdlint.RULES: [KEYS]})),
    ("map bounds", "keys have no bound", _set("words", **MAP)),
    ("open objects", "takes anything", _set("extra", type="object", **{crdlint.PRESERVE: True})),
    ("open objects", "takes anything", _set("extra", type="object")),
    ("units", "a unit", _rename("waitSeconds", "waitTimeout")),
    ("units", "a unit", _set("size", description="How many seconds it runs.")),
    (
        "units",
        "speaks of microseconds",
        _set("waitSeconds", description="Longest pause, in microseconds."),
    ),
    ("enums", "CamelCase", _set("side", enum=["left_hand"])),
    ("yaml traps", "no text to YAML", _set("side", enum=["On"])),
    (
        "defaults",
        "outside spec",
        lambda definition: _root(definition)["properties"]["status"]["properties"][
            "replicas"
        ].update(default=1),
    ),
    ("defaults", "below a list", _default_below_a_list),
    ("defaults", "neither text nor number", _set("tags", default=["a"])),
    ("defaults", "not among its choices", _set("side", default="Below")),
    ("tested defaults", "tested by a rule", _set("limit", default=3)),
    ("required", "no field", lambda definition: _spec(definition)["required"].append("colour")),
    (
        "required",
        "one of them",
        lambda definition: _spec(definition)["required"].append("waitSeconds"),
    ),
    ("times", "a time", _set("label", format="date-time")),
    ("times", "a time", _rename("label", "startTime")),
    ("secrets", "a secret", _rename("label", "apiToken")),
    (
        "references",
        "without a required name",
        lambda definition: _spec(definition)["properties"]["dataRef"].pop("required"),
    ),
    ("conditions", "do not come first", _conditions_last),
    ("conditions", "do not merge", _conditions(list_map_keys=["reason"])),
    ("conditions", "lacks required", _condition_required),
    (
        "status",
        "no subresource",
        lambda definition: definition["spec"]["versions"][0]["subresources"].pop("status"),
    ),
    ("status", "is required", lambda definition: _root(definition)["required"].append("status")),
    (
        "status",
        "is no field",
        lambda definition: definition["spec"]["versions"][0]["subresources"]["scale"].update(
            statusReplicasPath=".status.pods"
        ),
    ),
    (
        "status",
        "is no field",
        lambda definition: definition["spec"]["versions"][0]["additionalPrinterColumns"][0].update(
            jsonPath=".status.phase"
        ),
    ),
    ("messages", "which is no field", _rule(fieldPath=".sizes")),
    ("messages", "empty", _rule(message="size must be at most limit.")),
    ("messages", "names none", _rule_without_path("it must be small enough")),
    ("messages", "what to write", _rule(message="size is bad")),
    ("size", "client-side apply", _set("label", description="&" * 44_000 + " is escaped.")),
]


@pytest.mark.parametrize(
    ("rule", "wrong", "doctor"), DOCTORED, ids=[f"{rule}: {wrong}" for rule, wrong, _ in DOCTORED]
)
def test_each_rule_can_be_broken(rule: str, wrong: str, doctor: Doctor) -> None:
    excused = {"yaml traps": {"status.conditions[].status": "metav1.Condition"}, "enums": {}}
    definition = _small()
    assert crdlint.findings(definition, excused) == []
    doctor(definition)
    found = crdlint.findings(definition, excused)
    assert any(line.startswith(f"{rule}:") and wrong in line for line in found), found


def test_every_rule_is_among_those_broken() -> None:
    assert {rule for rule, _, _ in DOCTORED} == set(crdlint.CHECKS)


def test_a_needless_exception_is_a_finding() -> None:
    excused = {
        "yaml traps": {"status.conditions[].status": "metav1.Condition"},
        "enums": {"spec.side": "no reason"},
    }
    assert crdlint.findings(_small(), excused) == [
        "enums: the exception spec.side is no longer needed"
    ]


def test_doctoring_the_real_definition_shows_as_well() -> None:
    definition = copy.deepcopy(DEFINITION)
    _spec(definition)["properties"]["replicas"].update(type="boolean")
    assert [
        line
        for line in crdlint.findings(definition, EXCEPTIONS)
        if "spec.replicas is a boolean" in line
    ]


def test_rules_are_asked_what_they_test() -> None:
    nodes = dict(structural_schema.walk(_root(_small())))
    ask = (
        "self.spec.parts.all(p, p.name != 'self.spec.label') && (has(self.spec.size) ? "
        "self.spec.size > 1 : self.spec.tags.exists(t, t == 'x'))"
    )
    assert cel.tested(ask, nodes[""], "") == {
        "spec.parts",
        "spec.parts[].name",
        "spec.size",
        "spec.tags",
    }
    assert cel.alternatives("!has(self.a) || (self.b || self.c) || self.d == '||'") == [
        "!has(self.a)",
        "(self.b || self.c)",
        "self.d == '||'",
    ]
    assert cel.alternatives("a || b ? c : d") == ["a || b ? c : d"]
