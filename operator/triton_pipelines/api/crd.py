"""The CustomResourceDefinition, generated from the models.

One source for the API server, the command line and the reference.

``python -m triton_pipelines.api.crd`` prints it; ``crds/`` holds the printed text, and a test holds
the two together.

Pydantic speaks JSON Schema 2020-12, the API server a *structural* subset of OpenAPI 3.0. This
module is the bridge: references are inlined, ``null`` alternatives dropped (an optional field is
one that may be left out), exclusive bounds and constants rewritten, integers given a format and
bounds, and each model's rules set beside it as ``x-kubernetes-validations``.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from . import names
from .base import ApiModel
from .status import Status
from .v1alpha1 import ROOT_RULES, InferencePipeline, PipelineSpec

INT32_MAX = 2**31 - 1
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
VALIDATIONS = "x-kubernetes-validations"
# Own marker of the models (see server.py): the items of this list are parts of the Kubernetes API
# passed on as written.
ITEMS_PRESERVE = "items-preserve"

# What is taken over from a pydantic schema as it is; all else is either rewritten below or has no
# meaning for the API server.
_KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    PRESERVE,
)


def model_classes(root: type[ApiModel]) -> dict[str, type[ApiModel]]:
    """All model classes by name, as pydantic names them in ``$defs`` (names are distinct in this package)."""
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(model_classes(child))
    return found


def validations(model: type[ApiModel]) -> list[dict[str, Any]]:
    """The model's rules as ``x-kubernetes-validations``."""
    return [
        {
            "rule": rule.cel,
            "message": rule.message,
            **({"fieldPath": f".{rule.field}"} if rule.field else {}),
            "reason": "FieldValueInvalid",
        }
        for rule in model.rules
    ]


class _Structural:
    """Turns one model's JSON schema into a structural schema.

    Args:
        model: the class at the root.
        defaults: write scalar defaults (for ``spec``); ``status`` is written by the operator and
            takes none.
    """

    def __init__(self, model: type[ApiModel], *, defaults: bool) -> None:
        self._schema = model.model_json_schema(by_alias=True, mode="validation")
        self._definitions: Mapping[str, Any] = self._schema.pop("$defs", {})
        self._classes = model_classes(ApiModel)
        self._root = model
        self._defaults = defaults

    def convert(self) -> dict[str, Any]:
        """The structural schema of the whole model."""
        return self._object(self._schema, self._root, below_list=False)

    def _node(self, schema: Mapping[str, Any], *, below_list: bool) -> dict[str, Any]:
        schema, model = self._resolve(schema)
        if model is not None:
            return self._object(schema, model, below_list=below_list)
        result = {key: schema[key] for key in _KEPT if key in schema}
        if schema.get(INT_OR_STRING):
            return self._int_or_string(schema, result)
        if "const" in schema:
            result["enum"] = [schema["const"]]
        kind = schema.get("type")
        if kind == "integer":
            _bound(schema, result)
        elif kind == "array":
            result["items"] = self._items(schema)
        elif kind == "object" and PRESERVE not in schema:
            self._map(schema, result, below_list=below_list)
        return result

    def _resolve(
        self, schema: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], type[ApiModel] | None]:
        """Follow ``$ref`` and drop ``null`` alternatives.

        What stands beside a reference (description, default) wins.
        """
        model = None
        while "$ref" in schema or "anyOf" in schema:
            beside = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}
            if "$ref" in schema:
                name = schema["$ref"].rsplit("/", 1)[1]
                model = self._classes.get(name)
                target = self._definitions[name]
            else:
                alternatives = [one for one in schema["anyOf"] if one.get("type") != "null"]
                if len(alternatives) != 1:
                    raise ValueError(
                        f"a union cannot be said in a structural schema: {schema['anyOf']}"
                    )
                target = alternatives[0]
            schema = {**target, **beside}
        return schema, model

    def _object(
        self, schema: Mapping[str, Any], model: type[ApiModel], *, below_list: bool
    ) -> dict[str, Any]:
        result: dict[str, Any] = {
            "type": "object",
            "description": " ".join(schema["description"].split()),
        }
        properties = {}
        for key, value in schema.get("properties", {}).items():
            properties[key] = self._node(value, below_list=below_list)
            default = value.get("default")
            # A default below a list would make GitOps tools show its items as changed for ever.
            if self._defaults and not below_list and isinstance(default, (str, int)):
                properties[key]["default"] = default
        result["properties"] = properties
        if schema.get("required"):
            result["required"] = list(schema["required"])
        if model.rules:
            result[VALIDATIONS] = validations(model)
        return result

    def _items(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        if schema.get(ITEMS_PRESERVE):
            return {"type": "object", PRESERVE: True}
        return self._node(schema["items"], below_list=True)

    def _map(self, schema: Mapping[str, Any], result: dict[str, Any], *, below_list: bool) -> None:
        result["additionalProperties"] = self._node(
            schema["additionalProperties"], below_list=below_list
        )
        longest = schema.get("propertyNames", {}).get("maxLength")
        if longest is not None:  # structural schemas know no propertyNames
            result[VALIDATIONS] = [
                {
                    "rule": f"self.all(key, size(key) <= {longest})",
                    "message": f"each key must have at most {longest} characters",
                    "reason": "FieldValueInvalid",
                }
            ]

    @staticmethod
    def _int_or_string(schema: Mapping[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        result.pop("type", None)
        # pattern and maxLength judge only strings, minimum only numbers
        return {
            **result,
            INT_OR_STRING: True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": schema.get("minimum", 0),
        }


def _bound(schema: Mapping[str, Any], result: dict[str, Any]) -> None:
    """Bounds and format of an integer.

    The pydantic form of exclusive bounds becomes an inclusive one.
    """
    if "exclusiveMinimum" in schema:
        result["minimum"] = schema["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in schema:
        result["maximum"] = schema["exclusiveMaximum"] - 1
    if "minimum" not in result or "maximum" not in result:
        raise ValueError(f"an integer needs both bounds: {schema}")
    result.setdefault(
        "format",
        "int32" if max(abs(result["minimum"]), abs(result["maximum"])) <= INT32_MAX else "int64",
    )


# Descriptions from this length on (characters) are written out once: the whole definition has to
# fit the annotation in which a client-side apply keeps it (262144 bytes).
WRITTEN_ONCE_FROM = 80


def write_once(schema: dict[str, Any], root: str) -> dict[str, Any]:
    """The schema with every long description written out at its first place, and a pointer to that at the others."""
    first: dict[str, str] = {}
    for path, node in walk(schema, root):
        text = node.get("description", "")
        place = first.setdefault(text, path)
        pointer = f"As {place}."
        if place != path and len(text) >= WRITTEN_ONCE_FROM and len(pointer) < len(text):
            assert isinstance(node, dict)
            node["description"] = pointer
    return schema


def structural(model: type[ApiModel], *, defaults: bool = True) -> dict[str, Any]:
    """The structural schema of one model; ``defaults=False`` for what the operator writes (status)."""
    return _Structural(model, defaults=defaults).convert()


def _column(
    name: str, path: str, description: str, kind: str = "string", priority: int = 0
) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "description": description,
        "jsonPath": path,
        **({"priority": priority} if priority else {}),
    }


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


PRINTER_COLUMNS = (
    _column("Ready", _condition("Ready", "status"), "Whether every pod serves the latest spec."),
    _column("Replicas", ".status.readyReplicas", "Pods whose ensemble is ready.", "integer"),
    _column(
        "Tokenizers",
        ".status.tokenizer.summary",
        "Tokenizer instances in a pod, of the most that are allowed.",
    ),
    _column(
        "Bottleneck", ".status.scaling.bottleneck", "What limits the pipeline, as scaling sees it."
    ),
    # Without it, `kubectl get -w` would not tell why a rollout waits or failed.
    _column("Reason", _condition("Ready", "reason"), "Why Ready has its value."),
    _column("Age", ".metadata.creationTimestamp", "Time since creation.", "date"),
    _column("Revision", ".status.revision", "Revision of the latest spec.", priority=1),
    _column("Message", _condition("Ready", "message"), "What it is, and what to do.", priority=1),
)


NOT_OBSERVED = -1
"""``status.observedGeneration`` of a resource that the operator has not seen."""


def root_schema() -> dict[str, Any]:
    """The structural schema of the whole resource."""
    return {
        "type": "object",
        "description": f"{names.KIND}: {(InferencePipeline.__doc__ or '').strip()}",
        "properties": {
            "apiVersion": {
                "type": "string",
                "description": "Version of the schema of this object.",
            },
            "kind": {"type": "string", "description": "Kind of this object."},
            "metadata": {"type": "object"},
            "spec": write_once(structural(PipelineSpec), "spec"),
            # Until the operator has looked, the observed generation is none: otherwise kstatus
            # (Flux, Helm) takes a new object for current.
            "status": {
                **structural(Status, defaults=False),
                "default": {"observedGeneration": NOT_OBSERVED},
            },
        },
        "required": ["spec"],
        VALIDATIONS: [dict(rule) for rule in ROOT_RULES],
    }


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition (``apiextensions.k8s.io/v1``) as a dictionary."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.PLURAL}.{names.GROUP}",
            "labels": {names.LABEL_NAME: names.APP},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": [names.CATEGORY],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [dict(column) for column in PRINTER_COLUMNS],
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "schema": {"openAPIV3Schema": root_schema()},
                }
            ],
        },
    }


def stored(document: Mapping[str, Any]) -> dict[str, Any]:
    """A resource as an API server stores it, which writes the schema's defaults out where the object that holds them is there; what does not
    fit the schema stays as it is. The argument is left alone."""

    def filled(value: Any, schema: Mapping[str, Any]) -> Any:
        if isinstance(value, list):
            return [filled(item, schema.get("items", {})) for item in value]
        if not isinstance(value, Mapping):
            return value
        known = schema.get("properties", {})
        value = {
            key: copy.deepcopy(part["default"]) for key, part in known.items() if "default" in part
        } | dict(value)
        return {
            key: filled(item, known.get(key) or schema.get("additionalProperties", {}))
            for key, item in value.items()
        }

    result: dict[str, Any] = filled(document, _root_schema())
    return result


@functools.cache
def _root_schema() -> dict[str, Any]:
    return root_schema()


def walk(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every node of a structural schema with its path (``spec.model.inputs[].name``.

    ``{}`` stands for a map's values).
    """
    yield path, schema
    for key, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{key}" if path else key)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


class _Dumper(yaml.SafeDumper):
    """No anchors and aliases: kubectl reads them, people do not."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def render() -> str:
    """The CustomResourceDefinition as YAML; the same bytes on every call."""
    text: str = yaml.dump(
        definition(), Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True
    )
    return (
        "# Generated by `python -m triton_pipelines.api.crd` from the models in"
        " operator/triton_pipelines/api. Do not edit.\n" + text
    )


if __name__ == "__main__":
    sys.stdout.write(render())
