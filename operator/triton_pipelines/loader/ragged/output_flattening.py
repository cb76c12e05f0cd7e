"""The part after the model: remove padding from outputs per token and mark broken rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from triton_pipelines.loader.onnx_graph.node_builder import NodeBuilder
from triton_pipelines.loader.ragged.input_padding import RowValues

Dims = Sequence[int | str | None]


class OutputFlattener:
    """Add the nodes of the outputs; what several outputs need is built once."""

    def __init__(self, build: NodeBuilder, rows: RowValues) -> None:
        self._build, self._rows = build, rows
        self._tokens: tuple[str, str] | None = None

    def row_output(self, inner: str, name: str, kind: int, rank: int) -> None:
        """Add an output of shape [rows, …]: unchanged except for marked rows."""
        build, sound = self._build, self._rows.sound
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
        shaped = build.unsqueeze(sound, *range(1, 1 + len(rest))) if rest else sound
        _named(
            build,
            "Where",
            name,
            shaped,
            build.add("Gather", flat, index, axis=0),
            _mark(build, kind),
        )

    def _kept(self) -> tuple[str, str]:
        """Return where every token is in the flattened padded output, and if its row is sound.

        The tensors have one element per token, whatever the length of the longest row: a matrix of
        all rows and the longest would take gigabytes for one row of a million tokens. A row that is
        not sound may be longer than the padded matrix. Triton counts on all of its tokens, so they
        point to the first place.
        """
        if self._tokens is None:
            build, rows = self._build, self._rows
            zero, one = build.scalar(0), build.scalar(1)
            lengths = build.add("Reshape", rows.lengths, build.integers(-1))
            count = build.add("Size", lengths)
            numbers = build.add("Range", zero, count, one)
            starts = build.add("CumSum", lengths, zero, exclusive=1)
            total = build.add("ReduceSum", lengths, keepdims=0)
            # Each row but the first adds 1 where it starts. Rows without tokens are the last ones:
            # they start behind all tokens, at an element that is cut off again.
            steps = build.add("Expand", zero, build.unsqueeze(build.add("Add", total, one), 0))
            steps = build.add(
                "ScatterElements", steps, starts, build.add("Min", numbers, one), axis=0
            )
            row = build.add(
                "Slice",
                build.add("CumSum", steps, zero),
                build.integers(0),
                build.integers(-1),
                build.integers(0),
            )
            shift = build.add("Sub", build.add("Mul", numbers, rows.width), starts)
            place = build.add(
                "Add",
                build.add("Range", zero, total, one),
                build.add("Gather", shift, row, axis=0),
            )
            sound = build.add(
                "Gather", build.add("Reshape", rows.sound, build.integers(-1)), row, axis=0
            )
            self._tokens = build.add("Where", sound, place, zero), sound
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
