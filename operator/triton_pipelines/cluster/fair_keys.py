"""Due keys in the order in which they run: round robin over namespaces, oldest first in each."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

Key = tuple[str, str]
"""Namespace and name of a pipeline."""


@dataclass(slots=True)
class FairKeys:
    """A set of keys with the time since when each is due.

    A namespace with many due keys delays the others by at most one key per turn.
    """

    _by_namespace: dict[str, dict[Key, float]] = field(default_factory=dict, init=False)
    """Due keys by namespace; the next namespace is the first."""

    def __len__(self) -> int:
        return sum(map(len, self._by_namespace.values()))

    def __contains__(self, key: Key) -> bool:
        return key in self._by_namespace.get(key[0], ())

    def add(self, key: Key, since: float) -> None:
        """Add a key at the end of its namespace, unless it is due already."""
        self._by_namespace.setdefault(key[0], {}).setdefault(key, since)

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
        keys = self._by_namespace.pop(namespace)
        key = next(iter(keys))
        since = keys.pop(key)
        if keys:
            self._by_namespace[namespace] = keys
        return key, since

    def times(self) -> Iterator[float]:
        """Yield the times since when the keys are due."""
        for keys in self._by_namespace.values():
            yield from keys.values()
