"""Format and parse times as the API server does (RFC 3339, whole seconds, UTC). No I/O."""

from __future__ import annotations

import datetime as dt
from typing import Final

# Sums with times outside of these years may exceed what datetime can hold.
_YEARS: Final = range(1970, 9000)


def rfc3339(now: dt.datetime) -> str:
    """Return a time as the API server formats it."""
    return now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp(text: str | None) -> dt.datetime | None:
    """Return a time that the API server formatted; ``None`` for None or "".

    Raises:
        ValueError: The text is not a time.
    """
    return dt.datetime.fromisoformat(text) if text else None


def moment(text: str) -> dt.datetime | None:
    """Return a time from a ConfigMap or from metadata, which anyone may have edited.

    ``None`` if it is not a time, has no time zone, or is centuries away.
    """
    try:
        found = timestamp(text)
    except ValueError:
        return None
    is_usable = found is not None and found.tzinfo is not None and found.year in _YEARS
    return found if is_usable else None
