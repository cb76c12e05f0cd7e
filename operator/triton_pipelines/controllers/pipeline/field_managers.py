"""Detect other controllers that write a field which has one owner. Pure; the clock is passed in.

One rule serves the number of pods (``replicas.py``) and their CPU (``cpu_resize.py``). A value that
another manager writes is corrected once. A manager that writes it again within minutes does so on
purpose, and the field is left to it. If several managers alternate, each is corrected once, and all
are reported. The status is never left to another manager: if one alternates with the operator,
corrections are delayed (``status_conflict.py``).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from triton_pipelines.api.wording import listed
from triton_pipelines.controllers.timestamps import moment

# A manager that writes again this soon after a correction is not a person who made a mistake.
CORRECTION_PERIOD: Final = dt.timedelta(minutes=10)
# The most names of managers that are kept.
MANAGERS_MAX: Final = 4
# Changes of hands after which two managers alternate: each has overwritten the other, and one of
# them has written again.
_CHANGES_MIN: Final = 3
# The longest delay (seconds) of a correction while managers alternate.
_DELAY_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class OtherManagers:
    """Managers that write a field that another owner has."""

    managers: tuple[str, ...] = ()
    """Their names, sorted."""
    corrected: str = ""
    """When one of them was last corrected (RFC 3339); empty if the field is left to them."""

    @property
    def has_several(self) -> bool:
        """Whether they are more than one."""
        return len(self.managers) > 1

    @property
    def names(self) -> str:
        """Their names, for people; empty without any."""
        return listed(self.managers)

    @property
    def owners(self) -> str:
        """Managers that the field is left to, for people; empty without any."""
        return "" if self.corrected else self.names

    def was_corrected_recently(self, now: dt.datetime) -> bool:
        """Return whether one of them was corrected recently."""
        return _is_recent(self.corrected, now)

    def was_corrected(self, manager: str, now: dt.datetime) -> bool:
        """Return whether this manager was corrected recently.

        Also true if so many were that it does not matter who writes next.
        """
        return self.was_corrected_recently(now) and (
            manager in self.managers or len(self.managers) >= MANAGERS_MAX
        )

    def keeps_writing(self, manager: str, at: dt.datetime | None, now: dt.datetime) -> bool:
        """Return whether this manager keeps writing the field: it was corrected before.

        A value written before the correction is what the correction was for: a manager may write
        several pods at once, and the operator may be killed between the record and the correction.
        Once the field is left to managers, it is left to any manager that joins them.

        Args:
            manager: The field manager.
            at: When it wrote; ``None`` if unknown.
            now: The current time.
        """
        corrected = moment(self.corrected)
        if corrected is None:
            return bool(self.managers)
        return self.was_corrected(manager, now) and (at is None or at > corrected)

    def with_owner(self, manager: str) -> OtherManagers:
        """Return the state in which the field is left to the known managers and this one.

        It has no time of a correction: taking the field back later would start the conflict again.
        """
        return OtherManagers(_kept({*self.managers, manager}))

    def with_correction(self, manager: str, now: dt.datetime) -> OtherManagers:
        """Return the state after correcting this manager now, in addition to recent ones."""
        known = self.managers if self.was_corrected_recently(now) else ()
        return OtherManagers(_kept({*known, manager}), now.isoformat(timespec="seconds"))

    def without_deviation(self, now: dt.datetime) -> OtherManagers:
        """Return the state to keep while no value deviates.

        A correction is remembered for a while; managers that the field was left to are forgotten.
        """
        return self if self.was_corrected_recently(now) else OtherManagers()

    def correction_ends_in(self, now: dt.datetime) -> float | None:
        """Return the seconds until the last correction is not recent any more; ``None`` if so."""
        return _ends_in(self.corrected, now)


@dataclass(frozen=True, slots=True)
class AlternatingManagers:
    """Managers that alternate in writing a field that has no owner here."""

    last: str = ""
    """The last one that wrote it."""
    managers: tuple[str, ...] = ()
    """All managers of the present sequence, sorted."""
    changes: int = 0
    """How often the field changed hands in that sequence."""
    at: str = ""
    """When it last did (RFC 3339)."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> AlternatingManagers:
        """Read it from state that may have been edited; anything invalid counts as no record."""
        last, managers, changes, at = (
            document.get(name) for name in ("last", "managers", "changes", "at")
        )
        if not (isinstance(last, str) and type(changes or 0) is int and isinstance(at or "", str)):
            return cls()
        return (
            cls(last, parse_managers(managers), changes or 0, at or "")
            if not at or moment(at) is not None
            else cls(last)
        )

    def to_document(self) -> dict[str, Any]:
        """Return it for the recorded state, without empty fields."""
        values = dataclasses.asdict(self) | {"managers": list(self.managers)}
        return {name: value for name, value in values.items() if value}

    def with_manager(self, manager: str, now: dt.datetime) -> AlternatingManagers:
        """Return the state after an observation of the present ``writer``; empty: unknown."""
        sequence = self if _is_recent(self.at, now) else AlternatingManagers(self.last)
        if not manager or manager == self.last:
            return sequence
        if not self.last:
            return AlternatingManagers(manager)
        managers = _kept({*sequence.managers, self.last, manager})
        return AlternatingManagers(
            manager, managers, sequence.changes + 1, now.isoformat(timespec="seconds")
        )

    def with_name(self, unknown: str, manager: str) -> AlternatingManagers:
        """Return the state with the name of a manager that was ``unknown`` until now."""
        managers = {manager if name == unknown else name for name in self.managers}
        return AlternatingManagers(
            manager if self.last == unknown else self.last, _kept(managers), self.changes, self.at
        )

    @property
    def alternating(self) -> str:
        """Managers that alternate, for people, once each has written again; empty without any."""
        return listed(self.managers) if self.changes >= _CHANGES_MIN else ""

    def correction_due_in(self, now: dt.datetime) -> float | None:
        """Return the seconds until the field may be corrected again; ``None`` if it may be now.

        The delay doubles with each change of hands, once managers alternate.
        """
        if not self.alternating or not _is_recent(self.at, now):
            return None
        at_time, exponent = moment(self.at), min(self.changes - _CHANGES_MIN, 10)
        assert at_time is not None
        delay = dt.timedelta(seconds=min(2.0**exponent, _DELAY_MAX))
        rest = (at_time + delay - now).total_seconds()
        return rest if rest > 0 else None

    def sequence_ends_in(self, now: dt.datetime) -> float | None:
        """Return the seconds until the sequence ends, and with it the report of a conflict.

        That is so if no manager writes again. ``None`` without a sequence.
        """
        return _ends_in(self.at, now)


def _ends_in(at: str, now: dt.datetime) -> float | None:
    at_time = moment(at)
    if at_time is None or now - at_time >= CORRECTION_PERIOD:
        return None
    return (at_time + CORRECTION_PERIOD - now).total_seconds()


def _is_recent(at: str, now: dt.datetime) -> bool:
    at_time = moment(at)
    return at_time is not None and now - at_time < CORRECTION_PERIOD


def parse_managers(recorded: Any) -> tuple[str, ...]:
    """Return the recorded names of managers, without what an edit has made unreadable."""
    names = recorded if isinstance(recorded, list) else []
    return tuple(name for name in names if isinstance(name, str) and name)


def _kept(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names to record, sorted, so that they stay the same while managers alternate."""
    return tuple(sorted(names)[:MANAGERS_MAX])
