"""Run a model with ONNX's own evaluator while its weights stay in their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_tensor,
    uses_external_data,
)
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from triton_pipelines.loader.onnx_graph.graph_walk import names_read
from triton_pipelines.loader.onnx_store import Span, Stored, load_without_weights

Array = NDArray[Any]
_PLAIN: Final = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.DOUBLE,
        TensorProto.BOOL,
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
    }
)
"""Element types whose bytes in a file are those of numpy."""


class MatMul(OpRun):
    """Matrix product as numpy computes it, with half precision by way of FP32.

    In half precision numpy takes 40 times as long (measured), and rounds each sum.
    """

    op_domain = ""

    def _run(self, a: Array, b: Array) -> tuple[Array]:
        if a.dtype != np.float16:
            return (np.matmul(a, b),)
        return (np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.float16),)


class Erf(OpRun):
    """The error function, with an error below 1e-6.

    ONNX's own calls a Python function for each element: a third of the time that a model with GELU
    takes. Formula 7.1.26 of Abramowitz and Stegun, Handbook of Mathematical Functions.
    """

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        size = np.abs(x, dtype=np.float32 if x.dtype == np.float16 else x.dtype)
        t = 1 / (1 + 0.3275911 * size)
        factors = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
        value = 1 - t * np.polyval(factors, t) * np.exp(-size * size)
        return (np.copysign(value, x).astype(x.dtype),)


class GatherElements(OpRun):
    """Elements at indices along an axis; ONNX's own fails if the axis has more than 32."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        # The other axes of the data may be longer than those of the indices.
        shape = [slice(size) for size in indices.shape]
        shape[axis] = slice(None)
        return (np.take_along_axis(data[tuple(shape)], indices, axis),)


class _Release:
    """A step of the evaluator that drops tensors which no later node reads."""

    op_type: Final = "Release"
    input: Final = ()
    output: Final = ()
    has_linked_attribute: Final = False

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def need_context(self) -> bool:
        """Return whether the step gets all tensors."""
        return True

    def run(self, context: dict[str, Any], **_: Any) -> tuple[()]:
        """Drop the tensors from ``context``."""
        for name in self._names:
            context.pop(name, None)
        return ()


class _OutputEvaluator(ReferenceEvaluator):
    """An evaluator that keeps a tensor only until its last reader has run.

    ONNX's own keeps all tensors until the end: with a row of 512 tokens, 4 GiB for 24 layers of
    width 1024. The bodies of nodes are evaluated in the same way.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        steps = []
        for node, names in zip(self.rt_nodes_, self._last_used(), strict=True):
            steps.append(node)
            if names:
                steps.append(_Release(names))
        self.rt_nodes_ = steps

    def _last_used(self) -> list[frozenset[str]]:
        """Return for each node the tensors that are not needed behind it."""
        needed, unneeded = {"", *self.output_names}, list[frozenset[str]]()
        for node in reversed(self.nodes_):
            unneeded.append(frozenset((names_read(node) | set(node.output)) - needed))
            needed.update(unneeded[-1])
        return unneeded[::-1]


def open_with_mapped_weights(path: Path) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Return the model of a file as a function.

    Large weights, external or not, are mapped: they are read when used, and the kernel may drop
    them. Raises what the evaluator raises for operators that it does not support.
    """
    stored = load_without_weights(path)
    names = [value.name for value in stored.model.graph.output]
    run = _evaluated(stored, _OutputEvaluator)

    def run_outputs(fed: Mapping[str, Array]) -> dict[str, Array]:
        tensors = run(fed)
        return {name: tensors[name] for name in names}

    return run_outputs


def all_tensors(stored: Stored) -> Callable[[Mapping[str, Array]], dict[str, Any]]:
    """Return a model as a function from its inputs to every tensor of its graph, by name.

    The weights are taken out of ``stored``; see :func:`open_with_mapped_weights`.
    """
    return _evaluated(stored, ReferenceEvaluator)


def _evaluated(
    stored: Stored, evaluator_type: type[ReferenceEvaluator]
) -> Callable[[Mapping[str, Array]], dict[str, Any]]:
    weights = dict(_taken(stored))
    evaluator = evaluator_type(stored.model, new_ops=[MatMul, Erf, GatherElements])

    def run(fed: Mapping[str, Array]) -> dict[str, Any]:
        # Graphs compute logarithms of 0 in places that they then mask; numpy would warn about them
        # in the pod's log.
        with np.errstate(all="ignore"):
            return dict(evaluator.run(None, {**weights, **fed}, intermediate=True))

    return run


def size_of(path: Path, model: Any) -> int:
    """Return the bytes of a model with those side files that exist."""
    files = (path, *(path.parent / side for side in side_files_of(model)))
    return sum(file.stat().st_size for file in files if file.is_file())


def side_files_of(model: Any) -> set[str]:
    """Return the files with a model's external data, as the model names them."""
    return {
        ExternalDataInfo(tensor).location
        for tensor in model.graph.initializer
        if uses_external_data(tensor)
    }


def _taken(stored: Stored) -> Iterator[tuple[str, Array]]:
    """Take the weights that can be mapped out of a model, and read all others into it.

    The mapped ones are given to each run.
    """
    graph, kept, pages = stored.model.graph, list[Any](), dict[Path, Array]()
    for number, tensor in enumerate(graph.initializer):
        place = (
            (stored.path, span)
            if (span := stored.weights.get(number)) is not None
            else _outside(tensor, stored.path.parent)
        )
        if place is None:
            kept.append(tensor)
        elif tensor.data_type in _PLAIN:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            file, span = place
            if file not in pages:
                # Once for each file: a mapping keeps a file open.
                pages[file] = np.memmap(file, np.uint8, "r")
            yield tensor.name, _cut(pages[file], file, span, dtype, tuple(tensor.dims))
        else:
            _read(tensor, *place)
            kept.append(tensor)
    small = [type(tensor).FromString(tensor.SerializeToString()) for tensor in kept]
    del graph.initializer[:]
    graph.initializer.extend(small)
    # Elsewhere (constants in nodes) external data is rare and read whole.
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and uses_external_data(attribute.t):
                load_external_data_for_tensor(attribute.t, str(stored.path.parent))


def _outside(tensor: Any, folder: Path) -> tuple[Path, Span] | None:
    if not uses_external_data(tensor):
        return None
    info = ExternalDataInfo(tensor)
    file, offset = folder / info.location, info.offset or 0
    return file, Span(offset, info.length or file.stat().st_size - offset)


def _cut(
    pages: Array, file: Path, span: Span, dtype: np.dtype[Any], dims: tuple[int, ...]
) -> Array:
    if int(
        np.prod(dims, dtype=np.int64)
    ) * dtype.itemsize != span.length or span.offset + span.length > len(pages):
        raise ValueError(
            f"{file.name} has {len(pages)} bytes and does not contain a tensor {list(dims)} of "
            f"{dtype} in {span.length} bytes at offset {span.offset}"
        )
    return np.asarray(pages[span.offset : span.offset + span.length]).view(dtype).reshape(dims)


def _read(tensor: Any, path: Path, span: Span) -> None:
    with path.open("rb") as file:
        file.seek(span.offset)
        tensor.ClearField("external_data")
        tensor.data_location = TensorProto.DEFAULT
        tensor.raw_data = file.read(span.length)
