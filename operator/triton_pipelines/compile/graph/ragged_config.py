"""Build the config entries of an ONNX model that is adapted to ragged batches.

The entries are flat inputs, the lengths of their rows, and outputs that are divided by them. The
loader rewrites the model's graph (``loader/ragged``). This module returns the fields that
``config.pbtxt`` needs for it, and what in a declared step rules it out before any file is read. The
fields are those that Triton's ONNX Runtime backend supports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final

from triton_pipelines.api.loadplan import shape_input
from triton_pipelines.api.tensors import DataType

from .graph import Tensor

BATCH_INPUT_KIND: Final = "BATCH_ITEM_SHAPE"
"""The kind with one line per row.

All other kinds except its flattened form count per request, which is wrong once a client sends
several rows.
"""
BATCH_OUTPUT_KIND: Final = "BATCH_SCATTER_WITH_INPUT_SHAPE"
INTEGERS: Final = frozenset({DataType.INT64, DataType.INT32})
"""Element types of token tensors that encoders read."""
MARKED: Final = frozenset(
    {
        DataType.FP64,
        DataType.FP32,
        DataType.FP16,
        DataType.INT64,
        DataType.INT32,
        DataType.INT16,
        DataType.INT8,
    }
)
"""Element types with a value that no real output has (not-a-number, -1).

That value is returned for a row that the model cannot process.
"""


@dataclass(frozen=True, slots=True)
class BatchInput:
    """A ``batch_input`` entry: ``target`` gets the lengths of ``source``'s rows.

    Each target needs its own entry; otherwise the backend miscounts its inputs.
    """

    source: str
    """Input whose row lengths are written."""
    target: str
    """Input of the adapted model that receives them."""
    kind: str = BATCH_INPUT_KIND
    """Triton's kind of the batch input."""
    data_type: DataType = DataType.INT32
    """Element type of the target."""


@dataclass(frozen=True, slots=True)
class BatchOutput:
    """A ``batch_output`` entry, which divides an output among the requests of a batch."""

    source: str
    """Input whose shapes divide the output."""
    target: str
    """Output that is divided."""
    kind: str = BATCH_OUTPUT_KIND
    """Triton's kind of the batch output."""


@dataclass(frozen=True, slots=True)
class RaggedConfig:
    """Fields that the config of an adapted model has in addition to a plain one."""

    flat: tuple[str, ...]
    """Inputs with ``allow_ragged_batch`` and dims [-1]; all others stay as declared."""
    batch_inputs: tuple[BatchInput, ...]
    """Row lengths that the model receives."""
    batch_outputs: tuple[BatchOutput, ...]
    """Outputs that are divided among requests."""


def ragged_inputs(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the inputs that become flat.

    One token per position, any length, token ids first (their lengths shape token-level outputs).
    """
    flat = [tensor for tensor in inputs if tensor.dims == (-1,)]
    return tuple(
        sorted(
            flat,
            key=lambda tensor: "ids" not in tensor.name.lower() or "type" in tensor.name.lower(),
        )
    )


def token_outputs(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the outputs that have a value, or a vector, per token."""
    return tuple(tensor for tensor in outputs if tensor.dims[:1] == (-1,))


def ragged_config(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> RaggedConfig:
    """Return the config entries that an ONNX step with these declared tensors needs.

    The result is meaningful only if :func:`ragged_obstacles` finds nothing.
    """
    flat = ragged_inputs(inputs)
    return RaggedConfig(
        flat=tuple(tensor.name for tensor in flat),
        batch_inputs=tuple(BatchInput(tensor.name, shape_input(tensor.name)) for tensor in flat),
        batch_outputs=tuple(
            BatchOutput(flat[0].name, tensor.name) for tensor in token_outputs(outputs)
        )
        if flat
        else (),
    )


def ragged_obstacles(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], max_batch_size: int
) -> Iterator[str]:
    """Yield why a declared ONNX step cannot batch requests of different length.

    The loader checks what only the file shows.
    """
    if max_batch_size < 1:
        yield "maxBatchSize is 0, but batches require at least 1"
    if not ragged_inputs(inputs):
        yield "no input has dims [-1]"
    names = {tensor.name for tensor in inputs}
    for tensor in inputs:
        obstacle = _input_obstacle(tensor, names)
        if obstacle:
            yield obstacle
    for tensor in outputs:
        obstacle = _output_obstacle(tensor)
        if obstacle:
            yield obstacle


def _input_obstacle(tensor: Tensor, names: Set[str]) -> str:
    if tensor.reshape is not None:
        return f"input {tensor.name} is reshaped"
    if not tensor.variable:
        return ""
    if tensor.dims != (-1,):
        return (
            f"input {tensor.name} has dims {list(tensor.dims)}, but an input of variable length"
            " must have dims [-1]"
        )
    if tensor.data_type not in INTEGERS:
        return (
            f"input {tensor.name} is {tensor.data_type.value}, but token tensors are INT64 or INT32"
        )
    if shape_input(tensor.name) in names:
        return (
            f"the name {shape_input(tensor.name)} is reserved for the row lengths of {tensor.name}"
        )
    return ""


def _output_obstacle(tensor: Tensor) -> str:
    if -1 in tensor.dims[1:]:
        return (
            f"output {tensor.name} has dims {list(tensor.dims)}, but only the first axis may depend"
            " on the number of tokens"
        )
    if tensor.variable and tensor.reshape is not None:
        return f"output {tensor.name} is reshaped"
    if tensor.data_type not in MARKED:
        return (
            f"output {tensor.name} is {tensor.data_type.value}, a type that has no value to "
            "mark rejected rows"
        )
    return ""
