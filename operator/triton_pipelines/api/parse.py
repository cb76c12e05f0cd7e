"""From a document to the resource, with every finding at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from .base import DATA_KEY_PATTERN, OBJECT_NAME_PATTERN, QUANTITY_PATTERN, TENSOR_NAME_PATTERN, TENSOR_REFERENCE_PATTERN, TRITON_NAME_PATTERN, Finding
from .source import SCHEMES, URI_PATTERN
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

# What a value that fits the pattern is; a pattern that is not here is shown as it is.
_MEANING = {
    TRITON_NAME_PATTERN: "a model name: letters, digits and _+=@~-, parts joined by single dots",
    TENSOR_NAME_PATTERN: "a tensor name: any characters but control characters",
    TENSOR_REFERENCE_PATTERN: "a tensor: write STEP.OUTPUT (such as model.logits) or pipeline.INPUT",
    QUANTITY_PATTERN: "a quantity: a number with a unit of Kubernetes, such as 500m, 2, 400Mi or 1.5Gi",
    OBJECT_NAME_PATTERN: "the name of a Kubernetes object: lower-case letters, digits, '-' and '.'",
    DATA_KEY_PATTERN: "a key of a Secret or ConfigMap: letters, digits, '-', '_' and '.'",
    URI_PATTERN: f"a source: it starts with {', '.join(f'{scheme}://' for scheme in SCHEMES[:-1])} or {SCHEMES[-1]}:// and has no blanks",
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
        return None, absent + [
            Finding(_path(item["loc"]), _message(item)) for item in _telling([dict(one) for one in error.errors(include_url=False)])
        ]
    return (None if absent else pipeline), absent + list(pipeline.spec.broken_rules("spec"))


# Parts of the Kubernetes API and of Triton's ModelConfig that are kept as written: null has a meaning of its own in some.
_PASSED_ON = frozenset(
    {"configPatch", "engineArgs", "podTemplate", "affinity", "tolerations", "topologySpreadConstraints", "valueFrom", "inferenceFrom", "metricsFrom"}
)


def _as_sent(value: Any) -> Any:
    """The value as the API server sees it: fields that are null are left out, ``2.0`` is a whole number."""
    if isinstance(value, Mapping):
        return {key: item if key in _PASSED_ON else _as_sent(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_as_sent(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _telling(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the echoes: pydantic counts only good items of a list, so a bad item also makes its list "too short"."""

    def echo(item: dict[str, Any]) -> bool:
        length = len(item["loc"])
        return item["type"] == "too_short" and any(len(other["loc"]) > length and other["loc"][:length] == item["loc"] for other in items)

    return [item for item in items if not echo(item)]


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    if location and location[-1] == "[key]":  # pydantic's mark for the key of a mapping: speak of the mapping, as the API server does
        location = location[:-2]
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(the document)"


def _message(item: Mapping[str, Any]) -> str:
    """Pydantic's message in the words of the resource: what is wrong and what may stand there."""
    kind, value = item["type"], item.get("input")
    if item["loc"][:3] == ("spec", "server", "env") and item["loc"][-1] == "value" and isinstance(value, (int, float)):
        return "must be text, not a number or a boolean; put it in quotes"  # never shown: it may be a password
    context = item.get("ctx") or {}
    if item["loc"] == ("metadata", "name") and kind != "missing":
        return f"{_shown(value)} is not allowed: it {ROOT_RULES[0]['message'].removeprefix('metadata.name ')}"
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return "is not a field of InferencePipeline v1alpha1; check the spelling (see docs/reference/api.md)"
    if kind in ("enum", "literal_error"):
        return f"{_shown(value)} is not allowed; write {_choices(str(context.get('expected')))}"
    if kind == "string_pattern_mismatch":
        pattern = str(context.get("pattern"))
        return f"{_shown(value)} is not {_MEANING[pattern]}" if pattern in _MEANING else f"{_shown(value)} does not match {pattern}"
    if kind in _WANTED:
        hint = "; put it in quotes" if kind == "string_type" and isinstance(value, (int, float)) else ""
        return f"must be {_WANTED[kind]}, not {_shown(value)}{hint}"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound, word = (context["ge"], "at least") if "ge" in context else (context["le"], "at most")
        return f"must be {word} {bound}, not {value}"
    if item["loc"][-1:] == ("[key]",) and kind == "string_too_long":
        return f"each key must have at most {_counted(context['max_length'], 'character')}"
    if kind in ("string_too_short", "string_too_long"):
        bound, word = (context["min_length"], "at least") if "min_length" in context else (context["max_length"], "at most")
        return f"must have {word} {_counted(bound, 'character')}, not {len(str(value))}"
    if kind in ("too_short", "too_long"):
        bound, word = (context["min_length"], "at least") if "min_length" in context else (context["max_length"], "at most")
        return f"must have {word} {_counted(bound, 'item')}, not {len(value) if isinstance(value, (dict, list)) else 'more'}"
    return f"{item['msg']} (got {_shown(value)})"


def _shown(value: Any) -> str:
    """A value for people: shortened, and containers only by their kind."""
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    # A URI may hold a password or a signature, and messages end up in logs and events.
    text = re.sub(r"(://)[^/@\s]*@", r"\1…@", re.sub(r"\?[^'\s]*", "?…", repr(value))) if "://" in str(value) else repr(value)
    return text if len(text) <= 80 else f"{text[:76]}…'"


def _choices(expected: str) -> str:
    """Pydantic's list of allowed values, with enum members (``<DataType.INT32: 'INT32'>``) written as the user writes them."""
    plain = re.sub(r"<[^:<>]+: ('[^']*')>", r"\1", expected)
    return f"one of {plain}" if "," in plain or " or " in plain else plain


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
