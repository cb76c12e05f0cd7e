"""Who else writes what has one owner: field managers that are mended once, those that mean it, and those that take turns. Pure; the clock is
passed in.

One rule for the number of pods (replicas.py) and for their CPU (cpuowner.py). What another manager writes is mended once; who writes again within
minutes means it, and it is left to them. Of several who take turns each is mended once, and all are named.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from triton_pipelines.controllers.timestamps import moment

# A manager that writes again so soon after it was mended is no person who slipped.
MENDED_FOR: Final = dt.timedelta(minutes=10)
# Between the names of managers, as remembered and as told; and of how many is told.
_AND: Final = " and "
MANAGERS_MAX: Final = 4
# So often a field has changed hands once each of two has overwritten the other and one of them came back.
_TURNS_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Writers:
    """Managers that write what is not theirs, as text (``names``), and when one of them was last ``mended`` (RFC 3339; "": it is left to them)."""

    names: str = ""
    mended: str = ""

    @property
    def several(self) -> bool:
        """Whether they are more than one."""
        return _AND in self.names

    @property
    def left(self) -> str:
        """Whom it is left to, "" nobody."""
        return "" if self.mended else self.names

    def recent(self, now: dt.datetime) -> bool:
        """Whether one of them was mended a short time ago."""
        return _recent(self.mended, now)

    def knows(self, manager: str, now: dt.datetime) -> bool:
        """Whether this manager was mended a short time ago, or so many were that it makes no difference who comes next."""
        known = _split(self.names)
        return self.recent(now) and (manager in known or len(known) >= MANAGERS_MAX)

    def insist(self, manager: str, at: dt.datetime | None, now: dt.datetime) -> bool:
        """Whether this manager means what it wrote ``at`` that time (``None``: unknown): it was mended before. To whom it is left, nobody
        writes against, whoever joins them.

        What was written before the mending is what was to be mended: to several pods at once, or where the operator was killed between the
        record and the deed.
        """
        mended = moment(self.mended)
        if mended is None:
            return bool(self.names)
        return self.knows(manager, now) and (at is None or at > mended)

    def left_to(self, manager: str) -> Writers:
        """It is left to them, this one among them. Without a time: who took it back later would start the same again."""
        return Writers(_join({*_split(self.names), manager}))

    def mending(self, manager: str, now: dt.datetime) -> Writers:
        """This one is mended now, beside those that were of late."""
        known = _split(self.names) if self.recent(now) else []
        return Writers(_join({*known, manager}), now.isoformat(timespec="seconds"))

    def rested(self, now: dt.datetime) -> Writers:
        """What is remembered where nothing deviates: of a mending for a while, of those that it was left to nothing."""
        return self if self.recent(now) else Writers()


@dataclass(frozen=True, slots=True)
class Turns:
    """Who write in turn what is nobody's here: the ``last`` writer, ``names`` of those in the present row, how ``often`` it changed hands in it,
    and when last (``at``, RFC 3339)."""

    last: str = ""
    names: str = ""
    often: int = 0
    at: str = ""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Turns:
        """Read it out of a memory that anybody may have edited; what is no such record is none."""
        last, names, often, at = (document.get(key) for key in cls.__slots__)
        if not (
            isinstance(last, str)
            and isinstance(names or "", str)
            and type(often or 0) is int
            and isinstance(at or "", str)
        ):
            return cls()
        return (
            cls(last, names or "", often or 0, at or "")
            if not at or moment(at) is not None
            else cls(last)
        )

    def document(self) -> dict[str, Any]:
        """For the memory, without what is empty."""
        return {key: value for key in self.__slots__ if (value := getattr(self, key))}

    def after(self, writer: str, now: dt.datetime) -> Turns:
        """With what is seen now: who has it (``writer``, "": nobody knows)."""
        row = self if _recent(self.at, now) else Turns(self.last)
        if not writer or writer == self.last:
            return row
        if not self.last:
            return Turns(writer)
        names = _join({*_split(row.names), self.last, writer})
        return Turns(writer, names, row.often + 1, now.isoformat(timespec="seconds"))

    def named(self, unknown: str, manager: str) -> Turns:
        """With the name of one that was ``unknown`` until now."""
        names = {manager if name == unknown else name for name in _split(self.names)}
        return Turns(
            manager if self.last == unknown else self.last, _join(names), self.often, self.at
        )

    @property
    def told(self) -> str:
        """Who take turns, where each has come back; "" nobody."""
        return self.names if self.often >= _TURNS_MIN else ""

    def until(self, now: dt.datetime) -> float | None:
        """Seconds until it is no longer told, unless somebody takes another turn; ``None``: it is not."""
        at = moment(self.at)
        return (at + MENDED_FOR - now).total_seconds() if self.told and at is not None else None


def _recent(at: str, now: dt.datetime) -> bool:
    then = moment(at)
    return then is not None and now - then < MENDED_FOR


def _split(names: str) -> list[str]:
    return [name for name in names.split(_AND) if name]


def _join(names: Iterable[str]) -> str:
    """In an order of their own, so that nothing is new when they take turns."""
    return _AND.join(sorted(names)[:MANAGERS_MAX])
