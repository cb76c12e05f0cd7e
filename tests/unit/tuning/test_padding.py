"""The cost of padding: against batches that are really formed one by one, against brute force, and by what has to hold."""

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
    WORTH,
    WORTH_A_BUCKET,
    Mix,
    Verdict,
    Way,
    best_buckets,
    cheapest,
    judge,
    price,
    told,
    words,
)
from triton_pipelines.tools.tuner.step_time_fit import Cost

LENGTHS = tuple(
    int(value) for value in np.clip(np.random.default_rng(3).lognormal(3.5, 0.6, 512), 3, 230)
)
FIXED_MS, TOKEN_US = 2e-3, 1.5e-6
GPU = Cost(FIXED_MS, 4e-5, 1e-5, TOKEN_US, spread=1.0)
# As measured for a small encoder on two cores: an execution costs little, a token much.
CPU = Cost(1e-4, 2e-5, 0.0, 2e-5, spread=1.0)
MIX = Mix(LENGTHS, 1, 512, 32, 12.0)
RAGGED, LONGEST, FIXED = (
    PaddingSetting(mode.value) for mode in (Padding.RAGGED, Padding.LONGEST, Padding.FIXED)
)
BUCKETS = PaddingSetting(Padding.BUCKETED.value, (32, 64, 128, 512))


def formed(
    cost: Cost, mix: Mix, padded: PaddingSetting, equal: bool, count: int = 60_000
) -> tuple[float, float]:
    """Seconds, and executions, for the rows of one full batch: every batch formed and computed by itself, by Triton's rule."""
    random = np.random.default_rng(11)
    rows = random.choice(np.asarray(mix.lengths), (count, mix.rows)).max(axis=1)
    if padded.mode == "Longest":
        size = max(1, round(mix.tokenized / mix.rows))
        rows = rows[: count // size * size]
        rows = np.repeat(rows.reshape(-1, size).max(axis=1), size)
    elif padded.mode == "Fixed":
        rows = np.full_like(rows, mix.longest)
    elif padded.mode == "Bucketed":
        rows = np.array(
            [min(bucket for bucket in padded.buckets if bucket >= length) for length in rows]
        )
    most, batches, start = mix.batch // mix.rows, [], 0
    tokens = [int(length) for length in rows]
    while start < len(tokens):
        end = start + 1
        while (
            end < len(tokens) and end - start < most and (not equal or tokens[end] == tokens[start])
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
    ("padded", "equal"),
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
    cost: Cost, rows: int, padded: PaddingSetting, equal: bool
) -> None:
    mix = Mix(LENGTHS, rows, 512, 32, 12.0)
    found = price(cost, mix, Way(padded, equal))
    seconds, executions = formed(cost, mix, padded, equal)
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
    mix = Mix(lengths, rows, 512, 32, tokenized)
    found = price(GPU, mix, Way(LONGEST, True))
    seconds, executions = formed(GPU, mix, LONGEST, True)
    assert found.seconds == pytest.approx(seconds, rel=0.03)
    assert found.executions == pytest.approx(executions, rel=0.03)


def test_the_law_of_a_gpu_and_of_a_cpu_turn_the_order_round() -> None:
    """Fixed to 512 beats buckets where an execution costs 2 ms, and costs many times more where tokens do; by hand: 32 rows of 512 tokens."""
    ways = {way: Way(way, way != RAGGED) for way in (FIXED, BUCKETS)}
    fixed = price(GPU, MIX, ways[FIXED])
    assert fixed.seconds == pytest.approx(2e-3 + 32 * (4e-5 + 1e-5 + 1.5e-6 * 512))
    assert fixed.executions == pytest.approx(1.0)
    cheap_tokens = Cost(2e-2, 4e-5, 1e-5, 1.5e-7)
    assert (
        price(cheap_tokens, MIX, ways[FIXED]).seconds
        < 0.5 * price(cheap_tokens, MIX, ways[BUCKETS]).seconds
    )
    assert price(CPU, MIX, ways[FIXED]).seconds > 5 * price(CPU, MIX, ways[BUCKETS]).seconds


costs = st.builds(
    Cost,
    fixed=st.floats(1e-5, 5e-2),
    per_request=st.floats(0, 1e-3),
    per_row=st.floats(0, 1e-3),
    per_token=st.floats(0, 1e-4),
    spread=st.floats(0, 1),
)
mixes = st.builds(
    Mix,
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=40).map(tuple),
    rows=st.sampled_from([1, 2, 8]),
    longest=st.just(64),
    batch=st.sampled_from([1, 8, 64]),
    tokenized=st.floats(1, 64),
)


@given(costs, mixes)
def test_what_has_to_hold_of_any_law_and_mix(cost: Cost, mix: Mix) -> None:
    slack = 1 + 1e-6
    ragged = price(cost, mix, Way(RAGGED, False))
    some = PaddingSetting("Bucketed", (16, 32, 64))
    assert ragged.executions == 1.0
    for padded in (RAGGED, FIXED, some, LONGEST):
        alike, mixed = price(cost, mix, Way(padded, True)), price(cost, mix, Way(padded, False))
        # Who needs no equal lengths never has more executions; who pads never computes fewer tokens than there are.
        assert mixed.executions <= alike.executions * slack
        assert alike.executions <= mix.requests * slack
        assert alike.tokens >= 1 / slack
        assert alike.seconds > 0
    # Among ways without equal lengths nothing is cheaper than to pad less; with them a bucket for everything never has more executions.
    assert (
        ragged.seconds
        <= price(cost, mix, Way(some, False)).seconds * slack
        <= price(cost, mix, Way(FIXED, False)).seconds * slack**2
    )
    assert (
        price(cost, mix, Way(FIXED, True)).executions
        <= price(cost, mix, Way(some, True)).executions * slack
    )


@settings(deadline=None, max_examples=60)
@given(costs, mixes)
def test_buckets_cost_no_more_than_any_others_that_could_be_chosen(cost: Cost, mix: Mix) -> None:
    found = best_buckets(cost, mix)
    assert found[-1] == mix.longest
    assert list(found) == sorted(set(found))
    assert all(bucket % 8 == 0 for bucket in found)

    def seconds(buckets: Sequence[int]) -> float:
        return price(cost, mix, Way(PaddingSetting("Bucketed", tuple(buckets)), True)).seconds

    inner = range(8, 64, 8)
    others = [(*chosen, 64) for size in range(8) for chosen in itertools.combinations(inner, size)]
    best = min(map(seconds, others))
    shared = mix.requests * (cost.per_request + mix.rows * cost.per_row)  # what no bucket changes
    assert (
        seconds(found) - shared
        <= (1 + WORTH_A_BUCKET) * (best - shared) * (1 + 1e-6) + 1e-12 + WORTH_A_BUCKET * shared
    )


@given(costs, mixes, st.sampled_from([RAGGED, LONGEST, FIXED, BUCKETS]), st.booleans())
def test_no_batch_size_is_cheaper_than_the_cheapest(
    cost: Cost, mix: Mix, padded: PaddingSetting, equal: bool
) -> None:
    found = cheapest(cost, mix, Way(padded, equal))
    assert found.batch <= max(mix.batch, mix.rows)
    full = mix.requests * mix.rows
    for size in {full, *(mix.rows * 2**power for power in range(7) if mix.rows * 2**power <= full)}:
        other = price(cost, replace(mix, batch=size), Way(padded, equal))
        assert found.seconds <= other.seconds * full / size * (1 + 1e-9)


def test_a_cpu_wants_small_batches_and_a_gpu_full_ones() -> None:
    """By hand, where an execution costs nothing: rows of their own length, one at a time; where tokens do: all at once."""
    free = cheapest(Cost(0.0, 0.0, 0.0, 2e-5), MIX, Way(RAGGED, False))
    assert free.batch == 1
    assert free.seconds == pytest.approx(32 * 2e-5 * np.mean(LENGTHS))
    assert cheapest(Cost(2e-3, 0.0, 0.0, 0.0), MIX, Way(RAGGED, False)).batch == 32


def test_buckets_are_lengths_that_the_model_takes() -> None:
    free = best_buckets(CPU, MIX)
    assert len(free) > 2
    bound = best_buckets(CPU, MIX, lambda length: 48 <= length <= 160)
    assert all(48 <= bucket <= 160 for bucket in bound[:-1])
    assert bound[-1] == 512


def test_where_an_execution_is_all_there_is_one_bucket_is_best() -> None:
    assert best_buckets(Cost(1e-2, 0.0, 0.0, 1e-9), MIX) == (512,)


def test_rows_beyond_512_tokens_have_no_more_candidates() -> None:
    long = Mix(tuple(length * 32 for length in LENGTHS), 1, 8192, 32)
    found = best_buckets(CPU, long)
    assert found[-1] == 8192
    assert all(bucket % 128 == 0 for bucket in found)


# --- the verdict ---------------------------------------------------------------------------------------------------------------


def verdict(cost: Cost, current: PaddingSetting, hindrance: str = "") -> Verdict:
    ways = [Way(RAGGED, False, hindrance), Way(LONGEST, True), Way(FIXED, True), Way(BUCKETS, True)]
    return judge(cost, MIX, ways, next(way for way in ways if way.padded == current))


@given(
    costs,
    st.sampled_from([RAGGED, LONGEST, FIXED, BUCKETS]),
    st.sampled_from(["", "cannot be tried"]),
)
def test_a_verdict_never_prefers_what_costs_as_much(
    cost: Cost, current: PaddingSetting, hindrance: str
) -> None:
    found = verdict(cost, current, hindrance)
    assert found.current.way.padded == current
    assert [one.seconds for one in found.priced] == sorted(one.seconds for one in found.priced)
    assert found.better == (found.priced[0].seconds <= (1 - WORTH) * found.current.seconds)
    assert found.trial is None or (
        not found.trial.way.hindrance and found.trial.seconds <= (1 - WORTH) * found.current.seconds
    )


def test_the_words_name_the_figures_and_what_became_of_it() -> None:
    found = verdict(GPU, FIXED)
    said = words(found)
    assert (
        "an execution of the model costs 2.00 ms whatever is in it and 1.50 us for each token"
        in said
    )
    assert "32 rows of this mix then take Ragged" in said
    assert f"Fixed {found.current.seconds * 1e3:.1f} ms (in force)" in said
    assert f"Ragged {found.best.seconds * 1e3:.1f} ms, " in said, "in full batches"
    assert f"Ragged {32 * 2e-2 * np.mean(LENGTHS):.1f} ms in batches of 1, " in words(
        verdict(Cost(0.0, 0.0, 0.0, 2e-5), FIXED)
    )
    assert "no gain of the whole pipeline is proven" in said
    assert "Ragged is cheapest, and proven on the server" in words(found, RAGGED)
    assert "not recommended: answers in LABEL are not the same" in words(
        found, refused="answers in LABEL are not the same"
    )
    assert "Ragged stays" in words(verdict(GPU, RAGGED))


def test_what_cannot_be_tried_is_advice_only_and_the_next_best_is_tried() -> None:
    found = verdict(replace(CPU, spread=0.1), FIXED, "its file is another then")
    assert found.best.way.padded == RAGGED
    assert found.trial is not None
    assert found.trial.way.padded == BUCKETS
    assert (
        "Ragged is cheapest, but only predicted: its file is another then. Bucketed 32, 64, 128, 512 is proven"
        in words(found, BUCKETS)
    )


def test_rows_of_one_length_do_not_tell_what_a_token_costs() -> None:
    assert not told([512, 512])
    assert not told([])
    assert told([32, 512])
