"""Convert the models of the resource into structural schemas of Kubernetes.

Pydantic emits JSON Schema 2020-12; the API server accepts a *structural* subset of OpenAPI 3.0:

- References are inlined.
- ``null`` alternatives are dropped: an optional field is one that may be omitted.
- Exclusive bounds and constants are rewritten.
- Integers get a format and bounds.
- Each model's rules become its ``x-kubernetes-validations``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .base import ApiModel
from .open_fields import FORM, FORMS, ITEMS_FORM, is_open

INT32_MAX = 2**31 - 1
INT_OR_STRING = "x-kubernetes-int-or-string"
VALIDATIONS = "x-kubernetes-validations"

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
        if FORM in schema:
            return {**result, **FORMS[schema[FORM]]}
        if schema.get(INT_OR_STRING):
            return self._int_or_string(schema, result)
        if "const" in schema:
            result["enum"] = [schema["const"]]
        kind = schema.get("type")
        if kind == "integer":
            _bound(schema, result)
        elif kind == "array":
            result["items"] = self._items(schema)
        elif kind == "object":
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
            siblings = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}
            if "$ref" in schema:
                name = schema["$ref"].rsplit("/", 1)[1]
                model = self._classes.get(name)
                target = self._definitions[name]
            else:
                alternatives = [one for one in schema["anyOf"] if one.get("type") != "null"]
                if len(alternatives) != 1:
                    raise ValueError(
                        f"a union cannot be expressed in a structural schema: {schema['anyOf']}"
                    )
                target = alternatives[0]
            schema = {**target, **siblings}
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
        if ITEMS_FORM in schema:
            return dict(FORMS[schema[ITEMS_FORM]])
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
WRITTEN_ONCE_FROM = 20


def write_once(schema: dict[str, Any], root: str) -> dict[str, Any]:
    """Replace repetitions of a long description by a reference to its first path.

    The schema is changed in place and returned.
    """
    first: dict[str, str] = {}
    for path, node in walk(schema, root):
        text = node.get("description", "")
        place = first.setdefault(text, path)
        step, leaf = ".".join(place.split(".")[:2]), place.rpartition(".")[2]
        # Below two parts that are alike, the part that has the text says where it is.
        target = step if path.endswith(f".{leaf}") else place
        pointer = f"As {target.removeprefix(f'{root}.')}."
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


def walk(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every node of a structural schema with its path.

    A path looks like ``spec.model.inputs[].name``; ``{}`` denotes the values of a map. The levels
    below an open field are not yielded.
    """
    yield path, schema
    if is_open(schema):
        return
    for key, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{key}" if path else key)
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from walk(schema["additionalProperties"], f"{path}{{}}")
