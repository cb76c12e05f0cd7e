"""Compute what the stock graph returns for generated rows, each alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from triton_pipelines.loader.onnx_graph.model_runner import (
    LONGEST,
    Array,
    GraphInput,
    Outputs,
    Run,
    accepts,
    generate_rows,
)
from triton_pipelines.loader.ragged.eligibility import Adaptable

LENGTHS: Final = (3, 7, 1, 5, 7)
"""Tokens of the rows in the first batch.

Shorter and longer than their neighbors, a single token, the longest twice.
"""
LONG: Final = 600
"""Tokens of the longest row in the second batch, where the model accepts as many.

Some graphs change the outputs of a row only in a batch with a long row, for example by a window of
attention (up to 512 tokens wide in known encoders) or by a scale that grows above 512 tokens. The
batch has few rows, because the padded form computes rows times the longest: in all, the
verification takes 13 s of CPU time for 12 layers of width 768, and with short rows alone 3 s.
"""
SIMILAR: Final = 5 / 6
"""Length of the second longest row in the second batch, as a share of the longest.

Where rows are grouped by length, these two are in one group, and the shorter one has padding: see
:mod:`.padding_free.length_groups`.
"""
LONG_ELEMENTS: Final = 1 << 24
"""Elements of an output that are computed for all tokens of the longest row.

A model that computes one element for each of 250,000 token IDs gets shorter rows: otherwise, it
would need more memory than the loader has.
"""


@dataclass(frozen=True)
class Batch:
    """Rows that share a batch."""

    rows: Sequence[Mapping[str, Array]]
    """Inputs of each row."""
    single: Sequence[Outputs]
    """Outputs of the stock graph for each row alone."""


class StockGraphError(Exception):
    """The stock graph contradicts what the plan or its own tables say."""


def reference_batches(
    run: Run, graph_inputs: Sequence[GraphInput], adaptable: Adaptable, *, is_padding_free: bool
) -> list[Batch]:
    """Return a batch of short rows, and a batch with long rows if the model accepts these.

    Args:
        run: the stock graph.
        graph_inputs: its inputs.
        adaptable: what it is adapted for.
        is_padding_free: whether the adapted graph groups rows by length instead of padding all.

    Raises:
        StockGraphError: the dims of an output or the maximum length are wrong.
        MemoryError: a run did not fit into memory.
        Exception: of any kind, if the evaluator cannot run the graph.
    """
    most = adaptable.max_length or LONG

    def batch_of(lengths: Sequence[int]) -> Batch:
        rows = generate_rows(graph_inputs, lengths, adaptable.sizes, adaptable.masks)
        return Batch(rows, [run(row) for row in rows])

    short = batch_of([min(length, most) for length in LENGTHS])
    _check_dims(short.single, adaptable)
    widest = max((value.shape[-1] for value in short.single[0].values() if value.ndim), default=1)
    longest = max(1, min(LONG, most, LONG_ELEMENTS // max(1, widest)))
    _check_length(run, graph_inputs, adaptable, longest)
    similar = [max(1, int(longest * SIMILAR))] if is_padding_free else []
    try:
        return [short, batch_of([min(LENGTHS[0], longest), *similar, longest])]
    except MemoryError:
        raise
    except Exception:
        if adaptable.max_length is None:
            return [short]
        raise _rejection(longest, adaptable) from None


def _check_dims(single: Sequence[Outputs], adaptable: Adaptable) -> None:
    """Check that all outputs per row have their declared dims."""
    for name, declared in adaptable.output_dims.items():
        if name in adaptable.plan.token_outputs:
            continue
        for output in single:
            dims = output[name].shape[1:] if name in output else declared
            if len(dims) != len(declared) or any(
                size not in (-1, dim) for size, dim in zip(declared, dims, strict=True)
            ):
                raise StockGraphError(
                    f"output {name} has the dims {list(dims)}, and spec.model.outputs declares "
                    f"{list(declared)}"
                )


def _check_length(
    run: Run, graph_inputs: Sequence[GraphInput], adaptable: Adaptable, longest: int
) -> None:
    """Check that the graph accepts rows of the maximum length, where it is above ``longest``.

    Where the graph itself states the maximum, it must not accept longer rows.
    """
    bound, sent = adaptable.max_length, adaptable.plan.max_length

    def accepts_length(length: int) -> bool:
        rows = generate_rows(graph_inputs, [length], adaptable.sizes, adaptable.masks)
        return accepts(run, rows[0])

    if bound is None:
        return
    tried = min(bound, LONGEST)
    if tried > longest and not accepts_length(tried):
        raise _rejection(tried, adaptable)
    is_less = adaptable.stated_by_graph and sent is not None and bound < sent
    if is_less and accepts_length(bound + 1):
        raise StockGraphError(
            f"a table of the graph seems to limit rows to {bound} tokens, but the graph "
            "accepts longer rows"
        )


def _rejection(length: int, adaptable: Adaptable) -> StockGraphError:
    if adaptable.stated_by_graph:
        return StockGraphError(
            f"a table of the graph seems to allow rows of {adaptable.max_length} tokens, but the "
            f"graph rejects rows of {length} tokens"
        )
    return StockGraphError(
        f"it rejects rows of {length} tokens, which spec.tokenizer.maxLength allows"
    )
