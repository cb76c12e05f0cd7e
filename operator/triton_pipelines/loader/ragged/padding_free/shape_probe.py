"""Find the axes of every tensor of a graph by running it on two batches of different shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from triton_pipelines.loader.onnx_graph.graph_walk import inputs, reached
from triton_pipelines.loader.onnx_graph.model_runner import (
    GraphInput,
    further_values,
    mask_value,
)
from triton_pipelines.loader.onnx_store import Stored
from triton_pipelines.loader.onnx_weights import all_tensors
from triton_pipelines.loader.ragged.eligibility import Adaptable
from triton_pipelines.loader.ragged.padding_free.tensor_facts import (
    Axis,
    TensorFacts,
    token_axes,
)

Array = NDArray[Any]
Results = Mapping[str, Any]

BATCHES: Final = ((3, 5), (2, 17))
"""Rows and places of the two batches.

Rows, places, their product and fixed lengths give different pairs of lengths, and so does a number
of blocks of 8 or 16 places. What grows with the places cannot have the lengths of the rows.
"""
_AXES: Final = {
    tuple(rows for rows, _ in BATCHES): Axis.ROWS,
    tuple(places for _, places in BATCHES): Axis.PLACES,
    tuple(rows * places for rows, places in BATCHES): Axis.ALL_PLACES,
}
SMALL: Final = 1024
"""Elements up to which the value of a neutral tensor is kept: axes, shapes and scalars."""


def probe_shapes(
    stored: Stored, graph_inputs: Sequence[GraphInput], adaptable: Adaptable
) -> dict[str, TensorFacts]:
    """Return the facts about all tensors of a stock graph.

    Args:
        stored: the model; its weights are taken out of it.
        graph_inputs: its inputs.
        adaptable: what it can be adapted for.

    Raises:
        Exception: of any kind, if the evaluator cannot run the graph.
    """
    graph, run = stored.model.graph, all_tensors(stored)
    runs = [run(probe_batch(graph_inputs, adaptable, *batch)) for batch in BATCHES]
    return tensor_facts(graph, runs)


def probe_batch(
    graph_inputs: Sequence[GraphInput], adaptable: Adaptable, rows: int, places: int
) -> dict[str, Array]:
    """Return a batch of random rows, of which the last has one token and padding."""
    random = np.random.default_rng(rows)
    pads = {item.name: item.pad_value for item in adaptable.plan.inputs}
    feed: dict[str, Array] = {}
    for item in graph_inputs:
        if not item.per_token:
            feed[item.name] = further_values(random, item, rows)
            continue
        size = 2 if item.name in adaptable.masks else adaptable.sizes.get(item.name, 2)
        value = random.integers(0, size, (rows, places))
        if item.name in adaptable.masks:
            value[:] = mask_value(item.name)
        value[-1, 1:] = min(pads[item.name], size - 1)
        feed[item.name] = value.astype(item.dtype)
    return feed


def tensor_facts(graph: Any, runs: Sequence[Results]) -> dict[str, TensorFacts]:
    """Return the facts about all tensors of a graph.

    Args:
        graph: the stock graph.
        runs: for each of :data:`BATCHES`, all tensors by name.
    """
    dependent = reached(graph, inputs(graph))
    facts: dict[str, TensorFacts] = {}
    for name, value in runs[0].items():
        first, second = _array(value), _array(runs[1].get(name))
        if first is None or second is None or first.ndim != second.ndim:
            continue
        dims = tuple(map(_axis, first.shape, second.shape))
        is_neutral = name not in dependent
        facts[name] = TensorFacts(
            dims,
            first.dtype,
            is_neutral,
            first if is_neutral and first.size <= SMALL else None,
            None if is_neutral else _filler(dims, (first, second)),
        )
    return facts


def _array(value: Any) -> Array | None:
    """Return a tensor; ``None`` for sequences and values that are left out."""
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else None


def _axis(first: int, second: int) -> int | Axis:
    return first if first == second else _AXES.get((first, second), Axis.OTHER)


def _filler(dims: tuple[int | Axis, ...], runs: Sequence[Array]) -> float | None:
    """Return the one value behind the last row's only token, in both runs."""
    tokens = token_axes(dims)
    if tokens is None:
        return None
    behind: set[float] = set()
    for (rows, places), value in zip(BATCHES, runs, strict=True):
        split = value.reshape(tokens.with_tokens(rows, places))
        padding = np.moveaxis(split, (tokens.first, tokens.first + 1), (0, 1))[-1, 1:]
        behind.update(np.unique(padding).tolist())
    filler = behind.pop() if len(behind) == 1 else None
    return filler if isinstance(filler, int | float) and np.isfinite(filler) else None
