"""Share equal parts of cached objects, so that each is in memory once.

The revisions of most pipelines contain the same large files, and the API server records the same
fields in ``managedFields`` of the same kinds of objects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from triton_pipelines.cluster.client import Object

# Shorter texts are not shared: most of them differ.
_TEXT_CHARACTERS_MIN: Final = 1024
# Maximum numbers of shared values. With more, sharing starts anew; objects keep what they have.
_TEXTS_MAX: Final = 256
_FIELDS_MAX: Final = 20_000


@dataclass(slots=True)
class SharedValues:
    """Values that cached objects share. They must not be changed."""

    _texts: dict[str, str] = field(default_factory=dict)
    _fields: dict[tuple[tuple[str, int], ...], Object] = field(default_factory=dict)
    """Maps by their keys and the identities of their shared values."""

    def share(self, obj: Object) -> None:
        """Replace an object's large texts and its ``managedFields`` by equal ones of others."""
        if len(self._texts) >= _TEXTS_MAX:
            self._texts.clear()
        if len(self._fields) >= _FIELDS_MAX:
            self._fields.clear()
        data = obj.get("data")
        if isinstance(data, dict):
            for key, value in data.items():
                if isinstance(value, str) and len(value) >= _TEXT_CHARACTERS_MIN:
                    data[key] = self._texts.setdefault(value, value)
        for entry in obj["metadata"].get("managedFields") or ():
            if isinstance(fields := entry.get("fieldsV1"), dict):
                entry["fieldsV1"] = self._shared(fields)

    def _shared(self, fields: Object) -> Object:
        found: dict[str, Any] = {
            key: self._shared(value) if isinstance(value, dict) else value
            for key, value in fields.items()
        }
        if not all(isinstance(value, dict) for value in found.values()):
            return found  # Not a set of fields.
        return self._fields.setdefault(
            tuple((key, id(value)) for key, value in found.items()), found
        )
