"""Arrival times of an open loop. Pure: the same seed gives the same times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from triton_pipelines.tools.loadgen.load_spec import Arrivals, LoadSpec

_CHUNK = 4096


def due_times(spec: LoadSpec) -> Iterator[float]:
    """Yield the seconds since the begin at which requests are due.

    Only a schedule has an end. Poisson: independent exponential intervals with mean 1/rate.
    Constant: intervals of exactly 1/rate, the first request at 0.
    """
    if len(spec.schedule):
        yield from map(float, spec.schedule)
        return
    if spec.arrivals is Arrivals.CONSTANT:
        number = 0
        while True:
            yield number / spec.rate
            number += 1
    random = np.random.default_rng(spec.seed)
    at = 0.0
    while True:
        times = at + np.cumsum(random.exponential(1 / spec.rate, _CHUNK))
        at = float(times[-1])
        yield from times.tolist()
