"""Bounded retries with exponential back-off and jitter."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from triton_pipelines.loader.errors import SourceError

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how far apart a source is tried.

    ``attempts`` counts tries in a row that brought nothing new; ``limit`` all tries, so that a server that cuts every
    connection after a few bytes does not hold the pod for ever. Delays are seconds.
    """

    attempts: int = 6
    limit: int = 60
    first_delay: float = 1.0
    factor: float = 2.0
    longest_delay: float = 30.0

    def delay(self, failures: int, draw: float, asked: float | None = None) -> float:
        """Seconds to wait after the ``failures``-th failure in a row (from 1).

        Equal jitter: half fixed, half by ``draw`` in [0, 1), so that pods of one rollout spread out and none hammers at once.
        ``asked`` (Retry-After) is a lower bound, itself bounded by twice ``longest_delay``.
        """
        # The exponent is capped: a float overflows long before anyone waits that often.
        whole = min(self.longest_delay, self.first_delay * self.factor ** min(failures - 1, 30))
        wait = whole / 2 + draw * whole / 2
        return wait if asked is None else max(wait, min(asked, 2 * self.longest_delay))


@dataclass
class Retrier:
    """Runs actions under a :class:`RetryPolicy`; clock and chance are passed in so that tests decide them."""

    log: logging.Logger
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random

    def run(self, what: str, action: Callable[[], T]) -> T:
        """The result of ``action``; its last :class:`SourceError` when it is final or the tries are used up."""
        failures = 0
        for attempt in range(1, self.policy.limit + 1):
            try:
                return action()
            except SourceError as error:
                failures = 1 if error.progress else failures + 1
                if not error.retryable:
                    raise
                if failures >= self.policy.attempts or attempt == self.policy.limit:
                    self.log.error("%s: attempt %d failed, giving up: %s", what, attempt, error)
                    raise
                wait = self.policy.delay(failures, self.draw(), error.retry_after)
                self.log.warning(
                    "%s: attempt %d failed, next in %.1f s: %s", what, attempt, wait, error
                )
                self.sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")
