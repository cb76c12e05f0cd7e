"""Figures of a load, held against NumPy and against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from triton_pipelines.tools.loadgen import (
    LoadResult,
    LoadSpec,
    stability,
    summarize,
    summary_document,
)
from triton_pipelines.tools.loadgen.request_failure import error_response, timed_out
from triton_pipelines.tools.loadgen.summary import LoadWindow, compare_windows, percentiles

CLOSED = LoadSpec(concurrency=1, duration_s=3.0, warmup_s=1.0)


def result(
    due: list[float],
    end: list[float],
    spec: LoadSpec = CLOSED,
    error: list[int] | None = None,
    rows: int = 1,
) -> LoadResult:
    return LoadResult(
        spec=spec,
        due=np.array(due),
        sent=np.array(due),
        end=np.array(end),
        rows=np.full(len(due), rows),
        error=np.array(error or [-1] * len(due)),
        errors=(error_response("503: full"), timed_out("late")),
        begin_s=1.0,
        end_s=4.0,
        cpu_s=0.4,
        elapsed_s=4.0,
    )


def test_percentiles_are_exact() -> None:
    random = np.random.default_rng(7)
    seconds = random.lognormal(-4, 1, 4321)
    ordered = np.sort(seconds)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        # Nearest rank: the smallest sample that at least the share of all do not exceed.
        assert percentiles(seconds)[name] == ordered[math.ceil(share * len(ordered)) - 1]
        assert np.mean(seconds <= percentiles(seconds)[name]) >= share
    assert percentiles(np.array([0.1, 0.2, 0.3, 0.4]))["p50"] == 0.2
    assert math.isnan(percentiles(np.array([]))["p99"])


def test_warm_up_does_not_count() -> None:
    summary = summarize(
        result(due=[0.0, 0.5, 1.0, 2.0, 3.0, 4.0], end=[0.5, 0.9, 2.0, 3.0, 4.0, 4.5], rows=4)
    )
    # Ended in [1, 4): two requests, of a second each; those before are warm-up, those after are
    # over.
    assert summary.requests == 2
    assert summary.requests_per_s == pytest.approx(2 / 3)
    assert summary.rows_per_s == pytest.approx(8 / 3)
    assert summary.p50_s == summary.max_s == 1.0
    assert summary.cpu_per_request_s == pytest.approx(0.4 / 6)
    assert summary.cpu_share == pytest.approx(0.1)


def test_of_an_open_loop_what_was_due_counts_however_late() -> None:
    spec = LoadSpec(rate=1, duration_s=3.0, warmup_s=1.0)
    summary = summarize(result(due=[0.9, 1.5, 3.9], end=[1.1, 1.6, 9.9], spec=spec))
    assert summary.requests == 2
    assert summary.max_s == pytest.approx(6.0)
    # Throughput is what came out in the time.
    assert summary.requests_per_s == pytest.approx(2 / 3)


def test_failed_requests_are_counted_by_message_and_have_no_latency() -> None:
    summary = summarize(
        result(due=[1.0, 1.1, 1.2, 1.3], end=[1.2, 1.3, 1.4, 1.5], error=[0, -1, 0, 1])
    )
    assert summary.errors == {"503: full": 2, "late": 1}
    assert (summary.failed, summary.requests) == (3, 1)


def test_nothing_answered_is_no_number() -> None:
    summary = summarize(result(due=[1.0], end=[1.5], error=[0]))
    assert math.isnan(summary.p99_s)
    assert not summary.stability.stable
    assert summary_document(summary)["p99Milliseconds"] is None


@pytest.mark.parametrize(
    ("windows", "stable", "reason"),
    [
        ([(100, 0.010), (105, 0.0105), (95, 0.0095)], True, ""),
        (
            [(100, 0.010), (120, 0.010), (80, 0.010)],
            False,
            "requests/s differs by 20% between windows",
        ),
        ([(100, 0.010), (100, 0.010), (100, 0.016)], False, "p99 differs by 33% between windows"),
        ([(100, 0.010), (100, 0.010), (0, math.nan)], False, "a window without a response"),
        ([(0, math.nan)] * 3, False, "a window without a response"),
    ],
)
def test_windows_that_differ_by_more_than_a_tenth_are_not_stable(
    windows: list[tuple[float, float]], stable: bool, reason: str
) -> None:
    found = compare_windows([LoadWindow(*item) for item in windows])
    assert found.stable is stable
    assert found.reason.startswith(reason)


def test_the_measured_time_is_three_windows() -> None:
    ends = [1 + 0.1 * number for number in range(30)]
    even = result(due=[end - 0.01 for end in ends], end=ends)
    assert stability(even).stable
    assert [item.requests_per_s for item in stability(even).windows] == pytest.approx([10, 10, 10])
    late = replace(even, due=np.array([end - (0.05 if end > 3 else 0.01) for end in ends]))
    assert stability(late).reason.startswith("p99 differs")
