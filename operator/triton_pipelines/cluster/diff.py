"""Compare a live object with the one that would be applied. No I/O.

Server-side apply writes nothing if nothing changes, but it is a request nevertheless. These
functions answer from the caches: ``covers`` finds differing values, ``owned_extra`` fields that
were applied once and are no longer desired, ``needs_apply`` both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kubernetes.utils.quantity import parse_quantity

# Keys by which list items are matched, by the list's field name (from the OpenAPI's
# x-kubernetes-list-map-keys). `ports` depends on the item (below). Any other list is atomic: the
# same number of items in the same order.
MERGE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "hostAliases": ("ip",),
    "conditions": ("type",),
    "ownerReferences": ("uid",),
}
# Lists of scalars that are sets: their order is irrelevant.
_SETS: Final = frozenset({"finalizers"})
_PORT_KEYS: Final = (("containerPort", "protocol"), ("port", "protocol"))
# Defaults of merge-key fields; an item without the field is matched as if it had it.
_KEY_DEFAULTS: Final[Mapping[str, Any]] = {"protocol": "TCP"}
# Below these fields every scalar is a quantity; the named single fields are one each.
_QUANTITY_MAPS: Final = frozenset(
    {"requests", "limits", "capacity", "allocatable", "hard", "overhead"}
)
_QUANTITY_FIELDS: Final = frozenset({"sizeLimit", "divisor"})
# int-or-string fields where 8000 and "8000" are the same: a port's name must contain a letter.
_PORT_FIELDS: Final = frozenset({"port", "targetPort", "containerPort", "endPort"})
# Written only by the API server.
_SERVER_OWNED: Final = frozenset({"managedFields", "creationTimestamp", "generation", "selfLink"})
# Atomic maps (x-kubernetes-map-type): an apply replaces them as a whole.
_SELECTORS: Final = frozenset({"podSelector", "namespaceSelector", "labelSelector", "selector"})
# An empty podSelector selects all pods, and emptyDir is a kind of volume.
_MEANINGFUL_WHEN_EMPTY: Final = _SELECTORS | {"emptyDir", "runtimeDefault"}
# Maps with free keys, where an empty string is a value like any other.
_FREE_MAPS: Final = frozenset(
    {"data", "binaryData", "stringData", "labels", "annotations", "matchLabels", "nodeSelector"}
)
# Fields that are not pointers in the Go types: false and 0 are dropped when stored.
_ZERO_IS_ABSENT: Final = frozenset(
    {
        "readOnly",
        "stdin",
        "stdinOnce",
        "tty",
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "minReadySeconds",
        "initialDelaySeconds",
        "publishNotReadyAddresses",
        "paused",
    }
)

_SCALARS: Final = (str, int, float, type(None))
Path = tuple[str, ...]
ListKeys = Mapping[str, tuple[str, ...]]
# Items of a list by the values of their keys: users choose how many items a list has.
_Indexes = dict[tuple[str, ...], dict[tuple[Any, ...], Any]]


def covers(
    live: Mapping[str, Any] | None, desired: Mapping[str, Any], *, list_keys: ListKeys | None = None
) -> list[str]:
    """Return the paths at which the live object differs from the desired one.

    The desired object has to be a subset of the live one: additional fields, map keys and list
    items (server defaults, other managers) are accepted, except in selectors. Quantities are
    compared by value. ``None`` and empty values equal absent ones, as the API server drops them.

    Args:
        live: the raw live object; None if it does not exist.
        desired: what would be applied.
        list_keys: merge keys of further lists by field name, for custom resources
            (``{"steps": ("name",)}``).

    Returns:
        Paths such as ``spec.template.spec.containers[name=triton].image``; empty if an apply would
        change no value. For a missing object the only path is ``""``.
    """
    if live is None:
        return [""]
    keys = {**MERGE_KEYS, **(list_keys or {})}
    found: list[str] = []
    _compare(live, desired, (), "", keys, found)
    return found


def owned_extra(
    live: Mapping[str, Any],
    desired: Mapping[str, Any],
    manager: str,
    *,
    subresource: str = "",
) -> list[str]:
    """Return fields that a manager owns through apply and that the desired object no longer has.

    Values are not compared (``covers`` does that). An apply would drop these fields or leave them
    to their other owners.

    Args:
        live: the raw live object with ``metadata.managedFields``.
        desired: what would be applied.
        manager: field manager.
        subresource: ``"status"`` for fields applied through it; entries of other subresources are
            ignored.

    Returns:
        Paths, sorted.
    """
    found: set[str] = set()
    for entry in (live.get("metadata") or {}).get("managedFields") or ():
        if (
            entry.get("manager") == manager
            and entry.get("operation") == "Apply"
            and (entry.get("subresource") or "") == subresource
        ):
            _walk_owned(entry.get("fieldsV1") or {}, desired, "", found)
    return sorted(found)


def needs_apply(
    live: Mapping[str, Any] | None,
    desired: Mapping[str, Any],
    manager: str,
    *,
    subresource: str = "",
    list_keys: ListKeys | None = None,
) -> list[str]:
    """Return why an object has to be applied: differing paths, then those no longer desired.

    Empty if the apply can be omitted. Arguments as in :func:`covers` and :func:`owned_extra`.
    """
    differing = covers(live, desired, list_keys=list_keys)
    if live is None:
        return differing
    return differing + owned_extra(live, desired, manager, subresource=subresource)


# --- values -------------------------------------------------------------------------------------


def _is_empty(value: Any) -> bool:
    """Whether the API server would not keep this value (or it says nothing)."""
    if isinstance(value, Mapping):
        return all(_absent_is_equal(key, item) for key, item in value.items())
    return value is None or value == "" or value == []


def _is_identical(live: Any, desired: Any) -> bool:
    """Return whether two JSON values are identical, including their types.

    Most parts of most objects are, and this takes a tenth of the time of a comparison with paths.
    """
    # Python's comparison is faster, but to it 1, 1.0 and True are equal.
    return bool(live == desired) and _has_same_types(live, desired)


def _has_same_types(live: Any, desired: Any) -> bool:
    """Return whether two values that are equal to Python are of the same types throughout."""
    kind = type(desired)
    if type(live) is not kind:
        return False
    if kind is dict:
        # Nothing but a string equals a string, and most values are strings.
        return all(
            type(value) is str or _has_same_types(live[key], value)
            for key, value in desired.items()
        )
    return kind is not list or all(map(_has_same_types, live, desired))


def _compare(
    live: Any, desired: Any, path: Path, shown: str, keys: ListKeys, found: list[str]
) -> None:
    # Most values are scalars. Checks against abstract classes cost several times more.
    if isinstance(desired, _SCALARS) or not isinstance(desired, (Mapping, Sequence)):
        if not _same_scalar(live, desired, path):
            found.append(shown)
    elif isinstance(desired, Mapping) and isinstance(live, Mapping):
        _compare_maps(live, desired, path, shown, keys, found)
    elif isinstance(desired, Sequence) and isinstance(live, Sequence) and not isinstance(live, str):
        _compare_lists(live, desired, path, shown, keys, found)
    else:
        found.append(shown)


def _compare_maps(
    live: Mapping[str, Any],
    desired: Mapping[str, Any],
    path: Path,
    shown: str,
    keys: ListKeys,
    found: list[str],
) -> None:
    if not _SELECTORS.isdisjoint(path):
        found.extend(_join(shown, key) for key in live if key not in desired and live[key])
    for key, desired_value in desired.items():
        if path == ("metadata",) and key in _SERVER_OWNED:
            continue
        if isinstance(desired_value, (dict, list)) and _is_identical(live.get(key), desired_value):
            continue
        here = _join(shown, key)
        if key in live:
            _compare_present(live[key], desired_value, (*path, key), here, keys, found)
        elif not _absent_is_equal(key, desired_value) or (
            path and path[-1] in _FREE_MAPS and desired_value is not None
        ):
            found.append(here)


def _compare_present(
    live: Any, desired_value: Any, path: Path, shown: str, keys: ListKeys, found: list[str]
) -> None:
    if live is None or desired_value is None:
        if not (_is_empty(live) and _is_empty(desired_value)):
            found.append(shown)
        return
    _compare(live, desired_value, path, shown, keys, found)


def _absent_is_equal(key: str, desired_value: Any) -> bool:
    if key in _MEANINGFUL_WHEN_EMPTY:
        return desired_value is None
    if key in _FREE_MAPS:
        return not desired_value or all(item is None for item in desired_value.values())
    if key in _ZERO_IS_ABSENT and not desired_value:
        return True
    return _is_empty(desired_value)


def _compare_lists(
    live: Sequence[Any],
    desired: Sequence[Any],
    path: Path,
    shown: str,
    keys: ListKeys,
    found: list[str],
) -> None:
    name = path[-1] if path else ""
    merge = _merge_keys(name, path, desired or live, keys)
    if merge is not None:
        by_key = {_item_key(item, merge): item for item in live if isinstance(item, Mapping)}
        for item in desired:
            here = f"{shown}[{_show_key(item, merge)}]"
            match = by_key.get(_item_key(item, merge))
            if match is None:
                found.append(here)
            else:
                _compare(match, item, path, here, keys, found)
    elif name in _SETS:
        found.extend(f"{shown}[{item}]" for item in desired if item not in live)
    elif len(live) != len(desired):
        found.append(shown)
    else:
        for index, (there, item) in enumerate(zip(live, desired, strict=True)):
            _compare_present(there, item, path, f"{shown}[{index}]", keys, found)


def _merge_keys(
    name: str, path: Path, items: Sequence[Any], keys: ListKeys
) -> tuple[str, ...] | None:
    if not all(isinstance(item, Mapping) for item in items):
        return None
    if name == "ports":
        # A NetworkPolicy's ports are atomic: an item may name no port at all.
        if "ingress" in path or "egress" in path:
            return None
        return next(
            (merge for merge in _PORT_KEYS if items and all(merge[0] in item for item in items)),
            None,
        )
    merge = keys.get(name)
    if merge is None or not all(
        key in item or key in _KEY_DEFAULTS for item in items for key in merge
    ):
        return None
    return merge


def _item_key(item: Mapping[str, Any], merge: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(_hashable(item.get(key, _KEY_DEFAULTS.get(key))) for key in merge)


def _hashable(value: Any) -> Any:
    return (
        value
        if isinstance(value, str | int | float | bool | type(None))
        else json.dumps(value, sort_keys=True)
    )


def _show_key(item: Mapping[str, Any], merge: tuple[str, ...]) -> str:
    return ",".join(f"{key}={item[key]}" for key in merge if key in item)


def _same_scalar(live: Any, desired: Any, path: Path) -> bool:
    if _is_quantity(path):
        return _same_quantity(live, desired)
    if isinstance(live, bool) or isinstance(desired, bool):
        return live is desired
    if isinstance(live, int | float) and isinstance(desired, int | float):
        return live == desired
    if path and path[-1] in _PORT_FIELDS and {type(live), type(desired)} == {int, str}:
        return str(live) == str(desired)
    return isinstance(live, str) == isinstance(desired, str) and bool(live == desired)


def _is_quantity(path: Path) -> bool:
    return bool(path) and (
        path[-1] in _QUANTITY_FIELDS or (len(path) > 1 and path[-2] in _QUANTITY_MAPS)
    )


def _same_quantity(live: Any, desired: Any) -> bool:
    try:
        return bool(parse_quantity(live) == parse_quantity(desired))  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        return bool(live == desired)


def _join(shown: str, key: str) -> str:
    part = f"[{key}]" if "." in key or "/" in key else key
    return f"{shown}{part}" if not shown or part.startswith("[") else f"{shown}.{part}"


# --- ownership ----------------------------------------------------------------------------------
# fieldsV1: "f:NAME" is a field, "k:{…}" a list item by its keys, "v:VALUE" a set's item, "i:N" an
# item by index, "." the item itself.


def _walk_owned(fields: Mapping[str, Any], desired: Any, shown: str, found: set[str]) -> None:
    indexes: _Indexes = {}
    for element, below in fields.items():
        mark, _, rest = element.partition(":")
        if mark not in _OWNED:
            continue
        # Most entries are fields that are present and have nothing below.
        if mark == "f" and not below and type(desired) is dict and desired.get(rest) is not None:
            continue
        here, present, value = _OWNED[mark](rest, desired, shown, indexes)
        if not present:
            found.add(here)
        elif below:
            _walk_owned(below, value, here, found)


def _owned_field(name: str, desired: Any, shown: str, _: _Indexes) -> tuple[str, bool, Any]:
    present = isinstance(desired, Mapping) and desired.get(name) is not None
    return _join(shown, name), present, desired[name] if present else None


def _owned_item(raw: str, desired: Any, shown: str, indexes: _Indexes) -> tuple[str, bool, Any]:
    keys: Mapping[str, Any] = json.loads(raw)
    here, merge = f"{shown}[{','.join(f'{key}={value}' for key, value in keys.items())}]", (*keys,)
    if merge not in indexes:
        items = [] if not isinstance(desired, Sequence) else desired[::-1]
        indexes[merge] = {_item_key(one, merge): one for one in items if isinstance(one, Mapping)}
    item = indexes[merge].get(_item_key(keys, merge))
    return here, item is not None, item


def _owned_value(raw: str, desired: Any, shown: str, _: _Indexes) -> tuple[str, bool, Any]:
    value = json.loads(raw)
    return f"{shown}[{value}]", isinstance(desired, Sequence) and value in desired, None


def _owned_index(raw: str, desired: Any, shown: str, _: _Indexes) -> tuple[str, bool, Any]:
    present = isinstance(desired, Sequence) and int(raw) < len(desired)
    return f"{shown}[{raw}]", present, desired[int(raw)] if present else None


_OWNED: Final[Mapping[str, Callable[[str, Any, str, _Indexes], tuple[str, bool, Any]]]] = {
    "f": _owned_field,
    "k": _owned_item,
    "v": _owned_value,
    "i": _owned_index,
}
