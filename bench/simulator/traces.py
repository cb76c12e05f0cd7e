"""Load traces: requests per second for each second, by seed. Pure.

The constants of the control law were chosen on five of them; the others are held out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

SECONDS = 1500
Rates = list[float]


def step(seed: int) -> Rates:
    """120, 620 in [300, 900), 120."""
    del seed
    return [620.0 if 300 <= t < 900 else 120.0 for t in range(SECONDS)]


def ramp(seed: int) -> Rates:
    """100 to t = 120, linear to 620 at 720, flat to 900, linear to 100 at 1200."""
    del seed
    return [
        float(np.interp(t, (120, 720, 900, 1200), (100, 620, 620, 100))) for t in range(SECONDS)
    ]


def sine(seed: int) -> Rates:
    """350 ± 280, period 600 s."""
    del seed
    return [350 + 280 * math.sin(2 * math.pi * t / 600) for t in range(SECONDS)]


def burst(seed: int) -> Rates:
    """200; from t = 300 bursts of 20–59 s at 450–699, then a gap of 60–199 s, repeated."""
    rng = np.random.default_rng((seed, 101))
    rates = [200.0] * SECONDS
    at = 300
    while at < SECONDS:
        length, height = int(rng.integers(20, 60)), float(rng.integers(450, 700))
        for t in range(at, min(SECONDS, at + length)):
            rates[t] = height
        at += length + int(rng.integers(60, 200))
    return rates


def noisy(seed: int) -> Rates:
    """410 times a lognormal factor (0, 0.15) each second, near an integer boundary of the count."""
    rng = np.random.default_rng((seed, 102))
    return [410 * math.exp(0.15 * float(value)) for value in rng.standard_normal(SECONDS)]


def shifted(seed: int) -> Rates:
    """A step of other heights (150, 540, 150).

    It begins at 401–406 s, so that its phase relative to the scrapes differs by seed.
    """
    rng = np.random.default_rng((seed, 103))
    begin = 401 + int(rng.integers(0, 6))
    return [540.0 if begin <= t < begin + 450 else 150.0 for t in range(SECONDS)]


def flat(seed: int) -> Rates:
    """350 all the time: what changes is the service time, or the machine."""
    del seed
    return [350.0] * SECONDS


def pareto(seed: int) -> Rates:
    """Self-similar bursts of 60 sources with 11 requests/s each.

    Sources are on for Pareto times (shape 1.4, at least 8 s) and off likewise (at least 10 s). Sums
    of such on/off sources are the textbook model of traffic that is bursty on all time scales.
    """
    rng = np.random.default_rng((seed, 104))
    rates = np.full(SECONDS, 20.0)
    for _ in range(60):
        at = -float(rng.uniform(0, 60))
        on = bool(rng.integers(0, 2))
        while at < SECONDS:
            length = (8.0 if on else 10.0) * (1 + float(rng.pareto(1.4)))
            if on:
                rates[max(0, int(at)) : max(0, int(at + length))] += 11.0
            at, on = at + length, not on
    return [float(rate) for rate in rates]


def double(seed: int) -> Rates:
    """Two waves with periods of 700 s and 170 s, and a phase that depends on the seed.

    The load rises and falls within the stabilization window.
    """
    phase = float(np.random.default_rng((seed, 105)).uniform(0, 2 * math.pi))
    return [
        300 + 170 * math.sin(2 * math.pi * t / 700 + phase) + 90 * math.sin(2 * math.pi * t / 170)
        for t in range(SECONDS)
    ]


CHOSEN: Mapping[str, Callable[[int], Rates]] = {
    "step": step,
    "ramp": ramp,
    "sine": sine,
    "burst": burst,
    "noise": noisy,
}
HELD_OUT: Mapping[str, Callable[[int], Rates]] = {
    "shifted": shifted,
    "pareto": pareto,
    "double": double,
}


def arrivals(rates: Rates, seed: int) -> list[list[float]]:
    """Poisson arrivals of each second, in order, absolute seconds."""
    rng = np.random.default_rng((seed, 7))
    counts = rng.poisson(rates)
    return [(t + np.sort(rng.random(int(count)))).tolist() for t, count in enumerate(counts)]


def oracle(
    rates: Rates,
    service: list[float],
    *,
    pods: int = 1,
    most: int | None = None,
    load: float = 0.8,
    block: int = 30,
) -> list[int]:
    """Return the instances in all pods that an oracle runs, for each second.

    For each block of 30 s, it is the lowest count that the mean load of the block keeps at most
    80 % busy.

    Args:
        rates: Requests per second, for each second.
        service: Seconds per request, for each second.
        pods: Number of pods.
        most: The most instances per pod.
        load: The highest busy share of an instance.
        block: Length of a block in seconds.
    """
    result: list[int] = []
    for begin in range(0, len(rates), block):
        part = [
            rate * seconds
            for rate, seconds in zip(
                rates[begin : begin + block], service[begin : begin + block], strict=True
            )
        ]
        each = max(1, math.ceil(sum(part) / len(part) / load / pods - 1e-9))
        result += [pods * (min(each, most) if most is not None else each)] * len(part)
    return result
