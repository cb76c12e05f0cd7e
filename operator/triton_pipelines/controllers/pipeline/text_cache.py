"""Cache the parsed texts of ConfigMaps. Anyone may edit them, so their total size is limited."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

T = TypeVar("T")


# What each entry costs in addition to its text, as a number of characters.
_ENTRY_CHARACTERS: Final = 100


@dataclass(slots=True)
class TextCache(Generic[T]):
    """The results for the texts that were used last. They are shared, and must not be changed.

    Threads may use one cache; a text that two of them need at the same time is parsed twice.
    """

    parse: Callable[[str | None], T]
    """Returns the result for a text."""
    characters_max: int
    """Total length of the texts that are kept. Parsed JSON may take 25 times as much memory as its
    text."""
    _results: dict[str | None, T] = field(default_factory=dict)
    """Results by text, the one that was used last at the end."""
    _characters: int = 0

    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, text: str | None) -> T:
        """Return the result for a text."""
        with self._lock:
            if text in self._results:
                result = self._results[text] = self._results.pop(text)
                return result
        result = self.parse(text)
        with self._lock:
            self._keep(text, result)
        return result

    def _keep(self, text: str | None, result: T) -> None:
        if text not in self._results:
            self._characters += _cost(text)
        self._results[text] = result
        while self._characters > self.characters_max:
            oldest = next(iter(self._results))
            del self._results[oldest]
            self._characters -= _cost(oldest)


def _cost(text: str | None) -> int:
    return _ENTRY_CHARACTERS + len(text or "")
