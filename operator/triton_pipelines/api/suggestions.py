"""Suggest the known name that was probably meant by an unknown one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# Similarity (difflib's ratio) from which one name counts as a misspelling of another: one or two
# letters of a short name may differ.
_ALIKE = 0.75


def plain(name: str) -> str:
    """Return a name without case and separators, such as ``maxlength`` for ``max_length``."""
    return re.sub(r"[-_ ]", "", name).lower()


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` names that was probably meant, if one is similar enough."""
    spelt = {plain(one): one for one in reversed(list(known))}
    found = difflib.get_close_matches(plain(name), spelt, n=1, cutoff=_ALIKE)
    return spelt[found[0]] if found else None


def did_you_mean(
    name: str, known: Iterable[str], *, before: str = "", after: str = "", quoted: bool = False
) -> str:
    """Return a suggestion to append to a message about an unknown name.

    Args:
        name: The unknown name.
        known: Names that are allowed.
        before: Text to put in front of the suggested name.
        after: Text to put behind the suggested name.
        quoted: Whether to quote the suggestion.

    Returns:
        The suggestion; empty if no known name is similar enough.
    """
    near = nearest(name, known)
    if near is None:
        return ""
    meant = f"{before}{near}{after}"
    return f"; did you mean {meant!r}?" if quoted else f"; did you mean {meant}?"
