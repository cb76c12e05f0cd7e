"""The part after the model: remove padding from outputs per token and mark broken rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from triton_pipelines.loader.ragged.input_padding import RowValues
from triton_pipelines.loader.ragged.node_builder import NodeBuilder

Dims = Sequence[int | str | None]


class OutputFlattener:
    """Add the nodes of the outputs; what several outputs need is built once."""

    def __init__(self, build: NodeBuilder, rows: RowValues) -> None:
        self._build, self._rows = build, rows
        self._tokens: tuple[str, str | None] | None = None

    def row_output(self, inner: str, name: str, kind: int, rank: int) -> None:
        """Add an output of shape [rows, …]: unchanged except for marked rows."""
        build, sound = self._build, self._rows.sound
        if sound is None:
            _named(build, "Identity", name, inner)
            return
        shaped = (
            build.add("Reshape", sound, build.integers(-1, *[1] * (rank - 1)))
            if rank != 2
            else sound
        )
        _named(build, "Where", name, shaped, inner, _mark(build, kind))

    def token_output(self, inner: str, name: str, kind: int, shape: Dims) -> None:
        """Add an output of shape [all tokens, …] from one of shape [rows, tokens, …].

        The tokens are in the order of the rows; each row has as many as its first input.
        """
        build, rest = self._build, list(shape[2:])
        index, sound = self._kept()
        if all(isinstance(dim, int) for dim in rest):
            flat = build.add(
                "Reshape",
                inner,
                build.integers(-1, *(int(dim) for dim in rest if isinstance(dim, int))),
            )
        else:
            whole = build.add("Shape", inner)
            tail = build.add(
                "Slice", whole, build.integers(2), build.integers(len(shape)), build.integers(0)
            )
            flat = build.add(
                "Reshape", inner, build.add("Concat", build.integers(-1), tail, axis=0)
            )
        if sound is None:
            _named(build, "Gather", name, flat, index, axis=0)
            return
        shaped = build.unsqueeze(sound, *range(1, 1 + len(rest))) if rest else sound
        _named(
            build,
            "Where",
            name,
            shaped,
            build.add("Gather", flat, index, axis=0),
            _mark(build, kind),
        )

    def _kept(self) -> tuple[str, str | None]:
        """Return where every token is in the flattened padded output, and which rows are sound.

        A row longer than the padded matrix has no place for its last tokens. Triton counts on all
        of them, so they point to the first place.
        """
        if self._tokens is None:
            build, rows = self._build, self._rows
            end = build.add(
                "Add", build.add("ReduceMax", rows.lengths, keepdims=0), build.scalar(1)
            )
            places = build.add("Range", rows.one, end, build.scalar(1))
            held = build.add(
                "Reshape", build.add("LessOrEqual", places, rows.lengths), build.integers(-1)
            )
            # Places count from 1, rows from 0.
            row = build.add(
                "Range", build.scalar(0), build.add("Size", rows.lengths), build.scalar(1)
            )
            first = build.unsqueeze(
                build.add("Sub", build.add("Mul", row, rows.width), build.scalar(1)), 1
            )
            place = build.add("Add", first, places)
            sound = None
            if rows.sound is not None:
                inside = build.add("And", build.add("LessOrEqual", places, rows.width), rows.sound)
                place = build.add("Where", inside, place, build.scalar(0))
                sound = build.add(
                    "Compress", build.add("Reshape", inside, build.integers(-1)), held, axis=0
                )
            self._tokens = (
                build.add(
                    "Compress", build.add("Reshape", place, build.integers(-1)), held, axis=0
                ),
                sound,
            )
        return self._tokens


def _named(build: NodeBuilder, operator: str, output: str, *inputs: str, **attributes: Any) -> None:
    """Add a node that makes an output of the graph, under the name that clients know."""
    build.nodes.append(
        helper.make_node(
            operator, list(inputs), [output], name=build.name(f"output_{output}"), **attributes
        )
    )


def _mark(build: NodeBuilder, kind: int) -> str:
    """Return the value of rows that the model cannot take: not-a-number, or -1 for integers."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    return build.constant(np.array(np.nan if np.issubdtype(dtype, np.floating) else -1, dtype))
