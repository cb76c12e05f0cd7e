"""From an ONNX graph and the small files beside it to a resource with comments: what is known is written, what is not is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_pipelines.api.base import TENSOR_NAME_PATTERN
from triton_pipelines.api.tensors import DataType
from triton_pipelines.compile.graph.defaults import (
    DEFAULT_MAX_BATCH_SIZE,
    DEFAULT_MAX_LENGTH,
    USUAL_NAMES,
)
from triton_pipelines.loader.onnx_file import FileTensor, OnnxFile

from . import model_facts
from .model_facts import Files
from .output_roles import Output, describe
from .yaml_document import Draft

PAIR_INPUT = "TEXT_PAIR"
# Inputs of decoders that only a loop around the model can fill.
_CACHE = ("past_key_values", "past_key_value", "past.", "cache_position")


class UnclearError(Exception):
    """Something has to be told by the user; the message says what and how."""


@dataclass(frozen=True)
class Given:
    """What is known before anything is decided.

    Attributes:
        name: of the resource.
        graph: what the ONNX file says of itself; ``graph_name`` is its name in messages.
        model_source, tokenizer_source: the ``source`` of each; the tokenizer's is None where none was given.
        files: parsed JSON files by name (:data:`~.facts.SMALL_FILES`, and tokenizer.json).
        labels: given by hand; ``postprocess``: type given by hand; ``pair``: the tokenizer reads two texts.
    """

    name: str
    graph: OnnxFile
    graph_name: str
    model_source: Mapping[str, Any]
    tokenizer_source: Mapping[str, Any] | None = None
    files: Files = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    postprocess: str | None = None
    pair: bool = False


@dataclass(frozen=True)
class _Shape:
    """What the graph's axes say: whether rows can be batched, and the fixed number of tokens in a row, where it is fixed."""

    batched: bool
    length: int | None


def draft(given: Given) -> Draft:
    """The resource. Raises :class:`UnclearError` for what cannot be known."""
    made = Draft(given.name)
    tokens = [tensor for tensor in given.graph.inputs if tensor.name.lower() in USUAL_NAMES]
    _refuse(given, tokens)
    shape = _shape(given, tokens)
    if tokens:
        _tokenizer(made, given, shape)
    _model(made, given, tokens, shape)
    return made


def _refuse(given: Given, tokens: list[FileTensor]) -> None:
    """What no resource can make work."""
    inputs = [tensor.name for tensor in given.graph.inputs]
    if not inputs:
        raise UnclearError(f"{given.graph_name}: has no inputs; is it the whole model?")
    if cached := [name for name in inputs if name.startswith(_CACHE)]:
        raise UnclearError(
            f"{given.graph_name}: reads {cached[0]}, the cache of a generating model: that needs a loop around it. Serve it with platform vllm or backend"
            " tensorrtllm, or export it without the cache"
        )
    if any(name.lower() == "position_ids" for name in inputs) and tokens:
        raise UnclearError(
            f"{given.graph_name}: reads position_ids, which no tokenizer makes; export the model without that input"
        )
    known = {item.value for item in DataType}
    for tensor in (*given.graph.inputs, *given.graph.outputs):
        if tensor in given.graph.inputs and tensor.data_type not in known:
            raise UnclearError(
                f"{given.graph_name}: input {tensor.name} is of type {tensor.data_type}, which Triton does not have"
            )
        if any(ord(character) < 32 for character in tensor.name):
            raise UnclearError(
                f"{given.graph_name}: the name {tensor.name!r} holds control characters ({TENSOR_NAME_PATTERN} is allowed); rename it"
            )
    for tensor in given.graph.inputs:
        if tensor.dims is None:
            raise UnclearError(
                f"{given.graph_name}: input {tensor.name} has no shape; export the model with shapes"
            )
    for tensor in tokens:
        if len(tensor.dims or ()) != 2:
            raise UnclearError(
                f"{given.graph_name}: {tensor.name} has the shape {_shown(tensor)}; a tokenizer makes [batch, sequence]. Export it that way, or rename the input"
            )
        if tensor.data_type not in ("INT64", "INT32"):
            raise UnclearError(
                f"{given.graph_name}: {tensor.name} is {tensor.data_type}; a tokenizer makes INT64 or INT32"
            )
    if tokens and given.tokenizer_source is None:
        raise UnclearError(
            f"{given.graph_name}: reads {tokens[0].name}, so it needs a tokenizer: --tokenizer names its tokenizer.json, or the folder that holds it"
        )
    if given.pair and not tokens:
        raise UnclearError(
            f"--pair: {given.graph_name} reads no token tensors ({', '.join(inputs)}), so there is no tokenizer that could read two texts"
        )


def _shown(tensor: FileTensor) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in tensor.dims or ()) + "]"


def _shape(given: Given, tokens: list[FileTensor]) -> _Shape:
    tensors = [
        tensor for tensor in (*given.graph.inputs, *given.graph.outputs) if tensor.dims is not None
    ]
    batched = all(tensor.dims and not isinstance(tensor.dims[0], int) for tensor in tensors)
    fixed = {tensor.dims[1] for tensor in tokens if tensor.dims and isinstance(tensor.dims[1], int)}
    if len(fixed) > 1:
        raise UnclearError(
            f"{given.graph_name}: its token inputs have different fixed lengths {sorted(map(str, fixed))}; export the model with one"
        )
    length = next(iter(fixed), None)
    return _Shape(batched, length if isinstance(length, int) else None)


def _tokenizer(made: Draft, given: Given, shape: _Shape) -> None:
    spec: dict[str, Any] = {"source": dict(given.tokenizer_source or {})}
    made.spec["tokenizer"] = spec
    if given.pair:
        spec["inputs"] = {"text": "TEXT", "textPair": PAIR_INPUT}
        made.say("spec.tokenizer.inputs", "Two texts (--pair): clients send both, row by row.")
    limits = model_facts.lengths(given.files)
    if shape.length is not None:
        spec["maxLength"] = shape.length
        made.say(
            "spec.tokenizer.maxLength",
            f"The graph takes exactly {shape.length} tokens: every text is padded or cut to that.",
        )
        spec["padding"] = "Fixed"
    elif limits:
        spec["maxLength"] = limits[0].value
        more = "".join(
            f"; {other.value} is {other.origin}"
            for other in limits[1:]
            if other.value != limits[0].value
        )
        made.say("spec.tokenizer.maxLength", f"From {limits[0].origin}{more}.")
    else:
        made.say(
            "spec.tokenizer.maxLength",
            f"LOOK: no file says how many tokens the model takes; left out, it is {DEFAULT_MAX_LENGTH}. A model that takes fewer fails for longer texts.",
        )
    vocabulary = model_facts.config(given.files).get("vocab_size")
    held = _vocabulary(given.files)
    if isinstance(vocabulary, int) and held > vocabulary:
        made.say(
            "spec.tokenizer.source",
            f"LOOK: this tokenizer has ids up to {held - 1}, but vocab_size of {model_facts.CONFIG} is {vocabulary}: is it the model's own?",
        )


def _vocabulary(files: Files) -> int:
    """Ids that tokenizer.json can give; 0 where that cannot be told."""
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


def _model(made: Draft, given: Given, tokens: list[FileTensor], shape: _Shape) -> None:
    model: dict[str, Any] = {"platform": "onnxruntime_onnx", "source": dict(given.model_source)}
    made.spec["model"] = model
    inputs = []
    for index, tensor in enumerate(given.graph.inputs):
        entry = _tensor(tensor, shape.batched)
        if tensor not in tokens:
            entry["from"] = f"pipeline.{tensor.name}"
            made.say(
                f"spec.model.inputs[{index}]",
                f"No tokenizer makes {tensor.name}: clients send it. Where a step should make it, add the step and name it in from.",
            )
        inputs.append(entry)
    model["inputs"] = inputs
    made.say(
        "spec.model.inputs",
        "As the graph declares them, without the batch axis."
        if shape.batched
        else "As the graph declares them.",
    )
    answer = describe(
        given.graph, given.files, given.labels, given.postprocess, shape.batched, bool(tokens)
    )
    if answer.problem:
        raise UnclearError(f"{given.graph_name}: {answer.problem}")
    model["outputs"] = [_output(one, shape.batched) for one in answer.outputs]
    made.say("spec.model.outputs", *answer.about_outputs)
    for index, one in enumerate(answer.outputs):
        if one.about:
            made.say(f"spec.model.outputs[{index}]", one.about)
    if shape.batched:
        model["maxBatchSize"] = DEFAULT_MAX_BATCH_SIZE
        made.say(
            "spec.model.maxBatchSize",
            "Most rows in a batch: what fits into the GPU's memory, and pays, has to be measured.",
        )
    else:
        model["maxBatchSize"] = 0
        made.say(
            "spec.model.maxBatchSize",
            "The graph's first axis is fixed, so requests cannot be put together. A dynamic first axis would let Triton batch them.",
        )
    if answer.postprocess:
        made.spec["postprocess"] = dict(answer.postprocess)
    made.say("spec.postprocess", *answer.about_postprocess)
    for key, text in answer.about_fields.items():
        made.say(f"spec.postprocess.{key}", text)
    single = (
        model_facts.architecture(given.files).endswith("ForSequenceClassification")
        and len(model_facts.classes(given.files)) == 1
    )
    if single and not given.pair and tokens:
        made.say(
            "spec.tokenizer.inputs",
            "LOOK: one score per row: a cross-encoder reads two texts; `tritonpipe init --pair` writes that.",
        )


def _tensor(tensor: FileTensor, batched: bool) -> dict[str, Any]:
    dims = _dims(tensor, batched)
    entry: dict[str, Any] = {"name": tensor.name, "dataType": tensor.data_type, "dims": dims or [1]}
    return entry if dims else {**entry, "reshape": []}


def _dims(tensor: FileTensor, batched: bool) -> list[int]:
    return [
        dim if isinstance(dim, int) else -1 for dim in (tensor.dims or ())[1 if batched else 0 :]
    ]


def _output(output: Output, batched: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": output.tensor.name,
        "dataType": output.tensor.data_type,
        "dims": list(output.dims) or [1],
    }
    return entry if output.dims else {**entry, "reshape": []}
