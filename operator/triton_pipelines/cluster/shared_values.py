"""Share equal parts of cached objects, so that each is in memory once.

Each decoded object has its own copies of its strings, although most keys and many values, such as
names and labels, are those of other objects too. The revisions of most pipelines contain the same
large files, and the API server records the same fields in ``managedFields`` of the same kinds of
objects.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Final

from triton_pipelines.cluster.client import Object

# Keys, names and labels are at most this long, files at least. What is in between is not shared.
_STRING_CHARACTERS_MAX: Final = 128
_TEXT_CHARACTERS_MIN: Final = 1024
# Maximum number of short strings. With more, sharing starts anew.
_STRINGS_MAX: Final = 20_000
# Approximate memory that the shared values may take. With more, sharing starts anew; objects keep
# what they have. Each edit of an object may bring up to 20 MB of other values.
_BYTES_MAX: Final = 32 * 1024**2
# Memory per key of a map: the key itself, and its part of the key in the cache.
_KEY_BYTES: Final = 150
_EMPTY: Final[Object] = {}


@dataclass(slots=True)
class SharedValues:
    """Values that cached objects share. They must not be changed."""

    _strings: dict[str, str] = field(default_factory=dict)
    """Keys and short values."""
    _texts: dict[str, str] = field(default_factory=dict)
    _fields: dict[tuple[tuple[str, int], ...], Object] = field(default_factory=dict)
    """Maps by their keys and the identities of their shared values."""
    _bytes: int = 0
    """Memory that they take, about."""

    def share(self, obj: Object) -> Object:
        """Return an equal object with the strings and ``managedFields`` of others."""
        shared: Object = self._value("", obj)
        if self._bytes > _BYTES_MAX:
            self._texts.clear()
            self._fields.clear()
            self._bytes = 0
        if len(self._strings) > _STRINGS_MAX:
            self._strings.clear()
        return shared

    def _value(self, key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return self._shared(value) if key == "fieldsV1" else self._copy(value)
        if isinstance(value, list):
            return [self._value("", item) for item in value]
        return self._string(value) if isinstance(value, str) else value

    def _copy(self, values: Object) -> Object:
        # Most keys and values are known short strings. To look them up here takes half the time.
        known = self._strings
        copy: Object = {}
        for key, value in values.items():
            if type(value) is str:
                kept = known.get(value) or self._string(value)
            else:
                kept = self._value(key, value)
            copy[known.get(key) or self._string(key)] = kept
        return copy

    def _string(self, value: str) -> str:
        if type(value) is not str:
            return value  # A member of an enumeration is equal to a string, and not one.
        if len(value) >= _TEXT_CHARACTERS_MIN:
            return self._shared_text(value)
        if len(value) > _STRING_CHARACTERS_MAX:
            return value
        return self._strings.setdefault(value, value)

    def _shared_text(self, text: str) -> str:
        if (found := self._texts.get(text)) is None:
            found = self._texts[text] = text
            self._bytes += sys.getsizeof(text)
        return found

    def _shared(self, fields: Object) -> Object:
        known = self._strings
        own: Object = {}
        for key, value in fields.items():
            own[known.get(key) or self._string(key)] = (
                value
                if not isinstance(value, dict)
                else self._shared(value)
                if value
                else _EMPTY  # That of most fields.
            )
        if not all(isinstance(value, dict) for value in own.values()):
            return own  # Not a set of fields.
        identity = tuple((name, id(value)) for name, value in own.items())
        if (found := self._fields.get(identity)) is None:
            found = self._fields[identity] = own
            self._bytes += sys.getsizeof(own) + sum(_KEY_BYTES + len(name) for name in own)
        return found
