"""Remember namespaces whose queries took too long, and query them apart. Pure; the clock is passed.

A query that took too long may be slow because of any of its namespaces. In the next collections,
these namespaces are therefore queried in smaller and smaller batches, after all others. Namespaces
whose batch succeeds are common again. A namespace that is slow by itself is queried only now and
then, and alone for a while after that: it might be slow again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from .namespace_query import NamespaceQuery, QueryKind

RETRY_SECONDS: Final = 30.0
"""Seconds between two collections that query namespaces that are slow by themselves."""
KEPT_SECONDS: Final = 600.0
"""How long a namespace is queried apart after its last slow query."""


@dataclass(frozen=True, slots=True)
class _SlowQuery:
    """The last query of a namespace that took too long."""

    namespaces: int
    """How many namespaces it had."""
    at: float
    """When it was sent."""
    message: str
    """The error that is reported until the next query succeeds; then ""."""

    @property
    def is_known(self) -> bool:
        """Return whether a single namespace is slow, rather than one of several."""
        return self.namespaces == 1 and bool(self.message)


@dataclass(slots=True)
class DividedQueries:
    """The queries of a collection."""

    common: list[NamespaceQuery] = field(default_factory=list)
    """For namespaces that are not suspected to be slow."""
    apart: list[NamespaceQuery] = field(default_factory=list)
    """For the others; those that have waited longest first."""
    not_due: list[tuple[NamespaceQuery, str]] = field(default_factory=list)
    """For slow namespaces that are not queried yet, and why."""


class SlowNamespaces:
    """Slow namespaces of one connection, for each kind of query."""

    def __init__(self) -> None:
        self._slow: dict[tuple[QueryKind, str], _SlowQuery] = {}
        self._retry_at: dict[QueryKind, float] = {}

    def divide(self, queries: Iterable[NamespaceQuery], now: float) -> DividedQueries:
        """Return the queries with slow namespaces separated from the others."""
        self._slow = {key: one for key, one in self._slow.items() if one.at > now - KEPT_SECONDS}
        divided = DividedQueries()
        retried: set[QueryKind] = set()
        for query in queries:
            common: list[str] = []
            by_size: dict[int, list[str]] = {}
            names = query.group.namespaces
            for namespace in names:
                slow = self._slow.get((query.kind, namespace))
                if slow is None:
                    common.append(namespace)
                elif not slow.is_known:
                    by_size.setdefault(slow.namespaces, []).append(namespace)
                elif now >= self._retry_at.get(query.kind, now):
                    by_size.setdefault(1, []).append(namespace)
                    retried.add(query.kind)
                else:
                    divided.not_due.append((query.within((namespace,)), slow.message))
            if common:
                divided.common.append(query if len(common) == len(names) else query.within(common))
            for size, slow_names in by_size.items():
                step = (size + 1) // 2
                batches = (slow_names[at : at + step] for at in range(0, len(slow_names), step))
                divided.apart += [query.within(batch) for batch in batches]
        self._retry_at |= dict.fromkeys(retried, now + RETRY_SECONDS)
        divided.apart.sort(key=self._slow_at)
        return divided

    def _slow_at(self, query: NamespaceQuery) -> float:
        """Return when a namespace of a query was slow first."""
        return min(self._slow[query.kind, one].at for one in query.group.namespaces)

    def note_success(self, query: NamespaceQuery) -> None:
        """Trust the namespaces of a query again, unless one of them was slow by itself."""
        for namespace in query.group.namespaces:
            key = query.kind, namespace
            slow = self._slow.pop(key, None)
            if slow is not None and slow.namespaces == 1:
                self._slow[key] = replace(slow, message="")

    def note_timeout(
        self, query: NamespaceQuery, message: str, now: float, *, is_server: bool
    ) -> None:
        """Query the namespaces of a query apart.

        Args:
            query: The query that took too long.
            message: The error that is reported for these namespaces.
            now: When it was sent.
            is_server: Whether the server might be at fault, even if there is one namespace.
        """
        namespaces = query.group.namespaces
        slow = _SlowQuery(max(2 if is_server else 1, len(namespaces)), now, message)
        self._slow |= {(query.kind, namespace): slow for namespace in namespaces}
