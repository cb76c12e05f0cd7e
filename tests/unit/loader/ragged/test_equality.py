"""Test that an adapted graph answers batched rows like the stock graph answers each row alone.

ONNX Runtime runs the graph and is fed as Triton's backend feeds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.raggedbackend import SimulatedBackend, config_of, session
from tests.support.raggedgraphs import POSITIONS, Encoder, Head, Masking, Places, make
from triton_pipelines.loader.ragged.eligibility import Adaptable, check_eligibility
from triton_pipelines.loader.ragged.graph_adapter import adapt
from triton_pipelines.loader.ragged.opset_upgrade import upgraded

TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-2}


def adapted(encoder: Encoder, **plan: Any) -> SimulatedBackend:
    model = upgraded(make(encoder))
    found = check_eligibility(model, encoder.plan(**plan))
    assert isinstance(found, Adaptable), str(found)
    return SimulatedBackend(adapt(model, found), config_of(*encoder.declared))


def same(expected: np.ndarray, answer: np.ndarray) -> None:
    assert answer.shape == expected.shape
    assert answer.dtype == expected.dtype
    np.testing.assert_allclose(
        answer.astype(np.float64),
        expected.astype(np.float64),
        rtol=0,
        atol=TOLERANCE.get(expected.dtype, 0),
    )


encoders = st.builds(
    Encoder,
    opset=st.integers(13, 21),
    half=st.booleans(),
    small_ids=st.booleans(),
    types=st.booleans(),
    places=st.sampled_from(Places),
    masking=st.sampled_from(Masking),
    heads=st.lists(st.sampled_from(Head), min_size=1, max_size=5, unique=True).map(tuple),
    seed=st.integers(0, 2**16),
)
# Requests of a batch: each has rows of one length.
batches = st.lists(st.tuples(st.integers(1, 3), st.integers(1, POSITIONS)), min_size=1, max_size=6)


def compare(encoder: Encoder, batch: list[tuple[int, int]]) -> None:
    """Compare the adapted graph on a batch with the stock graph on each row.

    Args:
        encoder: Encoder to adapt.
        batch: Rows and tokens of each request.
    """
    random = np.random.default_rng(encoder.seed)
    alone = session(make(encoder))
    requests, expected = [], []
    for rows, length in batch:
        single = [encoder.row(random, length) for _ in range(rows)]
        answers = [alone.run([head.value for head in encoder.heads], row) for row in single]
        expected.append([np.concatenate(parts) for parts in zip(*answers, strict=True)])
        requests.append(
            {name: np.concatenate([row[name] for row in single]) for name in encoder.inputs}
        )
    for answer, wanted in zip(adapted(encoder).execute(requests), expected, strict=True):
        for head, value in zip(encoder.heads, wanted, strict=True):
            same(value, answer[head.value])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(encoders, batches)
def test_every_row_is_answered_as_alone(encoder: Encoder, batch: list[tuple[int, int]]) -> None:
    compare(encoder, batch)


@pytest.mark.parametrize("places", Places)
@pytest.mark.parametrize("masking", Masking)
def test_every_layout_that_exporters_write(places: Places, masking: Masking) -> None:
    compare(
        Encoder(places=places, masking=masking, types=True, heads=tuple(Head)),
        [(1, 3), (2, 19), (1, 1), (3, 7)],
    )


@pytest.mark.parametrize("opset", [11, 12])
def test_older_operators_are_converted(opset: int) -> None:
    encoder = Encoder(opset=opset, heads=(Head.LOGITS, Head.POOLED, Head.HIDDEN))
    compare(encoder, [(1, 3), (2, 19), (1, 7)])


def test_padding_of_another_value_changes_nothing() -> None:
    encoder, random = Encoder(heads=(Head.LOGITS,)), np.random.default_rng(1)
    rows = [encoder.row(random, length) for length in (3, 9)]
    plan = encoder.plan()
    other = plan.model_copy(
        update={"inputs": (plan.inputs[0].model_copy(update={"pad_value": 7}), *plan.inputs[1:])}
    )
    model = make(encoder)
    found = check_eligibility(model, other)
    assert isinstance(found, Adaptable)
    answers = SimulatedBackend(adapt(model, found), config_of(*encoder.declared)).execute(rows)
    for answer, wanted in zip(answers, adapted(encoder).execute(rows), strict=True):
        same(wanted["logits"], answer["logits"])
