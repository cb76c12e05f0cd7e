"""A workload under a load in phases, with its loop: one run and what it was worth."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from bench.closedloop import Place, place
from bench.responses import Phase, Response, p99_by_second, responded
from e2e.load.bins import Second
from e2e.load.workloads import Workload

WARM_SECONDS = 15.0
"""Before the measurement, at the first rate: a process that has just started knows no service
times.
"""


@dataclass(frozen=True)
class Played:
    """A run, second by second, its response and the p99 of each second (s)."""

    seconds: Sequence[Second]
    response: Response
    p99: Sequence[float | None]
    errors: Counter[str]
    """How many requests failed with each error text."""


async def play(
    workload: Workload,
    phases: Sequence[Phase],
    source: str | None,
    baseline: Callable[[Place], Coroutine[Any, Any, None]] | None = None,
    during: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> Played:
    """Serve the workload, warm it up at the first rate, put the phases on it.

    ``source`` and ``baseline`` as for :func:`bench.closedloop.place`; ``during`` makes a context
    that is entered for each phase.
    """
    async with place(workload, source, baseline=baseline) as made:
        await made.during(WARM_SECONDS, phases[0].rate)
        first, began = len(made.seconds), time.monotonic()
        for phase in phases:
            with during():
                await made.during(phase.seconds, phase.rate)
        answers = [answer for answer in await made.answers() if answer.due >= began]
        seconds = made.seconds[first:]
    response = responded(
        seconds, answers, phases, began=began, slo=workload.slo, service=workload.service
    )
    return Played(
        seconds,
        response,
        p99_by_second(answers, began, int(sum(phase.seconds for phase in phases))),
        Counter(answer.error for answer in answers if answer.error),
    )
