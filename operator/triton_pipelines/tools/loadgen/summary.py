"""Summarize a load: exact percentiles, errors by message, stability. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from triton_pipelines.tools.loadgen.load_spec import (
    WINDOWS,
    LoadSpec,
)
from triton_pipelines.tools.loadgen.request_failure import RequestFailure
from triton_pipelines.tools.loadgen.triton_statistics import StepStatistics

TOLERANCE: Final = 0.1
"""Windows agree when each figure is within this share of the mean of all (facts: 3 windows within
10 %).
"""
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LoadResult:
    """Every request of one load, warm-up included; times in seconds since its begin."""

    spec: LoadSpec
    """The load."""
    due: Floats
    """When each request was due (open loop) or was sent (closed loop)."""
    sent: Floats
    """When each request was handed over for sending."""
    end: Floats
    """When each request was answered or failed."""
    rows: NDArray[np.int64]
    """Rows of each request."""
    error: NDArray[np.int64]
    """Index into ``errors``; -1 for an answered request."""
    errors: tuple[RequestFailure, ...]
    """The different failures."""
    begin_s: float
    """Begin of the measured time, which is the last three windows."""
    end_s: float
    """End of the measured time."""
    cpu_s: float
    """CPU seconds of this process during the whole load."""
    elapsed_s: float
    """Length of the whole load, including the wait for late answers."""
    steps: Mapping[str, StepStatistics] = field(default_factory=dict)
    """What each model did in the measured time, from Triton's statistics.

    Empty if these were not read, or not in time.
    """
    overloaded: bool = False
    """Whether the load was ended early because the server was ``spec.behind_s`` behind.

    Then all requests that were due until that moment count; those of the warm-up as well, if less
    than a window followed it.
    """

    @property
    def duration_s(self) -> float:
        """Seconds of the measured time."""
        return self.end_s - self.begin_s

    def measured(
        self, begin_s: float | None = None, end_s: float | None = None
    ) -> NDArray[np.bool_]:
        """Return which requests count for a time (default: the measured time).

        In an open loop, these are the requests that were due in it, however late they were
        answered; in a closed loop, those that ended in it.
        """
        at = self.due if self.spec.open_loop else self.end
        begin, end = (
            (self.begin_s if begin_s is None else begin_s),
            (self.end_s if end_s is None else end_s),
        )
        return (at >= begin) & (at < end)

    @property
    def latencies(self) -> Floats:
        """Seconds from due to answer of the answered requests in the measured time.

        They are in the order of their ends.
        """
        chosen = self.measured() & (self.error < 0)
        return (self.end - self.due)[chosen]

    def throughput(
        self, begin_s: float | None = None, end_s: float | None = None
    ) -> tuple[float, float]:
        """Return the requests and rows answered per second within a time, by their ends."""
        begin, end = (
            (self.begin_s if begin_s is None else begin_s),
            (self.end_s if end_s is None else end_s),
        )
        chosen = (self.end >= begin) & (self.end < end) & (self.error < 0)
        return float(np.count_nonzero(chosen)) / (end - begin), float(self.rows[chosen].sum()) / (
            end - begin
        )


@dataclass(frozen=True)
class LoadWindow:
    """Figures of one window."""

    requests_per_s: float
    """Answered requests per second."""
    p99_s: float
    """p99 latency in seconds; NaN without an answer."""


@dataclass(frozen=True)
class LoadStability:
    """Agreement of the last three windows."""

    stable: bool
    """Whether they agree."""
    reason: str
    """Which figure differs, and by how much, if they do not."""
    windows: tuple[LoadWindow, ...]
    """The windows."""


@dataclass(frozen=True)
class LoadSummary:
    """Figures of one load.

    Latencies are in seconds, NaN without an answered request. In an open loop they count from when
    requests were due.
    """

    load: str
    """Name of the load, such as ``concurrency 8``."""
    requests_per_s: float
    """Requests answered per second."""
    rows_per_s: float
    """Rows answered per second."""
    requests: int
    """Requests answered in the measured time."""
    failed: int
    """Failed requests among those due (open loop) or in flight (closed loop) in that time."""
    mean_s: float
    """Mean latency."""
    p50_s: float
    """Median latency."""
    p90_s: float
    """p90 latency."""
    p95_s: float
    """p95 latency."""
    p99_s: float
    """p99 latency."""
    max_s: float
    """Maximum latency."""
    lag_p99_s: float
    """p99 of the seconds by which the generator sent requests after they were due.

    A wait for a free connection counts into the latency, not here.
    """
    cpu_per_request_s: float
    """CPU seconds of the generator's process for each request."""
    cpu_share: float
    """CPU cores that the generator kept busy."""
    errors: Mapping[str, int]
    """Number of failed requests by message."""
    stability: LoadStability
    """Whether the load was stable."""
    steps: Mapping[str, StepStatistics]
    """Statistics by model."""


def summarize(result: LoadResult) -> LoadSummary:
    """Return the figures of a load's measured time."""
    latencies = result.latencies
    chosen = result.measured()
    # In a closed loop, a request that is given up after the end was in flight during the measured
    # time and kept its slot from being used.
    concerned = (
        chosen
        if result.spec.open_loop
        else (result.end >= result.begin_s) & (result.due < result.end_s)
    )
    failed = result.error[concerned & (result.error >= 0)]
    values = percentiles(latencies)
    requests_per_s, rows_per_s = result.throughput()
    lag = (result.sent - result.due)[chosen]
    return LoadSummary(
        load=result.spec.name,
        requests_per_s=requests_per_s,
        rows_per_s=rows_per_s,
        requests=len(latencies),
        failed=len(failed),
        mean_s=float(latencies.mean()) if len(latencies) else math.nan,
        p50_s=values["p50"],
        p90_s=values["p90"],
        p95_s=values["p95"],
        p99_s=values["p99"],
        max_s=float(latencies.max()) if len(latencies) else math.nan,
        lag_p99_s=percentiles(lag)["p99"],
        cpu_per_request_s=result.cpu_s / len(result.due) if len(result.due) else math.nan,
        cpu_share=result.cpu_s / result.elapsed_s if result.elapsed_s else math.nan,
        errors=dict(
            Counter(result.errors[index].message for index in failed.tolist()).most_common()
        ),
        stability=stability(result),
        steps=result.steps,
    )


def percentiles(seconds: Floats) -> dict[str, float]:
    """Return exact percentiles by nearest rank; NaN without values.

    A percentile is the smallest value that at least that share of all values do not exceed.
    """
    if not len(seconds):
        return dict.fromkeys(PERCENTILES, math.nan)
    found = np.percentile(seconds, list(PERCENTILES.values()), method="inverted_cdf")
    return dict(zip(PERCENTILES, map(float, found), strict=True))


def stability(result: LoadResult) -> LoadStability:
    """Return whether the three windows of the measured time agree in requests/s and p99."""
    length = result.duration_s / WINDOWS
    return compare_windows(
        [
            window_figures(
                result, result.begin_s + number * length, result.begin_s + (number + 1) * length
            )
            for number in range(WINDOWS)
        ]
    )


def window_figures(result: LoadResult, begin_s: float, end_s: float) -> LoadWindow:
    """Return the figures of one window, by the requests that ended in it.

    Late answers belong to the time in which they were late.
    """
    chosen = (result.end >= begin_s) & (result.end < end_s) & (result.error < 0)
    return LoadWindow(
        result.throughput(begin_s, end_s)[0], percentiles((result.end - result.due)[chosen])["p99"]
    )


def compare_windows(windows: Sequence[LoadWindow]) -> LoadStability:
    """Return whether windows agree: each figure within a tenth of the mean of all."""
    reasons = []
    for label, values in (
        ("requests/s", [item.requests_per_s for item in windows]),
        ("p99", [item.p99_s for item in windows]),
    ):
        mean = sum(values) / len(values) if values else math.nan
        # Comparisons with NaN or with nothing are false, which means not stable.
        if not (mean > 0):
            return LoadStability(False, "a window without a response", tuple(windows))
        worst = max(abs(value - mean) / mean for value in values)
        if worst > TOLERANCE:
            reasons.append(f"{label} differs by {worst:.0%} between windows")
    return LoadStability(not reasons, "; ".join(reasons), tuple(windows))


def summary_document(summary: LoadSummary) -> dict[str, Any]:
    """Return the summary as a JSON document with units in its names; NaN becomes null."""
    times = {
        f"{name}Milliseconds": getattr(summary, f"{name}_s")
        for name in ("mean", "p50", "p90", "p95", "p99", "max")
    }
    return {
        "requestsPerSecond": _rounded(summary.requests_per_s),
        "rowsPerSecond": _rounded(summary.rows_per_s),
        "requests": summary.requests,
        "failed": summary.failed,
        **{name: _rounded(value * 1000) for name, value in times.items()},
        "stable": summary.stability.stable,
        "unstableBecause": summary.stability.reason,
        "errors": dict(summary.errors),
        "generator": {
            "lagP99Milliseconds": _rounded(summary.lag_p99_s * 1000),
            "cpuMicrosecondsPerRequest": _rounded(summary.cpu_per_request_s * 1e6),
            "cores": _rounded(summary.cpu_share),
        },
        "steps": {name: step_document(step) for name, step in summary.steps.items()},
    }


def step_document(step: StepStatistics) -> dict[str, Any]:
    """Return the statistics of a step as a JSON document."""
    return {
        "requests": step.requests,
        "failures": step.failures,
        "rows": step.rows,
        "executions": step.executions,
        "rowsPerExecution": _rounded(step.rows_per_execution),
        "queueMilliseconds": _rounded(step.queue_s * 1000),
        "inputMilliseconds": _rounded(step.input_s * 1000),
        "computeMilliseconds": _rounded(step.infer_s * 1000),
        "outputMilliseconds": _rounded(step.output_s * 1000),
        "executionMilliseconds": _rounded(step.execution_s * 1000),
        "busyInstances": _rounded(step.busy),
        "batches": {str(rows): count for rows, count in step.batches.items()},
    }


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
