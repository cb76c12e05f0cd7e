"""Check the outputs of a test inference. Pure."""

from __future__ import annotations

import enum
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import DataType
from tritonclient.utils import np_to_triton_dtype

from triton_pipelines.triton.faulty_tensor import FaultyTensor
from triton_pipelines.triton.infer_requests import Array


@dataclass(frozen=True)
class ProbeRequest:
    """The request of a test inference."""

    inputs: Mapping[str, Array]
    """Arrays by input name."""
    stream: bool = False
    """Whether the model may respond any number of times.

    One response, or the end of the stream without any, is then enough.
    """
    sequence_id: int | str = 0
    """A separate sequence id for models with sequences; 0 for no sequence."""
    finite: Collection[str] = ()
    """Outputs in which infinity is a fault.

    Elsewhere minus infinity is allowed: models mask logits with it.
    """
    fallback_inputs: Mapping[str, Array] | None = None
    """The same request with fewer rows; ``None`` if the rows of ``inputs`` were declared.

    Sent where nothing declares how many rows the model takes, and ``inputs`` is rejected or
    answered with another number of rows in an output of free shape.
    """


class FaultSeverity(enum.IntEnum):
    """How bad a fault is, worst first."""

    BROKEN = 0
    """Nothing that a client could use."""
    MISMATCH = 1
    """Another type, shape or number of rows than declared; adaptive clients can still use it."""
    ROWS_OF_FREE_SHAPE = 2
    """Another number of rows than sent; either intended, or the model takes one row at a time."""


@dataclass(frozen=True)
class OutputFault:
    """What is wrong with the outputs of a test inference."""

    text: str
    """The fault, for people."""
    tensor: FaultyTensor | None = None
    """The output that is missing or not as declared; ``None`` if only its numbers are wrong."""
    severity: FaultSeverity = FaultSeverity.BROKEN
    """How bad it is."""


def find_output_fault(
    config: Any, request: ProbeRequest, outputs: Mapping[str, Array]
) -> OutputFault | None:
    """Return the worst fault of the outputs; ``None`` if they are plausible.

    Triton passes on whatever a Python step returns. Plausible outputs have:

    - every output of the config, of its declared type and shape, and not empty unless the declared
      shape allows it;
    - no NaN and no infinity, except minus infinity in outputs not listed in ``request.finite``;
    - where the model batches, one row per input row.

    A response of a stream may leave outputs out, and has its own number of rows. A shape without
    any fixed size does not declare the number of axes either: NVIDIA's postprocess of TensorRT-LLM
    declares [-1] and returns a flat array.

    Args:
        config: the model's ModelConfig.
        request: what was sent.
        outputs: what came back.
    """
    return min(
        _output_faults(config, request, outputs), key=lambda fault: fault.severity, default=None
    )


def _output_faults(
    config: Any, request: ProbeRequest, outputs: Mapping[str, Array]
) -> Iterator[OutputFault]:
    rows = (
        {len(array) for array in request.inputs.values()}
        if config.max_batch_size > 0 and not request.stream
        else set()
    )
    for output in config.output:
        array = outputs.get(output.name)
        if array is not None:
            yield from _array_faults(config, output, array, rows, request)
        elif not request.stream:
            yield OutputFault(
                f"output {output.name} is missing from the response", FaultyTensor(output.name)
            )


def _array_faults(
    config: Any, output: Any, array: Array, rows: Collection[int], request: ProbeRequest
) -> Iterator[OutputFault]:
    """Yield the faults of one output; ``rows`` is empty where their number is free."""
    is_fixed = any(size != -1 for size in output.dims)
    declared, actual = _declared_type(output.data_type), _type_of(array.dtype)
    tensor = FaultyTensor(output.name)
    if actual != declared:
        yield OutputFault(
            f"output {output.name} is {actual}, but is declared as {declared}",
            tensor,
            FaultSeverity.MISMATCH,
        )
    if rows and array.ndim and len(array) not in rows:
        yield OutputFault(
            f"output {output.name} has {len(array)} rows, but the input has {max(rows)}",
            tensor,
            _row_severity(request, is_fixed=is_fixed),
        )
    if array.size == 0 and -1 not in output.dims:
        yield OutputFault(f"output {output.name} is empty: shape {list(array.shape)}", tensor)
    shape = [-1, *output.dims] if config.max_batch_size > 0 else list(output.dims)
    if is_fixed and not request.stream and not _fits(array.shape, shape):
        yield OutputFault(
            f"output {output.name} has shape {list(array.shape)}, but is declared as {shape}",
            tensor,
            FaultSeverity.MISMATCH,
        )
    content = _fault_of_numbers(array, finite=output.name in request.finite)
    if content:
        yield OutputFault(f"output {output.name} contains {content}")


def _row_severity(request: ProbeRequest, *, is_fixed: bool) -> FaultSeverity:
    """Return how bad a wrong number of rows is.

    If the example declares no number of rows, a difference does not violate a declaration.
    """
    if request.fallback_inputs is None:
        return FaultSeverity.BROKEN
    return FaultSeverity.MISMATCH if is_fixed else FaultSeverity.ROWS_OF_FREE_SHAPE


@functools.lru_cache
def _declared_type(number: int) -> str:
    """Return Triton's name of a type in a config."""
    name: str = DataType.Name(number)
    return name.removeprefix("TYPE_")


@functools.lru_cache
def _type_of(dtype: np.dtype[Any]) -> str:
    """Return Triton's name of an array's type; NumPy's where Triton has none."""
    name: str = np_to_triton_dtype(dtype) or str(dtype)
    return "STRING" if name == "BYTES" else name


def _fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    return len(shape) == len(declared) and all(
        dim in (-1, size) for size, dim in zip(shape, declared, strict=True)
    )


def _fault_of_numbers(array: Array, *, finite: bool) -> str | None:
    # NumPy has no type kind for bfloat16.
    is_bfloat16 = array.dtype.kind == "V" and array.dtype.name == "bfloat16"
    if array.dtype.kind not in "fc" and not is_bfloat16:
        return None
    numbers = array.astype(np.float32) if is_bfloat16 else array
    if np.isfinite(numbers).all():
        return None
    if np.isnan(numbers).any():
        return "NaN"
    return "infinity" if finite or np.isposinf(numbers).any() else None
