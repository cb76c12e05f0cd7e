"""Report unexpected errors of a loop: all are counted, and few are logged.

A loop handles each pipeline on its own, so that the error of one does not affect others. What fails
in one round usually fails in every round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import structlog
from prometheus_client import Counter

from triton_pipelines.cluster.store import Key

NO_PIPELINE: Final[Key] = ("", "")
"""Key of an error that concerns a whole round."""
# An error whose message differs from the last one is logged no sooner than this (seconds) after it.
LOG_SECONDS: Final = 60.0
_TEXT_MAX: Final = 1000

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class FailureLog:
    """Counts and logs unexpected errors: a bug, or what a pod or an edited object caused."""

    event: str
    """What failed, as the text of log lines."""
    counter: Counter
    """Labels: namespace and name of the pipeline, and the kind of failure."""
    monotonic: Callable[[], float] = time.monotonic
    """Returns the current time in seconds."""
    _logged: dict[tuple[Key, str], tuple[str, float]] = field(default_factory=dict)
    """Last logged message and its time, by pipeline and kind of failure."""

    @property
    def pipelines(self) -> set[Key]:
        """Return the pipelines whose errors were logged."""
        return {key for key, _ in self._logged if key != NO_PIPELINE}

    async def report(self, key: Key, kind: str, error: BaseException) -> None:
        """Count an error, and log it unless it recurs or another was just logged."""
        self.counter.labels(*key, kind).inc()
        message, now = f"{type(error).__name__}: {error}"[:_TEXT_MAX], self.monotonic()
        last, at = self._logged.get((key, kind), ("", now - LOG_SECONDS))
        if message == last or now - at < LOG_SECONDS:
            return  # the counter shows it
        self._logged[key, kind] = (message, now)
        await _log.aerror(
            self.event,
            namespace=key[0],
            pipeline=key[1],
            kind=kind,
            error=str(error)[:_TEXT_MAX],
            exc_info=error,
        )

    def keep(self, pipelines: Collection[Key]) -> None:
        """Forget all other pipelines."""
        for key in self.pipelines - set(pipelines):
            self.forget(key)

    def forget(self, key: Key) -> bool:
        """Forget a pipeline with its series; return whether there was anything."""
        known = [where for where in self._logged if where[0] == key]
        for where in known:
            del self._logged[where]
        if known:
            self.counter.remove_by_labels({"namespace": key[0], "pipeline": key[1]})
        return bool(known)
