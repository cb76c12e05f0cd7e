"""Which samples warm up the model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import graph

OWN_TOKENIZER: dict[str, Any] = {
    "type": "Python",
    "source": None,
    "python": {"code": {"inline": "x = 1"}},
    "outputs": [{"name": "ids", "tensor": "InputIds"}, {"name": "mask", "tensor": "AttentionMask"}],
}
OWN_INPUTS = [
    {"name": "input_ids", "dataType": "INT64", "dims": [-1], "from": "tokenizer.ids"},
    {"name": "attention_mask", "dataType": "INT64", "dims": [-1], "from": "tokenizer.mask"},
]


def warmed(**changes: Any) -> list[str]:
    """Names of the model's warm-up samples, ROWSxLENGTH."""
    model = graph(**changes).step("model")
    assert model is not None
    assert all(
        tensor.dims == (int(sample.name.partition("x")[2]),)
        for sample in model.warmup
        for tensor in sample.inputs
    )
    return [sample.name for sample in model.warmup]


def test_a_backend_that_reads_our_tokens_is_warmed_up() -> None:
    assert warmed(tokenizer={"maxLength": 128}) == ["1x128", "64x128"]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"instances": {"count": 1, "kind": "CPU"}}, ["1x128"]),
        (
            {
                "instances": {"count": 1, "kind": "CPU"},
                "dynamicBatching": {"preferredBatchSizes": [4]},
            },
            ["1x128", "4x128"],
        ),
        (
            {"instances": {"count": 1, "kind": "CPU"}, "warmup": {"batchSizes": [1, 64]}},
            ["1x128", "64x128"],
        ),
        (
            {"instances": {"groups": [{"count": 1, "kind": "CPU"}, {"count": 1, "kind": "GPU"}]}},
            ["1x128", "64x128"],
        ),
    ],
)
def test_on_a_cpu_no_full_batch_delays_the_start(
    model: dict[str, Any], expected: list[str]
) -> None:
    assert warmed(tokenizer={"maxLength": 128}, model=model) == expected


def test_token_lengths_of_custom_code_are_unknown() -> None:
    assert warmed(tokenizer=OWN_TOKENIZER, model={"inputs": OWN_INPUTS}) == []
    asked = {
        "inputs": OWN_INPUTS,
        "warmup": {"mode": "Enabled", "batchSizes": [2]},
        "lengths": {"max": 100},
    }
    assert warmed(tokenizer=OWN_TOKENIZER, model=asked) == ["2x100"]


@pytest.mark.parametrize(
    "warmup", [None, {"mode": "Enabled", "batchSizes": [1, 64]}], ids=["by default", "asked for"]
)
def test_warm_up_stays_in_the_range_that_the_model_takes(warmup: dict[str, Any] | None) -> None:
    bucketed = {"maxLength": 256, "padding": "Bucketed", "buckets": [8, 16, 64]}
    model = {"lengths": {"min": 32, "max": 200}, "warmup": warmup}
    assert warmed(tokenizer=bucketed, model=model) == [
        "1x32",
        "64x32",
        "1x64",
        "64x64",
        "1x200",
        "64x200",
    ]
    assert warmed(tokenizer={"maxLength": 16}, model=model) == ["1x32", "64x32"]
