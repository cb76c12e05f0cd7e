"""Verify numerically that batching rows in the adapted graph does not change their outputs."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from triton_pipelines.api.loadplan import shape_input
from triton_pipelines.loader.onnx_graph.model_runner import (
    LONGEST,
    REFERENCE_MAX,
    Array,
    Evaluator,
    GraphInput,
    Outputs,
    Run,
    accepts,
    choose_evaluator,
    generate_rows,
    open_model,
)
from triton_pipelines.loader.ragged.eligibility import Adaptable

LENGTHS: Final = (3, 7, 1, 5, 7)
"""Tokens of the rows.

Shorter and longer than their neighbors, a single token, the longest twice.
"""
TOLERANCE: Final = {
    np.dtype(np.float16): 3e-2,
    np.dtype(np.float32): 1e-4,
    np.dtype(np.float64): 1e-4,
}
"""Largest difference that rounding explains.

Relative to the largest absolute output where that is above 1. A mask that does not work differs by
far more.
"""
OUT_OF_MEMORY: Final = "there is not enough memory to run it"


@dataclass(frozen=True)
class Verification:
    """Result of comparing the adapted graph with the stock graph."""

    evaluator: Evaluator
    """What ran the graphs; ``NONE`` if nothing was run."""
    difference: float = 0.0
    """Largest difference of an output, as a share of the tolerance."""
    fault: str = ""
    """What is wrong with the adapted graph; empty if nothing is."""
    why: str = ""
    """Why nothing was run; empty if the graphs were run."""


class _VerificationEndedError(Exception):
    """The verification ended early with a result."""

    def __init__(self, result: Verification) -> None:
        super().__init__(result.fault or result.why)
        self.result = result


def join_batch(rows: Sequence[Mapping[str, Array]], flat: Sequence[str]) -> dict[str, Array]:
    """Return what Triton's ONNX Runtime backend feeds for requests in one batch.

    Flat inputs are laid end to end, with the lengths of their rows in an input of their own.
    """
    feed = {
        name: np.concatenate([row[name].reshape(-1) if name in flat else row[name] for row in rows])
        for name in rows[0]
    }
    for name in flat:
        feed[shape_input(name)] = np.concatenate(
            [np.full((len(row[name]), 1), row[name].shape[1], np.int32) for row in rows]
        )
    return feed


def split_batch(
    outputs: Outputs, rows: Sequence[Mapping[str, Array]], first: str, per_token: Sequence[str]
) -> list[dict[str, Array]]:
    """Cut the outputs of a batch into requests, as the backend does.

    Outputs are cut by rows; those in ``per_token`` by the shape of the input ``first``.
    """
    requests: list[dict[str, Array]] = []
    row = token = 0
    for request in rows:
        count, length = request[first].shape
        own = {}
        for name, value in outputs.items():
            if name in per_token:
                own[name] = value[token : token + count * length].reshape(
                    count, length, *value.shape[1:]
                )
            else:
                own[name] = value[row : row + count]
        row, token = row + count, token + count * length
        requests.append(own)
    return requests


def verify(
    stock: Path,
    adapted: Path,
    graph_inputs: Sequence[GraphInput],
    adaptable: Adaptable,
    weights: int,
) -> Verification:
    """Run both files on generated rows and compare their outputs.

    Nothing is run where no evaluator fits; the result then says why.

    Args:
        stock: the file as fetched.
        adapted: the adapted file.
        graph_inputs: inputs of the stock graph.
        adaptable: what the graph was adapted for.
        weights: bytes of the model's weights.
    """
    evaluator = choose_evaluator(weights)
    if evaluator is Evaluator.NONE:
        limit = REFERENCE_MAX >> 30
        return Verification(
            evaluator,
            why=f"ONNX Runtime is not installed, and the weights are larger than {limit} GiB",
        )
    try:
        return _compare_graphs(stock, adapted, graph_inputs, adaptable, evaluator)
    except _VerificationEndedError as ended:
        return ended.result
    finally:
        # Evaluators have reference cycles; their memory is needed for the weights of the next
        # model.
        gc.collect()


def _compare_graphs(
    stock: Path,
    adapted: Path,
    graph_inputs: Sequence[GraphInput],
    adaptable: Adaptable,
    evaluator: Evaluator,
) -> Verification:
    lengths = [min(length, adaptable.max_length or length) for length in LENGTHS]
    rows = generate_rows(graph_inputs, lengths, adaptable.sizes, adaptable.masks)
    flat = [item.name for item in graph_inputs if item.per_token]
    single = _run_stock(stock, rows, graph_inputs, adaptable, evaluator)
    gc.collect()
    run, batched = _run_adapted(adapted, rows, flat, adaptable, evaluator)
    worst = _largest_difference(single, batched, adaptable.plan.token_outputs)
    if worst > 1:
        return Verification(
            evaluator,
            worst,
            fault="a row's output depends on the other rows of its batch, because parts of "
            "the graph ignore the attention mask",
        )
    if not _guard_fails_batch(run, rows, flat):
        return Verification(
            evaluator, worst, fault="the guard against rows that Triton did not fill does not work"
        )
    return Verification(evaluator, worst)


def _run_stock(
    stock: Path,
    rows: Sequence[Mapping[str, Array]],
    graph_inputs: Sequence[GraphInput],
    adaptable: Adaptable,
    evaluator: Evaluator,
) -> list[Outputs]:
    """Run each row alone. Raises :class:`_VerificationEndedError`."""
    try:
        run = open_model(stock, evaluator)
        single = [run(row) for row in rows]
        fault = _dims_fault(single, adaptable) or _length_fault(run, graph_inputs, adaptable)
    except MemoryError:
        raise _VerificationEndedError(Verification(Evaluator.NONE, why=OUT_OF_MEMORY)) from None
    except Exception as error:
        # Mostly custom operators: nothing here can show that rows do not affect each other.
        raise _VerificationEndedError(
            Verification(
                evaluator,
                fault=f"equal outputs cannot be shown: {evaluator} cannot run the file unchanged "
                f"({_first_line(error)})",
            )
        ) from error
    if fault:
        raise _VerificationEndedError(Verification(evaluator, fault=fault))
    return single


def _dims_fault(single: Sequence[Outputs], adaptable: Adaptable) -> str:
    """Return which output does not have its declared dims; empty if all have them."""
    for name, declared in adaptable.output_dims.items():
        if name in adaptable.plan.token_outputs:
            continue
        for output in single:
            dims = output[name].shape[1:] if name in output else declared
            if len(dims) != len(declared) or any(
                size not in (-1, dim) for size, dim in zip(declared, dims, strict=True)
            ):
                return (
                    f"output {name} has the dims {list(dims)}, and spec.model.outputs declares "
                    f"{list(declared)}"
                )
    return ""


def _run_adapted(
    adapted: Path,
    rows: Sequence[Mapping[str, Array]],
    flat: Sequence[str],
    adaptable: Adaptable,
    evaluator: Evaluator,
) -> tuple[Run, list[dict[str, Array]]]:
    """Run all rows in one batch. Raises :class:`_VerificationEndedError`."""
    try:
        run = open_model(adapted, evaluator)
        return run, split_batch(
            run(join_batch(rows, flat)),
            rows,
            adaptable.plan.inputs[0].name,
            adaptable.plan.token_outputs,
        )
    except MemoryError:
        raise _VerificationEndedError(Verification(Evaluator.NONE, why=OUT_OF_MEMORY)) from None
    except Exception as error:
        raise _VerificationEndedError(
            Verification(evaluator, fault=f"the adapted graph does not run: {_first_line(error)}")
        ) from error


def _largest_difference(
    single: Sequence[Outputs], batched: Sequence[Outputs], token_outputs: Sequence[str]
) -> float:
    """Return the largest difference of any output as a share of the tolerance."""
    worst = 0.0
    for one, other in zip(single, batched, strict=True):
        for name, output in one.items():
            # An output with an axis of tokens that the plan does not list keeps its padding.
            padded = name not in token_outputs and output.shape != other[name].shape
            if padded and output.ndim > 1:
                continue
            worst = max(worst, difference(output, other[name]))
    return worst


def _guard_fails_batch(run: Run, rows: Sequence[Mapping[str, Array]], flat: Sequence[str]) -> bool:
    """Return whether the adapted graph fails a batch in which one row has no tokens."""
    with_empty_row = [
        {**row, **{name: row[name][:, :0] for name in flat}} if number == 1 else row
        for number, row in enumerate(rows)
    ]
    try:
        run(join_batch(with_empty_row, flat))
    except Exception:
        return True
    return False


def _length_fault(run: Run, graph_inputs: Sequence[GraphInput], adaptable: Adaptable) -> str:
    """Return what is wrong with the maximum length; empty if nothing is.

    The stock graph must accept rows of that length, and no longer ones where the graph itself
    states the maximum.
    """
    bound, sent = adaptable.max_length, adaptable.plan.max_length

    def accepts_length(length: int) -> bool:
        rows = generate_rows(graph_inputs, [length], adaptable.sizes, adaptable.masks)
        return accepts(run, rows[0])

    if bound is None:
        return ""
    if not adaptable.stated_by_graph:
        tried = min(bound, LONGEST)
        if accepts_length(tried):
            return ""
        return f"it rejects rows of {tried} tokens, which spec.tokenizer.maxLength allows"
    if sent is not None and bound < sent and accepts_length(bound + 1):
        return (
            f"a table of the graph seems to limit rows to {bound} tokens, but the graph "
            "accepts longer rows"
        )
    return ""


def difference(one: Array, other: Array) -> float:
    """Return the largest difference of two outputs as a share of the tolerance.

    Infinite for different shapes or types, and for integers that differ.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    tolerance = TOLERANCE.get(one.dtype)
    if tolerance is None:
        return 0.0 if np.array_equal(one, other) else float("inf")
    if not one.size:
        return 0.0
    scale = max(1.0, float(np.abs(one).max()))
    largest = (
        float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max()) / scale / tolerance
    )
    return float("inf") if np.isnan(largest) else largest


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
