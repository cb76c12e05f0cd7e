"""Base of the state of each policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class PolicyState:
    """State of one policy. Every field has an empty default, which is not written."""

    @classmethod
    def parse(cls, document: Any) -> Self:
        """Read a document. A field of another type, as after an edit by hand, counts as empty."""
        if not isinstance(document, Mapping):
            return cls()
        blank = cls()
        values = {
            item.name: document[item.name]
            for item in dataclasses.fields(cls)
            if type(document.get(item.name)) is type(getattr(blank, item.name))
        }
        return cls(**values)

    def to_document(self) -> dict[str, Any]:
        """Return the fields that are not empty."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value}
