"""Retry an action with exponential back-off and jitter, a bounded number of times."""

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
    """How often and how far apart a source is tried."""

    attempts: int = 6
    """Attempts in a row that bring no new bytes."""
    limit: int = 60
    """Attempts in total, so that a server that cuts every connection early cannot hold the pod."""
    first_delay: float = 1.0
    """Seconds before the second attempt."""
    factor: float = 2.0
    """Growth of the delay from one failure in a row to the next."""
    longest_delay: float = 30.0
    """Maximum seconds between two attempts."""

    def delay(self, failures: int, draw: float, retry_after: float | None = None) -> float:
        """Return the seconds to wait after a failure.

        Equal jitter: half of the delay is fixed and half is random, so that the pods of one rollout
        spread out and none retries at once.

        Args:
            failures: failures in a row, from 1.
            draw: random number in [0, 1).
            retry_after: seconds from the server's ``Retry-After``; a lower bound, itself bounded by
                twice ``longest_delay``.
        """
        # The exponent is capped: a float overflows long before anyone waits that often.
        exponent = min(failures - 1, 30)
        whole = min(self.longest_delay, self.first_delay * self.factor**exponent)
        wait = whole / 2 + draw * whole / 2
        if retry_after is None:
            return wait
        return max(wait, min(retry_after, 2 * self.longest_delay))


@dataclass
class Retrier:
    """Run actions under a :class:`RetryPolicy`."""

    log: logging.Logger
    """Where failed attempts are logged."""
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    """How often and how far apart."""
    sleep: Callable[[float], None] = time.sleep
    """Waits a number of seconds; tests replace it."""
    draw: Callable[[], float] = random.random
    """Returns a random number in [0, 1); tests replace it."""

    def run(self, what: str, action: Callable[[], T]) -> T:
        """Return the result of ``action``.

        Args:
            what: start of every log line, such as field and URI.
            action: what is tried.

        Raises:
            SourceError: the last one of ``action``, if it is final or the attempts are used up.
        """
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
