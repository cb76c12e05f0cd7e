"""The operator's own runtime steps, known by their parameters: a repository that was rendered reads back as what it was rendered from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.tokenizer import Padding, Truncation

from .import_notes import ConfigError
from .repository import Model
from .schedulers import data_type


class Own(StrEnum):
    """Runtime steps that come with the operator."""

    TOKENIZER = "tokenizer"
    POSTPROCESS = "postprocess"
    RUNNER = "onnx_runner"


def parameters(model: Model) -> dict[str, str]:
    """Parameters of the operator's own, without their prefix."""
    return {
        key.removeprefix(RUNTIME_PARAMETER_PREFIX): value.string_value
        for key, value in model.config.parameters.items()
        if key.startswith(RUNTIME_PARAMETER_PREFIX)
    }


def own(model: Model) -> Own | None:
    """Which runtime step this is; None for anybody else's model."""
    held = parameters(model)
    if model.backend != "python" or not held:
        return None
    if "outputs" in held and "text" in held:
        return Own.TOKENIZER
    if "type" in held and "input" in held:
        return Own.POSTPROCESS
    return Own.RUNNER if "model_file" in held or "pad_inputs" in held else None


def tokenizer_fields(model: Model) -> dict[str, Any]:
    """Fields of ``tokenizer`` that its parameters hold, and its outputs."""
    held = parameters(model)
    kinds = _object(model, "outputs")
    fields: dict[str, Any] = {}
    texts = {"text": held["text"]} if held["text"] != "TEXT" else {}
    if "text_pair" in held:
        texts = {"text": held["text"], "textPair": held["text_pair"]}
    if texts:
        fields["inputs"] = texts
    fields["outputs"] = [
        {
            "name": output.name,
            **({"tensor": kinds[output.name]} if output.name in kinds else {}),
            "dataType": data_type(output.data_type),
        }
        for output in model.config.output
    ]
    fields["maxLength"] = _number(model, "max_length", 512)
    if (
        truncation := held.get("truncation", Truncation.LONGEST_FIRST.value)
    ) != Truncation.LONGEST_FIRST.value:
        fields["truncation"] = truncation
    if held.get("special_tokens") == "Disabled":
        fields["specialTokens"] = "Disabled"
    padding = held.get("padding", Padding.RAGGED.value)
    fields["padding"] = padding
    if padding == Padding.BUCKETED.value:
        try:
            fields["buckets"] = [int(part) for part in held.get("buckets", "").split(",") if part]
        except ValueError as error:
            raise ConfigError(
                f"{model.origin}: parameters[{RUNTIME_PARAMETER_PREFIX}buckets]: must be numbers with commas, not {held['buckets']!r}"
            ) from error
    return fields


def postprocess_fields(model: Model, wires: Mapping[str, str]) -> dict[str, Any]:
    """Fields of ``postprocess`` that its parameters hold; ``wires``: input → the tensor that it reads, as a reference."""
    held = parameters(model)
    fields: dict[str, Any] = {"type": held["type"]}
    if held["input"] in wires:
        fields["from"] = wires[held["input"]]
    if held["type"] == "MeanPooling" and held.get("mask") in wires:
        fields["maskFrom"] = wires[held["mask"]]
    if "labels" in held:
        fields["labels"] = _list(model, "labels")
        if (top := _number(model, "top_k", 1)) != 1:
            fields["topK"] = top
    if held.get("normalize") == "Disabled":
        fields["normalize"] = "Disabled"
    return fields


def _number(model: Model, key: str, default: int) -> int:
    text = parameters(model).get(key, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(
            f"{model.origin}: parameters[{RUNTIME_PARAMETER_PREFIX}{key}]: must be a number, not {text!r}"
        ) from error


def _json(model: Model, key: str) -> Any:
    try:
        return json.loads(parameters(model)[key])
    except ValueError as error:
        raise ConfigError(
            f"{model.origin}: parameters[{RUNTIME_PARAMETER_PREFIX}{key}]: is no JSON: {error}"
        ) from error


def _object(model: Model, key: str) -> dict[str, str]:
    value = _json(model, key)
    if not isinstance(value, dict):
        raise ConfigError(
            f"{model.origin}: parameters[{RUNTIME_PARAMETER_PREFIX}{key}]: must be a JSON object"
        )
    return {str(name): str(kind) for name, kind in value.items()}


def _list(model: Model, key: str) -> list[str]:
    value = _json(model, key)
    if not isinstance(value, list):
        raise ConfigError(
            f"{model.origin}: parameters[{RUNTIME_PARAMETER_PREFIX}{key}]: must be a JSON list"
        )
    return [str(item) for item in value]
