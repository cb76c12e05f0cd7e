"""Whether a setting is proven to be better: do no harm. Pure.

A setting is accepted when it kept the wall at its rate, and at every lower one that was tried, without a failed request, and the current
one, measured at a rate of which that is at least 5 % more, broke it. Noise: a measurement only counts as kept, or as broken, where the bootstrap's 95 %
interval of its p99 says so.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from .contract import Array, Knobs, Load

# Gain below which nothing is changed.
LEAST_GAIN = 0.05
# Share of the offered rate that has to be answered, so that a rate counts as carried: Poisson arrivals of some seconds differ by so much.
CARRIED_SHARE = 0.93
# Of fewer answers the slowest itself is within the real p99 more often than 1 time in 20 (0.99 ** 300 < 0.05): nothing is proven to be kept.
ENOUGH = 300
# A setting that breaks the wall at its rate is tried again at what the corrected prediction gives; where that hardly goes back, once at this
# share of it: at the rate that is predicted to be the last within the wall, half of all measurements are beyond.
STEP_BACK = 0.9
# One that was never within the wall is tried at this share of the least rate that broke it.
STEP_DOWN = 0.5
_BLOCKS = 20
_DRAWS = 100


class Kept(StrEnum):
    """What a measurement says of the wall."""

    YES = "kept"
    NO = "broken"
    UNSURE = "within noise"


@dataclass(frozen=True)
class Measured:
    """One measurement: a setting under ``rate`` requests/s."""

    knobs: Knobs
    rate: float
    load: Load
    predicted_p99: float = 0.0

    def kept(self, wall: float) -> Kept:
        """Whether p99 stayed within ``wall`` seconds.

        Requests that failed, or were fewer than asked for by chance, keep nothing proven; broken it is where that cannot be all.
        """
        low, high = self._interval
        if self.load.p99 == float("inf") or low > wall or not (self.carried or self._late <= wall):
            return Kept.NO
        enough = len(self.load.latencies) >= ENOUGH and self.load.rate >= CARRIED_SHARE * self.rate
        return Kept.YES if high <= wall and enough and not self.load.failed else Kept.UNSURE

    def within(self, wall: float) -> bool:
        """Whether p99 was within ``wall`` seconds, though noise could have it beyond."""
        return self.load.p99 <= wall and self.kept(wall) is not Kept.NO

    @property
    def carried(self) -> bool:
        """Whether the server kept up with what came."""
        return self.load.rate >= CARRIED_SHARE * (self.load.offered or self.rate)

    @property
    def _late(self) -> float:
        """Seconds that its answers took longer than its requests came: what is no more than the wall is no backlog."""
        return (
            self.load.seconds - self.load.sent / self.load.offered
            if self.load.offered
            else float("inf")
        )

    @functools.cached_property
    def _interval(self) -> tuple[float, float]:
        return interval(self.load.latencies)


def lower_rate(own: Sequence[Measured], wall: float, expected: float, least: float) -> float | None:
    """Requests/s at which a setting that was never within ``wall`` seconds is tried next; ``None`` where it was, and where there is nothing lower.

    Args:
        own: the measurements of the setting.
        wall: seconds.
        expected: requests/s that it is predicted to carry; taken where that is less than what it broke at, by more than noise.
        least: requests/s below which a point has too few answers.
    """
    if not own or any(one.within(wall) for one in own):
        return None
    # What a server answers that is behind is what it carries, whatever was offered.
    broke = min(min(one.rate, one.load.rate or one.rate) for one in own)
    if broke <= least:
        return None
    return max(least, expected if 0 < expected <= STEP_BACK * broke else STEP_DOWN * broke)


def interval(latencies: Array, seed: int = 0) -> tuple[float, float]:
    """95 % interval of the p99 (seconds), by a bootstrap over 20 stretches of time: neighbours in one queue are not independent."""
    if len(latencies) < 2 * _BLOCKS:
        most = float(np.max(latencies)) if len(latencies) else float("inf")
        return (0.0 if len(latencies) else most), most
    blocks = np.array_split(np.asarray(latencies), _BLOCKS)
    random = np.random.default_rng((seed, 3))
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
class Verdict:
    """The setting to recommend and the requests/s proven for it, the gain over the current one (share), and why in words."""

    knobs: Knobs
    rate: float
    gain: float
    reason: str

    @property
    def better(self) -> bool:
        """Whether something is to be changed."""
        return self.gain > 0


def judge(
    current: Knobs,
    measured: Sequence[Measured],
    wall: float,
    order: Sequence[Knobs],
    rival: Knobs | None = None,
) -> Verdict:
    """The best setting that is proven; else the current one.

    Args:
        current: the setting in force.
        measured: all measurements.
        wall: seconds.
        order: settings by preference where they carry the same.
        rival: one that was tried beside another that had kept the wall already: what is proven is not given up for a single measurement.
    """
    own = [one for one in measured if one.knobs == current]
    held = max((one.rate for one in own if one.kept(wall) is Kept.YES), default=0.0)
    broken = min(
        (one.rate for one in own if one.kept(wall) is Kept.NO and one.rate > held),
        default=float("inf"),
    )
    # What was within the wall, though noise could have it beyond, is nothing to promise; a gain is counted from it all the same.
    within = max((one.rate for one in own if one.rate < broken and one.within(wall)), default=0.0)
    best: tuple[float, int, Knobs] | None = None
    refusals: list[str] = []
    for place, knobs in enumerate(order):
        mine = [one for one in measured if one.knobs == knobs]
        if knobs == current or not mine:
            continue
        # Beyond some rate every setting breaks the wall: that says nothing of lower ones. A request that failed for another reason does.
        unkept = [one for one in mine if one.kept(wall) is not Kept.YES]
        least = min((one.rate for one in unkept), default=float("inf"))
        rate = max((one.rate for one in mine if one.rate < least), default=0.0)
        if not rate or any(one.load.faults for one in mine):
            worst = max(unkept, key=lambda one: one.load.p99)
            noise = all(one.kept(wall) is Kept.UNSURE for one in unkept)
            lost = sum(one.load.faults for one in mine)
            failed = f"; {lost} requests failed" if lost else ""
            late = f"{worst.load.p99 * 1e3:.1f} ms" if np.isfinite(worst.load.p99) else "never"
            refusals.append(
                f"{knobs}: p99 {late} at {worst.rate:.0f} requests/s, {'within noise of' if noise else 'beyond'} the wall{failed}"
            )
        elif broken * (1 + LEAST_GAIN) > rate * 1.0001:
            refusals.append(
                f"{knobs}: kept the wall at {rate:.0f} requests/s, and the current setting is not proven to break it at 5 % less"
            )
        elif knobs == rival and len(mine) == 1:
            refusals.append(
                f"{knobs}: kept the wall at {rate:.0f} requests/s, and was not measured again"
            )
        elif best is None or (rate, -place) > (best[0], -best[1]):
            best = (rate, place, knobs)
    if best is None:
        return Verdict(
            current, held, 0.0, "; ".join(refusals) or "no other setting is expected to carry more"
        )
    rate, _, knobs = best
    base = within or broken
    # What the current one really carries lies between the two: the gain is counted from the most that was measured within the wall.
    own_share = (
        f"was within it at {within:.0f} and broke it at {broken:.0f}"
        if within
        else f"broke it at {broken:.0f} already, so that the gain is more"
    )
    reason = f"kept the wall in every measurement up to {rate:.0f} requests/s; the current setting {own_share}"
    return Verdict(knobs, rate, rate / base - 1, reason)
