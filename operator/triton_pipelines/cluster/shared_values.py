"""Share equal parts of cached objects, so that each is in memory once.

Each decoded object has its own copies of all its strings, although most keys, and most values such
as names and labels, are those of other objects too. The revisions of most pipelines contain the
same large files, and the API server records the same fields in ``managedFields`` of the same kinds
of objects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

# Longer texts are files.
_STRING_CHARACTERS_MAX: Final = 1024
# Maximum numbers of shared values. With more, sharing starts anew; objects keep what they have.
_STRINGS_MAX: Final = 20_000
_TEXTS_MAX: Final = 256
_FIELDS_MAX: Final = 20_000


@dataclass(slots=True)
class SharedValues:
    """Values that cached objects share. They must not be changed."""

    _strings: dict[str, str] = field(default_factory=dict)
    """Keys and short values."""
    _texts: dict[str, str] = field(default_factory=dict)
    _fields: dict[tuple[tuple[str, int], ...], dict[str, Any]] = field(default_factory=dict)
    """Maps by their keys and the identities of their shared values."""

    def share(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an equal object whose strings and ``managedFields`` are those of others."""
        if len(self._texts) >= _TEXTS_MAX:
            self._texts.clear()
        if len(self._strings) >= _STRINGS_MAX:
            self._strings.clear()
        if len(self._fields) >= _FIELDS_MAX:
            self._fields.clear()
        return {self._string(key): self._value(key, value) for key, value in obj.items()}

    def _value(self, key: str, value: Any) -> Any:
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, dict):
            if key == "fieldsV1":
                return self._shared(value)
            return {self._string(name): self._value(name, item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._value("", item) for item in value]
        return value

    def _string(self, value: str) -> str:
        if type(value) is not str:
            return value  # A member of an enumeration is equal to a string, and not one.
        shared = self._strings if len(value) <= _STRING_CHARACTERS_MAX else self._texts
        return shared.setdefault(value, value)

    def _shared(self, fields: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {
            self._string(key): self._shared(value) if isinstance(value, dict) else value
            for key, value in fields.items()
        }
        if not all(isinstance(value, dict) for value in found.values()):
            return found  # Not a set of fields.
        return self._fields.setdefault(
            tuple((key, id(value)) for key, value in found.items()), found
        )
