"""Merge ``configPatch`` (other fields of Triton's ModelConfig, in protobuf JSON) into a config."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.messages import shown
from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.suggestions import did_you_mean

# Field of a ModelConfig → field of the resource that sets it.
OWNED = {
    "name": "modelName",
    "platform": "platform",
    "backend": "platform or backend",
    "max_batch_size": "maxBatchSize",
    "version_policy": "versionPolicy",
    "ensemble_scheduling": "spec.ensemble",
    "default_model_filename": "source.fileName",
}
# Field of a ModelConfig that the product does not support → why.
REFUSED = {
    "model_repository_agents": (
        "agents fetch or decrypt files inside Triton, but the loader fetches and verifies "
        "sources before Triton starts; use source"
    ),
}
MAX_FINDINGS = 100
"""Maximum number of findings per patch. Each needs a search for the intended field."""
# Parts of the messages below these fields that others may set.
_TENSOR_PARTS = {"input": "inputs", "output": "outputs"}
_TENSOR_OWNED = ("name", "data_type", "dims", "optional")
_GROUP_OWNED = {
    "count": "instances.count",
    "kind": "instances.kind",
    "gpus": "instances.gpus",
    "profile": "instances.profiles",
    "name": "modelName",
}
# Type of a protobuf field → what its value must be, and the Python types of such values.
_INTEGER, _NUMBER = ("an integer", (int,)), ("a number", (int, float))
_SCALARS = {
    FieldDescriptor.CPPTYPE_INT32: _INTEGER,
    FieldDescriptor.CPPTYPE_INT64: _INTEGER,
    FieldDescriptor.CPPTYPE_UINT32: _INTEGER,
    FieldDescriptor.CPPTYPE_UINT64: _INTEGER,
    FieldDescriptor.CPPTYPE_FLOAT: _NUMBER,
    FieldDescriptor.CPPTYPE_DOUBLE: _NUMBER,
    FieldDescriptor.CPPTYPE_BOOL: ("true or false", (bool,)),
    FieldDescriptor.CPPTYPE_STRING: ("a string", (str,)),
}


def patch(config: Any, changes: Mapping[str, Any], path: str) -> list[Finding]:
    """Merge ``changes`` into ``config`` (in place) and return what is wrong with them.

    Messages are merged, lists are replaced, maps are merged by key, and ``null`` clears a field. An
    empty list or message replaces the value. The items of ``input``, ``output`` and
    ``instance_group`` come from the resource, so they are merged one by one.
    """
    before = type(config)()
    before.CopyFrom(config)
    findings = [*_merge(config, changes, path)]
    return findings or [*_owned(before, config, path)]


def _merge(message: Any, changes: Mapping[str, Any], path: str) -> list[Finding]:
    findings: list[Finding] = []
    fields = {
        name: field for field in message.DESCRIPTOR.fields for name in (field.name, field.json_name)
    }
    for key, value in changes.items():
        if len(findings) >= MAX_FINDINGS:
            break
        field = fields.get(key)
        here = f"{path}.{key}"
        if field is None:
            known = sorted(one.json_name for one in message.DESCRIPTOR.fields)
            hint = did_you_mean(key, known)
            findings.append(
                Finding(
                    here,
                    f"unknown field of Triton's {message.DESCRIPTOR.name}; its fields are"
                    f" {', '.join(known)}{hint}",
                    code=FindingCode.UNKNOWN_FIELD,
                )
            )
        elif value is None:
            message.ClearField(field.name)
        elif is_map(field):
            findings += _merge_map(message, field, value, here)
        elif field.label == FieldDescriptor.LABEL_REPEATED:
            findings += _merge_list(message, field, value, here)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if not isinstance(value, Mapping):
                findings.append(
                    Finding(
                        here,
                        f"must be a mapping with fields of Triton's {field.message_type.name}",
                        code=FindingCode.WRONG_TYPE,
                    )
                )
                continue
            getattr(message, field.name).SetInParent()
            findings += _merge(getattr(message, field.name), value, here)
        else:
            findings += _set(message, field, value, here)
    return findings


def is_map(field: Any) -> bool:
    """Return whether a field of a message is a map."""
    return (
        field.label == FieldDescriptor.LABEL_REPEATED
        and field.message_type is not None
        and field.message_type.GetOptions().map_entry
    )


def _merge_map(message: Any, field: Any, value: Any, path: str) -> list[Finding]:
    if not isinstance(value, Mapping):
        return [Finding(path, "must be a mapping", code=FindingCode.WRONG_TYPE)]
    findings = []
    for key, item in value.items():
        if item is None:
            # A map's keys are numbers or text; JSON has text only.
            getattr(message, field.name).pop(
                int(key)
                if field.message_type.fields_by_name["key"].type != FieldDescriptor.TYPE_STRING
                else key,
                None,
            )
        else:
            findings += _parse(message, {field.json_name: {key: item}}, f"{path}.{key}")
    return findings


def _merge_list(message: Any, field: Any, value: Any, path: str) -> list[Finding]:
    items = getattr(message, field.name)
    if not isinstance(value, list):
        return [Finding(path, "must be a list", code=FindingCode.WRONG_TYPE)]
    if (
        field.name in (*_TENSOR_PARTS, "instance_group")
        and len(value) <= len(items)
        and all(isinstance(item, Mapping) for item in value)
    ):
        findings: list[Finding] = []
        for index, item in enumerate(value):
            same = next(
                (one for one in items if "name" in item and one.name == item["name"]), items[index]
            )
            findings += _merge(same, item, f"{path}[{index}]")
        return findings
    message.ClearField(field.name)
    return _parse(message, {field.json_name: value}, path)


def _set(message: Any, field: Any, value: Any, path: str) -> list[Finding]:
    message.ClearField(field.name)
    findings = _parse(message, {field.json_name: value}, path)
    if findings and field.type == FieldDescriptor.TYPE_ENUM:
        known = ", ".join(one.name for one in field.enum_type.values)
        text = f"{shown(value)} is not allowed; use one of: {known}"
        return [Finding(path, text, code=FindingCode.VALUE_NOT_ALLOWED)]
    expected, types = _SCALARS.get(field.cpp_type, ("", (type(value),)))
    if findings and type(value) not in types:
        text = f"must be {expected}, not {shown(value)}"
        return [Finding(path, text, code=FindingCode.WRONG_TYPE)]
    return findings


def _parse(message: Any, value: Mapping[str, Any], path: str) -> list[Finding]:
    """Read protobuf JSON with one field into a message; return protobuf's errors."""
    try:
        read = json_format.Parse(json.dumps(value), type(message)())
    except json_format.ParseError as error:
        cause = str(error).removeprefix(f"Failed to parse {next(iter(value))} field: ").rstrip(".")
        return [
            Finding(
                path,
                f"invalid value for this field of Triton's {message.DESCRIPTOR.name} ({cause})",
                code=FindingCode.INVALID_FORMAT,
            )
        ]
    message.MergeFrom(read)  # not parsed into it: that would clear a map's other keys
    return []


def _owned(before: Any, after: Any, path: str) -> Iterator[Finding]:
    """Yield what the patch changed although the resource has a field for it."""
    for name, field in OWNED.items():
        if getattr(before, name) != getattr(after, name):
            yield _reserved(f"{path}.{name}", f"set by the operator; use {field} instead")
    yield from _owned_item_parts(before, after, path)
    scheduler = after.WhichOneof("scheduling_choice")
    if scheduler != before.WhichOneof("scheduling_choice"):
        yield _reserved(
            f"{path}.{scheduler}",
            "the patch must not change the scheduler; use dynamicBatching or sequenceBatching",
        )
    if _own_parameters(before) != _own_parameters(after):
        yield _reserved(
            f"{path}.parameters",
            f"parameters that start with {RUNTIME_PARAMETER_PREFIX!r} are reserved for the "
            "operator; remove these parameters",
        )
    for name, why in REFUSED.items():
        if getattr(before, name) != getattr(after, name):
            yield _reserved(f"{path}.{name}", f"the field is not supported, because {why}")


def _owned_item_parts(before: Any, after: Any, path: str) -> Iterator[Finding]:
    """Yield changed parts of tensors and instance groups for which the resource has a field."""
    for name, field in _TENSOR_PARTS.items():
        left, right = [
            [[getattr(one, part, None) for part in _TENSOR_OWNED] for one in getattr(config, name)]
            for config in (before, after)
        ]
        if left != right:
            yield _reserved(
                f"{path}.{name}",
                "the patch must not change names, types, shapes, order or optional flags; "
                f"use {field} for these settings",
            )
    left, right = [
        [[getattr(one, part) for part in _GROUP_OWNED] for one in config.instance_group]
        for config in (before, after)
    ]
    if left != right:
        fields = ", ".join(sorted(set(_GROUP_OWNED.values()) - {"modelName"}))
        yield _reserved(
            f"{path}.instance_group",
            f"the patch must not change the values of {fields}; change {fields} directly",
        )


def _reserved(path: str, message: str) -> Finding:
    return Finding(path, message, code=FindingCode.RESERVED)


def _own_parameters(config: Any) -> dict[str, str]:
    return {
        key: value.string_value
        for key, value in config.parameters.items()
        if key.startswith(RUNTIME_PARAMETER_PREFIX)
    }
