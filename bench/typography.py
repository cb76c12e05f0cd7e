"""Typography of the pages: "26%" and "1,000", also in texts that results recorded otherwise."""

from __future__ import annotations

import re

_PERCENT = re.compile(r"(?<=\d) %")
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?: \d{3})+(?!\w|\.\d)")


def typeset(text: str) -> str:
    """Return the text without spaces before percent signs, and with commas in thousands."""
    text = _THOUSANDS.sub(lambda match: match[0].replace(" ", ","), text)
    return _PERCENT.sub("%", text)


def measured(value: str, spread: tuple[str, str], unit: str) -> str:
    """Return a median with its least and most value, if these differ, and their unit."""
    low, high = spread
    sign, _, rest = unit.partition(" ")
    if sign in ("%", "percent"):
        value, low, high, unit = f"{value}%", f"{low}%", f"{high}%", rest
    return f"{value}{'' if low == high else f' ({low} to {high})'} {unit}".rstrip()
