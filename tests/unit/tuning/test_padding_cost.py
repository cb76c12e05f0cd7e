"""Test the cost of padding.

The references are batches formed one by one, brute force, and properties that must hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.compile.graph.resource_patch import PaddingSetting
from triton_pipelines.tools.tuner.padding_cost import (
    MIN_BUCKET_SAVING,
    MIN_SAVING,
    PaddingCandidate,
    PaddingRanking,
    RequestMix,
    best_buckets,
    can_tell_token_cost,
    cheapest,
    describe,
    price,
    rank_paddings,
)
from triton_pipelines.tools.tuner.step_time_fit import StepCost

LENGTHS = tuple(
    int(value) for value in np.clip(np.random.default_rng(3).lognormal(3.5, 0.6, 512), 3, 230)
)
FIXED_MS, TOKEN_US = 2e-3, 1.5e-6
GPU = StepCost(FIXED_MS, 4e-5, 1e-5, TOKEN_US, spread=1.0)
# As measured for a small encoder on two cores: an execution costs little, a token much.
CPU = StepCost(1e-4, 2e-5, 0.0, 2e-5, spread=1.0)
MIX = RequestMix(LENGTHS, 1, 512, 32, 12.0)
RAGGED, LONGEST, FIXED = (
    PaddingSetting(mode.value) for mode in (Padding.RAGGED, Padding.LONGEST, Padding.FIXED)
)
BUCKETS = PaddingSetting(Padding.BUCKETED.value, (32, 64, 128, 512))


def formed(
    cost: StepCost,
    mix: RequestMix,
    padding: PaddingSetting,
    equal_lengths: bool,
    count: int = 60_000,
) -> tuple[float, float]:
    """Return the seconds and executions for the rows of one full batch.

    Every batch is formed and computed separately, by Triton's rule.
    """
    random = np.random.default_rng(11)
    rows = random.choice(np.asarray(mix.lengths), (count, mix.rows)).max(axis=1)
    if padding.mode == "Longest":
        size = max(1, round(mix.tokenized / mix.rows))
        rows = rows[: count // size * size]
        rows = np.repeat(rows.reshape(-1, size).max(axis=1), size)
    elif padding.mode == "Fixed":
        rows = np.full_like(rows, mix.longest)
    elif padding.mode == "Bucketed":
        rows = np.array(
            [min(bucket for bucket in padding.buckets if bucket >= length) for length in rows]
        )
    most, batches, start = mix.batch // mix.rows, [], 0
    tokens = [int(length) for length in rows]
    while start < len(tokens):
        end = start + 1
        while (
            end < len(tokens)
            and end - start < most
            and (not equal_lengths or tokens[end] == tokens[start])
        ):
            end += 1
        batches.append(tokens[start:end])
        start = end
    seconds = 0.0
    for batch in batches:
        mean = sum(batch) / len(batch)
        length = mean + cost.spread * (max(batch) - mean)
        seconds += (
            cost.fixed
            + cost.per_request * len(batch)
            + mix.rows * len(batch) * (cost.per_row + cost.per_token * length)
        )
    return seconds * most / len(tokens), len(batches) * most / len(tokens)


@pytest.mark.parametrize("cost", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("padding", "equal_lengths"),
    [
        (RAGGED, False),
        (RAGGED, True),
        (FIXED, True),
        (FIXED, False),
        (BUCKETS, True),
        (BUCKETS, False),
        (LONGEST, False),
    ],
    ids=lambda value: str(value),
)
def test_a_price_is_what_batches_formed_one_by_one_take(
    cost: StepCost, rows: int, padding: PaddingSetting, equal_lengths: bool
) -> None:
    mix = RequestMix(LENGTHS, rows, 512, 32, 12.0)
    found = price(cost, mix, PaddingCandidate(padding, equal_lengths))
    seconds, executions = formed(cost, mix, padding, equal_lengths)
    assert found.seconds == pytest.approx(seconds, rel=0.02)
    assert found.executions == pytest.approx(executions, rel=0.02)


@pytest.mark.parametrize("tokenized", [1.0, 4.0, 12.0, 48.0])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    "lengths",
    [LENGTHS, (512,) * 8 + (20, 100), (16,) * 15 + (24,) * 10 + (128,) * 5],
    ids=["spread", "cut", "few"],
)
def test_batches_of_the_tokenizer_with_the_same_longest_row_are_merged(
    lengths: tuple[int, ...], rows: int, tokenized: float
) -> None:
    """Where many texts are cut to maxLength, nearly all batches of the tokenizer are as long."""
    mix = RequestMix(lengths, rows, 512, 32, tokenized)
    found = price(GPU, mix, PaddingCandidate(LONGEST, True))
    seconds, executions = formed(GPU, mix, LONGEST, True)
    assert found.seconds == pytest.approx(seconds, rel=0.03)
    assert found.executions == pytest.approx(executions, rel=0.03)


def test_the_law_of_a_gpu_and_of_a_cpu_turn_the_order_round() -> None:
    """Reverse the order of paddings between the cost models of a GPU and a CPU.

    Fixed to 512 beats buckets where an execution costs 2 ms, and costs many times more where tokens
    dominate. By hand: 32 rows of 512 tokens.
    """
    candidates = {
        candidate: PaddingCandidate(candidate, candidate != RAGGED)
        for candidate in (FIXED, BUCKETS)
    }
    fixed = price(GPU, MIX, candidates[FIXED])
    assert fixed.seconds == pytest.approx(2e-3 + 32 * (4e-5 + 1e-5 + 1.5e-6 * 512))
    assert fixed.executions == pytest.approx(1.0)
    cheap_tokens = StepCost(2e-2, 4e-5, 1e-5, 1.5e-7)
    assert (
        price(cheap_tokens, MIX, candidates[FIXED]).seconds
        < 0.5 * price(cheap_tokens, MIX, candidates[BUCKETS]).seconds
    )
    assert (
        price(CPU, MIX, candidates[FIXED]).seconds
        > 5 * price(CPU, MIX, candidates[BUCKETS]).seconds
    )


costs = st.builds(
    StepCost,
    fixed=st.floats(1e-5, 5e-2),
    per_request=st.floats(0, 1e-3),
    per_row=st.floats(0, 1e-3),
    per_token=st.floats(0, 1e-4),
    spread=st.floats(0, 1),
)
mixes = st.builds(
    RequestMix,
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=40).map(tuple),
    rows=st.sampled_from([1, 2, 8]),
    longest=st.just(64),
    batch=st.sampled_from([1, 8, 64]),
    tokenized=st.floats(1, 64),
)


@given(costs, mixes)
def test_what_has_to_hold_of_any_law_and_mix(cost: StepCost, mix: RequestMix) -> None:
    slack = 1 + 1e-6
    ragged = price(cost, mix, PaddingCandidate(RAGGED, False))
    some = PaddingSetting("Bucketed", (16, 32, 64))
    assert ragged.executions == 1.0
    for padding in (RAGGED, FIXED, some, LONGEST):
        shares_mismatch_cause, mixed = (
            price(cost, mix, PaddingCandidate(padding, True)),
            price(cost, mix, PaddingCandidate(padding, False)),
        )
        # Who needs no equal lengths never has more executions; who pads never computes fewer tokens
        # than there are.
        assert mixed.executions <= shares_mismatch_cause.executions * slack
        assert shares_mismatch_cause.executions <= mix.requests * slack
        assert shares_mismatch_cause.tokens >= 1 / slack
        assert shares_mismatch_cause.seconds > 0
    # Among ways without equal lengths nothing is cheaper than to pad less; with them a bucket for
    # everything never has more executions.
    assert (
        ragged.seconds
        <= price(cost, mix, PaddingCandidate(some, False)).seconds * slack
        <= price(cost, mix, PaddingCandidate(FIXED, False)).seconds * slack**2
    )
    assert (
        price(cost, mix, PaddingCandidate(FIXED, True)).executions
        <= price(cost, mix, PaddingCandidate(some, True)).executions * slack
    )


@settings(deadline=None, max_examples=60)
@given(costs, mixes)
def test_buckets_cost_no_more_than_any_others_that_could_be_chosen(
    cost: StepCost, mix: RequestMix
) -> None:
    found = best_buckets(cost, mix)
    assert found[-1] == mix.longest
    assert list(found) == sorted(set(found))
    assert all(bucket % 8 == 0 for bucket in found)

    def seconds(buckets: Sequence[int]) -> float:
        return price(
            cost, mix, PaddingCandidate(PaddingSetting("Bucketed", tuple(buckets)), True)
        ).seconds

    inner = range(8, 64, 8)
    others = [(*chosen, 64) for size in range(8) for chosen in itertools.combinations(inner, size)]
    best = min(map(seconds, others))
    shared = mix.requests * (cost.per_request + mix.rows * cost.per_row)  # what no bucket changes
    assert (
        seconds(found) - shared
        <= (1 + MIN_BUCKET_SAVING) * (best - shared) * (1 + 1e-6)
        + 1e-12
        + MIN_BUCKET_SAVING * shared
    )


@given(costs, mixes, st.sampled_from([RAGGED, LONGEST, FIXED, BUCKETS]), st.booleans())
def test_no_batch_size_is_cheaper_than_the_cheapest(
    cost: StepCost, mix: RequestMix, padding: PaddingSetting, equal_lengths: bool
) -> None:
    found = cheapest(cost, mix, PaddingCandidate(padding, equal_lengths))
    assert found.batch <= max(mix.batch, mix.rows)
    full = mix.requests * mix.rows
    for size in {full, *(mix.rows * 2**power for power in range(7) if mix.rows * 2**power <= full)}:
        other = price(cost, replace(mix, batch=size), PaddingCandidate(padding, equal_lengths))
        assert found.seconds <= other.seconds * full / size * (1 + 1e-9)


def test_a_cpu_wants_small_batches_and_a_gpu_full_ones() -> None:
    """Compute the cheapest batch by hand.

    If an execution costs nothing, rows of their own length run one at a time. If tokens cost
    nothing, all rows run at once.
    """
    free = cheapest(StepCost(0.0, 0.0, 0.0, 2e-5), MIX, PaddingCandidate(RAGGED, False))
    assert free.batch == 1
    assert free.seconds == pytest.approx(32 * 2e-5 * np.mean(LENGTHS))
    assert cheapest(StepCost(2e-3, 0.0, 0.0, 0.0), MIX, PaddingCandidate(RAGGED, False)).batch == 32


def test_buckets_are_lengths_that_the_model_takes() -> None:
    free = best_buckets(CPU, MIX)
    assert len(free) > 2
    bound = best_buckets(CPU, MIX, lambda length: 48 <= length <= 160)
    assert all(48 <= bucket <= 160 for bucket in bound[:-1])
    assert bound[-1] == 512


def test_where_an_execution_is_all_there_is_one_bucket_is_best() -> None:
    assert best_buckets(StepCost(1e-2, 0.0, 0.0, 1e-9), MIX) == (512,)


def test_rows_beyond_512_tokens_have_no_more_candidates() -> None:
    long = RequestMix(tuple(length * 32 for length in LENGTHS), 1, 8192, 32)
    found = best_buckets(CPU, long)
    assert found[-1] == 8192
    assert all(bucket % 128 == 0 for bucket in found)


# --- the verdict ----------------------------------------------------------------------------------


def ranking(cost: StepCost, current: PaddingSetting, blocker: str = "") -> PaddingRanking:
    candidates = [
        PaddingCandidate(RAGGED, False, blocker),
        PaddingCandidate(LONGEST, True),
        PaddingCandidate(FIXED, True),
        PaddingCandidate(BUCKETS, True),
    ]
    return rank_paddings(
        cost,
        MIX,
        candidates,
        next(candidate for candidate in candidates if candidate.padding == current),
    )


@given(
    costs,
    st.sampled_from([RAGGED, LONGEST, FIXED, BUCKETS]),
    st.sampled_from(["", "cannot be tried"]),
)
def test_a_verdict_never_prefers_what_costs_as_much(
    cost: StepCost, current: PaddingSetting, blocker: str
) -> None:
    found = ranking(cost, current, blocker)
    assert found.current.candidate.padding == current
    assert [one.seconds for one in found.costs] == sorted(one.seconds for one in found.costs)
    assert found.is_better == (found.costs[0].seconds <= (1 - MIN_SAVING) * found.current.seconds)
    assert found.trial is None or (
        not found.trial.candidate.blocker
        and found.trial.seconds <= (1 - MIN_SAVING) * found.current.seconds
    )


def test_the_words_name_the_figures_and_what_became_of_it() -> None:
    found = ranking(GPU, FIXED)
    text = describe(found)
    assert "a model execution costs 2.00 ms plus 1.50 us per token" in text
    assert "32 rows of this mix take Ragged" in text
    assert f"Fixed {found.current.seconds * 1e3:.1f} ms (current)" in text
    assert f"Ragged {found.best.seconds * 1e3:.1f} ms, " in text, "in full batches"
    assert f"Ragged {32 * 2e-2 * np.mean(LENGTHS):.1f} ms in batches of 1, " in describe(
        ranking(StepCost(0.0, 0.0, 0.0, 2e-5), FIXED)
    )
    assert "no gain was verified for the whole pipeline" in text
    assert "Ragged is cheapest, and this was verified on the server" in describe(found, RAGGED)
    assert "not recommended: output LABEL differs" in describe(
        found, refused="output LABEL differs"
    )
    assert "Keep Ragged" in describe(ranking(GPU, RAGGED))


def test_what_cannot_be_tried_is_advice_only_and_the_next_best_is_tried() -> None:
    found = ranking(replace(CPU, spread=0.1), FIXED, "its file is another then")
    assert found.best.candidate.padding == RAGGED
    assert found.trial is not None
    assert found.trial.candidate.padding == BUCKETS
    assert (
        "Ragged is cheapest, but only predicted: its file is another then. Bucketed 32, 64, "
        "128, 512 is verified"
    ) in describe(found, BUCKETS)


def test_rows_of_one_length_do_not_tell_what_a_token_costs() -> None:
    assert not can_tell_token_cost([512, 512])
    assert not can_tell_token_cost([])
    assert can_tell_token_cost([32, 512])
