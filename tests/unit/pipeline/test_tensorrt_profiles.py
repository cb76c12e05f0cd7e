"""Test a TensorRT plan's profiles.

What they accept is compared with enumeration; the tests also cover what the resource's padding
makes of them.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import builders
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.optimization import LengthProfile, TokenLengths
from triton_pipelines.api.tokenizer import Padding
from triton_pipelines.compile.graph.tensorrt_profiles import (
    Box,
    boxes,
    bucket_lengths,
    uncovered,
    unfit,
)

ranges = (
    st.tuples(st.integers(1, 12), st.integers(1, 12))
    .map(sorted)
    .map(lambda pair: (pair[0], pair[1]))
)
plans = st.lists(st.builds(Box, index=st.just(0), tokens=ranges, rows=ranges), max_size=4)

SHORT: dict[str, Any] = {"max": 128, "maxBatchSize": 64}
LONG: dict[str, Any] = {"min": 129, "max": 512, "maxBatchSize": 8}


def takes(held: list[Box], tokens: int, rows: int) -> bool:
    """Every batch of 1 to so many rows is inside of a profile."""
    return all(
        any(
            tokens in range(one.tokens[0], one.tokens[1] + 1)
            and size in range(one.rows[0], one.rows[1] + 1)
            for one in held
        )
        for size in range(1, rows + 1)
    )


@given(plans, st.integers(1, 14), st.integers(1, 14))
def test_a_batch_that_no_profile_takes_is_found(held: list[Box], tokens: int, rows: int) -> None:
    size = unfit(held, tokens, rows)
    assert (size is None) == takes(held, tokens, rows)
    assert size is None or not any(
        one.tokens[0] <= tokens <= one.tokens[1] and one.rows[0] <= size <= one.rows[1]
        for one in held
    )


@given(plans, st.integers(1, 14), st.integers(1, 14))
def test_a_gap_between_profiles_is_found(held: list[Box], longest: int, rows: int) -> None:
    found = list(uncovered(held, longest, rows))
    assert bool(found) == any(not takes(held, tokens, rows) for tokens in range(1, longest + 1))
    assert all(not takes(held, tokens, size) for tokens, size in found)


def test_instances_load_the_first_profile_or_those_they_name() -> None:
    declared = TokenLengths(
        profiles=(
            LengthProfile(max=128, max_batch_size=64),
            LengthProfile(min=129, max=512, max_batch_size=8),
        )
    )
    assert [one.index for one in boxes(declared, ())] == [0]
    assert [one.index for one in boxes(declared, ("1", "0", "7"))] == [0, 1]
    assert boxes(declared, ("1",))[0] == Box(1, (129, 512), (1, 8))
    assert boxes(None, ("0",)) == ()
    assert bucket_lengths(boxes(declared, ("0", "1")), 512) == (128,)
    assert bucket_lengths(boxes(declared, ("0", "1")), 100) == ()


def plan(
    padding: dict[str, Any], *profiles: dict[str, Any], named: tuple[str, ...] = (), batch: int = 8
) -> builders.Built:
    model = {
        "platform": "tensorrt_plan",
        "maxBatchSize": batch,
        "lengths": {"profiles": list(profiles)},
        "instances": {"profiles": list(named)},
    }
    return builders.built(tokenizer=padding, model=model)


def said(built: builders.Built) -> dict[str, str]:
    return {finding.path: finding.message for finding in built.findings}


def codes(built: builders.Built) -> dict[str, str]:
    return {finding.path: finding.code for finding in built.findings}


@pytest.mark.proves("spec.model.lengths.profiles[].max", "behaviour")
def test_buckets_that_are_left_out_are_the_profiles_own() -> None:
    built = plan({"padding": "Bucketed"}, SHORT, LONG, named=("0", "1"))
    assert built.graph.padding is not None
    assert built.graph.padding.chosen is Padding.BUCKETED
    assert built.graph.padding.buckets == (128, 512)
    assert "profiles" in built.graph.padding.reason
    assert said(built) == {}
    other = plan(
        {"padding": "Bucketed"}, SHORT | {"max": 256}, LONG | {"min": 257}, named=("0", "1")
    )
    assert other.graph.padding is not None
    assert other.graph.padding.buckets == (256, 512)


def test_written_buckets_stay() -> None:
    built = plan({"padding": "Bucketed", "buckets": [64]}, SHORT, LONG, named=("0", "1"))
    assert built.graph.padding is not None
    assert built.graph.padding.buckets == (64, 512)
    assert said(built) == {}


@pytest.mark.proves("spec.model.lengths.profiles[].min", "behaviour")
def test_a_bucket_below_a_profile_is_refused() -> None:
    found = said(
        plan(
            {"padding": "Bucketed", "buckets": [16, 64]},
            SHORT | {"min": 32},
            LONG,
            named=("0", "1"),
        )
    )
    assert set(found) == {"spec.tokenizer.buckets[0]"}
    assert (
        "8 rows x 16 tokens (profile 0: 1-64 rows x 32-128 tokens; profile 1: 1-8 rows x"
        " 129-512 tokens)" in found["spec.tokenizer.buckets[0]"]
    )
    assert (
        said(
            plan(
                {"padding": "Bucketed", "buckets": [16, 64]},
                SHORT | {"min": 16},
                LONG,
                named=("0", "1"),
            )
        )
        == {}
    )


@pytest.mark.proves("spec.model.lengths.profiles[].maxBatchSize", "behaviour")
def test_more_rows_than_a_profile_has_are_refused_where_its_tokens_are() -> None:
    found = said(
        plan({"padding": "Bucketed", "buckets": [128]}, SHORT, LONG, named=("0", "1"), batch=64)
    )
    assert set(found) == {"spec.tokenizer.maxLength"}
    assert "64 rows x 512 tokens" in found["spec.tokenizer.maxLength"]


@pytest.mark.proves("spec.model.lengths.profiles[].minBatchSize", "behaviour")
def test_fewer_rows_than_a_profile_has_are_refused() -> None:
    found = said(plan({"padding": "Fixed", "maxLength": 128}, SHORT | {"minBatchSize": 4}))
    assert "3 rows x 128 tokens" in found["spec.tokenizer.maxLength"]
    assert said(plan({"padding": "Fixed", "maxLength": 128}, SHORT | {"minBatchSize": 1})) == {}


def test_a_profile_that_no_instance_loads_does_not_count() -> None:
    assert "1: " not in said(plan({"padding": "Fixed"}, SHORT, LONG))["spec.tokenizer.maxLength"]
    assert said(plan({"padding": "Fixed"}, SHORT, LONG, named=("1",))) == {}


def test_a_profile_that_the_plan_has_not_is_named() -> None:
    found = codes(plan({"padding": "Fixed"}, SHORT, LONG, named=("1", "2")))
    assert found["spec.model.instances.profiles[1]"] == FindingCode.UNKNOWN_PROFILE


def test_lengths_of_any_kind_need_profiles_for_all_of_them() -> None:
    assert (
        "129 tokens"
        in said(plan({"padding": "Longest"}, SHORT, LONG | {"min": 140}, named=("0", "1")))[
            "spec.tokenizer.padding"
        ]
    )
    assert said(plan({"padding": "Longest"}, SHORT, LONG, named=("0", "1"))) == {}


def test_bucketed_without_buckets_or_profiles_is_refused() -> None:
    assert (
        "lengths.profiles"
        in said(builders.built(tokenizer={"padding": "Bucketed"}))["spec.tokenizer.buckets"]
    )


def test_a_profile_that_the_plan_has_not_is_named_whoever_makes_the_tokens() -> None:
    model = {
        "platform": "tensorrt_plan",
        "maxBatchSize": 8,
        "lengths": {"profiles": [SHORT]},
        "instances": {"profiles": ["7"]},
    }
    outputs = [
        {"name": name, "dataType": "INT64", "dims": [-1]}
        for name in ("input_ids", "attention_mask")
    ]
    own = {
        "type": "Python",
        "source": None,
        "python": {"code": {"inline": "class TritonPythonModel: pass"}},
        "outputs": outputs,
    }
    found = codes(builders.built(tokenizer=own, model=model))
    assert found["spec.model.instances.profiles[0]"] == FindingCode.UNKNOWN_PROFILE
