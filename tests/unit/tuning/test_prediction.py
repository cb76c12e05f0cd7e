"""Prediction against the other simulator, queueing theory and common sense."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulator.station import NOISE, Station, StationSpec
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.tools.tuner import BatchingSetting
from triton_pipelines.tools.tuner.prediction import (
    SEARCH_ARRIVALS,
    PipelineModel,
    StepModel,
    bursty,
    capacity,
    max_rate,
    poisson,
    serve_step,
    simulate,
)
from triton_pipelines.tools.tuner.step_time_fit import StepCost

TOKENIZER = StepModel("tokenizer", StepCost(1e-4, 3e-5, 0.0, 1.2e-6, spread=0.0), 64)
MODEL = StepModel("model", StepCost(2e-3, 0.0, 0.0, 1.5e-6), 64)
LENGTHS = tuple(
    int(value) for value in np.clip(np.random.default_rng(3).lognormal(3.5, 0.6, 256), 3, 512)
)
PIPE = PipelineModel((TOKENIZER, MODEL), LENGTHS, 1, "tokenizer", "model", Padding.RAGGED, (512,))


@pytest.mark.parametrize(
    ("instances", "batch", "delay"),
    [(1, 1, 0.0), (1, 8, 0.0), (2, 16, 0.0), (1, 16, 0.004), (2, 8, 0.002)],
)
def test_a_step_ends_requests_when_the_other_simulator_does(
    instances: int, batch: int, delay: float
) -> None:
    arrivals = poisson(900.0, 4000, 5).tolist()
    stage = StepModel("s", StepCost(0.004, 0.0, 0.0008, 0.0), batch, delay, instances)
    finish, _ = serve_step(stage, arrivals, [1.0] * len(arrivals), 1)
    station = Station(
        StationSpec(
            "s", alpha=0.0008, fixed=0.004, instances=instances, max_batch=batch, delay=delay
        ),
        [1.0] * NOISE,
        [0.0] * NOISE,
    )
    station.offer([(at, at) for at in arrivals])
    other = sorted(at for at, _ in station.advance(1e9, 1e9))
    assert sorted(finish) == pytest.approx(other)


def test_one_server_waits_as_pollaczek_and_khinchine_say() -> None:
    pipe = PipelineModel((StepModel("model", StepCost(0.005, 0.0, 0.0, 0.0), 1),), (1,))
    mean = simulate(pipe, poisson(0.7 / 0.005, 60_000, 2)).latencies.mean()
    assert mean - 0.005 == pytest.approx(0.7 * 0.005 / (2 * 0.3), rel=0.06)


def test_another_length_ends_a_batch_where_lengths_must_be_equal() -> None:
    stage = replace(MODEL, equal_lengths=True)
    _, batches_begun = serve_step(stage, [0.0] * 6, [10.0, 10.0, 20.0, 20.0, 20.0, 10.0], 1)
    assert batches_begun == [0, 2, 5]
    _, batches_begun = serve_step(MODEL, [0.0] * 6, [10.0, 10.0, 20.0, 20.0, 20.0, 10.0], 1)
    assert batches_begun == [0]


def test_rows_fill_a_batch() -> None:
    _, batches_begun = serve_step(replace(MODEL, batch=8), [0.0] * 6, [1.0] * 6, 4)
    assert batches_begun == [0, 2, 4]


def test_a_batch_is_computed_at_its_longest_or_at_each_ones_own() -> None:
    padded, _ = serve_step(MODEL, [0.0, 0.0], [10.0, 90.0], 1)
    packed, _ = serve_step(
        replace(MODEL, cost=replace(MODEL.cost, spread=0.0)), [0.0, 0.0], [10.0, 90.0], 1
    )
    assert padded == pytest.approx([2e-3 + 1.5e-6 * 180] * 2)
    assert packed == pytest.approx([2e-3 + 1.5e-6 * 100] * 2)


@settings(deadline=None, max_examples=20)
@given(share=st.floats(0.1, 0.9), seed=st.integers(0, 5))
def test_more_load_is_never_faster(share: float, seed: int) -> None:
    most = capacity(PIPE)
    slow, fast = (
        simulate(PIPE, poisson(rate, 4000, seed), seed).p99
        for rate in (share * most, 1.3 * share * most)
    )
    assert fast >= slow * 0.97  # the same draws, other batches


@settings(deadline=None, max_examples=10)
@given(batch=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_a_larger_batch_carries_more_where_an_execution_has_a_fixed_cost(batch: int) -> None:
    shares_mismatch_cause = replace(
        PIPE, lengths=(32,)
    )  # of mixed lengths, larger batches also pad more
    small, large = (
        capacity(shares_mismatch_cause.with_setting(BatchingSetting(size, 0, 1, 1)))
        for size in (batch, 2 * batch)
    )
    assert large >= small * 0.999


def test_more_instances_carry_more_unless_they_share() -> None:
    one, two = (capacity(PIPE.with_setting(BatchingSetting(8, 0, count, 2))) for count in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.05)
    shared = replace(
        PIPE, stages=(TOKENIZER, replace(MODEL, cost=replace(MODEL.cost, contention=(1.0, 2.0))))
    )
    assert capacity(shared.with_setting(BatchingSetting(8, 0, 2, 2))) == pytest.approx(
        one, rel=0.05
    )


@pytest.mark.parametrize("latency_budget", [0.006, 0.02, 0.1])
def test_the_highest_rate_keeps_the_wall_and_leaves_a_fifth_idle(latency_budget: float) -> None:
    rate = max_rate(PIPE, latency_budget)
    assert 0 < rate <= 0.8 * capacity(PIPE) * 1.001
    assert simulate(PIPE, poisson(rate, SEARCH_ARRIVALS, 0), 0).p99 <= latency_budget


def test_no_rate_keeps_a_wall_below_the_time_of_one_request() -> None:
    assert max_rate(PIPE, 0.001) == 0.0


def test_padding_to_a_fixed_length_is_computed() -> None:
    fixed = replace(PIPE, padding=Padding.FIXED)
    assert capacity(fixed) < 0.4 * capacity(PIPE)


def test_bursts_have_the_same_mean_rate_and_a_longer_tail() -> None:
    arrivals = bursty(100.0, 20_000, 1)
    assert 20_000 / arrivals[-1] == pytest.approx(100.0, rel=0.03)
    assert (np.diff(arrivals) >= 0).all()
    within = arrivals % 2.0 < 1.0
    assert within.mean() == pytest.approx(0.75, abs=0.02)
    rate = 0.6 * capacity(PIPE)
    assert simulate(PIPE, bursty(rate, 8000, 1)).p99 > simulate(PIPE, poisson(rate, 8000, 1)).p99
