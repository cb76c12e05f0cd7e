"""The CustomResourceDefinition, generated from the models.

The models are the single source for the API server, the command line and the reference.
``python -m triton_pipelines.api.crd`` prints the definition. ``crds/`` contains the printed text;
a test checks that both are equal.

Pydantic emits JSON Schema 2020-12; the API server accepts a *structural* subset of OpenAPI 3.0.
This module converts one into the other:

- References are inlined.
- ``null`` alternatives are dropped: an optional field is one that may be omitted.
- Exclusive bounds and constants are rewritten.
- Integers get a format and bounds.
- Each model's rules become its ``x-kubernetes-validations``.
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
# Our own marker in the models (see server.py): the items of this list are parts of the Kubernetes
# API that are passed on as written.
ITEMS_PRESERVE = "items-preserve"

# Keys of a pydantic schema that are copied unchanged. All others are either rewritten below or
# mean nothing to the API server.
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
    """Return all model classes by their name in pydantic's ``$defs``.

    Class names are unique in this package.
    """
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(model_classes(child))
    return found


def validations(model: type[ApiModel]) -> list[dict[str, Any]]:
    """Return the model's rules as ``x-kubernetes-validations``."""
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
    """Converts one model's JSON schema into a structural schema.

    Args:
        model: The class at the root.
        defaults: Whether to write scalar defaults, as for ``spec``. The operator writes ``status``,
            which therefore has none.
    """

    def __init__(self, model: type[ApiModel], *, defaults: bool) -> None:
        self._schema = model.model_json_schema(by_alias=True, mode="validation")
        self._definitions: Mapping[str, Any] = self._schema.pop("$defs", {})
        self._classes = model_classes(ApiModel)
        self._root = model
        self._defaults = defaults

    def convert(self) -> dict[str, Any]:
        """Return the structural schema of the whole model."""
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

        Keys next to a reference (description, default) take precedence over those of its target.
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
            # A default below a list would make GitOps tools report its items as changed forever.
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
        if longest is not None:  # structural schemas have no propertyNames
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
        # pattern and maxLength apply only to strings, minimum only to numbers.
        return {
            **result,
            INT_OR_STRING: True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": schema.get("minimum", 0),
        }


def _bound(schema: Mapping[str, Any], result: dict[str, Any]) -> None:
    """Set the bounds and the format of an integer in ``result``.

    Pydantic's exclusive bounds become inclusive ones.
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


# Descriptions of at least this many characters are written out only once, because the whole
# definition must fit into the annotation that a client-side apply stores (262144 bytes).
WRITTEN_ONCE_FROM = 80


def write_once(schema: dict[str, Any], root: str) -> dict[str, Any]:
    """Replace repetitions of a long description by a reference to its first path.

    The schema is changed in place and returned.
    """
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
    """Return the structural schema of one model.

    Args:
        model: The class at the root.
        defaults: Whether to write defaults; ``False`` for ``status``, which the operator writes.
    """
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
    # Without it, `kubectl get -w` would not show why a rollout waits or failed.
    _column("Reason", _condition("Ready", "reason"), "Why Ready has its value."),
    _column("Age", ".metadata.creationTimestamp", "Time since creation.", "date"),
    _column("Revision", ".status.revision", "Revision of the latest spec.", priority=1),
    _column("Message", _condition("Ready", "message"), "What it is, and what to do.", priority=1),
)


NOT_OBSERVED = -1
"""``status.observedGeneration`` of a resource that the operator has not processed yet."""


def root_schema() -> dict[str, Any]:
    """Return the structural schema of the whole resource."""
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
            # Until the operator has processed the object, its observed generation must differ
            # from the real one: otherwise kstatus (Flux, Helm) treats a new object as current.
            "status": {
                **structural(Status, defaults=False),
                "default": {"observedGeneration": NOT_OBSERVED},
            },
        },
        "required": ["spec"],
        VALIDATIONS: [dict(rule) for rule in ROOT_RULES],
    }


def definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition (``apiextensions.k8s.io/v1``) as a dictionary."""
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
    """Return a resource as an API server stores it.

    The API server writes the schema's defaults into every object that is present. Values that do
    not fit the schema are kept. The argument is not modified.
    """

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
    """Yield every node of a structural schema with its path.

    A path looks like ``spec.model.inputs[].name``; ``{}`` denotes the values of a map.
    """
    yield path, schema
    for key, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{key}" if path else key)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


class _Dumper(yaml.SafeDumper):
    """Writes no anchors and aliases: kubectl reads them, but people do not."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def render() -> str:
    """Return the CustomResourceDefinition as YAML; the same bytes on every call."""
    text: str = yaml.dump(
        definition(), Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True
    )
    return (
        "# Generated by `python -m triton_pipelines.api.crd` from the models in"
        " operator/triton_pipelines/api. Do not edit.\n" + text
    )


if __name__ == "__main__":
    sys.stdout.write(render())
