"""Find what other field managers wrote into a pipeline's status. Pure.

An apply replaces the operator's own fields, but keeps fields and list items of others. The status
describes what the operator observed, so what it does not report is removed again. Conditions of
other types are kept, as Kubernetes' API conventions ask for, unless the list has no room for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from triton_pipelines.api.conditions import ConditionType

# Merge keys of the status' own lists, as in its schema. Other lists are replaced as a whole.
LIST_KEYS: Final[Mapping[str, str]] = {
    "conditions": "type",
    "steps": "name",
    "sources": "step",
    "figures": "step",
}
# The schema's limit on the list of conditions.
CONDITIONS_MAX: Final = 16
_OWN_TYPES: Final = frozenset(item.value for item in ConditionType)


def foreign_fields(live: Mapping[str, Any], desired: Mapping[str, Any]) -> list[str]:
    """Return the JSON pointers of what a status has beyond the desired one.

    Removing them in this order keeps the rest of them valid.

    Args:
        live: ``status`` of the pipeline.
        desired: The status that the operator reports.
    """
    return list(_fields(live, desired, "/status"))


def removal(metadata: Mapping[str, Any], pointers: Sequence[str]) -> list[dict[str, Any]]:
    """Return the JSON patch that removes fields, unless the object has changed.

    Args:
        metadata: ``metadata`` of the pipeline that has the fields.
        pointers: What to remove: :func:`foreign_fields`.
    """
    version = metadata["resourceVersion"]
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        *({"op": "remove", "path": pointer} for pointer in pointers),
    ]


def _fields(live: Mapping[str, Any], desired: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, value in live.items():
        desired_value, pointer = desired.get(name), f"{path}/{name}"
        if name in LIST_KEYS and isinstance(value, list):
            yield from _items(value, desired_value or [], name, pointer)
        elif name not in desired:
            # An empty value reports nothing, and the API server may leave one behind.
            yield from () if value in ({}, [], "", None) else (pointer,)
        elif isinstance(value, Mapping) and isinstance(desired_value, Mapping):
            yield from _fields(value, desired_value, pointer)


def _items(
    live: Sequence[Any], desired: Sequence[Mapping[str, Any]], name: str, path: str
) -> Iterator[str]:
    key = LIST_KEYS[name]
    known = {item[key]: item for item in desired}
    foreign = [item for item in live if item.get(key) not in known.keys() | _OWN_TYPES]
    may_stay = name == "conditions" and len(known) + len(foreign) <= CONDITIONS_MAX
    for index, item in reversed(list(enumerate(live))):
        item_key = item.get(key)
        if item_key in known:
            yield from _fields(item, known[item_key], f"{path}/{index}")
        elif item_key in _OWN_TYPES or not may_stay:
            yield f"{path}/{index}"
