"""Due keys in the order in which they run.

Round robin over namespaces; in each, urgent keys first, then the oldest.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

Key = tuple[str, str]
"""Namespace and name of a pipeline."""


@dataclass(slots=True)
class FairKeys:
    """A set of keys with the time since when each is due.

    A namespace with many due keys delays the others by at most one key per turn.
    """

    _by_namespace: dict[str, _DueKeys] = field(default_factory=dict, init=False)
    """Due keys by namespace; the next namespace is the first."""

    def __len__(self) -> int:
        return sum(map(len, self._by_namespace.values()))

    def __contains__(self, key: Key) -> bool:
        due = self._by_namespace.get(key[0])
        return due is not None and (key in due.urgent or key in due.others)

    def add(self, key: Key, since: float, *, urgent: bool = False) -> None:
        """Add a key at the end of its namespace, or of the urgent keys there.

        A key that is due already keeps its time, and its place unless it becomes urgent.
        """
        due = self._by_namespace.setdefault(key[0], _DueKeys())
        if urgent:
            due.urgent.setdefault(key, due.others.pop(key, since))
        elif key not in due.urgent:
            due.others.setdefault(key, since)

    def pop(self, full: Container[str] = ()) -> tuple[Key, float] | None:
        """Remove and return the next key; the other namespaces come before its next one.

        Args:
            full: namespaces whose keys have to wait.

        Returns:
            ``None`` if no key of another namespace is due.
        """
        namespace = next((name for name in self._by_namespace if name not in full), None)
        if namespace is None:
            return None
        due = self._by_namespace.pop(namespace)
        keys = due.urgent or due.others
        key = next(iter(keys))
        since = keys.pop(key)
        if due:
            self._by_namespace[namespace] = due
        return key, since


@dataclass(slots=True)
class _DueKeys:
    """Due keys of one namespace with the time since when, in the order in which they run."""

    urgent: dict[Key, float] = field(default_factory=dict)
    others: dict[Key, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.urgent) + len(self.others)
