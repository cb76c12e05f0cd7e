"""The newest scrapes of every pod, a bounded number of seconds back. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from .samples import PodUsage, Scrape

# Kept in addition to the slow window: a scrape before it, and slack for a late one.
SLACK_SECONDS: Final = 15.0
# Enough for a pod that is scraped every second, over a window of an hour.
SCRAPES_MAX: Final = 4096
# Number of recent gaps between scrapes from which the interval is inferred.
GAPS: Final = 5
# A longer gap is an outage and not an interval: series vanish from queries after five minutes, so
# scrape intervals are never longer than this.
GAP_SECONDS_MAX: Final = 120.0

PodKey = tuple[str, str]
"""Namespace and name of a pod."""


class ScrapeHistories:
    """Ring buffers of scrapes by pod."""

    def __init__(self) -> None:
        self._scrapes: dict[PodKey, deque[Scrape]] = {}
        self._usage: dict[PodKey, PodUsage] = {}

    def add(self, pod: PodKey, scrape: Scrape, window: float, gap: float = 0.0) -> bool:
        """Add a scrape if it is newer than the last; return whether it was.

        Args:
            pod: The pod.
            scrape: The scrape.
            window: Scrapes that are more seconds older than this one are discarded.
            gap: Least seconds by which it has to be newer.
        """
        known = self._scrapes.setdefault(pod, deque(maxlen=SCRAPES_MAX))
        if known and (scrape.at <= known[-1].at or scrape.at - known[-1].at < gap):
            return False
        known.append(scrape)
        while len(known) > 2 and scrape.at - known[1].at >= window + SLACK_SECONDS:
            known.popleft()
        return True

    def use(self, pod: PodKey, usage: PodUsage) -> None:
        """Remember the pod's newest usage."""
        self._usage[pod] = usage

    def scrapes(self, pod: PodKey) -> tuple[Scrape, ...]:
        """Return the pod's scrapes, oldest first."""
        return tuple(self._scrapes.get(pod, ()))

    def usage(self, pod: PodKey) -> PodUsage | None:
        """Return the pod's newest usage; ``None`` if it is unknown."""
        return self._usage.get(pod)

    def forget(self, pod: PodKey) -> None:
        """Forget the pod's scrapes, for example after the server's clock was set back."""
        self._scrapes.pop(pod, None)

    def keep(self, pods: Iterable[PodKey]) -> None:
        """Forget all pods except these."""
        expected = set(pods)
        for gone in set(self._scrapes) - expected:
            del self._scrapes[gone]
        for gone in set(self._usage) - expected:
            del self._usage[gone]

    def interval(self, pods: Iterable[PodKey], otherwise: float) -> float:
        """Return the observed seconds between scrapes; ``otherwise`` if none are known.

        It is the median over the pods of each pod's recent gap.
        """
        gaps = sorted(gap for pod in pods if (gap := self.gap(pod)) is not None)
        return gaps[len(gaps) // 2] if gaps else otherwise

    def gap(self, pod: PodKey) -> float | None:
        """Return the seconds between the pod's scrapes; ``None`` if unknown.

        It is the lower median of the last few gaps, so that one missed scrape has no effect.
        """
        known = self._scrapes.get(pod, ())
        last = len(known) - 1
        gaps = sorted(
            gap
            for index in range(last, max(0, last - GAPS), -1)
            if (gap := known[index].at - known[index - 1].at) <= GAP_SECONDS_MAX
        )
        return gaps[(len(gaps) - 1) // 2] if gaps else None
