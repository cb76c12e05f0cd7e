"""Derive a resource from an ONNX graph and the small files next to it.

Known values are written; for unknown ones a comment says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_pipelines.api.base import TENSOR_NAME_PATTERN
from triton_pipelines.api.health import InferenceHealth
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.defaults import (
    DEFAULT_MAX_BATCH_SIZE,
    DEFAULT_MAX_LENGTH,
    USUAL_NAMES,
)
from triton_pipelines.loader.onnx_file import FileTensor, OnnxFile

from . import model_facts
from .model_facts import SidecarFiles
from .output_roles import ServedOutput, describe
from .pooling_placement import place_pooling
from .yaml_document import ResourceDraft

PAIR_INPUT = "TEXT_PAIR"
# Inputs of decoders; only a generation loop around the model can fill them.
_CACHE = ("past_key_values", "past_key_value", "past.", "cache_position")


class MissingInformationError(Exception):
    """Information is missing that only the user has; the message says what and how to give it."""


@dataclass(frozen=True)
class DraftInputs:
    """What is known before anything is decided."""

    name: str
    """Name of the resource."""
    graph: OnnxFile
    """Tensors of the ONNX file."""
    graph_name: str
    """The ONNX file, for messages."""
    model_source: Mapping[str, Any]
    """``source`` of the model."""
    tokenizer_source: Mapping[str, Any] | None = None
    """``source`` of the tokenizer; ``None`` if none was given."""
    files: SidecarFiles = field(default_factory=dict)
    """Parsed JSON files by name (:data:`~.model_facts.SMALL_FILES`, and tokenizer.json)."""
    labels: tuple[str, ...] = ()
    """Class names given by the user."""
    postprocess: str | None = None
    """Postprocess type given by the user."""
    pair: bool = False
    """Whether the tokenizer takes two texts."""


@dataclass(frozen=True)
class _GraphShape:
    """What the axes of the graph say."""

    batched: bool
    """Whether rows can be batched."""
    length: int | None
    """Number of tokens in a row, if it is fixed."""


def draft(given: DraftInputs) -> ResourceDraft:
    """Return the resource.

    Raises:
        MissingInformationError: the files do not contain all that is needed.
    """
    resource = ResourceDraft(given.name)
    tokens = [tensor for tensor in given.graph.inputs if tensor.name.lower() in USUAL_NAMES]
    _check_inputs(given, tokens)
    _check_types(given)
    _check_token_inputs(given, tokens)
    shape = _shape(given, tokens)
    if tokens:
        _add_tokenizer(resource, given, shape)
    _add_model(resource, given, tokens, shape)
    place_pooling(resource, given.graph)
    _add_health(resource, [tensor.name for tensor in given.graph.inputs if tensor not in tokens])
    return resource


def _add_health(resource: ResourceDraft, others: list[str]) -> None:
    """Say that pods are not probed with an inference if the files do not contain an example."""
    if not others:
        return
    resource.spec["health"] = {"inference": InferenceHealth.DISABLED.value}
    resource.comment(
        "spec.health",
        f"LOOK: no file contains an example of {', '.join(others)}, so pods are checked "
        "only for readiness. Add an example request to inputs instead.",
    )


def _check_inputs(given: DraftInputs, tokens: list[FileTensor]) -> None:
    """Refuse graphs with inputs that no pipeline can provide."""
    inputs = [tensor.name for tensor in given.graph.inputs]
    if not inputs:
        raise MissingInformationError(
            f"{given.graph_name}: the model has no inputs; check that the file is complete"
        )
    if cached := [name for name in inputs if name.startswith(_CACHE)]:
        raise MissingInformationError(
            f"{given.graph_name}: input {cached[0]!r} is part of the KV cache of a generative "
            "model, which requires a generation loop; serve the model with platform vllm or "
            "backend tensorrtllm, or export the model without the KV cache"
        )
    if any(name.lower() == "position_ids" for name in inputs) and tokens:
        raise MissingInformationError(
            f"{given.graph_name}: no tokenizer produces input 'position_ids'; export the "
            "model without this input"
        )


def _check_types(given: DraftInputs) -> None:
    """Refuse tensors without shapes, with unsupported types or with invalid names."""
    supported = {item.value for item in DataType}
    for tensor in given.graph.inputs:
        if tensor.data_type not in supported:
            raise MissingInformationError(
                f"{given.graph_name}: input {tensor.name!r} has type {tensor.data_type}, "
                "which Triton does not support; export the model with a supported type"
            )
    for tensor in (*given.graph.inputs, *given.graph.outputs):
        if any(ord(character) < 32 for character in tensor.name):
            raise MissingInformationError(
                f"{given.graph_name}: the name {tensor.name!r} contains control characters "
                f"(allowed: {TENSOR_NAME_PATTERN}); rename the tensor"
            )
    for tensor in given.graph.inputs:
        if tensor.dims is None:
            raise MissingInformationError(
                f"{given.graph_name}: input {tensor.name!r} has no shape; export the model "
                "with shapes"
            )


def _check_token_inputs(given: DraftInputs, tokens: list[FileTensor]) -> None:
    """Refuse token inputs that no tokenizer can fill, and a missing tokenizer."""
    for tensor in tokens:
        if len(tensor.dims or ()) != 2:
            raise MissingInformationError(
                f"{given.graph_name}: input {tensor.name!r} has shape {_shown(tensor)}, but "
                "a tokenizer produces shape [batch, sequence]; export the input with that "
                "shape, or rename the input if it does not hold tokens"
            )
        if tensor.data_type not in ("INT64", "INT32"):
            raise MissingInformationError(
                f"{given.graph_name}: input {tensor.name!r} has type {tensor.data_type}, "
                "but a tokenizer produces INT64 or INT32; export the model with one of "
                "these types"
            )
    if tokens and given.tokenizer_source is None:
        raise MissingInformationError(
            f"{given.graph_name}: input {tokens[0].name!r} requires a tokenizer; set "
            "--tokenizer to a tokenizer.json file, or to the directory that contains the "
            "file"
        )
    if given.pair and not tokens:
        inputs = ", ".join(tensor.name for tensor in given.graph.inputs)
        raise MissingInformationError(
            f"--pair: {given.graph_name} reads no tokens ({inputs}),"
            " so there is no tokenizer for two texts; omit --pair"
        )


def _shown(tensor: FileTensor) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in tensor.dims or ()) + "]"


def _shape(given: DraftInputs, tokens: list[FileTensor]) -> _GraphShape:
    tensors = [
        tensor for tensor in (*given.graph.inputs, *given.graph.outputs) if tensor.dims is not None
    ]
    batched = all(tensor.dims and not isinstance(tensor.dims[0], int) for tensor in tensors)
    fixed = {tensor.dims[1] for tensor in tokens if tensor.dims and isinstance(tensor.dims[1], int)}
    if len(fixed) > 1:
        raise MissingInformationError(
            f"{given.graph_name}: the token inputs have different fixed lengths "
            f"({', '.join(sorted(map(str, fixed)))}); export the "
            "model with the same length for all token inputs"
        )
    length = next(iter(fixed), None)
    return _GraphShape(batched, length if isinstance(length, int) else None)


def _add_tokenizer(resource: ResourceDraft, given: DraftInputs, shape: _GraphShape) -> None:
    spec: dict[str, Any] = {"source": dict(given.tokenizer_source or {})}
    resource.spec["tokenizer"] = spec
    if given.pair:
        spec["inputs"] = {"text": "TEXT", "textPair": PAIR_INPUT}
    limits = model_facts.lengths(given.files)
    if shape.length is not None:
        spec["maxLength"] = shape.length
        resource.comment(
            "spec.tokenizer.maxLength",
            f"The graph takes exactly {shape.length} tokens: every text is padded or "
            "truncated to this length.",
        )
        spec["padding"] = "Fixed"
    elif limits:
        spec["maxLength"] = limits[0].value
        more = "".join(
            f"; {other.value} is {other.origin}"
            for other in limits[1:]
            if other.value != limits[0].value
        )
        resource.comment("spec.tokenizer.maxLength", f"From {limits[0].origin}{more}.")
    else:
        resource.comment(
            "spec.tokenizer.maxLength",
            "LOOK: no file states how many tokens the model accepts; the default is "
            f"{DEFAULT_MAX_LENGTH}. A model that accepts fewer tokens fails for longer "
            "texts.",
        )
    vocabulary = model_facts.config(given.files).get("vocab_size")
    token_ids = _vocabulary(given.files)
    if isinstance(vocabulary, int) and token_ids > vocabulary:
        resource.comment(
            "spec.tokenizer.source",
            f"LOOK: this tokenizer has IDs up to {token_ids - 1}, but vocab_size in "
            f"{model_facts.CONFIG} is {vocabulary}. Check that it belongs to this model.",
        )


def _vocabulary(files: SidecarFiles) -> int:
    """Return the number of ids of tokenizer.json; 0 if unknown."""
    found = model_facts.config(files, model_facts.TOKENIZER)
    words = (found.get("model") or {}).get("vocab")
    ids = [
        item["id"]
        for item in found.get("added_tokens") or ()
        if isinstance(item, Mapping) and isinstance(item.get("id"), int)
    ]
    if isinstance(words, Mapping):
        ids += [value for value in words.values() if isinstance(value, int)]
    elif isinstance(words, list):
        ids.append(len(words) - 1)
    return max(ids, default=-1) + 1


def _add_model(
    resource: ResourceDraft, given: DraftInputs, tokens: list[FileTensor], shape: _GraphShape
) -> None:
    model: dict[str, Any] = {"platform": "onnxruntime_onnx", "source": dict(given.model_source)}
    resource.spec["model"] = model
    inputs = []
    for index, tensor in enumerate(given.graph.inputs):
        entry = _tensor(tensor, shape.batched)
        if tensor not in tokens:
            entry["from"] = f"pipeline.{tensor.name}"
            resource.comment(
                f"spec.model.inputs[{index}]",
                f"The tokenizer does not produce {tensor.name}, so clients must send it. If a "
                "step should produce it, add the step, and set from to its output.",
            )
        inputs.append(entry)
    model["inputs"] = inputs
    resource.comment(
        "spec.model.inputs",
        "As declared in the graph, without the batch axis."
        if shape.batched
        else "As declared in the graph.",
    )
    _add_outputs(resource, given, bool(tokens), shape.batched)
    if shape.batched:
        model["maxBatchSize"] = DEFAULT_MAX_BATCH_SIZE
        batch_comment = (
            "Maximum number of rows per batch. The best value depends on the GPU and must be "
            "measured."
        )
    else:
        model["maxBatchSize"] = 0
        batch_comment = (
            "The graph's first axis is fixed, so requests cannot be batched. Export the model"
            " with a dynamic first axis to let Triton batch them."
        )
    resource.comment("spec.model.maxBatchSize", batch_comment)
    single = (
        model_facts.architecture(given.files).endswith("ForSequenceClassification")
        and len(model_facts.classes(given.files)) == 1
    )
    if single and not given.pair and tokens:
        resource.comment(
            "spec.tokenizer.inputs",
            "LOOK: the model returns one score per row. If it is a cross-encoder, which takes "
            "two texts, use `tritonpipe init --pair`.",
        )


def _add_outputs(resource: ResourceDraft, given: DraftInputs, text: bool, batched: bool) -> None:
    """Add the outputs and the postprocess."""
    plan = describe(given.graph, given.files, given.labels, given.postprocess, batched, text)
    if plan.problem:
        raise MissingInformationError(f"{given.graph_name}: {plan.problem}")
    resource.spec["model"]["outputs"] = [_output(one) for one in plan.outputs]
    resource.comment("spec.model.outputs", *plan.about_outputs)
    for index, one in enumerate(plan.outputs):
        if one.comment:
            resource.comment(f"spec.model.outputs[{index}]", one.comment)
    if plan.postprocess:
        resource.spec["postprocess"] = dict(plan.postprocess)
    resource.comment("spec.postprocess", *plan.about_postprocess)
    for key, text_of_field in plan.about_fields.items():
        resource.comment(f"spec.postprocess.{key}", text_of_field)


def _tensor(tensor: FileTensor, batched: bool) -> dict[str, Any]:
    dims = _dims(tensor, batched)
    entry: dict[str, Any] = {"name": tensor.name, "dataType": tensor.data_type, "dims": dims or [1]}
    return entry if dims else {**entry, "reshape": []}


def _dims(tensor: FileTensor, batched: bool) -> list[int]:
    return [
        dim if isinstance(dim, int) else -1 for dim in (tensor.dims or ())[1 if batched else 0 :]
    ]


def _output(output: ServedOutput) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": output.tensor.name,
        "dataType": output.tensor.data_type,
        "dims": list(output.dims) or [1],
    }
    return entry if output.dims else {**entry, "reshape": []}
