"""Test Triton's statistics as the difference of two samples.

They have the structure of real responses; the expected values are computed by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from triton_pipelines.tools.loadgen import step_statistics
from triton_pipelines.tools.loadgen.triton_statistics import parse_statistics


def stats(scale: int, name: str = "tokenizer", version: str = "1") -> dict[str, Any]:
    """Return one model's statistics in Triton's format.

    They cover `scale` times 10 requests of 2 rows, in 4 executions of 5 rows.
    """

    def duration(count: int, ns: int) -> dict[str, int]:
        return {"count": count * scale, "ns": ns * scale}

    return {
        "name": name,
        "version": version,
        "inference_count": 20 * scale,
        "execution_count": 4 * scale,
        "inference_stats": {
            "success": duration(10, 80_000_000),
            "fail": duration(1, 500),
            "queue": duration(10, 20_000_000),
            "compute_input": duration(10, 1_000_000),
            "compute_infer": duration(10, 50_000_000),
            "compute_output": duration(10, 9_000_000),
        },
        "batch_stats": [
            {
                "batch_size": 5,
                "compute_input": duration(4, 400_000),
                "compute_infer": duration(4, 20_000_000),
                "compute_output": duration(4, 3_600_000),
            }
        ],
    }


def test_figures_are_those_of_the_time_between() -> None:
    found = step_statistics(
        parse_statistics([stats(3)]), parse_statistics([stats(5)]), elapsed_s=0.5
    )["tokenizer"]
    assert (found.requests, found.failures, found.rows, found.executions) == (20, 2, 40, 8)
    assert found.rows_per_execution == 5
    assert found.queue_s == pytest.approx(0.002)
    assert found.infer_s == pytest.approx(0.005)
    assert found.input_s + found.output_s == pytest.approx(0.001)
    # Eight executions of 6 ms in half a second.
    assert found.execution_s == pytest.approx(0.006)
    assert found.busy == pytest.approx(8 * 0.006 / 0.5)
    assert found.batches == {5: 8}


def test_numbers_written_as_text_are_numbers() -> None:
    # JSON made of a gRPC answer has 64-bit numbers as text.
    item = stats(2)
    item["inference_count"] = str(item["inference_count"])
    item["inference_stats"]["queue"]["ns"] = str(item["inference_stats"]["queue"]["ns"])
    assert parse_statistics([item]) == parse_statistics([stats(2)])


def test_versions_of_a_model_are_taken_together() -> None:
    both, one = (
        step_statistics({}, parse_statistics([stats(1), stats(2, version="2")]), 1.0)["tokenizer"],
        step_statistics({}, parse_statistics([stats(3)]), 1.0)["tokenizer"],
    )
    assert (
        (both.requests, both.rows, both.batches)
        == (one.requests, one.rows, one.batches)
        == (30, 60, {5: 12})
    )
    assert (both.infer_s, both.busy) == pytest.approx((one.infer_s, one.busy))


def test_a_reloaded_model_counts_from_its_load() -> None:
    assert step_statistics(
        parse_statistics([stats(9)]), parse_statistics([stats(2)]), 1.0
    ) == step_statistics({}, parse_statistics([stats(2)]), 1.0)


def test_a_model_that_did_nothing_divides_nothing() -> None:
    found = step_statistics(parse_statistics([stats(3)]), parse_statistics([stats(3)]), 1.0)[
        "tokenizer"
    ]
    assert (
        found.requests,
        found.queue_s,
        found.rows_per_execution,
        found.execution_s,
        found.busy,
        found.batches,
    ) == (0, 0, 0, 0, 0, {})


def test_an_ensemble_has_no_executions() -> None:
    found = step_statistics(
        {},
        parse_statistics(
            [
                {
                    "name": "pipeline",
                    "version": "1",
                    "inference_stats": {"success": {"count": 2, "ns": 4_000_000}},
                }
            ]
        ),
        1.0,
    )
    assert found["pipeline"].requests == 2
    assert found["pipeline"].executions == 0
