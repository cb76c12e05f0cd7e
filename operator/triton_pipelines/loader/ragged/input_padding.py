"""The part before the model: turn flat tokens and row lengths into padded matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper

from triton_pipelines.api.loadplan import shape_input
from triton_pipelines.loader.onnx_graph.node_builder import NodeBuilder
from triton_pipelines.loader.ragged.eligibility import Adaptable

GUARD: Final = "refuses_rows_behind_a_row_without_tokens"
"""Name of the node that fails a batch in which Triton left rows unfilled.

It is part of the error that clients get.
"""


@dataclass(frozen=True)
class RowValues:
    """Names of values that the part after the model needs."""

    lengths: str
    """[rows, 1]: lengths of the first input."""
    taken: str
    """[rows, 1]: how many tokens of each row the model computes."""
    width: str
    """Number of tokens that the padded matrices hold."""
    sound: str
    """[rows, 1]: which rows the model can take."""


def pad_inputs(
    build: NodeBuilder, adaptable: Adaptable, types: Mapping[str, int]
) -> tuple[dict[str, str], RowValues]:
    """Add the nodes from the flat inputs to padded matrices.

    Each input starts a row where its own lengths say. With the lengths of another input, one
    request whose mask is longer than its ids would shift the mask of all requests after it.

    A row without tokens, with unequal lengths, with a value that a table does not have, or longer
    than the model can take is computed with harmless values and marked, so that it cannot fail or
    change the others. The operators are few and small, because on a GPU each costs a launch.

    Returns:
        Input → its matrix, and the values that describe the rows.
    """
    names = [item.name for item in adaptable.plan.inputs]
    lengths = build.cast(build.add("Concat", *(shape_input(name) for name in names), axis=1))
    shortest = build.reduce("ReduceMin", lengths, 1)
    # What a mask has beyond the ids belongs to no token, and must not make the batch wider.
    filled = (
        shortest
        if adaptable.max_length is None
        else build.add("Min", shortest, build.scalar(adaptable.max_length))
    )
    # A row without tokens is computed as one token of padding: some operators fail on none.
    taken = build.add("Max", filled, build.scalar(1))
    width = build.add("ReduceMax", taken, keepdims=0)
    one = _guard(build, shortest)
    places = build.add("Range", one, build.add("Add", width, build.scalar(1)), build.scalar(1))
    held = build.add("LessOrEqual", places, filled)
    starts = build.add("CumSum", lengths, build.scalar(0), exclusive=1)

    matrices: dict[str, str] = {}
    in_range: list[str] = []
    for number, item in enumerate(adaptable.plan.inputs):
        kind = helper.tensor_dtype_to_np_dtype(types[item.name])
        start = build.add("Gather", starts, build.integers(number), axis=1)
        index = build.add("Where", held, build.add("Add", start, places), build.scalar(0))
        # One element is put in front, to which every place without a token points. This needs
        # neither a scatter nor a second selection.
        filler = build.constant(np.array([item.pad_value]).astype(kind))
        padded = build.add("Gather", build.add("Concat", filler, item.name, axis=0), index, axis=0)
        size = adaptable.sizes.get(item.name)
        if size is not None:
            clipped = _clip(build, padded, size, kind)
            in_range.append(build.add("Equal", clipped, padded))
            padded = clipped
        matrices[item.name] = padded
    sound = build.all_of(_sound_conditions(build, taken, lengths, in_range))
    first = build.add("Gather", lengths, build.integers(0), axis=1)
    return matrices, RowValues(first, taken, width, sound)


def _clip(build: NodeBuilder, values: str, size: int, kind: np.dtype[Any]) -> str:
    """Return ``values`` limited to 0 to ``size`` - 1.

    ONNX counts negative values from the end of the table. Tokenizers do not make them, and a row
    that has one is marked like any other with a value out of range.
    """
    highest = min(size - 1, int(np.iinfo(kind).max))
    return build.add(
        "Clip",
        values,
        build.constant(np.array(0, kind)),
        build.constant(np.array(highest, kind)),
    )


def _sound_conditions(
    build: NodeBuilder, taken: str, lengths: str, in_range: list[str]
) -> list[str]:
    """Return the conditions under which the model can take a row."""
    sound = [build.add("Equal", taken, build.reduce("ReduceMax", lengths, 1))]
    if in_range:
        whole = build.reduce("ReduceMin", build.cast(build.all_of(in_range), TensorProto.INT32), 1)
        sound.append(build.cast(whole, TensorProto.BOOL))
    return sound


def _guard(build: NodeBuilder, lengths: str) -> str:
    """Return 1, or fail the batch where a row with tokens is behind a row without.

    Behind a request without tokens Triton leaves the flat tensors unfilled: the content is
    undefined, and no row there can be shown to be right. Rows in front of it are complete.
    If rows without tokens are the last ones, then the rows with tokens are as many as the number of
    the last of them. Otherwise one element is reshaped to more than one: the check of Reshape runs
    on the host with every execution provider, while an index out of range is an error on CPUs only.
    """
    one = build.scalar(1)
    has_tokens = build.add("Reshape", build.add("Min", lengths, one), build.integers(-1))
    count = build.add("ReduceSum", has_tokens, keepdims=0)
    numbers = build.add("Range", one, build.add("Add", build.add("Size", lengths), one), one)
    last = build.add("ReduceMax", build.add("Mul", numbers, has_tokens), keepdims=0)
    excess = build.add("Sub", last, count)
    shape = build.unsqueeze(build.add("Add", excess, one), 0)
    return build.add("Squeeze", build.add("Reshape", build.integers(1), shape, named=GUARD))
