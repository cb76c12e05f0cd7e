"""What is left between two ModelConfigs: the part that ``configPatch`` can say, and the part that belongs to other fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor

from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.compile.render.config_patch import OWNED

# Parts of items that fields of the resource say (render.patch refuses them in a patch).
_TENSORS = ("input", "output")
_TENSOR_OWNED = ("name", "data_type", "dims")
_GROUP_OWNED = ("count", "kind", "gpus", "profile", "name")
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def patch_of(base: Any, wanted: Any) -> dict[str, Any]:
    """``configPatch`` that makes ``wanted`` of ``base``, but for what fields of the resource own; empty where nothing is left."""
    result: dict[str, Any] = {}
    for field in base.DESCRIPTOR.fields:
        if field.name in OWNED or (
            field.name in _SCHEDULERS
            and base.WhichOneof("scheduling_choice") != wanted.WhichOneof("scheduling_choice")
        ):
            continue
        left, right = getattr(base, field.name), getattr(wanted, field.name)
        if field.name in _TENSORS:
            items = _items(left, right, _TENSOR_OWNED)
        elif field.name == "instance_group":
            items = _items(left, right, _GROUP_OWNED) if len(left) == len(right) == 1 else []
        else:
            result |= _field(base, wanted, field)
            continue
        if items:
            result[field.json_name] = items
    return result


def _items(base: Any, wanted: Any, owned: tuple[str, ...]) -> list[dict[str, Any]]:
    """A patch of a list whose items the resource owns: as many items as have to be named."""
    if len(base) != len(wanted):
        return []
    items = []
    for left, right in zip(base, wanted, strict=True):
        changes: dict[str, Any] = {}
        for field in left.DESCRIPTOR.fields:
            if field.name not in owned:
                changes |= _field(left, right, field)
        # Tensors are found by their names; the one group of instances by its place.
        if changes:
            items.append(changes if owned is _GROUP_OWNED else {"name": left.name, **changes})
    return items


def _field(base: Any, wanted: Any, field: Any) -> dict[str, Any]:
    """A patch of one field: nothing where both sides are equal."""
    left, right = getattr(base, field.name), getattr(wanted, field.name)
    if _is_map(field):
        return _map(left, right, field)
    if field.label == FieldDescriptor.LABEL_REPEATED:
        return {} if list(left) == list(right) else {field.json_name: _json(wanted, field, [])}
    if field.type != FieldDescriptor.TYPE_MESSAGE:
        if left == right:
            return {}
        return {
            field.json_name: None if right == field.default_value else _json(wanted, field, right)
        }
    before, after = base.HasField(field.name), wanted.HasField(field.name)
    if not after:
        return {field.json_name: None} if before else {}
    if not before:
        return {field.json_name: _json(wanted, field, {})}
    inner: dict[str, Any] = {}
    for part in left.DESCRIPTOR.fields:
        inner |= _field(left, right, part)
    return {field.json_name: inner} if inner else {}


def _is_map(field: Any) -> bool:
    return (
        field.label == FieldDescriptor.LABEL_REPEATED
        and field.message_type is not None
        and field.message_type.GetOptions().map_entry
    )


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
    """Protobuf JSON with 64-bit numbers as numbers: protobuf writes them as text, and reads both."""
    result: dict[str, Any] = {}
    for name, item in value.items():
        field = next(one for one in descriptor.fields if one.json_name == name)
        if _is_map(field):
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


def differences(got: Any, wanted: Any, place: str = "") -> Iterator[tuple[str, str, str]]:
    """Where two messages of one type differ: field, what is wanted, what there is. Names of instance groups mean nothing."""
    for field in wanted.DESCRIPTOR.fields:
        here = f"{place}.{field.name}" if place else field.name
        left, right = getattr(got, field.name), getattr(wanted, field.name)
        if here == "instance_group":
            left, right = _unnamed(left), _unnamed(right)
        if _is_map(field):
            for key in sorted({*left, *right}, key=str):
                if key not in left or key not in right or left[key] != right[key]:
                    yield (
                        f"{here}[{key}]",
                        _shown(right[key]) if key in right else "nothing",
                        _shown(left[key]) if key in left else "nothing",
                    )
        elif field.label == FieldDescriptor.LABEL_REPEATED and field.message_type is not None:
            for index in range(max(len(left), len(right))):
                if index >= len(left) or index >= len(right):
                    yield (
                        f"{here}[{index}]",
                        _shown(right[index]) if index < len(right) else "nothing",
                        _shown(left[index]) if index < len(left) else "nothing",
                    )
                else:
                    yield from differences(left[index], right[index], f"{here}[{index}]")
        elif field.label == FieldDescriptor.LABEL_REPEATED:
            if list(left) != list(right):
                yield here, _shown(list(right)), _shown(list(left))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if got.HasField(field.name) != wanted.HasField(field.name):
                yield (
                    here,
                    _shown(right) if wanted.HasField(field.name) else "nothing",
                    _shown(left) if got.HasField(field.name) else "nothing",
                )
            elif wanted.HasField(field.name):
                yield from differences(left, right, here)
        elif left != right:
            yield here, _word(field, right), _word(field, left)


def _unnamed(groups: Any) -> list[Any]:
    result = []
    for group in groups:
        copy = type(group)()
        copy.CopyFrom(group)
        copy.name = ""
        result.append(copy)
    return result


def _word(field: Any, value: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    return _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = (
        text_format.MessageToString(value, as_one_line=True, as_utf8=True).strip()
        if hasattr(value, "DESCRIPTOR")
        else str(value)
    )
    text = text or ("{}" if hasattr(value, "DESCRIPTOR") else '""')
    return text if len(text) <= 160 else f"{text[:157]}…"
