"""Differences of two ModelConfigs: what ``configPatch`` can express, and what it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor

from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.wording import truncate
from triton_pipelines.compile.render.config_patch import OWNED, REFUSED, is_map

# Parts of list items that fields of the resource set (render.patch refuses them in a patch).
_TENSORS = ("input", "output")
_TENSOR_OWNED = ("name", "data_type", "dims", "optional")
_GROUP_OWNED = ("count", "kind", "gpus", "profile", "name")
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def patch_between(base: Any, desired: Any) -> dict[str, Any]:
    """Return the ``configPatch`` that turns ``base`` into ``desired``.

    What other fields of the resource own is left out. Empty if nothing differs.
    """
    result: dict[str, Any] = {}
    for field in base.DESCRIPTOR.fields:
        if field.name in (*OWNED, *REFUSED) or (
            field.name in _SCHEDULERS
            and base.WhichOneof("scheduling_choice") != desired.WhichOneof("scheduling_choice")
        ):
            continue
        left, right = getattr(base, field.name), getattr(desired, field.name)
        if field.name in _TENSORS:
            items = _items(left, right, _TENSOR_OWNED)
        elif field.name == "instance_group":
            items = _items(left, right, _GROUP_OWNED)
        else:
            result |= _field(base, desired, field)
            continue
        if items:
            result[field.json_name] = items
    return result


def _items(base: Any, desired: Any, owned: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return a patch of a list whose items the resource owns: only items that differ."""
    if len(base) != len(desired):
        return []
    items = []
    for left, right in zip(base, desired, strict=True):
        changes: dict[str, Any] = {}
        for field in left.DESCRIPTOR.fields:
            if field.name not in owned:
                changes |= _field(left, right, field)
        # Tensors are matched by name, instance groups by position.
        if owned is _GROUP_OWNED:
            items.append(changes)
        elif changes:
            items.append({"name": left.name, **changes})
    return items if any(items) else []


def _field(base: Any, desired: Any, field: Any) -> dict[str, Any]:
    """Return a patch of one field; empty if both sides are equal."""
    left, right = getattr(base, field.name), getattr(desired, field.name)
    if is_map(field):
        return _map(left, right, field)
    if field.label == FieldDescriptor.LABEL_REPEATED:
        return {} if list(left) == list(right) else {field.json_name: _json(desired, field, [])}
    if field.type != FieldDescriptor.TYPE_MESSAGE:
        if left == right:
            return {}
        return {
            field.json_name: None if right == field.default_value else _json(desired, field, right)
        }
    before, after = base.HasField(field.name), desired.HasField(field.name)
    if not after:
        return {field.json_name: None} if before else {}
    if not before:
        return {field.json_name: _json(desired, field, {})}
    inner: dict[str, Any] = {}
    for part in left.DESCRIPTOR.fields:
        inner |= _field(left, right, part)
    return {field.json_name: inner} if inner else {}


def _map(left: Any, right: Any, field: Any) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for key in sorted({*left, *right}, key=str):
        if (
            isinstance(key, str)
            and field.name == "parameters"
            and key.startswith(RUNTIME_PARAMETER_PREFIX)
        ):
            continue
        if key not in right:
            changes[str(key)] = None
        elif key not in left or left[key] != right[key]:
            value = right[key]
            changes[str(key)] = (
                _numbers(json_format.MessageToDict(value), value.DESCRIPTOR)
                if hasattr(value, "DESCRIPTOR")
                else value
            )
    return {field.json_name: changes} if changes else {}


def _json(message: Any, field: Any, empty: Any) -> Any:
    return _numbers(json_format.MessageToDict(message), message.DESCRIPTOR).get(
        field.json_name, empty
    )


_LONG = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


def _numbers(value: Any, descriptor: Any) -> Any:
    """Return protobuf JSON with 64-bit integers as numbers.

    Protobuf writes them as strings, and reads both.
    """
    result: dict[str, Any] = {}
    for name, item in value.items():
        field = next(one for one in descriptor.fields if one.json_name == name)
        if is_map(field):
            inner = field.message_type.fields_by_name["value"]
            result[name] = {
                key: _number(item[key], inner) for key in sorted(item)
            }  # protobuf keeps no order
        else:
            result[name] = (
                [_number(one, field) for one in item]
                if isinstance(item, list)
                else _number(item, field)
            )
    return result


def _number(item: Any, field: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return _numbers(item, field.message_type)
    return int(item) if field.cpp_type in _LONG else item


Difference = tuple[str, str, str]
"""Field, desired value, actual value."""


def differences(actual: Any, desired: Any, place: str = "") -> Iterator[Difference]:
    """Yield where two messages of one type differ. Names of instance groups are ignored."""
    for field in desired.DESCRIPTOR.fields:
        here = f"{place}.{field.name}" if place else field.name
        left, right = getattr(actual, field.name), getattr(desired, field.name)
        if here == "instance_group":
            left, right = _unnamed(left), _unnamed(right)
        if is_map(field):
            yield from _map_differences(left, right, here)
        elif field.label == FieldDescriptor.LABEL_REPEATED and field.message_type is not None:
            yield from _list_differences(left, right, here)
        elif field.label == FieldDescriptor.LABEL_REPEATED:
            if list(left) != list(right):
                yield here, _format(list(right)), _format(list(left))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            yield from _message_differences(actual, desired, field, here)
        elif left != right:
            yield here, _format_value(field, right), _format_value(field, left)


def _map_differences(actual: Any, desired: Any, place: str) -> Iterator[Difference]:
    for key in sorted({*actual, *desired}, key=str):
        if key not in actual or key not in desired or actual[key] != desired[key]:
            yield (
                f"{place}[{key}]",
                _format(desired[key]) if key in desired else "nothing",
                _format(actual[key]) if key in actual else "nothing",
            )


def _list_differences(actual: Any, desired: Any, place: str) -> Iterator[Difference]:
    for index in range(max(len(actual), len(desired))):
        if index < len(actual) and index < len(desired):
            yield from differences(actual[index], desired[index], f"{place}[{index}]")
        else:
            yield (
                f"{place}[{index}]",
                _format(desired[index]) if index < len(desired) else "nothing",
                _format(actual[index]) if index < len(actual) else "nothing",
            )


def _message_differences(actual: Any, desired: Any, field: Any, place: str) -> Iterator[Difference]:
    left, right = getattr(actual, field.name), getattr(desired, field.name)
    if actual.HasField(field.name) != desired.HasField(field.name):
        yield (
            place,
            _format(right) if desired.HasField(field.name) else "nothing",
            _format(left) if actual.HasField(field.name) else "nothing",
        )
    elif desired.HasField(field.name):
        yield from differences(left, right, place)


def _unnamed(groups: Any) -> list[Any]:
    result = []
    for group in groups:
        copy = type(group)()
        copy.CopyFrom(group)
        copy.name = ""
        result.append(copy)
    return result


def _format_value(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    return _format(value)


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = (
        text_format.MessageToString(value, as_one_line=True, as_utf8=True).strip()
        if hasattr(value, "DESCRIPTOR")
        else str(value)
    )
    text = text or ("{}" if hasattr(value, "DESCRIPTOR") else '""')
    return truncate(text, 160)
