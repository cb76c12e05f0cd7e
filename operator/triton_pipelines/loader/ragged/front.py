"""The part in front of the model: flat tokens and row lengths become padded matrices; broken rows are found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from onnx import helper

from triton_pipelines.api.loadplan import shape_input
from triton_pipelines.loader.ragged.build import Builder
from triton_pipelines.loader.ragged.examine import Adaptable

GUARD: Final = "refuses_a_row_without_tokens"
"""The name of the node that fails a batch which cannot be told apart; it stands in the error that clients get."""


@dataclass(frozen=True)
class Rows:
    """Names of values that the part behind the model needs.

    ``lengths`` [rows] are those of the first input, ``longest`` their largest, ``width`` what the padded matrices hold (less, where a row is longer
    than the model can take); ``sound`` [rows] says which rows the model can take, None where nothing is known to check.
    """

    lengths: str
    longest: str
    width: str
    start: str
    sound: str | None


def front(build: Builder, adaptable: Adaptable, types: Mapping[str, int]) -> tuple[dict[str, str], Rows]:
    """Nodes from the flat inputs to padded matrices; returns input → its matrix, and what is known of the rows.

    Each input is cut by its own lengths: with those of another, one request whose mask is longer than its ids would shift the mask of
    all requests behind it. A row with unequal lengths, with a value that a table does not have, or longer than the model can
    take is computed with harmless values and marked, so that it cannot fail or change the others.
    """
    names = [item.name for item in adaptable.plan.inputs]
    lengths = {name: build.cast(build.add("Reshape", shape_input(name), build.integers(-1))) for name in names}
    sizes = {name: build.add("Size", name) for name in names}
    # Of the ids alone: what a mask has beyond them belongs to no token, and must not make the batch wider.
    longest = build.add("ReduceMax", lengths[names[0]], keepdims=0)
    start = _guard(build, [lengths[name] for name in names], [sizes[name] for name in names])
    width = longest if adaptable.max_length is None else build.add("Min", longest, build.scalar(adaptable.max_length))
    places = build.unsqueeze(build.add("Range", start, width, build.scalar(1)), 0)

    sound: list[str] = []
    if adaptable.max_length is not None:
        sound.append(build.add("Less", lengths[names[0]], build.scalar(adaptable.max_length + 1)))
    sound += [build.add("Equal", lengths[names[0]], lengths[name]) for name in names[1:]]
    matrices: dict[str, str] = {}
    for item in adaptable.plan.inputs:
        name, kind = item.name, helper.tensor_dtype_to_np_dtype(types[item.name])
        behind = build.constant(np.array([item.pad_value]).astype(kind))
        first = build.unsqueeze(build.add("CumSum", lengths[name], build.scalar(0), exclusive=1), 1)
        held = build.add("Less", places, build.unsqueeze(lengths[name], 1))
        index = build.add("Where", held, build.add("Add", first, places), sizes[name])
        # One element more at the end, to which every place without a token points: no scatter, no second choice.
        padded = build.add("Gather", build.add("Concat", name, behind, axis=0), index, axis=0)
        if (size := adaptable.sizes.get(name)) is not None:
            padded, whole = _within(build, padded, size, kind)
            sound.append(whole)
        matrices[name] = padded
    return matrices, Rows(lengths[names[0]], longest, width, start, build.all_of(sound) if sound else None)


def _guard(build: Builder, lengths: list[str], sizes: list[str]) -> str:
    """0, or a failed batch where a row has no tokens or lengths and tokens do not add up.

    Behind a request without tokens Triton leaves the flat tensors unfilled: what is there belongs to nobody, and no row can be told to
    be right. One element cannot be reshaped to two: the check of Reshape runs on the host with every execution provider, while
    an index out of range is an error on CPUs only.
    """
    wrong: list[str] = []
    for length, size in zip(lengths, sizes, strict=True):
        empty = build.add("Less", build.add("ReduceMin", length, keepdims=0), build.scalar(1))
        other = build.add("Not", build.add("Equal", build.add("ReduceSum", length, keepdims=0), size))
        wrong.append(build.cast(build.add("Or", empty, other)))
    count = wrong[0] if len(wrong) == 1 else build.add("Max", *wrong)
    shape = build.add("Reshape", build.add("Add", count, build.scalar(1)), build.integers(1))
    return build.add("Squeeze", build.add("Reshape", build.integers(0), shape, named=GUARD))


def _within(build: Builder, padded: str, size: int, kind: Any) -> tuple[str, str]:
    """``padded`` with 0 for values that a table of ``size`` rows does not have, and which rows [rows] had none of these.

    ONNX counts negative values from the table's end; no tokenizer makes them, and they are refused like the others.
    """
    low, high = build.constant(np.array(-1, kind)), build.constant(np.array(min(size, np.iinfo(kind).max), kind))
    inside = build.add("And", build.add("Less", low, padded), build.add("Less", padded, high))
    outside = build.add("ReduceSum", build.cast(build.add("Not", inside)), build.integers(1), keepdims=0)
    safe = build.add("Where", inside, padded, build.constant(np.array(0, kind)))
    return safe, build.add("Equal", outside, build.scalar(0))
