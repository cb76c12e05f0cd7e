"""Share equal parts of cached objects, so that each is in memory once.

The revisions of most pipelines contain the same large files, and the API server records the same
fields in ``managedFields`` of the same kinds of objects.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Final

from triton_pipelines.cluster.client import Object

# Shorter texts are not shared: most of them differ.
_TEXT_CHARACTERS_MIN: Final = 1024
# Approximate memory that the shared values may take. With more, sharing starts anew; objects keep
# what they have. Each edit of an object may bring up to 20 MB of other values.
_BYTES_MAX: Final = 32 * 1024**2
# Memory per key of a map: the key itself, and its part of the key in the cache.
_KEY_BYTES: Final = 150


@dataclass(slots=True)
class SharedValues:
    """Values that cached objects share. They must not be changed."""

    _texts: dict[str, str] = field(default_factory=dict)
    _fields: dict[tuple[tuple[str, int], ...], Object] = field(default_factory=dict)
    """Maps by their keys and the identities of their shared values."""
    _bytes: int = 0
    """Memory that they take, about."""

    def share(self, obj: Object) -> None:
        """Replace an object's large texts and its ``managedFields`` by equal ones of others."""
        data = obj.get("data")
        if isinstance(data, dict):
            for key, value in data.items():
                if isinstance(value, str) and len(value) >= _TEXT_CHARACTERS_MIN:
                    data[key] = self._shared_text(value)
        for entry in obj["metadata"].get("managedFields") or ():
            if isinstance(fields := entry.get("fieldsV1"), dict):
                entry["fieldsV1"] = self._shared(fields)
        if self._bytes > _BYTES_MAX:
            self._texts.clear()
            self._fields.clear()
            self._bytes = 0

    def _shared_text(self, text: str) -> str:
        if (found := self._texts.get(text)) is None:
            found = self._texts[text] = text
            self._bytes += sys.getsizeof(text)
        return found

    def _shared(self, fields: Object) -> Object:
        own: dict[str, Any] = {
            key: self._shared(value) if isinstance(value, dict) else value
            for key, value in fields.items()
        }
        if not all(isinstance(value, dict) for value in own.values()):
            return own  # Not a set of fields.
        key = tuple((name, id(value)) for name, value in own.items())
        if (found := self._fields.get(key)) is None:
            found = self._fields[key] = own
            self._bytes += sys.getsizeof(own) + sum(_KEY_BYTES + len(name) for name in own)
        return found
