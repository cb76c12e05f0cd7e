"""Recognize the operator's built-in steps by their parameters.

A rendered repository is read back as the resource it was rendered from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from triton_pipelines.api.names import NATIVE_TOKENIZER_BACKEND, RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.tokenizer import Padding, Truncation

from .import_notes import ModelRepositoryError
from .repository import RepositoryModel
from .schedulers import data_type


class RuntimeStep(StrEnum):
    """Built-in steps of the operator."""

    TOKENIZER = "tokenizer"
    POSTPROCESS = "postprocess"
    RUNNER = "onnx_runner"


def parameters(model: RepositoryModel) -> dict[str, str]:
    """Return the operator's parameters without their prefix."""
    return {
        key.removeprefix(RUNTIME_PARAMETER_PREFIX): value.string_value
        for key, value in model.config.parameters.items()
        if key.startswith(RUNTIME_PARAMETER_PREFIX)
    }


def runtime_step_of(model: RepositoryModel) -> RuntimeStep | None:
    """Return which built-in step a model is; ``None`` for any other model."""
    values = parameters(model)
    if model.backend == NATIVE_TOKENIZER_BACKEND and "outputs" in values and "text" in values:
        return RuntimeStep.TOKENIZER
    if model.backend != "python":
        return None
    if "type" in values and "input" in values:
        return RuntimeStep.POSTPROCESS
    return RuntimeStep.RUNNER if "model_file" in values or "pad_inputs" in values else None


def tokenizer_fields(model: RepositoryModel) -> dict[str, Any]:
    """Return the fields of ``tokenizer`` from its parameters and outputs."""
    values = parameters(model)
    kinds = _object(model, "outputs")
    fields: dict[str, Any] = {}
    texts = {"text": values["text"]} if values["text"] != "TEXT" else {}
    if "text_pair" in values:
        texts = {"text": values["text"], "textPair": values["text_pair"]}
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
        truncation := values.get("truncation", Truncation.LONGEST_FIRST.value)
    ) != Truncation.LONGEST_FIRST.value:
        fields["truncation"] = truncation
    if values.get("special_tokens") == "Disabled":
        fields["specialTokens"] = "Disabled"
    padding = values.get("padding", Padding.RAGGED.value)
    fields["padding"] = padding
    if padding == Padding.BUCKETED.value:
        try:
            fields["buckets"] = [int(part) for part in values.get("buckets", "").split(",") if part]
        except ValueError as error:
            raise ModelRepositoryError(
                f"{model.origin}: parameters[{RUNTIME_PARAMETER_PREFIX}buckets]: must be"
                f" comma-separated numbers, not {values['buckets']!r}"
            ) from error
    return fields


def postprocess_fields(model: RepositoryModel, wires: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ``postprocess`` from its parameters.

    Args:
        model: the postprocess.
        wires: the tensor that each input reads, as a reference.
    """
    values = parameters(model)
    fields: dict[str, Any] = {"type": values["type"]}
    if values["input"] in wires:
        fields["from"] = wires[values["input"]]
    if values["type"] == "MeanPooling" and values.get("mask") in wires:
        fields["maskFrom"] = wires[values["mask"]]
    if "labels" in values:
        fields["labels"] = _list(model, "labels")
        if (top := _number(model, "top_k", 1)) != 1:
            fields["topK"] = top
    if values.get("normalize") == "Disabled":
        fields["normalize"] = "Disabled"
    return fields


def _number(model: RepositoryModel, key: str, default: int) -> int:
    text = parameters(model).get(key, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise ModelRepositoryError(
            f"{model.origin}: parameters[{RUNTIME_PARAMETER_PREFIX}{key}]: must be a number,"
            f" not {text!r}"
        ) from error


def _json(model: RepositoryModel, key: str) -> Any:
    try:
        return json.loads(parameters(model)[key])
    except ValueError as error:
        raise ModelRepositoryError(
            f"{model.origin}: parameters[{RUNTIME_PARAMETER_PREFIX}{key}]: invalid JSON: {error}"
        ) from error


def _object(model: RepositoryModel, key: str) -> dict[str, str]:
    value = _json(model, key)
    if not isinstance(value, dict):
        raise ModelRepositoryError(
            f"{model.origin}: parameters[{RUNTIME_PARAMETER_PREFIX}{key}]: must be a JSON object"
        )
    return {str(name): str(kind) for name, kind in value.items()}


def _list(model: RepositoryModel, key: str) -> list[str]:
    value = _json(model, key)
    if not isinstance(value, list):
        raise ModelRepositoryError(
            f"{model.origin}: parameters[{RUNTIME_PARAMETER_PREFIX}{key}]: must be a JSON list"
        )
    return [str(item) for item in value]
