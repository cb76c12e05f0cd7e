"""The fields of the resource as paths of its CRD, and which of them a document writes.

A *field* is what a user gives a value: text, a number, a list of those, a mapping, a part of the
Kubernetes API passed on as written, an object that takes no further fields. Objects and lists of
objects are only the way there. Paths are those of `triton_pipelines.api.structural_schema.walk`:
``spec.model.inputs[].name``; a field that is a list or a mapping itself has no mark at its end.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support import libyaml
from triton_pipelines.api import crd, names, structural_schema
from triton_pipelines.api.base import ApiModel
from triton_pipelines.api.field_paths import model_below
from triton_pipelines.api.v1alpha1 import PipelineSpec


def _is_way(node: Mapping[str, Any]) -> bool:
    """Return whether the node only leads to fields.

    Such a node is an object with properties, or a list or mapping of such objects.
    """
    inner = node.get("items") or node.get("additionalProperties")
    return bool(node.get("properties")) or (isinstance(inner, Mapping) and _is_way(inner))


@functools.cache
def whole_schema() -> Mapping[str, Any]:
    """Return the schema of the resource; callers must not change it."""
    return crd.root_schema()


@functools.cache
def _properties(model: type[ApiModel]) -> Mapping[str, Any]:
    """The properties of one class in its schema: many places hold the same class."""
    properties: Mapping[str, Any] = structural_schema.structural(model)["properties"]
    return properties


def fields() -> dict[str, Mapping[str, Any]]:
    """Return every field of the spec with its schema, in the schema's order."""
    return {
        path: node
        for path, node in structural_schema.walk(whole_schema())
        if path.startswith("spec.") and not path.endswith(("[]", "{}")) and not _is_way(node)
    }


def fields_of(document: Mapping[str, Any]) -> set[str]:
    """Return paths of the fields that a resource sets.

    A ``null`` counts as not set. Keys that are not fields are ignored.
    """
    return set(_written(document.get("spec"), whole_schema()["properties"]["spec"], "spec"))


def _written(value: Any, node: Mapping[str, Any], path: str) -> Iterator[str]:
    if value is None:
        return
    if not _is_way(node):
        yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key in node.get("properties", {}):
                yield from _written(item, node["properties"][key], f"{path}.{key}")
            elif isinstance(node.get("additionalProperties"), Mapping):
                yield from _written(item, node["additionalProperties"], f"{path}{{}}")
    elif isinstance(value, list):
        for item in value:
            yield from _written(item, node["items"], f"{path}[]")


def owners(model: type[ApiModel] = PipelineSpec, root: str = "spec") -> dict[str, str]:
    """Return the path of each field with the class and field that define it.

    Fields of one type, such as ``Source.uri``, have several paths.
    """
    found: dict[str, str] = {}
    properties = _properties(model)
    for name, info in model.model_fields.items():
        key = info.alias or name
        owner = next(
            base
            for base in reversed(model.__mro__)
            if issubclass(base, ApiModel) and name in base.model_fields
        )
        path, child = f"{root}.{key}", model_below(info.annotation)
        found[path] = f"{owner.__name__}.{key}"
        if child is not None:
            found |= owners(child, f"{path}[]" if properties[key]["type"] == "array" else path)
    return found


def resources_in(place: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the resources in a YAML file or in the YAML files of a folder.

    A resource is a whole document, or below ``resource`` (golden cases).
    """
    for file in sorted(place.glob("*.yaml")) if place.is_dir() else [place]:
        for document in libyaml.load_all(file.read_text(encoding="utf-8")):
            inner = document.get("resource", document) if isinstance(document, dict) else None
            if isinstance(inner, dict) and inner.get("kind") == names.KIND:
                yield file, inner
