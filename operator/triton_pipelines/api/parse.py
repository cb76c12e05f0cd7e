"""From a document to the resource, with every finding at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from .base import Finding
from .v1alpha1 import ROOT_RULES, InferencePipeline

_META = ("name", "namespace", "uid", "generation", "deletionTimestamp", "annotations", "labels")

# What each of pydantic's type errors asks for, in the words of the resource.
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}


def parse(document: Mapping[str, Any]) -> tuple[InferencePipeline | None, list[Finding]]:
    """Read one resource: schema first, then the cross-field rules.

    ``document`` is the object as ``kubectl`` or the API server gives it; ``status`` and foreign metadata are ignored. Types are taken
    as strictly as the API server takes them: text is no number, ``null`` means left out, keys are spelt as in the reference.
    Returns the pipeline (``None`` where the schema is broken) and all findings, each with its path.
    """
    if not isinstance(document, Mapping):
        return None, [Finding("(the document)", "must be a mapping with apiVersion, kind, metadata and spec")]
    body = {key: _as_sent(value) for key, value in document.items() if key != "status"}
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping):
        body["metadata"] = {key: metadata[key] for key in _META if metadata.get(key) is not None}
    absent = [Finding(key, "is required") for key in ("apiVersion", "kind") if key not in body]
    try:
        # Through JSON, because only there pydantic is strict and still reads enums from text; YAML's dates become text, as in kubectl.
        pipeline = InferencePipeline.model_validate_json(json.dumps(body, default=str), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        return None, absent + [Finding(_path(item["loc"]), _message(dict(item))) for item in error.errors(include_url=False)]
    return (None if absent else pipeline), absent + list(pipeline.spec.broken_rules("spec"))


def _as_sent(value: Any) -> Any:
    """The value as the API server sees it: fields that are null are left out, ``2.0`` is a whole number."""
    if isinstance(value, Mapping):
        return {key: _as_sent(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_as_sent(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        if part == "[key]":  # pydantic's mark for the key of a mapping, which already stands before it
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(the document)"


def _message(item: Mapping[str, Any]) -> str:
    """Pydantic's message in the words of the resource: what is wrong and what may stand there."""
    kind, value = item["type"], item.get("input")
    context = item.get("ctx") or {}
    if item["loc"] == ("metadata", "name") and kind != "missing":
        return f"{_shown(value)}: {ROOT_RULES[0]['message']}"
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return "is not a field of InferencePipeline v1alpha1; check the spelling (see docs/reference/api.md)"
    if kind in ("enum", "literal_error"):
        return f"{_shown(value)} is not allowed; write {_choices(str(context.get('expected')))}"
    if kind == "string_pattern_mismatch":
        return f"{_shown(value)} does not match {context.get('pattern')}"
    if kind in _WANTED:
        hint = f'; write "{value}" in quotes' if kind == "string_type" and isinstance(value, (int, float)) else ""
        return f"must be {_WANTED[kind]}, not {_shown(value)}{hint}"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound, word = (context["ge"], "at least") if "ge" in context else (context["le"], "at most")
        return f"must be {word} {bound}, not {value}"
    if kind in ("string_too_short", "string_too_long"):
        bound, word = (context["min_length"], "at least") if "min_length" in context else (context["max_length"], "at most")
        return f"must have {word} {_counted(bound, 'character')}, not {len(str(value))}"
    if kind in ("too_short", "too_long"):
        bound, word = (context["min_length"], "at least") if "min_length" in context else (context["max_length"], "at most")
        return f"must have {word} {_counted(bound, 'item')}, not {context.get('actual_length') or 'more'}"
    return f"{item['msg']} (got {_shown(value)})"


def _shown(value: Any) -> str:
    """A value for people: shortened, and containers only by their kind."""
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}…'"


def _choices(expected: str) -> str:
    """Pydantic's list of allowed values, with enum members (``<DataType.INT32: 'INT32'>``) written as the user writes them."""
    plain = re.sub(r"<[^:<>]+: ('[^']*')>", r"\1", expected)
    return f"one of {plain}" if "," in plain or " or " in plain else plain


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
