"""A query for the pods of one or more namespaces. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto

from .queries import PodGroup, pod_groups
from .scrape_history import PodKey


class QueryKind(Enum):
    """What is queried."""

    COUNTERS = auto()
    """Triton's counters."""
    USAGE = auto()
    """CPU, memory and GPU usage."""
    TARGETS = auto()
    """Whether the last scrape of each pod worked."""


@dataclass(frozen=True, slots=True)
class NamespaceQuery:
    """One query and the pods that it covers."""

    kind: QueryKind
    group: PodGroup
    """Namespaces, pods and models that the query selects."""
    pods: frozenset[PodKey]
    """The pods whose series are expected in the result."""
    seconds: float = 0.0
    """How far back the query reaches."""

    def halves(self) -> tuple[NamespaceQuery, ...]:
        """Return two queries for half of the namespaces each; none for a single namespace."""
        names = self.group.namespaces
        middle = len(names) // 2
        return (self.within(names[:middle]), self.within(names[middle:])) if middle else ()

    def within(self, namespaces: Collection[str]) -> NamespaceQuery:
        """Return the same query for some of its namespaces."""
        pods = frozenset(pod for pod in self.pods if pod[0] in namespaces)
        names = tuple(sorted({name for _, name in pods})) if self.group.pods else ()
        group = replace(self.group, namespaces=tuple(sorted(namespaces)), pods=names)
        return replace(self, group=group, pods=pods)


def namespace_queries(
    kind: QueryKind, pods: Iterable[PodKey], models: Iterable[str] = (), seconds: float = 0.0
) -> tuple[NamespaceQuery, ...]:
    """Return as few queries as possible that cover the pods.

    Args:
        kind: What is queried.
        pods: The pods.
        models: The models that are queried; empty for all models.
        seconds: How far back the queries reach.
    """
    chosen = set(pods)
    return tuple(
        NamespaceQuery(
            kind,
            group,
            frozenset(pod for pod in chosen if pod[0] in set(group.namespaces)),
            seconds,
        )
        for group in pod_groups(chosen, models)
    )
