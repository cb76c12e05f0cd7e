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
    REFERENCE_MAX,
    Array,
    Evaluator,
    GraphInput,
    Outputs,
    Run,
    choose_evaluator,
    open_model,
)
from triton_pipelines.loader.ragged.eligibility import Adaptable
from triton_pipelines.loader.ragged.reference_outputs import (
    Batch,
    StockGraphError,
    reference_batches,
)

TOLERANCE: Final = {
    np.dtype(np.float16): 3e-2,
    np.dtype(np.float32): 1e-4,
    np.dtype(np.float64): 1e-4,
}
"""Largest difference that rounding explains.

Relative to the largest value of the output in any row, but at most to :data:`NEAR_ZERO` times that
of the row itself: scores of a rare class, for example, are small in most rows.
"""
NEAR_ZERO: Final = 10.0
"""How much smaller than the others a value may be by chance.

A score that happens to be near 0 has larger relative differences.
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
    *,
    is_padding_free: bool,
) -> Verification:
    """Run both files on generated rows and compare their outputs.

    Nothing is run where no evaluator fits; the result then says why.

    Args:
        stock: the file as fetched.
        adapted: the adapted file.
        graph_inputs: inputs of the stock graph.
        adaptable: what the graph was adapted for.
        weights: bytes of the model's weights.
        is_padding_free: whether the adapted graph groups rows by length instead of padding all.
    """
    evaluator = choose_evaluator(weights)
    if evaluator is Evaluator.NONE:
        limit = REFERENCE_MAX >> 30
        return Verification(
            evaluator,
            why=f"ONNX Runtime is not installed, and the weights are larger than {limit} GiB",
        )
    try:
        batches = _run_stock(stock, graph_inputs, adaptable, evaluator, is_padding_free)
        gc.collect()
        flat = [item.name for item in graph_inputs if item.per_token]
        return _compare(adapted, batches, flat, adaptable, evaluator)
    except _VerificationEndedError as ended:
        return ended.result
    finally:
        # Evaluators have reference cycles; their memory is needed for the weights of the next
        # model.
        gc.collect()


def _run_stock(
    stock: Path,
    graph_inputs: Sequence[GraphInput],
    adaptable: Adaptable,
    evaluator: Evaluator,
    is_padding_free: bool,
) -> list[Batch]:
    """Run each row alone. Raises :class:`_VerificationEndedError`."""
    try:
        return reference_batches(
            open_model(stock, evaluator), graph_inputs, adaptable, is_padding_free=is_padding_free
        )
    except MemoryError:
        raise _VerificationEndedError(Verification(Evaluator.NONE, why=OUT_OF_MEMORY)) from None
    except StockGraphError as error:
        raise _VerificationEndedError(Verification(evaluator, fault=str(error))) from None
    except Exception as error:
        # Mostly custom operators: nothing here can show that rows do not affect each other.
        raise _VerificationEndedError(
            Verification(
                evaluator,
                fault=f"equal outputs cannot be shown: {evaluator} cannot run the file unchanged "
                f"({_first_line(error)})",
            )
        ) from error


def _compare(
    adapted: Path,
    batches: Sequence[Batch],
    flat: Sequence[str],
    adaptable: Adaptable,
    evaluator: Evaluator,
) -> Verification:
    """Compare each batch with its rows alone. Raises :class:`_VerificationEndedError`."""
    plan, worst, scales = adaptable.plan, 0.0, _scales(batches)
    try:
        run = open_model(adapted, evaluator)
        for batch in batches:
            outputs = run(join_batch(batch.rows, flat))
            own = split_batch(outputs, batch.rows, plan.inputs[0].name, plan.token_outputs)
            worst = max(worst, _largest_difference(batch.single, own, plan.token_outputs, scales))
            if worst > 1:
                return Verification(
                    evaluator,
                    worst,
                    fault="a row's output depends on the other rows of its batch, because parts "
                    "of the graph ignore the attention mask",
                )
    except MemoryError:
        raise _VerificationEndedError(Verification(Evaluator.NONE, why=OUT_OF_MEMORY)) from None
    except Exception as error:
        raise _VerificationEndedError(
            Verification(evaluator, fault=f"the adapted graph does not run: {_first_line(error)}")
        ) from error
    if not _guard_fails_batch(run, batches[0].rows, flat):
        return Verification(
            evaluator, worst, fault="the guard against rows that Triton did not fill does not work"
        )
    return Verification(evaluator, worst)


def _largest_difference(
    single: Sequence[Outputs],
    batched: Sequence[Outputs],
    token_outputs: Sequence[str],
    scales: Mapping[str, float],
) -> float:
    """Return the largest difference of any output as a share of the tolerance."""
    worst = 0.0
    for one, other in zip(single, batched, strict=True):
        for name, output in one.items():
            # An output with an axis of tokens that the plan does not list keeps its padding.
            padded = name not in token_outputs and output.shape != other[name].shape
            if padded and output.ndim > 1:
                continue
            worst = max(worst, difference(output, other[name], scales.get(name, 0.0)))
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


def difference(one: Array, other: Array, scale: float) -> float:
    """Return the largest difference of two outputs as a share of the tolerance.

    Infinite for different shapes or types, and for integers that differ.

    Args:
        one: output of the stock graph.
        other: output of the adapted graph.
        scale: largest absolute value of this output in any row.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    tolerance = TOLERANCE.get(one.dtype)
    if tolerance is None or not one.size:
        return 0.0 if np.array_equal(one, other) else float("inf")
    largest = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max())
    if largest == 0:
        return 0.0
    scale = min(scale, NEAR_ZERO * float(np.abs(one.astype(np.float64)).max()))
    return float("inf") if np.isnan(largest) or scale == 0 else largest / scale / tolerance


def _scales(batches: Sequence[Batch]) -> dict[str, float]:
    """Return the largest absolute value of each output in all rows of the stock graph."""
    scales: dict[str, float] = {}
    for batch in batches:
        for outputs in batch.single:
            for name, value in outputs.items():
                if value.size and value.dtype in TOLERANCE:
                    scales[name] = max(scales.get(name, 0.0), float(np.abs(value).max()))
    return scales


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
