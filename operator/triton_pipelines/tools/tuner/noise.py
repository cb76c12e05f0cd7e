"""Check whether other work on the machine made the measurements of a run unusable. Pure.

Single requests that never wait for each other take the same time whenever they are sent. If they do
not, something else uses the machine, and neither a comparison of settings nor a prediction holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triton_pipelines.tools.loadgen import Array

from .acceptance import BudgetCheck, SettingMeasurement
from .settings import BatchingSetting

# Seconds of each load of single requests, one before all measurements and one after them.
NOISE_SECONDS = 1.5
# p90 / p10 of single requests. Measured on two cores: 1.03 to 1.37 on an idle machine (18 loads of
# four samples, the highest where a request takes 1.2 ms), 1.62 to 1.89 next to two or four busy
# processes (14 loads).
MAX_SPREAD = 1.5
# Ratio of the medians of the two loads. In the same measurements: at most 1.29 on an idle machine,
# up to 1.57 next to busy processes.
MAX_DRIFT = 1.5
# Ratio of the predicted rate of a setting to a rate at which it exceeded the latency budget. During
# a run, predictions are corrected by measurements that differ from them by more than 20 %.
MAX_CONTRADICTION = 3.0
# With fewer answers, p10 and p90 are single requests.
MIN_REQUESTS = 20


@dataclass(frozen=True, slots=True)
class NoiseSamples:
    """Latencies of single requests of the same length, with the current setting."""

    start: Array
    """Seconds, before all measurements."""
    end: Array
    """Seconds, after all measurements; empty if the run ended early."""


def noise_reason(
    samples: NoiseSamples,
    measured: Sequence[SettingMeasurement],
    predicted_rates: Mapping[BatchingSetting, float],
    latency_budget: float,
) -> str:
    """Return why the result of a run is inconclusive; empty if it is not.

    Args:
        samples: Latencies of single requests.
        measured: All measurements.
        predicted_rates: Predicted maximum requests/s of each setting, corrected by all
            measurements.
        latency_budget: Seconds.
    """
    return (
        _spread_reason(samples.start, "at the start of the run")
        or _spread_reason(samples.end, "at the end of the run")
        or _drift_reason(samples)
        or _contradiction_reason(measured, predicted_rates, latency_budget)
    )


def _spread_reason(latencies: Array, when: str) -> str:
    if len(latencies) < MIN_REQUESTS:
        return ""
    fast, slow = np.percentile(latencies, (10, 90)) * 1e3
    if slow <= MAX_SPREAD * fast:
        return ""
    return (
        f"{when}, 10% of single requests took less than {fast:.1f} ms and 10% took more "
        f"than {slow:.1f} ms, although the server received no other requests"
    )


def _drift_reason(samples: NoiseSamples) -> str:
    if min(len(samples.start), len(samples.end)) < MIN_REQUESTS:
        return ""
    start, end = np.median(samples.start) * 1e3, np.median(samples.end) * 1e3
    if max(start, end) <= MAX_DRIFT * min(start, end):
        return ""
    return (
        f"a single request took {start:.1f} ms at the start of the run and {end:.1f} ms at the end"
    )


def _contradiction_reason(
    measured: Sequence[SettingMeasurement],
    predicted_rates: Mapping[BatchingSetting, float],
    latency_budget: float,
) -> str:
    # The first point is the calibration, from which the predictions are made.
    for one in measured[1:]:
        predicted = predicted_rates.get(one.setting, 0.0)
        is_exceeded = one.check_budget(latency_budget) is BudgetCheck.EXCEEDED
        if is_exceeded and predicted > MAX_CONTRADICTION * one.rate:
            return (
                f"{one.setting} exceeded the latency budget at {one.rate:.0f} requests/s, but the "
                f"times of its steps predict {predicted:.0f}"
            )
    return ""
