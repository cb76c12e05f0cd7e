"""A tuning run as recorded in the live ConfigMap, and its part in the status. Pure."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from pydantic import ValidationError

from triton_pipelines.api.tuning import TuningMode
from triton_pipelines.api.tuning_status import TuningStatus
from triton_pipelines.controllers.timestamps import moment, rfc3339

MESSAGE_MAX: Final = 1024
# Longest short string of the status' schema.
SHORT_MAX: Final = 512
# Fields of status.tuning that the Job may fill in; the others are set here.
RESULT: Final = ("message", "advice", "padding", "patch", "gainPercent", "points")
# Text fields of a run.
_TEXTS: Final = (
    "request",
    "state",
    "mode",
    "waiting_since",
    "revision",
    "start",
    "server",
    "job_start",
    "job_uid",
    "end",
    "recommended",
)
# Names of the fields that the status shows, in the record and in the status.
_STATUS_NAMES: Final = {
    "request": "request",
    "state": "state",
    "revision": "revision",
    "start": "startTime",
    "end": "completionTime",
    "recommended": "recommendedRevision",
}
_TIMES: Final = ("waiting_since", "start", "job_start", "end")


class State(StrEnum):
    """Progress of a run."""

    NONE = ""
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Run:
    """The last tuning run, as recorded."""

    request: str = ""
    serial: int = 0
    """How many runs came before."""
    state: State = State.NONE
    mode: str = TuningMode.QUICK.value
    waiting_since: str = ""
    """Since when it waits for the pipeline (RFC 3339)."""
    revision: str = ""
    """The measured revision; empty if the run has not begun."""
    start: str = ""
    """When it began (RFC 3339)."""
    server: str = ""
    """Which start of which pod's server is measured."""
    job_start: str = ""
    """When its Job began (RFC 3339)."""
    job_uid: str = ""
    """Uid of the Job; empty if it has not been observed."""
    end: str = ""
    """When it ended (RFC 3339)."""
    recommended: str = ""
    """The revision that its patch creates; empty for none."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``status.tuning``, once it has ended."""

    @property
    def is_active(self) -> bool:
        """Whether it has not ended."""
        return self.state in (State.PENDING, State.RUNNING)

    @property
    def has_begun(self) -> bool:
        """Whether it has objects: before, it waits for the pipeline."""
        return bool(self.revision)

    def name(self, uid: str) -> str:
        """Return eight characters that no other run has.

        The uid, the serial number and the start are hashed: times are in whole seconds, and serial
        numbers start again with another ConfigMap.
        """
        return hashlib.sha256("\n".join((uid, str(self.serial), self.start)).encode()).hexdigest()[
            :8
        ]

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Run:
        """Read it; what an edit has made unreadable counts as no run."""
        blank = cls()
        texts = {name: document.get(name, getattr(blank, name)) for name in _TEXTS}
        if not all(isinstance(text, str) and len(text) <= SHORT_MAX for text in texts.values()):
            return blank
        serial = document.get("serial", 0)
        if (
            not isinstance(serial, int)
            or isinstance(serial, bool)
            or serial < 0
            or texts["state"] not in {*State}
            or texts["mode"] not in {*TuningMode}
        ):
            return blank
        if any(texts[name] and moment(texts[name]) is None for name in _TIMES):
            return blank
        found = result_of(document.get("result") or {})
        return cls(**(texts | {"state": State(texts["state"])}), serial=serial, result=found or {})

    def to_document(self) -> dict[str, Any]:
        """Return the record, without fields that have their default."""
        blank = type(self)()
        changed = {
            name: getattr(self, name)
            for name in self.__slots__
            if getattr(self, name) != getattr(blank, name)
        }
        return {
            name: str(value) if isinstance(value, State) else value
            for name, value in changed.items()
        }

    def status(self, message: str = "") -> dict[str, Any]:
        """Return ``status.tuning``; empty without a run.

        Args:
            message: What a run that has not ended waits for.
        """
        if not self.request:
            return {}
        reported = {
            "request": self.request,
            "state": str(self.state),
            "startTime": self.start,
            "completionTime": self.end,
            "revision": self.revision,
        }
        reported["recommendedRevision"] = self.recommended
        reported["message"] = message[:MESSAGE_MAX]
        return {key: value for key, value in reported.items() if value} | dict(self.result)

    def failed(self, message: str, now: dt.datetime) -> Run:
        """Return the failed run, ended with ``message``."""
        return replace(
            self, state=State.FAILED, end=rfc3339(now), result={"message": message[:MESSAGE_MAX]}
        )


def last_run(document: Mapping[str, Any], reported: Any, *, is_record_lost: bool) -> Run:
    """Return the last run, from the record and from ``status.tuning`` (``reported``).

    The status has more on a run that has ended if the record is lost, for example with a deleted
    live ConfigMap, or if the API server rejected the record of its end. Such a run is not repeated,
    and does not take the room of a pod a second time. Otherwise, a reported run without a record
    is forged.

    Args:
        document: The record; empty without one.
        reported: ``status.tuning``.
        is_record_lost: Whether the record of all policies is lost.
    """
    run = Run.parse(document)
    if not document and not is_record_lost:
        return run
    if not isinstance(reported, Mapping) or reported.get("state") not in (
        State.SUCCEEDED,
        State.FAILED,
    ):
        return run
    if document and not (
        run.is_active
        and run.has_begun
        and (reported.get("request"), reported.get("startTime")) == (run.request, run.start)
    ):
        return run
    known = {field: reported[key] for field, key in _STATUS_NAMES.items() if key in reported}
    ended = Run.parse(
        {
            "serial": 1,
            **(run.to_document() if document else {}),
            **known,
            "result": result_of(reported) or {},
        }
    )
    return ended if ended.request else run


def with_tuning(status: Mapping[str, Any], reported: Any) -> dict[str, Any]:
    """Return a status of the pipeline with ``reported`` as ``status.tuning``, or without it."""
    return {key: value for key, value in status.items() if key != "tuning"} | (
        {"tuning": reported} if reported else {}
    )


def result_of(document: Any) -> dict[str, Any] | None:
    """Return the fields of ``status.tuning`` that a result fills; ``None`` if it is not valid.

    The result comes from a pod, so it is not trusted.
    """
    if not isinstance(document, Mapping):
        return None
    try:
        reported = TuningStatus.model_validate(
            {key: document[key] for key in RESULT if key in document}
        )
    except ValidationError:
        return None
    return reported.model_dump(mode="json", by_alias=True, exclude_defaults=True)
