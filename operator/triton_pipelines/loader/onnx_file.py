"""Read inputs, outputs and side files of an ONNX file, and compare them with the resource."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from triton_pipelines.api.loadplan import PlanCheck, PlanTensor
from triton_pipelines.api.wording import listed
from triton_pipelines.loader.onnx_graph.graph_walk import dims, opset
from triton_pipelines.loader.onnx_shapes import infer_outputs
from triton_pipelines.loader.onnx_store import load_without_weights

_TYPES: Final = {
    "BOOL": "BOOL",
    "UINT8": "UINT8",
    "UINT16": "UINT16",
    "UINT32": "UINT32",
    "UINT64": "UINT64",
    "INT8": "INT8",
    "INT16": "INT16",
    "INT32": "INT32",
    "INT64": "INT64",
    "FLOAT16": "FP16",
    "FLOAT": "FP32",
    "DOUBLE": "FP64",
    "BFLOAT16": "BF16",
    "STRING": "STRING",
}
"""ONNX element type (TensorProto.DataType) → Triton's data type without ``TYPE_``."""


_RUN: Final = frozenset({".py", ".pyc", ".so"})
"""Suffixes that Python imports.

The Python backend puts the version folder on its path. Such a side file would run in Triton, or
replace the runner, although the user only named a model.
"""
_BYTECODE: Final = "__pycache__"


@dataclass(frozen=True)
class FileTensor:
    """A graph input or output."""

    name: str
    """Its name."""
    data_type: str
    """Triton's data type; ONNX's name where Triton has none."""
    dims: tuple[int | str | None, ...] | None
    """Number, symbolic name or ``None`` per axis; ``None`` if the shape is unknown.

    Of an output it is what ONNX Runtime infers, as far as that is known.
    """
    optional: frozenset[int] = frozenset()
    """Axes with a number that ONNX Runtime may or may not infer."""
    is_certain: bool = True
    """Whether ONNX Runtime infers no more than ``dims``."""


@dataclass(frozen=True)
class OnnxFile:
    """What an ONNX file says about itself."""

    inputs: tuple[FileTensor, ...]
    """Inputs that are not initializers."""
    outputs: tuple[FileTensor, ...]
    """Outputs."""
    side_files: tuple[str, ...]
    """Files with external data, relative to the file's folder."""
    opset: int = 0
    """Version of the standard operators; 0 if the file names none."""


def read_onnx(path: Path) -> OnnxFile:
    """Read the graph without its external data.

    Raises:
        ValueError: the file is not an ONNX model, or names side files that are not allowed.
    """
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(b"version https://git-lfs"):
        raise ValueError(
            "the file is a Git LFS pointer, not the model; fetch the model with git lfs "
            "pull before mirroring"
        )
    if head.lstrip()[:1] == b"<":
        raise ValueError(
            "the file is an HTML or XML page, not a model; use the URI of the file itself, "
            "not the URI of a web page or login page"
        )
    try:
        model = load_without_weights(path).model
    except DecodeError as error:
        raise ValueError(
            f"the file is not a valid ONNX model ({error}); export the model again, or "
            "check the URI"
        ) from error
    if not model.graph.node and not model.graph.output:
        raise ValueError(
            "the file is not a valid ONNX model (no graph); export the model again, or "
            "check the URI"
        )
    initialized = {tensor.name for tensor in model.graph.initializer} | {
        tensor.values.name for tensor in model.graph.sparse_initializer
    }
    return OnnxFile(
        tuple(_tensor(value) for value in model.graph.input if value.name not in initialized),
        _outputs(model),
        tuple(
            sorted({_location(tensor) for tensor in _tensors(model) if uses_external_data(tensor)})
        ),
        opset(model),
    )


def _outputs(model: Any) -> tuple[FileTensor, ...]:
    stated = [_tensor(value) for value in model.graph.output]
    inferred = infer_outputs(model)
    if inferred is None:
        return tuple(replace(tensor, is_certain=False) for tensor in stated)
    return tuple(
        replace(tensor, dims=inferred[tensor.name].dims, optional=inferred[tensor.name].optional)
        for tensor in stated
    )


def _tensor(value: Any) -> FileTensor:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return FileTensor(value.name, str(kind or "untyped").removesuffix("_type"), None)
    name = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    return FileTensor(value.name, _TYPES.get(name, name), dims(value))


def _tensors(model: Any) -> Iterator[Any]:
    """Yield every tensor of the model: in nodes' attributes, subgraphs and functions too."""
    graphs = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            nodes.extend(graph.node)
            continue
        for attribute in nodes.pop().attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                graphs.append(attribute.g)
            graphs.extend(attribute.graphs)


def _location(tensor: Any) -> str:
    location = ExternalDataInfo(tensor).location
    path = PurePosixPath(location)
    if not location or path.is_absolute() or ".." in path.parts or "\\" in location:
        raise ValueError(
            f"the data of tensor {tensor.name!r} is in {location!r}, outside the model's "
            "directory; save the data inside the model's directory"
        )
    if path.suffix == ".onnx":
        raise ValueError(
            f"the data of tensor {tensor.name!r} is in {location!r}, but the extension .onnx is "
            "reserved for models; save the data under another file name"
        )
    if path.suffix in _RUN or _BYTECODE in path.parts:
        raise ValueError(
            f"the data of tensor {tensor.name!r} is in {location!r}, which Python would run "
            "as code; save the data under another file name"
        )
    return str(path)


def compare(check: PlanCheck, file: OnnxFile, uri: str, *, is_adapted: bool = False) -> str | None:
    """Return what does not fit, with both sides and what to write; ``None`` if the file fits.

    The rules are those of Triton's ONNX Runtime backend:

    - every input of the file is declared, or filled by the sequence batcher, and no other;
      declared outputs and states exist;
    - element types and ranks are equal;
    - with ``maxBatchSize`` > 0 the first axis is the batch, and dynamic in the file;
    - a fixed dimension of the file is declared as that number;
    - a dynamic one of an input accepts any, and one of an output is declared as -1. The loader
      writes the declared number into a file that it adapts, so there it is accepted.

    Args:
        check: what is declared.
        file: what the file holds.
        uri: where the file comes from, for the message.
        is_adapted: whether the loader adapts the file to ragged batches.
    """
    rows: list[tuple[str, str, str, str]] = []
    wrong = [
        *_side(
            check, (*check.inputs, *check.controls, *check.state_inputs), file.inputs, "input", rows
        ),
        *_side(check, (*check.outputs, *check.state_outputs), file.outputs, "output", rows),
        *(() if is_adapted else _open_axes(check, file)),
        *_control_axes(check, file),
    ]
    if not wrong:
        return None
    batch = f"maxBatchSize {check.max_batch_size}" + (
        ", so shapes include the batch axis" if check.max_batch_size else ""
    )
    lines = [
        f"{uri} does not match {check.field} ({batch}): {'; '.join(wrong)}.",
        *_table(rows),
        *_advice(check, file),
    ]
    return "\n".join(lines)


def _side(
    check: PlanCheck,
    declared: Iterable[PlanTensor],
    held: Iterable[FileTensor],
    side: str,
    rows: list[tuple[str, str, str, str]],
) -> Iterator[str]:
    in_file = {tensor.name: tensor for tensor in held}
    for tensor in declared:
        dims = (-1, *tensor.dims) if check.max_batch_size else tensor.dims
        other = in_file.pop(tensor.name, None)
        rows.append(
            (
                side,
                tensor.name,
                f"{_bare(tensor.data_type)} {_dims(dims)}",
                "absent" if other is None else _text(other),
            )
        )
        if other is None:
            yield f"{side} {tensor.name!r} is not in the file"
        else:
            yield from _differences(check, tensor, dims, other, side)
    for other in in_file.values():
        rows.append((side, other.name, "absent", _text(other)))
        if side == "input":
            yield f"{side} {other.name!r} is not declared"


def _differences(
    check: PlanCheck, tensor: PlanTensor, dims: tuple[int, ...], other: FileTensor, side: str
) -> Iterator[str]:
    if _bare(tensor.data_type) != other.data_type:
        yield f"the type of {side} {tensor.name!r} is {other.data_type} in the file"
    elif other.dims is None and other.is_certain and any(dim != 1 for dim in tensor.dims):
        yield f"{side} {tensor.name!r} has no shape in the file"
    if not other.dims:
        if other.dims == () and check.max_batch_size:
            yield f"{side} {tensor.name!r} is a scalar and has no batch axis"
        return
    if check.max_batch_size and isinstance(other.dims[0], int):
        yield f"{side} {tensor.name!r} has a fixed batch axis of size {other.dims[0]}"
    elif len(other.dims) != len(dims):
        yield (
            f"{side} {tensor.name!r} has rank {len(other.dims)} in the file, but is "
            f"declared with rank {len(dims)}"
        )
    elif any(
        isinstance(held, int) and expected not in ({held, -1} if axis in other.optional else {held})
        for axis, (held, expected) in enumerate(zip(other.dims, dims, strict=True))
    ):
        yield f"the fixed dimensions of {side} {tensor.name!r} differ"


def _open_axes(check: PlanCheck, file: OnnxFile) -> Iterator[str]:
    """Yield the outputs that declare a size for an axis that ONNX Runtime reports as dynamic."""
    held = {tensor.name: tensor for tensor in file.outputs}
    for tensor in check.outputs:
        other = held.get(tensor.name)
        if other is None or not other.is_certain:
            continue
        axes = (other.dims or ())[1 if check.max_batch_size else 0 :]
        if len(axes) == len(tensor.dims) and any(
            size != -1 and not isinstance(axis, int)
            for size, axis in zip(tensor.dims, axes, strict=True)
        ):
            yield f"output {tensor.name!r} has a dynamic axis, which must be declared as -1"


def _control_axes(check: PlanCheck, file: OnnxFile) -> Iterator[str]:
    """Yield the control inputs whose axis after the batch is dynamic: Triton demands size 1."""
    controls = {tensor.name for tensor in check.controls}
    for tensor in file.inputs:
        last = (tensor.dims or (1,))[-1]
        if tensor.name in controls and not isinstance(last, int):
            yield f"control input {tensor.name!r} has a dynamic axis instead of size 1"


def _bare(data_type: str) -> str:
    """Return Triton's type name without prefix; BYTES is the protocol's name for STRING."""
    name = data_type.removeprefix("TYPE_")
    return "STRING" if name == "BYTES" else name


def _dims(dims: Iterable[int | str | None]) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"


def _text(tensor: FileTensor) -> str:
    return f"{tensor.data_type} {'any shape' if tensor.dims is None else _dims(tensor.dims)}"


def _table(rows: list[tuple[str, str, str, str]]) -> list[str]:
    table = [("", "tensor", "declared", "in file"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    return [
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def _advice(check: PlanCheck, file: OnnxFile) -> Iterator[str]:
    """Yield what to write so that the resource fits the file."""
    tensors = (*file.inputs, *file.outputs)
    odd = [tensor.name for tensor in tensors if tensor.data_type not in _TYPES.values()]
    if odd:
        yield (
            f"Triton has no data type for {', '.join(odd)}; export the model without "
            f"{', '.join(odd)} (for scikit-learn models, disable zipmap)."
        )
    shapeless = [
        tensor.name
        for tensor in tensors
        if tensor.dims is None and tensor.is_certain and tensor.name not in odd
    ]
    if shapeless:
        yield f"Export the model with shapes for {listed(shapeless)}."
    if odd or shapeless:
        return  # No declaration can match the file.
    filled = {tensor.name for tensor in (*check.controls, *check.state_inputs)}
    own = [tensor for tensor in file.inputs if tensor.name not in filled]
    unfit = [
        *_open_axes(check, file),
        *_side(check, check.inputs, own, "input", []),
        *_side(check, check.outputs, file.outputs, "output", []),
    ]
    if not unfit:
        yield (
            f"Correct the controls and states in {check.field}.sequenceBatching, or change these "
            "tensors in the export."
        )
        return
    fixed = any(
        (tensor.dims and isinstance(tensor.dims[0], int)) or tensor.dims == () for tensor in tensors
    )
    batched = check.max_batch_size > 0 and not fixed
    if check.max_batch_size and fixed:
        yield (
            f"Export the model with a dynamic first axis, or set {check.field}.maxBatchSize to 0 "
            "and list all axes in dims:"
        )
    else:
        yield "To match the file, use:"
    for side, held, declared in (
        ("inputs", own, check.inputs),
        ("outputs", file.outputs, check.outputs),
    ):
        # Outputs may be a choice: those declared that exist, or all when none does.
        known = {tensor.name for tensor in declared}
        chosen = [tensor for tensor in held if side == "inputs" or tensor.name in known] or held
        items = ", ".join(_declaration(tensor, is_batched=batched) for tensor in chosen)
        yield f"{check.field}.{side}: [{items}]"


def _declaration(tensor: FileTensor, *, is_batched: bool) -> str:
    """Return how the resource declares a tensor of the file."""
    dims = (tensor.dims or ())[1 if is_batched else 0 :]
    declared = _dims(dim if isinstance(dim, int) else -1 for dim in dims)
    return f"{{name: {tensor.name}, dataType: {tensor.data_type}, dims: {declared}}}"
