"""Messages for schema errors: what is wrong with a field, and what to write instead."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .base import TENSOR_REFERENCE_PATTERN, ApiModel, Switch
from .field_paths import field_at, fields_of, model_at, model_below, named_steps, unknown_field
from .finding_codes import FindingCode
from .pattern_descriptions import PATTERN_DESCRIPTIONS
from .postprocess import Postprocess
from .python import Code
from .server import ServerSpec
from .source import SCHEMES, URI_PATTERN
from .suggestions import did_you_mean, plain
from .v1alpha1 import NAME_REMEDY
from .wording import counted

# The type that each of pydantic's type errors expects, in terms that users know.
_EXPECTED_TYPE = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "string_type": "a string",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}

# Names of a choice in other products, without case and separators (Triton's config.pbtxt, its HTTP
# API, ONNX, numpy, Kubernetes).
_CALLED = {
    "true": "Enabled",
    "false": "Disabled",
    "float": "FP32",
    "float32": "FP32",
    "float16": "FP16",
    "half": "FP16",
    "float64": "FP64",
    "double": "FP64",
    "bfloat16": "BF16",
    "int": "INT32",
    "long": "INT64",
    "bytes": "STRING",
    "str": "STRING",
    "text": "STRING",
    "boolean": "BOOL",
    "onnx": "onnxruntime_onnx",
    "onnxruntime": "onnxruntime_onnx",
    "tensorrt": "tensorrt_plan",
    "trt": "tensorrt_plan",
    "pytorch": "pytorch_libtorch",
    "torchscript": "pytorch_libtorch",
    "mean": "MeanPooling",
    "meanpool": "MeanPooling",
    "cls": "FirstToken",
    "clspooling": "FirstToken",
    "maxlength": "Fixed",
    "longestfirst": "LongestFirst",
    "rollingupdate": "Surge",
    "huggingface": "HuggingFace",
    "bert": "HuggingFace",
}
# URI schemes that other products use for the same kind of source.
_SCHEMES_CALLED = {
    "gcs": "gs",
    "azure": "az",
    "abfs": "az",
    "wasbs": "az",
    "huggingface": "hf",
    "s3a": "s3",
    "docker": "oci",
    "http": "https",
    "claim": "pvc",
}
# The field that a single text instead of a mapping is probably meant for.
_MAIN_TEXT: dict[type[ApiModel], str] = {Code: "inline", Postprocess: "type", ServerSpec: "image"}


# Codes of pydantic's errors; any other is a wrong type.
_CODES = {
    "missing": FindingCode.REQUIRED,
    "extra_forbidden": FindingCode.UNKNOWN_FIELD,
    "enum": FindingCode.VALUE_NOT_ALLOWED,
    "literal_error": FindingCode.VALUE_NOT_ALLOWED,
    "string_pattern_mismatch": FindingCode.INVALID_FORMAT,
    "greater_than_equal": FindingCode.OUT_OF_RANGE,
    "less_than_equal": FindingCode.OUT_OF_RANGE,
    "string_too_short": FindingCode.WRONG_LENGTH,
    "string_too_long": FindingCode.WRONG_LENGTH,
    "too_short": FindingCode.WRONG_LENGTH,
    "too_long": FindingCode.WRONG_LENGTH,
}


def code_of(item: Mapping[str, Any]) -> FindingCode:
    """Return the finding code of one of pydantic's errors."""
    return _CODES.get(item["type"], FindingCode.WRONG_TYPE)


def message(item: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Return the message for one of pydantic's errors.

    Args:
        item: An item of ``ValidationError.errors()``.
        document: The resource as written; its step names become suggestions.
    """
    kind, value, location = item["type"], item.get("input"), item["loc"]
    if isinstance(value, (int, float)) and (hidden := _unquoted(location)) is not None:
        return hidden
    if location == ("metadata", "name") and kind != "missing":
        return f"{shown(value)} is not a valid name; {NAME_REMEDY}"
    if kind == "missing":
        return f"required{_described(location)}"
    if kind == "extra_forbidden":
        return unknown_field(location)
    if kind in _EXPECTED_TYPE:
        expected = _EXPECTED_TYPE[kind]
        return f"must be {expected}, not {shown(value)}{_instead(kind, value, location)}"
    context = item.get("ctx") or {}
    code = code_of(item)
    if code is FindingCode.VALUE_NOT_ALLOWED:
        choices = _choices(str(context.get("expected")), value)
        return f"{shown(value)} is not allowed; use {choices}"
    if code is FindingCode.INVALID_FORMAT:
        return _pattern_mismatch(str(context.get("pattern")), value, document)
    if code is FindingCode.OUT_OF_RANGE:
        return f"must be {_bound(context, 'ge', 'le')}, not {value}"
    if code is FindingCode.WRONG_LENGTH:
        return _wrong_length(kind, value, location, context)
    return f"{item['msg']} (got {shown(value)})"


def _unquoted(location: tuple[int | str, ...]) -> str | None:
    """Return the message for a number in a string field where showing it would do harm."""
    if location[:3] == ("spec", "server", "env") and location[-1] == "value":
        # The value may be a password.
        return "must be a string, not a number or a boolean; put it in quotes"
    if location == ("spec", "server", "version"):
        # YAML reads 24.10 as 24.1, which would be wrong in quotes, too.
        return "must be a string, not a number; quote the release, for example '24.10'"
    return None


def _pattern_mismatch(pattern: str, value: Any, document: Mapping[str, Any]) -> str:
    if pattern == TENSOR_REFERENCE_PATTERN:
        return _reference(str(value), document)
    hint = _source(str(value)) if pattern == URI_PATTERN else ""
    return f"{shown(value)} {PATTERN_DESCRIPTIONS[pattern]}{hint}"


def _bound(context: Mapping[str, Any], lower: str, upper: str) -> str:
    """Return ``at least N`` or ``at most N``, whichever bound pydantic reports."""
    if lower in context:
        return f"at least {context[lower]}"
    return f"at most {context[upper]}"


def _wrong_length(
    kind: str, value: Any, location: tuple[int | str, ...], context: Mapping[str, Any]
) -> str:
    """Return the message for a text, key, list or mapping with too few or too many parts."""
    if location[-1:] == ("[key]",) and kind == "string_too_long":
        return f"each key must have at most {counted(context['max_length'], 'character')}"
    if context.get("min_length") == 1:
        return "must not be empty"
    bound = _bound(context, "min_length", "max_length")
    limit = context.get("min_length", context.get("max_length"))
    plural = "" if limit == 1 else "s"
    if kind.startswith("string_"):
        return f"must have {bound} character{plural}, not {len(str(value))}"
    held = len(value) if isinstance(value, (dict, list)) else "more"
    return f"must have {bound} item{plural}, not {held}"


def shown(value: Any) -> str:
    """Return a value for a message: shortened, and lists and mappings by their kind only."""
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    # A URI may hold a password or a signature, and messages end up in logs and events.
    text = (
        re.sub(r"(://)[^/@\s]*@", r"\1…@", re.sub(r"\?[^'\s]*", "?…", repr(value)))
        if "://" in str(value)
        else repr(value)
    )
    return text if len(text) <= 80 else f"{text[:76]}…'"


def _reference(value: str, document: Mapping[str, Any]) -> str:
    """Return the message for a ``from`` that names no step.

    It may hold a model's name instead of the step's, a misspelled name, or the tensor alone.
    """
    step, dot, tensor = value.partition(".")
    known = named_steps(document)
    if (
        dot
        and (meant := next((one.name for one in known if one.model_name == step), None)) is not None
    ):
        return f"{step!r} is a model name, not a step name; use {meant}.{tensor}"
    if dot:
        hint = did_you_mean(step, ["pipeline", *(one.name for one in known)], after=f".{tensor}")
    else:
        candidates = [f"{one.name}.{value}" for one in known if value in one.outputs]
        if not candidates and (other := re.match(r"([^:/]+)[:/]+(.+)", value)) is not None:
            candidates = [
                f"{one.name}.{other[2]}" for one in known if other[1] in (one.name, one.model_name)
            ]
        hint = f"; did you mean {' or '.join(candidates)}?" if candidates else ""
    return f"{shown(value)} {PATTERN_DESCRIPTIONS[TENSOR_REFERENCE_PATTERN]}{hint}"


def _described(location: tuple[int | str, ...]) -> str:
    """Return the first sentence of a missing field's description, to append to a message."""
    info = field_at(location)
    text = info.description if info is not None else None
    if not text:
        return ""
    first = text.split(". ")[0].rstrip(".")
    is_word = first[1:2].islower() or first.startswith("A ")
    return f": {first[0].lower() if is_word else first[0]}{first[1:]}"


def _instead(kind: str, value: Any, location: tuple[int | str, ...]) -> str:
    """Return how to write a value of the wrong type, to append to a message."""
    if kind == "string_type":
        return "; put it in quotes" if isinstance(value, (int, float)) else ""
    if kind.startswith("int"):
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value):
            return "; remove the quotes"
        return (
            "; omit the unit, which is part of the field name"
            if isinstance(value, str) and re.match(r"[0-9]", value)
            else ""
        )
    model = model_at(location)
    required = (
        [name for name, info in fields_of(model).items() if info.is_required()]
        if model is not None
        else []
    )
    if kind in ("tuple_type", "list_type"):
        if isinstance(value, str) and value.startswith("["):
            return "; remove the quotes"
        if required:
            return f"; start each item with '- {required[0]}: '"
        return (
            "; start each item with '- '"
            if isinstance(value, (dict, str))
            else f"; write [{json.dumps(value)}]"
        )
    if model is None:
        return ""
    if isinstance(value, list):
        return "; remove the leading '- '"
    if not isinstance(value, dict) and (name := _main_field(model, required, value)) is not None:
        return f"; write {{{name}: {_switched(value)}}}"
    return f"; its fields are {', '.join(fields_of(model))}"


def _main_field(model: type[ApiModel], required: list[str], value: Any) -> str | None:
    """Return the field of ``model`` that a single value was probably meant for."""
    if isinstance(value, bool):
        return "mode" if "mode" in fields_of(model) else None
    if isinstance(value, int):
        return "count" if "count" in fields_of(model) else None
    if len(required) == 1 and model_below(fields_of(model)[required[0]].annotation) is None:
        return required[0]
    return next((field for one, field in _MAIN_TEXT.items() if issubclass(model, one)), None)


def _switched(value: Any) -> str:
    if isinstance(value, bool):
        return (Switch.ENABLED if value else Switch.DISABLED).value
    return shown(value)


def _source(uri: str) -> str:
    """Return a suggestion for a URI of unknown kind, without parts that may hold a password."""
    scheme, separator, rest = uri.partition("://")
    if separator and scheme.lower() in _SCHEMES_CALLED:
        return (
            "; did you mean"
            f" {_SCHEMES_CALLED[scheme.lower()]}://{'…' if '@' in rest or '?' in rest else rest}?"
        )
    if scheme == "file" or uri.startswith("/"):
        return (
            "; node directories cannot be read; copy the files to a PersistentVolumeClaim and use"
            " pvc://CLAIM/PATH"
        )
    if (short := re.match(rf"({'|'.join(SCHEMES)}):/?(?!/)", uri)) is not None:
        return f"; add '//' after {short[1]}:"
    if not separator and re.fullmatch(r"[\w.-]+/[\w.-]+", uri):
        return f"; did you mean hf://{uri}?"
    return ""


def _choices(expected: str, value: Any) -> str:
    """Return the allowed values as a user writes them, and the one that was probably meant.

    Pydantic lists enum members as ``<DataType.INT32: 'INT32'>``.
    """
    text = re.sub(r"<[^:<>]+: ('[^']*')>", r"\1", expected)
    if not ("," in text or " or " in text):
        return text
    known = re.findall(r"'([^']*)'", text)
    name = re.sub(r"^(TYPE|KIND)_", "", json.dumps(value).strip('"'))
    called = _CALLED.get(plain(name))
    hint = (
        f"; did you mean {called!r}?" if called in known else did_you_mean(name, known, quoted=True)
    )
    return f"{'one of: ' if len(known) > 2 else ''}{text}{hint}"
