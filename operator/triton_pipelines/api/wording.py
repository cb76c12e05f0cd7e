"""Counts, enumerations, numbered lists and shortened texts in messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# The subject of Pydantic's messages: the field's path says more.
_SHOULD: Final = re.compile(r"^(?:Input|String|Tuple|List|Dictionary) should ")
_PYDANTIC: Final = {
    "Extra inputs are not permitted": "unknown field",
    "Field required": "required",
}


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return a number and its noun.

    Args:
        number: What is counted.
        singular: The words after 1, for example ``pod is``.
        plural: The words after any other number; by default ``singular`` with an s.
    """
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def validation_message(message: str) -> str:
    """Return a message of Pydantic in the form of the other messages, to follow a field's path."""
    text = message.removeprefix("Value error, ").replace(" after validation", "")
    return _PYDANTIC.get(text, _SHOULD.sub("must ", text))


def listed(words: Sequence[str], conjunction: str = "and") -> str:
    """Return an enumeration: ``a``, ``a and b``, ``a, b and c``; empty for no words."""
    return f" {conjunction} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def first_of(words: Sequence[str], most: int) -> str:
    """Return ``a, b, c``, and after the first ``most`` words how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def truncate(text: str, most: int) -> str:
    """Return the text in at most ``most`` characters, ending in "…" where it was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def numbered(texts: Sequence[str]) -> str:
    """Return the texts as ``(1) a; (2) b``; a single text without its number."""
    if len(texts) == 1:
        return texts[0]
    return "; ".join(f"({index}) {text}" for index, text in enumerate(texts, 1))
