"""The request with which pods are asked whether they really answer: from ``spec.health``, as typed arrays. Pure.

A text pipeline needs none of it written. One that reads anything else is asked only with an example, since a request made up for it
might be refused by a healthy pod; neither is one with sequences, where a request takes the place of a client's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.batching import ControlKind
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.server import ExampleInput, InferenceHealth
from triton_pipelines.api.tensors import DataType
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .graph import Graph, Implementation, Tensor

Array = np.ndarray[Any, Any]

# Short, so that it fits any maxLength that a text pipeline would have.
DEFAULT_TEXT = "Hello."
# Of all arrays of an example together, in bytes: an image of 1024 x 1024 in FP32 has 12 MiB. The operator makes them for each pod anew.
EXAMPLE_BYTES_MAX = 16 * 1024**2

_NUMPY: Mapping[DataType, Any] = {
    DataType.BOOL: np.bool_,
    DataType.UINT8: np.uint8,
    DataType.UINT16: np.uint16,
    DataType.UINT32: np.uint32,
    DataType.UINT64: np.uint64,
    DataType.INT8: np.int8,
    DataType.INT16: np.int16,
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.FP16: np.float16,
    DataType.FP32: np.float32,
    DataType.FP64: np.float64,
    DataType.BF16: ml_dtypes.bfloat16,
    DataType.STRING: np.object_,
}
_BOOLS = {"true": True, "false": False, "1": True, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class ExampleRequest:
    """A request that a healthy pod answers.

    ``inputs``: arrays by name, texts as objects (bytes); ``stream``: any number of answers may come; ``sequence``: it has to be a sequence of its own, with a text
    (``text_ids``) or number as its id; ``finite``: outputs of the project's own postprocess, in which no infinity is meant;
    ``made_up``: nothing of it stands in the resource; ``repeat``: how often the rows of such a one go into the request, so that a step which answers the
    first row alone is found out.
    """

    inputs: Mapping[str, Array]
    stream: bool = False
    sequence: bool = False
    text_ids: bool = False
    finite: frozenset[str] = frozenset()
    made_up: bool = False
    repeat: int = 1


def wire_type(data_type: DataType) -> str:
    """The type as clients send it."""
    return "BYTES" if data_type is DataType.STRING else data_type.value


def public_shape(tensor: Tensor, graph: Graph) -> tuple[int, ...]:
    """Shape of a public tensor as clients see it: with the batch axis where there is one."""
    return (-1, *tensor.dims) if graph.max_batch_size > 0 else tensor.dims


def example_of(pipeline: InferencePipeline, graph: Graph) -> ExampleRequest | None:
    """The request for a pipeline that :func:`check_example` has nothing against; ``None``: pods are asked for readiness alone."""
    health = pipeline.spec.health
    if health.inference is InferenceHealth.DISABLED or why_unasked(pipeline, graph):
        return None
    if health.inputs:
        public = {tensor.name: tensor for tensor in graph.inputs}
        inputs = {item.name: _array(item, public[item.name].data_type) for item in health.inputs}
    else:
        inputs = {
            tensor.name: _text(tensor, graph, health.text or DEFAULT_TEXT)
            for tensor in _required(graph)
        }
    sequences = [step.sequences for step in graph.models if step.sequences is not None]
    correlation = [
        control
        for one in sequences
        for control in one.controls
        if control.kind is ControlKind.CORRID
    ]
    own = {step.name for step in graph.steps if step.implementation is Implementation.POSTPROCESS}
    made_up = not health.inputs and health.text is None
    return ExampleRequest(
        inputs=inputs,
        stream=graph.decoupled,
        sequence=bool(sequences),
        text_ids=any(control.data_type is DataType.STRING for control in correlation),
        finite=frozenset(
            output.tensor.name for output in graph.outputs if output.source.step in own
        ),
        made_up=made_up,
        repeat=2
        if made_up and graph.max_batch_size > 1 and not sequences and not graph.decoupled
        else 1,
    )


def why_unasked(pipeline: InferencePipeline, graph: Graph) -> str:
    """Why pods are not asked with an inference though nobody disabled that; empty where they are."""
    health = pipeline.spec.health
    if health.inputs or health.inference is InferenceHealth.DISABLED:
        return ""
    other = [str(tensor) for tensor in _required(graph) if tensor.data_type is not DataType.STRING]
    if other:
        return f"it reads {', '.join(other)}, for which no example can be made up"
    if not _required(graph):
        return "it needs no input"
    stateful = [step.name for step in graph.models if step.sequences is not None]
    if stateful and health.text is None:
        return f"{', '.join(stateful)} keeps sequences, and an inference takes a place among those of clients"
    return ""


def lint_example(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """That no inference is made, or that a text is written for nobody."""
    health = pipeline.spec.health
    if why := why_unasked(pipeline, graph):
        yield Finding(
            "spec.health.inputs",
            f"pods are asked for readiness alone: {why}. A dead process keeps looking ready to Triton: give an example request, or write inference: Disabled",
            Severity.WARNING,
            code=FindingCode.INFERENCE_PROBE_UNAVAILABLE,
        )
    if health.text is not None and any(
        tensor.data_type is not DataType.STRING for tensor in _required(graph)
    ):
        yield Finding(
            "spec.health.text",
            "has no effect: the pipeline reads more than text; give an example request in inputs",
            Severity.WARNING,
            code=FindingCode.NO_EFFECT,
        )


def check_example(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Whether the example request is one of this pipeline's: names, shapes, and elements that are of their type."""
    public = {tensor.name: tensor for tensor in graph.inputs}
    total, rows = 0, {}
    examples = pipeline.spec.health.inputs
    for index, example in enumerate(examples):
        path = f"spec.health.inputs[{index}]"
        tensor = public.get(example.name)
        if tensor is None:
            yield Finding(
                f"{path}.name",
                f"{example.name!r} is no input of the pipeline; it has {', '.join(public) or 'none'}",
                code=FindingCode.UNKNOWN_TENSOR,
            )
            continue
        elements = math.prod(example.shape)
        if len(example.data) not in (1, elements):
            yield Finding(
                f"{path}.data",
                f"has {len(example.data)} elements, but shape {list(example.shape)} has {elements}; give all, or a single one for all",
                code=FindingCode.INVALID_EXAMPLE,
            )
        full = public_shape(tensor, graph)
        if len(full) != len(example.shape) or any(
            a not in (-1, b) for a, b in zip(full, example.shape, strict=True)
        ):
            yield Finding(
                f"{path}.shape",
                f"{list(example.shape)} does not fit {example.name}, whose shape is {list(full)} with the batch axis",
                code=FindingCode.SHAPE_MISMATCH,
            )
        elif 0 < graph.max_batch_size < example.shape[0]:
            yield Finding(
                f"{path}.shape",
                f"has {example.shape[0]} rows; the pipeline takes at most {graph.max_batch_size} in a request",
                code=FindingCode.BATCH_SIZE_MISMATCH,
            )
        elif graph.max_batch_size > 0:
            rows[example.name] = example.shape[0]
        total += _bytes(example, tensor.data_type, elements)
        for position, text in enumerate(example.data):
            try:
                parse_element(text, tensor.data_type)
            except ValueError as error:
                yield Finding(
                    f"{path}.data[{position}]",
                    f"{text!r:.60} {error}; {example.name} is {tensor.data_type.value}",
                    code=FindingCode.INVALID_EXAMPLE,
                )
    if len(set(rows.values())) > 1:
        have = ", ".join(f"{name} {count}" for name, count in rows.items())
        yield Finding(
            "spec.health.inputs",
            f"inputs differ in rows, the first number of their shapes: {have}; all of a request have the same",
            code=FindingCode.BATCH_SIZE_MISMATCH,
        )
    if total > EXAMPLE_BYTES_MAX:
        yield Finding(
            "spec.health.inputs",
            f"the example request has {total} bytes; at most {EXAMPLE_BYTES_MAX} go: make shapes smaller",
            code=FindingCode.TOO_LARGE,
        )
    given = {example.name for example in examples}
    if given and (
        absent := [tensor.name for tensor in _required(graph) if tensor.name not in given]
    ):
        yield Finding(
            "spec.health.inputs",
            f"leaves out {', '.join(absent)}; an example request names every input that the pipeline needs",
            code=FindingCode.REQUIRED,
        )


def parse_element(text: str, data_type: DataType) -> bool | int | float | bytes:
    """One element of an example from its text.

    Raises:
        ValueError: it is none of that type; the message says what is wanted and goes on after the text.
    """
    if data_type is DataType.STRING:
        return text.encode()
    if data_type is DataType.BOOL:
        if text.lower() not in _BOOLS:
            raise ValueError("is neither true nor false")
        return _BOOLS[text.lower()]
    kind = _NUMPY[data_type]
    if np.issubdtype(kind, np.integer):
        if not _INTEGER.fullmatch(text):
            raise ValueError("is no whole number")
        limits = np.iinfo(kind)
        if not limits.min <= int(text) <= limits.max:
            raise ValueError(f"is not within {limits.min} and {limits.max}")
        return int(text)
    if not _FLOAT.fullmatch(text):
        raise ValueError("is no finite number such as 0.5 or 1e-3")
    largest = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    if abs(float(text)) > largest:
        raise ValueError(f"is beyond {largest:g}, the largest number of this type")
    return float(text)


def _bytes(example: ExampleInput, data_type: DataType, elements: int) -> int:
    if data_type is not DataType.STRING:
        return elements * int(np.dtype(_NUMPY[data_type]).itemsize)
    # Each with its length in front.
    size = sum(len(text.encode()) + 4 for text in example.data)
    return size * elements if len(example.data) == 1 else size


def _array(example: ExampleInput, data_type: DataType) -> Array:
    values = [parse_element(text, data_type) for text in example.data]
    if len(values) == 1:
        values *= math.prod(example.shape)
    flat = np.empty(len(values), dtype=_NUMPY[data_type])
    flat[:] = values
    return flat.reshape(example.shape)


def _text(tensor: Tensor, graph: Graph, text: str) -> Array:
    """The text in the input's shape, one element on each axis of any length."""
    shape = [max(size, 1) for size in public_shape(tensor, graph)]
    return np.full(shape, text.encode(), dtype=np.object_)


def _required(graph: Graph) -> list[Tensor]:
    """Public inputs that a request has to name. An ensemble needs all of its inputs, an entry point those that are not optional."""
    if graph.entry is None:
        return list(graph.inputs)
    entry = next((step for step in graph.models if step.name == graph.entry), None)
    optional = (
        {one.tensor.name for one in entry.inputs if one.optional} if entry is not None else set()
    )
    return [tensor for tensor in graph.inputs if tensor.name not in optional]
