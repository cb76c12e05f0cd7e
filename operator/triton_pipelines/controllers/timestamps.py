"""Times as the API server writes them (RFC 3339, whole seconds, UTC), both ways. Pure."""

from __future__ import annotations

import datetime as dt


def rfc3339(now: dt.datetime) -> str:
    """A time as the API server writes it."""
    return now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp(text: str | None) -> dt.datetime | None:
    """A time that the API server wrote; ``None`` where there is none. Raises ValueError for anything else."""
    return dt.datetime.fromisoformat(text) if text else None


def moment(text: str) -> dt.datetime | None:
    """A time out of a ConfigMap that anybody may have edited; ``None`` for what is none, or does not say its zone."""
    try:
        found = timestamp(text)
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None
