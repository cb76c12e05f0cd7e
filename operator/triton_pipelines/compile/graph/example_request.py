"""Build and check the test inference of ``spec.health``.

A pipeline that reads only text needs no example. Any other is probed only with an example from the
resource, because a healthy pod might reject a made-up request. Pipelines with sequences are not
probed: a request would take a slot from a client.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.health import ExampleInput, InferenceHealth
from triton_pipelines.api.sequence_batching import ControlKind
from triton_pipelines.api.tensors import DataType
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import listed

from .graph import Graph, Implementation, Reference, Tensor
from .lint_findings import warning

# numpy is imported when an example is read: `tritonpipe validate` seldom has one and would wait.
if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

# Short enough for every plausible maxLength.
DEFAULT_TEXT = "Hello."
# All arrays of an example together. A 1024 x 1024 FP32 image has 12 MiB. The operator builds the
# arrays for every pod.
EXAMPLE_BYTES_MAX = 16 * 1024**2
# Elements of a text input in a generated request; one is usual. Each is an object in memory.
GENERATED_TEXTS_MAX = 1024

# Triton sends the length of each text in front of it.
_LENGTH_BYTES = 4

_NUMPY: Mapping[DataType, str] = {
    DataType.BOOL: "bool",
    DataType.UINT8: "uint8",
    DataType.UINT16: "uint16",
    DataType.UINT32: "uint32",
    DataType.UINT64: "uint64",
    DataType.INT8: "int8",
    DataType.INT16: "int16",
    DataType.INT32: "int32",
    DataType.INT64: "int64",
    DataType.FP16: "float16",
    DataType.FP32: "float32",
    DataType.FP64: "float64",
    DataType.BF16: "bfloat16",
    DataType.STRING: "object",
}
_BOOLS = {"true": True, "false": False, "1": True, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class ExampleRequest:
    """A request that a healthy pod can answer."""

    inputs: Mapping[str, Array]
    """Arrays by name, with texts as objects (bytes)."""
    stream: bool = False
    """Whether there may be any number of responses."""
    sequence: bool = False
    """Whether the request must be a separate sequence."""
    text_ids: bool = False
    """Whether the id of a sequence is a text and not a number."""
    finite: frozenset[str] = frozenset()
    """Outputs of a built-in postprocess, in which infinity is never intended."""
    made_up: bool = False
    """Whether no part of it comes from the resource."""
    repeat: int = 1
    """How often the rows of a made-up request are repeated.

    A step that answers only the first row is thereby detected.
    """


def wire_type(data_type: DataType) -> str:
    """Return the element type under the name that clients send."""
    return "BYTES" if data_type is DataType.STRING else data_type.value


def public_shape(tensor: Tensor, graph: Graph) -> tuple[int, ...]:
    """Return the shape of a public tensor as clients see it, with the batch axis if it has one."""
    return (-1, *tensor.dims) if graph.max_batch_size > 0 else tensor.dims


def example_of(pipeline: InferencePipeline, graph: Graph) -> ExampleRequest | None:
    """Return the request for a pipeline that passes :func:`check_example`.

    ``None`` if pods are probed for readiness only.
    """
    health = pipeline.spec.health
    if health.inference is InferenceHealth.DISABLED or probe_blocker(pipeline, graph):
        return None
    if health.inputs:
        public = {tensor.name: tensor for tensor in graph.inputs}
        inputs = {item.name: _array(item, public[item.name].data_type) for item in health.inputs}
    else:
        inputs = {
            tensor.name: _text(tensor, graph, health.text or DEFAULT_TEXT)
            for tensor in graph.required_inputs
        }
    sequences = [step.sequences for step in graph.models if step.sequences is not None]
    correlation = [
        control
        for one in sequences
        for control in one.controls
        if control.kind is ControlKind.CORRID
    ]
    own = {
        Reference(step.name, tensor.name)
        for step in graph.steps
        for tensor in step.outputs
        if step.implementation is Implementation.POSTPROCESS
        or (step.pooling is not None and tensor == step.pooling.embedding)
    }
    made_up = not health.inputs and health.text is None
    return ExampleRequest(
        inputs=inputs,
        stream=graph.decoupled,
        sequence=bool(sequences),
        text_ids=any(control.data_type is DataType.STRING for control in correlation),
        finite=frozenset(output.tensor.name for output in graph.outputs if output.source in own),
        made_up=made_up,
        repeat=2
        if made_up and graph.max_batch_size > 1 and not sequences and not graph.decoupled
        else 1,
    )


def example_bytes(pipeline: InferencePipeline, graph: Graph) -> int:
    """Return the size of the request that :func:`example_of` would build, without building it.

    The example must pass :func:`check_example`, or the pipeline have none.
    """
    health = pipeline.spec.health
    if health.inputs:
        types = {tensor.name: tensor.data_type for tensor in graph.inputs}
        return sum(
            _bytes(example, types[example.name], math.prod(example.shape))
            for example in health.inputs
            if example.name in types
        )
    texts = sum(math.prod(_text_shape(tensor, graph)) for tensor in graph.required_inputs)
    return texts * (len((health.text or DEFAULT_TEXT).encode()) + _LENGTH_BYTES)


def probe_blocker(pipeline: InferencePipeline, graph: Graph) -> str:
    """Return why pods are not probed with an inference although it is enabled; "" if they are."""
    health = pipeline.spec.health
    if health.inputs or health.inference is InferenceHealth.DISABLED:
        return ""
    other = [
        str(tensor) for tensor in graph.required_inputs if tensor.data_type is not DataType.STRING
    ]
    if other:
        return f"no example request can be generated for {', '.join(other)}"
    if not graph.required_inputs:
        return "the pipeline has no required input"
    for tensor in graph.required_inputs:
        if (texts := math.prod(_text_shape(tensor, graph))) > GENERATED_TEXTS_MAX:
            return (
                f"input '{tensor.name}' has {texts} elements, but an example request is generated "
                f"for at most {GENERATED_TEXTS_MAX}"
            )
    stateful = [repr(step.name) for step in graph.models if step.sequences is not None]
    if stateful and health.text is None:
        return (
            f"{'step' if len(stateful) == 1 else 'steps'} {listed(stateful)} "
            f"{'uses' if len(stateful) == 1 else 'use'} sequence batching, "
            "and a test inference would occupy a sequence slot"
        )
    return ""


def lint_example(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Warn if pods are not probed with an inference, or if an example text is unused."""
    health = pipeline.spec.health
    if why := probe_blocker(pipeline, graph):
        yield warning(
            "spec.health.inputs",
            f"{why}, so pods are probed only for readiness. Set spec.health.inputs to an "
            "example request, or set spec.health.inference to Disabled",
            code=FindingCode.INFERENCE_PROBE_UNAVAILABLE,
        )
    if health.text is not None and any(
        tensor.data_type is not DataType.STRING for tensor in graph.required_inputs
    ):
        yield warning(
            "spec.health.text",
            "the text has no effect, because the pipeline also has inputs other than text; set "
            "spec.health.inputs to an example request",
            code=FindingCode.NO_EFFECT,
        )


def check_example(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Yield what is wrong with the example request: names, shapes, elements and its size."""
    public = {tensor.name: tensor for tensor in graph.inputs}
    examples = pipeline.spec.health.inputs
    known: list[tuple[ExampleInput, Tensor]] = []
    for index, example in enumerate(examples):
        path = f"spec.health.inputs[{index}]"
        tensor = public.get(example.name)
        if tensor is None:
            yield Finding(
                f"{path}.name",
                f"{example.name!r} is not an input of the pipeline;"
                f" use one of its inputs: {', '.join(public) or 'none'}",
                code=FindingCode.UNKNOWN_TENSOR,
            )
        else:
            known.append((example, tensor))
            yield from _check_shape(example, tensor, graph, path)
            yield from _check_elements(example, tensor, path)
    yield from _check_rows(known, graph)
    if examples and (total := example_bytes(pipeline, graph)) > EXAMPLE_BYTES_MAX:
        yield warning(
            "spec.health.inputs",
            f"the example request has {total} bytes, but at most {EXAMPLE_BYTES_MAX} bytes "
            "are allowed; use smaller shapes",
            code=FindingCode.TOO_LARGE,
        )
    given = {example.name for example in examples}
    absent = [tensor.name for tensor in graph.required_inputs if tensor.name not in given]
    if given and absent:
        yield warning(
            "spec.health.inputs",
            f"the example request must contain every required input; add {', '.join(absent)}",
            code=FindingCode.REQUIRED,
        )


def _fits(shape: Sequence[int], full: Sequence[int]) -> bool:
    """Return whether an example of ``shape`` fits an input whose shape is ``full``."""
    return len(full) == len(shape) and all(
        size in (-1, given) for size, given in zip(full, shape, strict=True)
    )


def _check_shape(
    example: ExampleInput, tensor: Tensor, graph: Graph, path: str
) -> Iterator[Finding]:
    full = public_shape(tensor, graph)
    if not _fits(example.shape, full):
        yield Finding(
            f"{path}.shape",
            f"{list(example.shape)} does not match the shape {list(full)} of input "
            f"'{example.name}' (with the batch axis); use a shape that matches",
            code=FindingCode.SHAPE_MISMATCH,
        )
    elif 0 < graph.max_batch_size < example.shape[0]:
        yield Finding(
            f"{path}.shape",
            f"the shape has {example.shape[0]} rows, but the pipeline accepts at most "
            f"{graph.max_batch_size} rows per request; use fewer rows",
            code=FindingCode.BATCH_SIZE_MISMATCH,
        )


def _check_elements(example: ExampleInput, tensor: Tensor, path: str) -> Iterator[Finding]:
    elements = math.prod(example.shape)
    if len(example.data) not in (1, elements):
        yield Finding(
            f"{path}.data",
            f"the data has {len(example.data)} elements, but shape {list(example.shape)} "
            f"requires {elements}; provide {elements} values, or one value for all elements",
            code=FindingCode.INVALID_EXAMPLE,
        )
    for position, text in enumerate(example.data):
        try:
            parse_element(text, tensor.data_type)
        except ValueError as error:
            yield Finding(
                f"{path}.data[{position}]",
                f"input '{example.name}' has data type {tensor.data_type.value}, but "
                f"{text!r:.60} {error}",
                code=FindingCode.INVALID_EXAMPLE,
            )


def _check_rows(known: Sequence[tuple[ExampleInput, Tensor]], graph: Graph) -> Iterator[Finding]:
    """Check that all inputs of a request have the same number of rows."""
    rows = {
        example.name: example.shape[0]
        for example, tensor in known
        if graph.max_batch_size > 0
        and _fits(example.shape, public_shape(tensor, graph))
        and example.shape[0] <= graph.max_batch_size
    }
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in rows.items())
        yield warning(
            "spec.health.inputs",
            f"the inputs have different numbers of rows ({counts}); use the same first number in"
            " every shape",
            code=FindingCode.BATCH_SIZE_MISMATCH,
        )


def parse_element(text: str, data_type: DataType) -> bool | int | float | bytes:
    """Return one element of an example, parsed from its text.

    Raises:
        ValueError: it is none of that type; the message says what is wanted and goes on after the
            text.
    """
    if data_type is DataType.STRING:
        return text.encode()
    if data_type is DataType.BOOL:
        if text.lower() not in _BOOLS:
            raise ValueError("is neither true nor false")
        return _BOOLS[text.lower()]
    import ml_dtypes
    import numpy as np

    kind = _element_type(data_type)
    if np.issubdtype(kind, np.integer):
        if not _INTEGER.fullmatch(text):
            raise ValueError("is not an integer")
        limits = np.iinfo(kind)
        if not limits.min <= int(text) <= limits.max:
            raise ValueError(f"is out of range; use a value from {limits.min} to {limits.max}")
        return int(text)
    if not _FLOAT.fullmatch(text):
        raise ValueError("is not a finite number such as 0.5 or 1e-3")
    largest = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    if abs(float(text)) > largest:
        raise ValueError(f"exceeds {largest:g}, the largest number of this type")
    return float(text)


def _bytes(example: ExampleInput, data_type: DataType, elements: int) -> int:
    if data_type is not DataType.STRING:
        return elements * int(_element_type(data_type).itemsize)
    size = sum(len(text.encode()) + _LENGTH_BYTES for text in example.data)
    return size * elements if len(example.data) == 1 else size


@cache
def _element_type(data_type: DataType) -> np.dtype[Any]:
    import ml_dtypes  # noqa: F401 - registers bfloat16
    import numpy as np

    return np.dtype(_NUMPY[data_type])


def _array(example: ExampleInput, data_type: DataType) -> Array:
    import numpy as np

    values = [parse_element(text, data_type) for text in example.data]
    flat = np.empty(math.prod(example.shape), dtype=_element_type(data_type))
    if len(values) == 1:
        flat.fill(values[0])
    else:
        flat[:] = values
    return flat.reshape(example.shape)


def _text(tensor: Tensor, graph: Graph, text: str) -> Array:
    """Return the text in the input's shape, with one element on each open axis."""
    import numpy as np

    return np.full(_text_shape(tensor, graph), text.encode(), dtype=np.object_)


def _text_shape(tensor: Tensor, graph: Graph) -> list[int]:
    return [max(size, 1) for size in public_shape(tensor, graph)]
