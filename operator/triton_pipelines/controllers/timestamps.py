"""Format and parse times as the API server does (RFC 3339, whole seconds, UTC). No I/O."""

from __future__ import annotations

import datetime as dt


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
    """Return a time from a ConfigMap, which anyone may have edited.

    ``None`` if it is not a time, or has no time zone.
    """
    try:
        found = timestamp(text)
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None
