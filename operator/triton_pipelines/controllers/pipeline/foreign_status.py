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
# The schema's limits on these lists in the status itself.
ITEMS_MAX: Final[Mapping[str, int]] = {"conditions": 16, "steps": 64, "sources": 64}
_OWN_TYPES: Final = frozenset(item.value for item in ConditionType)


def foreign_fields(live: Mapping[str, Any], desired: Mapping[str, Any]) -> list[str]:
    """Return the JSON pointers of what a status has beyond the desired one.

    Removing them in this order keeps the rest of them valid.

    Args:
        live: ``status`` of the pipeline.
        desired: The status that the operator reports.
    """
    return list(_fields(live, desired, "/status"))


def leaves_no_room(live: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Return whether a list would be too long after an apply, which keeps items of others."""
    return any(
        len(_others(live.get(name) or (), desired.get(name) or (), LIST_KEYS[name]))
        + len(desired.get(name) or ())
        > limit
        for name, limit in ITEMS_MAX.items()
    )


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
        there, here = desired.get(name), f"{path}/{name}"
        if name in LIST_KEYS and isinstance(value, list):
            yield from _items(value, there or [], name, here)
        elif name not in desired:
            # An empty value reports nothing, and the API server may leave one behind.
            yield from () if value in ({}, [], "", None) else (here,)
        elif isinstance(value, Mapping) and isinstance(there, Mapping):
            yield from _fields(value, there, here)


def _items(
    live: Sequence[Any], desired: Sequence[Mapping[str, Any]], name: str, path: str
) -> Iterator[str]:
    key = LIST_KEYS[name]
    known = {item[key]: item for item in desired}
    others = len(_others(live, desired, key))
    is_full = name == "conditions" and len(known) + others > ITEMS_MAX[name]
    for index, item in reversed(list(enumerate(live))):
        kind = item.get(key)
        if kind in known:
            yield from _fields(item, known[kind], f"{path}/{index}")
        elif name != "conditions" or kind in _OWN_TYPES or is_full:
            yield f"{path}/{index}"


def _others(
    live: Sequence[Mapping[str, Any]], desired: Sequence[Mapping[str, Any]], key: str
) -> list[Mapping[str, Any]]:
    """Return the items that an apply of ``desired`` does not replace."""
    known = {item[key] for item in desired}
    return [item for item in live if item.get(key) not in known]
