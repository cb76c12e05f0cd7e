"""Verify a gain: measure settings in turn with the current one; each result decides the next."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .acceptance import MIN_GAIN, STEP_BACK, BudgetCheck, SettingMeasurement
from .measured_points import TuningRun
from .selection import candidates, challenger
from .settings import BatchingSetting

# Points that a second attempt and its verification need.
MIN_VERIFICATION_POINTS = 2
MIN_POINTS = 4


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A setting that met the latency budget."""

    setting: BatchingSetting
    rate: float
    """Requests/s at which it did."""


class GainVerification:
    """Measures candidates against the current setting until a gain is verified."""

    def __init__(self, run: TuningRun) -> None:
        self._run = run

    async def verify(self) -> None:
        """Measure settings in turn with the current one; each result decides what comes next."""
        self._run.points_left = self._run.effort.points
        current = self._run.server.current
        # A prediction after which the server fell behind does not include what limits the server.
        is_behind = any(not one.carried or one.load.ended for one in self._run.measured)
        lower = self._run.lower_rate(current) if is_behind else None
        first = await self._run.measure_point(
            current, lower or self._run.expected_rate(current), "the current setting"
        )
        winner, tried = await self._search_better()
        if winner is not None:
            await self._confirm(winner, tried)
        else:
            await self._measure_remaining(first, tried)

    async def _search_better(self) -> tuple[_Candidate | None, set[BatchingSetting]]:
        """Measure candidates until one meets the budget at a higher rate than the current setting.

        Returns:
            The candidate, and the settings that were tried in vain.
        """
        current = self._run.server.current
        tried: set[BatchingSetting] = set()
        while self._run.points_left > 1:
            base = self._run.expected_rate(current)
            better = [
                one
                for one in candidates(self._run.predictions, current)
                if one.rate >= (1 + MIN_GAIN) * base
                and one.setting not in tried | self._run.refused
            ]
            if not better:
                break
            setting = better[0].setting
            got = await self._run.measure_point(setting, better[0].rate, "a candidate")
            if got is None or got.load.faults or got.rate < (1 + MIN_GAIN) * base:
                tried.add(setting)
            elif got.check_budget(self._run.latency_budget) is BudgetCheck.MET:
                return _Candidate(setting, got.rate), tried
            elif self._run.expected_rate(setting) > STEP_BACK * got.rate:
                tried.add(setting)
                winner = await self._retry_lower(setting, got.rate, base)
                if winner is not None:
                    return winner, tried
        return None, tried

    async def _retry_lower(
        self, setting: BatchingSetting, exceeded: float, base: float
    ) -> _Candidate | None:
        """Measure at lower rates, as long as they are still a gain over ``base``.

        For a setting that measured worse than predicted while the prediction does not see why: the
        first rate is a little lower, the next ones are halfway (geometrically) to ``base``.
        """
        least = (1 + MIN_GAIN) * base
        rate = STEP_BACK * exceeded
        while rate >= least and self._run.points_left >= MIN_VERIFICATION_POINTS:
            got = await self._run.measure_point(setting, rate, "the candidate, at a lower rate")
            if got is None or got.load.faults:
                return None
            if got.check_budget(self._run.latency_budget) is BudgetCheck.MET:
                return _Candidate(setting, got.rate)
            rate = min(STEP_BACK * got.rate, math.sqrt(least * got.rate))
        return None

    async def _confirm(self, winner: _Candidate, tried: set[BatchingSetting]) -> None:
        """Verify a gain A/B/A.

        First the current setting at a rate that it has to miss, then the candidate. The challenger
        is measured between the two: if it takes longer than expected, that costs a repeat at most.
        """
        current_rate = winner.rate / (1 + MIN_GAIN)
        best, points = winner, 2 * (self._run.effort.repeats - 1)
        for number in range(points):
            if self._run.points_left > 0 and number % 2 == 0:
                await self._exceed_with_current(current_rate)
            elif self._run.points_left > 0:
                await self._run.measure_point(best.setting, best.rate, "the candidate again")
            if number == 0 and self._run.points_left >= points and self._run.has_time_for(points):
                best = await self._measure_challenger(winner, tried)

    async def _exceed_with_current(self, rate: float) -> None:
        """Measure the current setting at a rate that it has to miss.

        If that is far beyond its capacity, twice the capacity exceeds the budget as well. If it is
        far beyond what was measured so far, which a disturbed calibration makes little, twice that
        may be within the budget: then the next measurement may be at a higher rate.
        """
        while self._run.points_left > 0:
            got = await self._run.measure_point(
                self._run.server.current, rate, "the current setting, at the candidate's rate"
            )
            if (
                got is None
                or got.rate >= rate
                or got.check_budget(self._run.latency_budget) is BudgetCheck.EXCEEDED
            ):
                return

    async def _measure_challenger(
        self, winner: _Candidate, tried: set[BatchingSetting]
    ) -> _Candidate:
        """Return the winner, or a setting with other instances that does better.

        How instances share a device is what a prediction knows least. The challenger gets more
        requests/s; if its p99 is lower nevertheless, it serves more.
        """
        excluded = {*tried, *self._run.refused, self._run.server.current}
        other = challenger(self._run.predictions, winner.setting, excluded)
        self._run.challenger = other.setting if other is not None else None
        if other is None:
            return winner
        higher = winner.rate * (1 + MIN_GAIN)
        got = await self._run.measure_point(
            other.setting, higher, "a candidate with other instances"
        )
        is_met = (
            got is not None
            and got.rate >= higher
            and got.check_budget(self._run.latency_budget) is BudgetCheck.MET
        )
        if got is None or not is_met:
            return winner
        p99 = max(
            one.load.p99
            for one in self._run.measured
            if one.setting == winner.setting and one.rate == winner.rate
        )
        return _Candidate(got.setting, higher) if got.load.p99 < p99 else winner

    async def _measure_remaining(
        self, first: SettingMeasurement | None, tried: set[BatchingSetting]
    ) -> None:
        """Measure the curves of the current setting and the best other one.

        For runs in which no better setting is predicted, or none met the budget.
        """
        current = self._run.server.current
        while self._run.points_left > 0 and (lower := self._run.lower_rate(current)) is not None:
            if (
                await self._run.measure_point(
                    current, lower, "the current setting, at a lower rate"
                )
                is None
            ):
                break
        base = first.rate if first is not None else self._run.expected_rate(current)
        others = [
            one
            for one in candidates(self._run.predictions, current, 1)
            if one.setting not in tried | self._run.refused and one.rate
        ]
        for one in others[: self._run.points_left > 1]:
            await self._run.measure_point(one.setting, one.rate, "the best other setting")
        for share in (0.5, STEP_BACK):
            if self._run.points_left > 0 and len(self._run.measured) < MIN_POINTS:
                await self._run.measure_point(current, share * base, "the current setting")
