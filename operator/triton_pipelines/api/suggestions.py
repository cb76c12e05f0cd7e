"""Names that were probably meant by ones that nothing has."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# How alike two names have to be (difflib's ratio) to be taken for one another: a letter or two of a
# short name.
_ALIKE = 0.75


def plain(name: str) -> str:
    """A name without case and separators, so that ``max_length``, ``max-length`` and ``maxLength`` are one."""
    return re.sub(r"[-_ ]", "", name).lower()


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` names that was probably meant, if one is alike enough."""
    spelt = {plain(one): one for one in reversed(list(known))}
    found = difflib.get_close_matches(plain(name), spelt, n=1, cutoff=_ALIKE)
    return spelt[found[0]] if found else None


def did_you_mean(
    name: str, known: Iterable[str], *, before: str = "", after: str = "", quoted: bool = False
) -> str:
    """The end of a message about an unknown ``name``.

    The one that was probably meant, with what stands ``before`` and ``after`` it; or nothing.
    """
    near = nearest(name, known)
    if near is None:
        return ""
    meant = f"{before}{near}{after}"
    return f"; did you mean {meant!r}?" if quoted else f"; did you mean {meant}?"
