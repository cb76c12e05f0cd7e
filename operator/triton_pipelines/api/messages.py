"""What is wrong with a field and what may stand there, in the words of the resource: the texts of what the schema refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .base import (
    DATA_KEY_PATTERN,
    OBJECT_NAME_PATTERN,
    QUANTITY_PATTERN,
    TENSOR_NAME_PATTERN,
    TENSOR_REFERENCE_PATTERN,
    TRITON_NAME_PATTERN,
    ApiModel,
    Switch,
)
from .batching import LIBRARY_PATTERN
from .field_paths import field_at, fields_of, model_at, model_below, named_steps, unknown_field
from .instances import HOST_POLICY_PATTERN, PROFILE_PATTERN
from .optimization import TABLE_PATTERN
from .postprocess import Postprocess
from .python import SIDE_PATH_PATTERN, Code
from .server import ENV_NAME_PATTERN, IMAGE_PATTERN, RELEASE_PATTERN, RESOURCE_PATTERN, Server
from .source import (
    ENDPOINT_PATTERN,
    FILE_NAME_PATTERN,
    PATH_PATTERN,
    SCHEMES,
    SHA256_PATTERN,
    URI_PATTERN,
)
from .steps import BACKEND_PATTERN, STEP_NAME_PATTERN
from .suggestions import did_you_mean, plain
from .v1alpha1 import OTLP_PATTERN, ROOT_RULES

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

# What a value that fits the pattern is, with an example.
MEANING = {
    TRITON_NAME_PATTERN: "a model name: letters, digits and _+=@~-, parts joined by single dots, such as bert-base or sst2.v3",
    TENSOR_NAME_PATTERN: "a tensor name: any characters but control characters, such as input_ids",
    TENSOR_REFERENCE_PATTERN: "a tensor: write STEP.OUTPUT (such as model.logits) or pipeline.INPUT",
    QUANTITY_PATTERN: "a quantity: a number with a unit of Kubernetes, such as 500m, 2, 400Mi or 1.5Gi",
    OBJECT_NAME_PATTERN: "the name of a Kubernetes object: lower-case letters, digits, '-' and '.', such as models-reader",
    DATA_KEY_PATTERN: "a key of a Secret or ConfigMap: letters, digits, '-', '_' and '.', such as ca.crt",
    URI_PATTERN: f"a source: it starts with {', '.join(f'{scheme}://' for scheme in SCHEMES[:-1])} or {SCHEMES[-1]}://, and what follows has no blanks",
    STEP_NAME_PATTERN: "a step's name: lower-case letters, digits and '-', starting with a letter, such as image-decoder",
    BACKEND_PATTERN: "a backend's name: that of its folder in the server image, lower-case letters, digits and '_', such as dali or fil",
    PATH_PATTERN: "a path inside the source: it does not start with '/', such as onnx/model.onnx",
    FILE_NAME_PATTERN: "a file's name without folders, such as model_fp16.onnx (path names a folder or file inside the source)",
    SHA256_PATTERN: "a SHA-256: 64 hex digits in lower case, as sha256sum prints them",
    ENDPOINT_PATTERN: "an address: it starts with https:// (or http://), such as https://minio.storage.svc:9000",
    OTLP_PATTERN: "the address of a collector: it starts with http:// or https:// and has the path, such as http://collector:4318/v1/traces",
    ENV_NAME_PATTERN: "the name of a variable: letters, digits, '_', '-' and '.', not starting with a digit, such as LOG_LEVEL",
    IMAGE_PATTERN: "an image: it has no blanks, such as nvcr.io/nvidia/tritonserver:24.10-py3",
    RELEASE_PATTERN: "a Triton release: YY.MM as in the image's tag, such as 24.10 (not Triton's own version, such as 2.51.0)",
    RESOURCE_PATTERN: "an extended resource: write its domain, too, such as nvidia.com/gpu or nvidia.com/mig-1g.10gb",
    SIDE_PATH_PATTERN: "a path below the folder of model.py: letters, digits, '_', '-' and '.', parts joined by '/', such as data/labels.txt",
    LIBRARY_PATTERN: "a path below the model's folder: letters, digits, '_', '-', '.' and '/', not starting with '/', such as 1/libvolume.so",
    TABLE_PATTERN: "the name of a file beside the model's file: letters, digits, '_', '-' and '.', such as calibration.flatbuffers",
    PROFILE_PATTERN: "an optimization profile: its index as text, such as '0'",
    HOST_POLICY_PATTERN: "a host policy: its name in server.args (--host-policy=NAME,…), such as numa0",
}

# What others call a choice, without case and separators (Triton's config.pbtxt, its HTTP API, ONNX, numpy, Kubernetes).
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
# How others begin an address.
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
# What a single text in the place of a mapping says.
_MAIN_TEXT: dict[type[ApiModel], str] = {Code: "inline", Postprocess: "type", Server: "image"}


def message(item: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """What to say about one of pydantic's errors (an item of ``ValidationError.errors()``) in a ``document``."""
    kind, value, location = item["type"], item.get("input"), item["loc"]
    if (
        location[:3] == ("spec", "server", "env")
        and location[-1] == "value"
        and isinstance(value, (int, float))
    ):
        return "must be text, not a number or a boolean; put it in quotes"  # never shown: it may be a password
    context = item.get("ctx") or {}
    if location == ("metadata", "name") and kind != "missing":
        return f"{shown(value)} is not allowed: it {ROOT_RULES[0]['message'].removeprefix('metadata.name ')}"
    if kind == "missing":
        return f"is required{_described(location)}"
    if kind == "extra_forbidden":
        return unknown_field(location)
    if kind in ("enum", "literal_error"):
        return (
            f"{shown(value)} is not allowed; write {_choices(str(context.get('expected')), value)}"
        )
    if kind == "string_pattern_mismatch":
        pattern = str(context.get("pattern"))
        if pattern == TENSOR_REFERENCE_PATTERN:
            return _reference(str(value), document)
        if pattern == URI_PATTERN:
            return f"{shown(value)} is not {MEANING[pattern]}{_source(str(value))}"
        return f"{shown(value)} is not {MEANING[pattern]}"
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, not {shown(value)}{_instead(kind, value, location)}"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound, word = (context["ge"], "at least") if "ge" in context else (context["le"], "at most")
        return f"must be {word} {bound}, not {value}"
    if location[-1:] == ("[key]",) and kind == "string_too_long":
        return f"each key must have at most {_counted(context['max_length'], 'character')}"
    if kind in ("string_too_short", "string_too_long"):
        bound, word = (
            (context["min_length"], "at least")
            if "min_length" in context
            else (context["max_length"], "at most")
        )
        return f"must have {word} {_counted(bound, 'character')}, not {len(str(value))}"
    if kind in ("too_short", "too_long"):
        bound, word = (
            (context["min_length"], "at least")
            if "min_length" in context
            else (context["max_length"], "at most")
        )
        return f"must have {word} {_counted(bound, 'item')}, not {len(value) if isinstance(value, (dict, list)) else 'more'}"
    return f"{item['msg']} (got {shown(value)})"


def shown(value: Any) -> str:
    """A value for people: shortened, and containers only by their kind."""
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
    """What to say about a ``from`` that names no step: the model's name instead of the step's, another spelling, or the tensor alone."""
    step, dot, tensor = value.partition(".")
    known = named_steps(document)
    if (
        dot
        and (meant := next((one.name for one in known if one.model_name == step), None)) is not None
    ):
        return f"{step!r} is the name of a model; write the step's name: {meant}.{tensor}"
    if dot:
        hint = did_you_mean(step, ["pipeline", *(one.name for one in known)], after=f".{tensor}")
    else:
        makers = [f"{one.name}.{value}" for one in known if value in one.outputs]
        if not makers and (other := re.match(r"([^:/]+)[:/]+(.+)", value)) is not None:
            makers = [
                f"{one.name}.{other[2]}" for one in known if other[1] in (one.name, one.model_name)
            ]
        hint = f"; did you mean {' or '.join(makers)}?" if makers else ""
    return f"{shown(value)} is not {MEANING[TENSOR_REFERENCE_PATTERN]}{hint}"


def _described(location: tuple[int | str, ...]) -> str:
    """What a field that is missing would say, from its own description."""
    info = field_at(location)
    text = info.description if info is not None else None
    if not text:
        return ""
    first = text.split(". ")[0].rstrip(".")
    return f": {first[0].lower() if first[1:2].islower() else first[0]}{first[1:]}"


def _instead(kind: str, value: Any, location: tuple[int | str, ...]) -> str:
    """How a value of the wrong type would be written."""
    if kind == "string_type":
        return "; put it in quotes" if isinstance(value, (int, float)) else ""
    if kind.startswith("int"):
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value):
            return "; remove the quotes"
        return (
            "; write the number alone: its unit is the field's"
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
            return f"; begin each item with '- {required[0]}: '"
        return (
            "; begin each item with '- '"
            if isinstance(value, (dict, str))
            else f"; write [{json.dumps(value)}]"
        )
    if model is None:
        return ""
    if isinstance(value, list):
        return "; it stands there once: remove the '- '"
    if not isinstance(value, dict) and (name := _told_by(model, required, value)) is not None:
        return f"; write {{{name}: {_switched(value)}}}"
    return f"; it takes {', '.join(fields_of(model))}"


def _told_by(model: type[ApiModel], required: list[str], value: Any) -> str | None:
    """The field of ``model`` that a single value was meant for."""
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
    """What was probably meant by an address of no known kind. Nothing of it is shown that may hold a password."""
    scheme, separator, rest = uri.partition("://")
    if separator and scheme.lower() in _SCHEMES_CALLED:
        return f"; did you mean {_SCHEMES_CALLED[scheme.lower()]}://{'…' if '@' in rest or '?' in rest else rest}?"
    if scheme == "file" or uri.startswith("/"):
        return "; a folder of the node cannot be read: put the files on a claim and write pvc://CLAIM/PATH"
    if (short := re.match(rf"({'|'.join(SCHEMES)}):/?(?!/)", uri)) is not None:
        return f"; write '//' behind {short[1]}:"
    if not separator and re.fullmatch(r"[\w.-]+/[\w.-]+", uri):
        return f"; did you mean hf://{uri}?"
    return ""


def _choices(expected: str, value: Any) -> str:
    """Pydantic's list of allowed values, with enum members (``<DataType.INT32: 'INT32'>``) written as the user writes them."""
    text = re.sub(r"<[^:<>]+: ('[^']*')>", r"\1", expected)
    if not ("," in text or " or " in text):
        return text
    known = re.findall(r"'([^']*)'", text)
    name = re.sub(r"^(TYPE|KIND)_", "", json.dumps(value).strip('"'))
    called = _CALLED.get(plain(name))
    hint = (
        f"; did you mean {called!r}?" if called in known else did_you_mean(name, known, quoted=True)
    )
    return f"one of {text}{hint}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
