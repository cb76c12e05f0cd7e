"""Infer from an ONNX file what ONNX Runtime will report about its shapes when Triton loads it.

Triton's backend compares declared outputs with the shapes that ONNX Runtime infers. The loader's
image has no ONNX Runtime, so the inference of the onnx package is used. Both call the same
functions per operator, but not at the same depth; the result says where they may differ.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from triton_pipelines.loader.onnx_graph.graph_walk import STANDARD, dims, every_node
from triton_pipelines.loader.onnx_store import SMALL

_LOG: Final = logging.getLogger(__name__)
_SHAPE_TYPES: Final = {onnx.TensorProto.INT64: 8, onnx.TensorProto.INT32: 4}
"""Element types of tensors that operators compute shapes from → bytes per element."""
INFERRED_MAX: Final = 64 << 20
"""Maximum bytes of a graph, without its large initializers, whose shapes are inferred.

The inference holds several copies, and the loader has 2 GiB. A graph is larger only if its weights
are constants of nodes.
"""

Dims = tuple[int | str | None, ...]


@dataclass(frozen=True)
class InferredShape:
    """The shape of one output."""

    dims: Dims | None
    """Number, name or ``None`` per axis; ``None`` if the rank is unknown."""
    optional: frozenset[int] = frozenset()
    """Axes with a number that ONNX Runtime may or may not find.

    It folds fewer constants than the onnx package.
    """


def infer_outputs(model: Any) -> dict[str, InferredShape] | None:
    """Return the shapes of the outputs, or ``None`` if ONNX Runtime may know more.

    It knows the shapes of operators outside the standard, and the onnx package does not. Graphs
    that are too large are not inferred here.

    Args:
        model: an ``onnx.ModelProto``; large initializers need no data. It is not changed.
    """
    local = {function.domain for function in model.functions}
    known = {*STANDARD, *local}
    if any(node.domain not in known for node in every_node(model)):
        return None
    if model.ByteSize() > INFERRED_MAX:
        return None
    plain = _inferred(model, data_prop=False)
    folded = _inferred(model, data_prop=True)
    if plain is None or folded is None:
        return None
    return {name: _merged(plain[name], folded[name]) for name in plain}


def _inferred(model: Any, *, data_prop: bool) -> dict[str, Dims | None] | None:
    """Return output → shape, or ``None`` if the inference fails."""
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    except MemoryError:
        raise
    except Exception as error:
        # The bindings raise several types. ONNX Runtime may accept the graph.
        _LOG.debug("shapes cannot be inferred: %s", error)
        return None
    return {value.name: dims(value) for value in model.graph.output}


def _merged(plain: Dims | None, folded: Dims | None) -> InferredShape:
    """Return what is inferred with constants folded, and which axes need that."""
    if folded is None:
        return InferredShape(plain)
    if plain is None:
        numbers = (axis for axis, dim in enumerate(folded) if isinstance(dim, int))
        return InferredShape(folded, frozenset(numbers))
    return InferredShape(
        folded,
        frozenset(
            axis
            for axis, (before, after) in enumerate(zip(plain, folded, strict=True))
            if isinstance(after, int) and not isinstance(before, int)
        ),
    )


def external_shape_constants(path: Path, model: Any) -> list[str]:
    """Return the tensors in side files from which the graph's shapes are computed.

    ONNX Runtime infers shapes before it opens side files, and refuses such a model (seen in
    versions 1.19 to 1.31).

    Args:
        path: the ONNX file; its side files are next to it.
        model: its ``onnx.ModelProto``, without the large weights. It is not changed.

    Returns:
        Names of small integer tensors; empty if ONNX Runtime can load the model.

    Raises:
        OSError: a side file cannot be read.
    """
    names = [tensor.name for tensor in model.graph.initializer if _may_be_shape(tensor)]
    if not names or model.ByteSize() > INFERRED_MAX or _can_be_inferred(model):
        return []
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    for tensor in whole.graph.initializer:
        if _may_be_shape(tensor):
            load_external_data_for_tensor(tensor, str(path.parent))
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    return names if _can_be_inferred(whole) else []


def _may_be_shape(tensor: Any) -> bool:
    size = _SHAPE_TYPES.get(tensor.data_type)
    return (
        size is not None
        and uses_external_data(tensor)
        and len(tensor.dims) <= 1
        and size * sum(tensor.dims) <= SMALL
    )


def _can_be_inferred(model: Any) -> bool:
    """Return whether the inference of shapes finds no error."""
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except MemoryError:
        raise
    except Exception as error:
        _LOG.debug("shapes cannot be inferred: %s", error)
        return False
    return True
