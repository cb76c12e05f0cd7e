"""Counts and enumerations in messages."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return a number and its noun.

    Args:
        number: What is counted.
        singular: The words after 1, for example ``pod is``.
        plural: The words after any other number; by default ``singular`` with an s.
    """
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def listed(words: Sequence[str]) -> str:
    """Return an enumeration: ``a``, ``a and b``, ``a, b and c``; empty for no words."""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)
