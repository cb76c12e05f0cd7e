"""The encoders of `bench.gpu_step`: every graph answers as the plain one does, row by row.

ONNX Runtime has no CPU kernel for the packed operators: the ONNX reference evaluator runs those
graphs, with the operators written down here from their definitions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from bench.gpu_step.encoder import (
    CUDA_ONLY,
    TINY,
    Array,
    Batch,
    Form,
    draw_batch,
    draw_weights,
)
from bench.gpu_step.graphs import EncoderGraph
from bench.gpu_step.inputs import prepare
from bench.gpu_step.plans import StepCost, plan_buckets, plan_sorted

WEIGHTS = draw_weights(TINY)
ROWS = 9


class PackedMultiHeadAttention(OpRun):
    """Attention within each row of packed tokens."""

    op_domain = "com.microsoft"

    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None,
        token_offset: Array,
        cumulative: Array,
        num_heads: int = 1,
    ) -> tuple[Array]:
        assert bias is None
        tokens, rows = len(query), len(cumulative) - 1
        assert token_offset.shape[0] == rows
        assert sorted(token_offset.ravel()) == list(range(token_offset.size))
        width = token_offset.shape[1]
        expected = [
            row * width + place
            for row in range(rows)
            for place in range(cumulative[row + 1] - cumulative[row])
        ]
        assert token_offset.ravel()[:tokens].tolist() == expected
        result = np.empty_like(value)
        for row in range(rows):
            here = slice(cumulative[row], cumulative[row + 1])
            heads = [
                part[here].reshape(-1, num_heads, query.shape[1] // num_heads).swapaxes(0, 1)
                for part in (query, key, value)
            ]
            scores = heads[0] @ heads[1].swapaxes(1, 2) / np.sqrt(heads[0].shape[2])
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            result[here] = (weights @ heads[2]).swapaxes(0, 1).reshape(-1, value.shape[1])
        return (result.astype(query.dtype),)


class RemovePadding(OpRun):
    """Flatten the tokens of padded rows."""

    op_domain = "com.microsoft"

    def _run(self, padded: Array, counts: Array) -> tuple[Array, Array, Array, Array]:
        rows, width, hidden = padded.shape
        valid = (np.arange(width) < counts[:, None]).ravel()
        offset = np.concatenate([np.flatnonzero(valid), np.flatnonzero(~valid)])
        ends = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
        flat = padded.reshape(-1, hidden)[valid]
        return flat, offset.reshape(rows, width).astype(np.int32), ends, counts.max(keepdims=True)


class RestorePadding(OpRun):
    """Undo RemovePadding; padding becomes zero."""

    op_domain = "com.microsoft"

    def _run(self, flat: Array, offset: Array) -> tuple[Array]:
        padded = np.zeros((offset.size, flat.shape[1]), flat.dtype)
        padded[offset.ravel()[: len(flat)]] = flat
        return (padded.reshape(*offset.shape, -1),)


def model(form: Form) -> Any:
    """The tiny encoder in FP32."""
    return EncoderGraph(TINY, form, np.float32, WEIGHTS).model()


def answers(form: Form, batch: Batch, width: int | None = None) -> Array:
    """The logits by ONNX Runtime, or by the reference evaluator for CUDA-only operators."""
    feeds = prepare(form, batch, width or batch.longest, np.float32)
    if form in CUDA_ONLY:
        operators = [PackedMultiHeadAttention, RemovePadding, RestorePadding]
        found: Any = ReferenceEvaluator(model(form), new_ops=operators).run(None, feeds)
        return np.asarray(found[0])
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        model(form).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, feeds)[0])


@pytest.fixture(scope="module")
def batch() -> Batch:
    return draw_batch(ROWS, 3)


@pytest.fixture(scope="module")
def alone(batch: Batch) -> Array:
    """The plain graph's answer to each row by itself."""
    return np.concatenate([answers(Form.PADDED, batch.take([row])) for row in range(ROWS)])


@pytest.mark.parametrize("form", Form)
def test_every_graph_answers_as_for_each_row_alone(form: Form, batch: Batch, alone: Array) -> None:
    assert np.ptp(alone, axis=0).min() > 0.1
    np.testing.assert_allclose(answers(form, batch), alone, atol=1e-5)


@pytest.mark.parametrize("form", [Form.PADDED, Form.PADDED_FUSED, Form.REMOVE_PADDING])
def test_padding_beyond_the_longest_row_changes_no_answer(
    form: Form, batch: Batch, alone: Array
) -> None:
    np.testing.assert_allclose(answers(form, batch, 2 * batch.longest), alone, atol=1e-5)


@pytest.mark.parametrize("form", Form)
def test_every_graph_is_valid_onnx(form: Form) -> None:
    onnx.checker.check_model(model(form), full_check=True)


@pytest.mark.parametrize("plan", [plan_sorted, plan_buckets])
def test_a_plan_covers_every_row_once(plan: Any, batch: Batch) -> None:
    executions = plan(batch, StepCost(1e-3, 1e-5))
    assert sorted(row for one in executions for row in one.rows) == list(range(ROWS))
    for one in executions:
        assert one.width >= one.batch.longest


def test_sorting_pays_only_where_executions_are_cheap(batch: Batch) -> None:
    assert len(plan_sorted(batch, StepCost(1.0, 1e-9))) == 1
    assert len(plan_sorted(batch, StepCost(1e-9, 1.0))) == len(set(batch.lengths.tolist()))
