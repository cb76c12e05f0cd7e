"""The setting to try: as many requests/s as possible within the wall, then the highest batch size. Pure.

Of all settings within 3 % of the most requests/s: the highest batch size, then the shortest delay (0 where that is among them), then the
fewest instances (autoscaling.md §8.4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .contract import Curve, Knobs, Point
from .prediction import MOST_BUSY, SEARCHED, Pipe, capacity, highest_rate, poisson, simulate

CLOSE = 0.03
# The ends of the scale, in microseconds of delay: who wants answers soonest, and who wants the fullest batches.
LATENCY_DELAYS = (1000, 2000)
THROUGHPUT_DELAYS = (50_000, 100_000)
# Share of the wall that a request may wait for company.
DELAY_SHARE = 0.25
# Settings, best first, for which delays are tried.
DELAYED = 3
# Rates of a curve, as shares of what the setting can carry at most.
SHARES = (0.1, 0.25, 0.4, 0.55, 0.65, 0.75, 0.8, 0.85, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Planned:
    """A setting and what it is expected to carry: ``rate`` requests/s within the wall (0: none), p99 (seconds) at that rate, and the most
    that it can carry at all."""

    knobs: Knobs
    rate: float
    p99: float
    capacity: float


def preference(planned: Planned) -> tuple[bool, int, int, int, int]:
    """Greater is better, among settings that carry the same: the padding that the resource has stays."""
    knobs = planned.knobs
    return (
        knobs.padding == PaddingSetting(),
        knobs.max_batch_size,
        -knobs.queue_delay,
        -knobs.model_instances,
        -knobs.tokenizer_instances,
    )


def plan(
    pipe: Pipe, settings: Iterable[Knobs], current: Knobs, wall: float, seed: int = 0
) -> list[Planned]:
    """What the settings carry within ``wall`` seconds, best first by the rule above.

    Settings that cannot be among the best are left out, the current one never is. Delays are only tried where the same setting without one
    is close to the best: a delay never raises what a step can carry, and seldom what it carries within a wall (autoscaling.md §7).
    """
    given = list(dict.fromkeys((*settings, current)))
    delays = sorted(
        {knobs.queue_delay for knobs in given if 0 < knobs.queue_delay / 1e6 <= DELAY_SHARE * wall}
    )
    bare = list(dict.fromkeys(replace(knobs, queue_delay=0) for knobs in given))
    capacities = {knobs: capacity(pipe.with_knobs(knobs), seed) for knobs in bare}
    found = [planned(pipe, current, wall, capacities[replace(current, queue_delay=0)], seed)]
    most = found[0].rate
    for knobs in sorted(bare, key=lambda knobs: (-capacities[knobs], knobs)):
        if knobs != current and MOST_BUSY * capacities[knobs] >= (1 - CLOSE) * most:
            one = planned(pipe, knobs, wall, capacities[knobs], seed, least=(1 - CLOSE) * most)
            most = max(most, one.rate)
            found.append(one)
    allowed = set(given)
    for one in ranked(found)[:DELAYED]:
        variants = [replace(one.knobs, queue_delay=delay) for delay in delays]
        least = (1 - CLOSE) * most
        found += [
            planned(pipe, knobs, wall, one.capacity, seed, least)
            for knobs in variants
            if knobs in allowed and knobs != current
        ]
    return ranked([one for one in found if one.knobs in allowed])


def planned(
    pipe: Pipe,
    knobs: Knobs,
    wall: float,
    carried: float | None = None,
    seed: int = 0,
    least: float = 0.0,
) -> Planned:
    """What one setting carries. ``carried``: its capacity, where that is known; ``least``: less is of no use and given as 0."""
    turned = pipe.with_knobs(knobs)
    most = capacity(turned, seed) if carried is None else carried
    rate = highest_rate(turned, wall, seed, most=MOST_BUSY * most, least=least)
    p99 = simulate(turned, poisson(rate, SEARCHED, seed), seed).p99 if rate else float("inf")
    return Planned(knobs, rate, p99, most)


def ranked(found: Sequence[Planned]) -> list[Planned]:
    """Best first: those within 3 % of the most by :func:`preference`, the rest by what they carry."""
    most = max((one.rate for one in found), default=0.0)
    close = [one for one in found if one.rate > 0 and one.rate >= (1 - CLOSE) * most]
    rest = [one for one in found if one not in close]
    return sorted(close, key=preference, reverse=True) + sorted(
        rest, key=lambda one: (-one.rate, one.knobs)
    )


def candidates(found: Sequence[Planned], current: Knobs, count: int = 3) -> list[Planned]:
    """The settings to measure: the best, then those that differ from it most usefully: another batch size, other instances, another delay."""
    able = [one for one in found if one.rate > 0 and one.knobs != current]
    if not able:
        return []
    chosen = [able[0]]
    best = able[0].knobs
    tests = (
        lambda knobs: knobs.max_batch_size != best.max_batch_size,
        lambda knobs: (
            (knobs.model_instances, knobs.tokenizer_instances)
            != (best.model_instances, best.tokenizer_instances)
        ),
        lambda knobs: knobs.queue_delay != best.queue_delay,
    )
    for differs in tests:
        other = next((one for one in able if one not in chosen and differs(one.knobs)), None)
        if other is not None:
            chosen.append(other)
    return chosen[:count]


def rival(found: Sequence[Planned], winner: Knobs, without: Collection[Knobs]) -> Planned | None:
    """Of the settings with other instances than the winner the one that is expected to carry most; ``without``: those that are out."""
    own = (winner.model_instances, winner.tokenizer_instances)
    able = [
        one
        for one in found
        if one.rate > 0
        and one.knobs not in without
        and (one.knobs.model_instances, one.knobs.tokenizer_instances) != own
    ]
    return max(able, key=lambda one: (one.rate, one.knobs), default=None)


def ends(
    pipe: Pipe, settings: Sequence[Knobs], rate: float, wall: float, seed: int = 0
) -> tuple[Point, ...]:
    """The latency-first and the throughput-first setting, predicted: the least p99 at ``rate`` with 1-2 ms of delay, and the most that can be
    carried at all with 50-100 ms, whatever the latency."""
    bare = {
        knobs: capacity(pipe.with_knobs(knobs), seed)
        for knobs in dict.fromkeys(replace(knobs, queue_delay=0) for knobs in settings)
    }
    copies = max(
        ((knobs.model_instances, knobs.tokenizer_instances) for knobs in bare), default=(1, 0)
    )
    able = [
        knobs
        for knobs in bare
        if rate <= 0.95 * bare[knobs]
        and (knobs.model_instances, knobs.tokenizer_instances) == copies
    ]
    quick = [replace(knobs, queue_delay=delay) for knobs in able for delay in LATENCY_DELAYS]
    result = []
    if quick and rate > 0:
        arrivals = poisson(rate, 3_000, seed)
        times = {knobs: simulate(pipe.with_knobs(knobs), arrivals, seed).p99 for knobs in quick}
        least = min(times, key=lambda knobs: (times[knobs], knobs.max_batch_size, knobs))
        result.append(Point("latency first", least, rate, predicted_p99=times[least]))
    full = {
        replace(knobs, queue_delay=THROUGHPUT_DELAYS[0]): carried for knobs, carried in bare.items()
    }
    if full:
        most = max(full.values())
        widest = max(
            (knobs for knobs in full if full[knobs] >= (1 - CLOSE) * most),
            key=lambda knobs: (knobs.max_batch_size, -knobs.model_instances),
        )
        carried = MOST_BUSY * full[widest]
        p99 = simulate(pipe.with_knobs(widest), poisson(carried, 6_000, seed), seed).p99
        result.append(Point("throughput first", widest, carried, predicted_p99=p99))
    return tuple(result)


def curve(name: str, pipe: Pipe, planned: Planned, seed: int = 0) -> Curve:
    """Predicted p99 over the rates that a setting can carry."""
    turned = pipe.with_knobs(planned.knobs)
    rates = [share * planned.capacity for share in SHARES]
    return Curve(
        name,
        planned.knobs,
        tuple((rate, simulate(turned, poisson(rate, 8_000, seed), seed).p99) for rate in rates),
    )
