"""Decide whether a setting is verified as better than the current one. Pure.

A setting is accepted if it met the latency budget at its rate, and at every lower one that was
tried, without a failed request, and if the current setting exceeded the budget at a rate at least
5 % lower. A measurement only counts as met or exceeded if the bootstrap's 95 % interval of its p99
says so; everything else is noise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from triton_pipelines.api.wording import counted
from triton_pipelines.tools.loadgen import Array

from .load_measurement import CARRIED_SHARE, LoadMeasurement
from .settings import BatchingSetting

# Gain below which nothing is changed.
MIN_GAIN = 0.05
# With fewer answers the slowest one is below the real p99 more often than 1 time in 20
# (0.99 ** 300 < 0.05): nothing is verified.
MIN_ANSWERS = 300
# A setting that exceeds the budget at its rate is tried again at what the corrected prediction
# gives; if that is hardly lower, at this share of it, and then further down: at the predicted
# maximum rate, half of all measurements exceed the budget.
STEP_BACK = 0.9
# A setting that never met the budget is tried at this share of the lowest rate that exceeded it.
STEP_DOWN = 0.5
_BLOCKS = 20
_DRAWS = 100


class BudgetCheck(StrEnum):
    """Comparison of a measured p99 with the latency budget."""

    MET = "met"
    EXCEEDED = "exceeded"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class SettingMeasurement:
    """One measurement of a setting."""

    setting: BatchingSetting
    """The setting."""
    rate: float
    """Requests/s offered, nominally."""
    load: LoadMeasurement
    """Figures of the load."""
    predicted_p99: float = 0.0
    """Predicted p99 in seconds for the same arrivals."""

    def check_budget(self, latency_budget: float) -> BudgetCheck:
        """Compare p99 with the budget (seconds).

        Failed requests, or fewer arrivals than asked for by chance, make a result inconclusive;
        it is exceeded if they cannot be the whole reason.
        """
        low, high = self._interval
        keeps_up = self.carried or self._backlog_seconds <= latency_budget
        if self.load.p99 == float("inf") or low > latency_budget or not keeps_up:
            return BudgetCheck.EXCEEDED
        enough = (
            len(self.load.latencies) >= MIN_ANSWERS and self.load.rate >= CARRIED_SHARE * self.rate
        )
        if high <= latency_budget and enough and not self.load.failed:
            return BudgetCheck.MET
        return BudgetCheck.INCONCLUSIVE

    def is_within(self, latency_budget: float) -> bool:
        """Return whether p99 was within the budget, even if noise could have it beyond."""
        is_exceeded = self.check_budget(latency_budget) is BudgetCheck.EXCEEDED
        return self.load.p99 <= latency_budget and not is_exceeded

    @property
    def carried(self) -> bool:
        """Whether the server kept up with the arrivals."""
        return self.load.rate >= CARRIED_SHARE * (self.load.offered or self.rate)

    @property
    def _backlog_seconds(self) -> float:
        """Seconds by which the answers took longer than the arrivals.

        Up to the latency budget, that is not a backlog.
        """
        if not self.load.offered:
            return float("inf")
        return self.load.seconds - self.load.sent / self.load.offered

    @functools.cached_property
    def _interval(self) -> tuple[float, float]:
        return interval(self.load.latencies)


def next_lower_rate(
    own: Sequence[SettingMeasurement], latency_budget: float, expected: float, least: float
) -> float | None:
    """Return the rate at which to try a setting that never met the budget.

    Args:
        own: The measurements of the setting.
        latency_budget: Seconds.
        expected: Predicted maximum requests/s; used if it is lower than the rate that exceeded the
            budget, by more than noise.
        least: Requests/s below which a point has too few answers.

    Returns:
        Requests/s; ``None`` if the setting met the budget once, or there is no lower rate.
    """
    if not own or any(one.is_within(latency_budget) for one in own):
        return None
    # A server with a backlog answers at its capacity, whatever was offered.
    exceeded = min(min(one.rate, one.load.rate or one.rate) for one in own)
    if exceeded <= least:
        return None
    is_lower = 0 < expected <= STEP_BACK * exceeded
    return max(least, expected if is_lower else STEP_DOWN * exceeded)


def interval(latencies: Array) -> tuple[float, float]:
    """Return the 95 % interval of the p99 in seconds.

    It is a bootstrap over 20 stretches of time: neighbors in one queue are not independent.
    """
    if len(latencies) < 2 * _BLOCKS:
        most = float(np.max(latencies)) if len(latencies) else float("inf")
        return (0.0 if len(latencies) else most), most
    blocks = np.array_split(np.asarray(latencies), _BLOCKS)
    random = np.random.default_rng((0, 3))
    found = [
        float(
            np.percentile(
                np.concatenate([blocks[index] for index in random.integers(0, _BLOCKS, _BLOCKS)]),
                99,
            )
        )
        for _ in range(_DRAWS)
    ]
    low, high = np.percentile(found, (2.5, 97.5))
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class SettingDecision:
    """The setting to recommend."""

    setting: BatchingSetting
    """The verified best setting, or the current one."""
    rate: float
    """Requests/s verified for it."""
    gain: float
    """Share of requests/s gained over the current setting."""
    reason: str
    """Why, for people."""

    @property
    def is_better(self) -> bool:
        """Whether to change the setting."""
        return self.gain > 0


@dataclass(frozen=True, slots=True)
class _Baseline:
    """What the current setting is verified to serve."""

    met: float
    """Highest rate that met the budget."""
    exceeded: float
    """Lowest rate above it that exceeded the budget."""
    within: float
    """Highest rate within the budget, even if noise could have it beyond.

    It is not reliable as a rate, but a gain is counted from it.
    """
    tried: float
    """Highest rate that was measured."""

    @classmethod
    def of(cls, own: Sequence[SettingMeasurement], latency_budget: float) -> _Baseline:
        checks = [(one, one.check_budget(latency_budget)) for one in own]
        met = max((one.rate for one, check in checks if check is BudgetCheck.MET), default=0.0)
        exceeded = min(
            (one.rate for one, check in checks if check is BudgetCheck.EXCEEDED and one.rate > met),
            default=float("inf"),
        )
        within = max(
            (one.rate for one in own if one.rate < exceeded and one.is_within(latency_budget)),
            default=0.0,
        )
        return cls(met, exceeded, within, max((one.rate for one in own), default=0.0))


def decide(
    current: BatchingSetting,
    measured: Sequence[SettingMeasurement],
    latency_budget: float,
    order: Sequence[BatchingSetting],
    challenger: BatchingSetting | None = None,
) -> SettingDecision:
    """Return the best verified setting, else the current one.

    Args:
        current: The setting in force.
        measured: All measurements.
        latency_budget: Seconds.
        order: Settings by preference at equal rates.
        challenger: One that was tried after another had already met the budget: a verified setting
            is not given up for a single measurement.
    """
    baseline = _Baseline.of([one for one in measured if one.setting == current], latency_budget)
    best: tuple[float, int, BatchingSetting] | None = None
    rejections: list[str] = []
    for place, setting in enumerate(order):
        own = [one for one in measured if one.setting == setting]
        if setting == current or not own:
            continue
        rate, rejection = _verified_rate(
            own, latency_budget, baseline, is_unrepeated=setting == challenger and len(own) == 1
        )
        if rejection:
            rejections.append(f"{setting} was rejected, because {rejection}")
        elif best is None or (rate, -place) > (best[0], -best[1]):
            best = (rate, place, setting)
    if best is None:
        reason = "; ".join(rejections) or "no other setting is predicted to serve more requests"
        return SettingDecision(current, baseline.met, 0.0, reason)
    rate, _, setting = best
    # The current setting's maximum is between the two: the gain counts from the highest rate that
    # was measured within the budget.
    compared = (
        f"met it at {baseline.within:.0f} and exceeded it at {baseline.exceeded:.0f}"
        if baseline.within
        else f"already exceeded it at {baseline.exceeded:.0f}, so the gain is larger"
    )
    reason = (
        f"met the latency budget in every measurement up to {rate:.0f} requests/s;"
        f" the current setting {compared}"
    )
    return SettingDecision(setting, rate, rate / (baseline.within or baseline.exceeded) - 1, reason)


def _verified_rate(
    own: Sequence[SettingMeasurement],
    latency_budget: float,
    baseline: _Baseline,
    *,
    is_unrepeated: bool,
) -> tuple[float, str]:
    """Return the requests/s verified for a setting, and why it is rejected nevertheless.

    Every setting exceeds the budget beyond some rate; that says nothing about lower rates. A
    request that failed for a reason other than the load does.
    """
    not_met = [one for one in own if one.check_budget(latency_budget) is not BudgetCheck.MET]
    least = min((one.rate for one in not_met), default=float("inf"))
    rate = max((one.rate for one in own if one.rate < least), default=0.0)
    if not rate or any(one.load.faults for one in own):
        return rate, _failure(own, not_met, latency_budget)
    met = f"it met the latency budget at {rate:.0f} requests/s"
    if baseline.exceeded * (1 + MIN_GAIN) > rate * 1.0001:
        compared = (
            "did not exceed the budget either"
            if baseline.tried * (1 + MIN_GAIN) * 1.0001 > rate
            else "was not measured"
        )
        return (
            rate,
            f"its gain is not verified: {met}, but at a rate {MIN_GAIN:.0%} lower, the current "
            f"setting {compared}",
        )
    if is_unrepeated:
        return rate, f"{met}, but this was not confirmed by a second measurement"
    return rate, ""


def _failure(
    own: Sequence[SettingMeasurement],
    not_met: Sequence[SettingMeasurement],
    latency_budget: float,
) -> str:
    worst = max(not_met, key=lambda one: one.load.p99)
    is_noise = all(one.check_budget(latency_budget) is BudgetCheck.INCONCLUSIVE for one in not_met)
    at = f"at {worst.rate:.0f} requests/s"
    comparison = "is within noise of" if is_noise else "exceeds"
    p99 = (
        f"its p99 of {worst.load.p99 * 1e3:.1f} ms {at} {comparison} the latency budget"
        if math.isfinite(worst.load.p99)
        else f"no p99 could be computed {at}"
    )
    failed = sum(one.load.faults for one in own)
    failures = counted(failed, "request", "requests")
    return f"{p99}, and {failures} failed" if failed else p99
