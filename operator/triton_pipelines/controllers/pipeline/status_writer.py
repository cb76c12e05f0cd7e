"""Write the status of pipelines and post events. Does I/O."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from triton_pipelines.api import names
from triton_pipelines.api.conditions import Reason
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import Conflict, Invalid, NamespaceTerminating, NotFound
from triton_pipelines.cluster.events import event_object, post_event
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES
from triton_pipelines.cluster.store import Store
from triton_pipelines.cluster.work_queue import Key
from triton_pipelines.controllers.rejected_writes import RejectedWrites

from . import status as statuses
from .foreign_status import foreign_fields, removal
from .snapshot import Object, Snapshot
from .status_conflict import WrittenStatus
from .status_events import Event, transitions

# Reason of the API server's error if a list is longer than its schema permits.
TOO_MANY: Final = "FieldValueTooMany"
# Reason of the event if another manager keeps overwriting the status.
STATUS_CONFLICT: Final = "StatusOwnerConflict"
_LOGGED_MAX: Final = 5

_log = structlog.get_logger(__name__)


class StatusRejected(Exception):  # noqa: N818
    """The API server does not take a status of ours: a defect, or a CRD of another release."""


@dataclass(slots=True)
class StatusWriter:
    """Writes status and events of all pipelines; one instance per process."""

    client: Client
    store: Store
    clock: Callable[[], dt.datetime]
    """Returns the current time in UTC."""
    instance: str
    """Name of this process in events."""
    writes: RejectedWrites
    """Writes that are not repeated yet."""
    _rejected: dict[Key, str] = field(default_factory=dict)
    """Messages of rejected status writes, as reported."""
    _removed: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    """Foreign fields last removed, as logged."""
    _written: dict[Key, WrittenStatus] = field(default_factory=dict)
    """The last statuses, to notice who keeps overwriting them."""

    def forget(self, key: Key) -> None:
        """Drop what is known about a deleted pipeline."""
        self._rejected.pop(key, None)
        self._removed.pop(key, None)
        self._written.pop(key, None)

    async def write(
        self,
        snapshot: Snapshot,
        status: Mapping[str, Any] | None,
        events: tuple[Event, ...] | None = None,
    ) -> float | None:
        """Write a status and post its events.

        Args:
            snapshot: What was observed.
            status: The status to write; ``None``: leave it.
            events: Events to post. ``None``: write only if the status changes anything, and post
                the events of that change.

        Returns:
            The seconds until the status may be corrected again, if another manager keeps
            overwriting it; ``None`` if nothing is left to write.

        Raises:
            StatusRejected: The API server rejects it. The conditions of the pipeline say so if
                they can be written.
        """
        if status is None:
            return None
        if events is None:
            if not statuses.differs(snapshot.pipeline, status):
                return None
            events = tuple(transitions(snapshot.status, status))
        key = (snapshot.pipeline["metadata"]["namespace"], snapshot.name)
        written = self._written.get(key, WrittenStatus())
        if written.is_correction(snapshot.pipeline, status):
            due_in = written.managers.correction_due_in(self.clock())
            if due_in is not None:
                return due_in
            await self._record_correction(key, snapshot.pipeline, written)
        try:
            await self._put(snapshot.pipeline, status)
        except Invalid as error:
            raise StatusRejected(await self._report_rejection(snapshot, error)) from error
        self._rejected.pop(key, None)
        await asyncio.gather(*(self.post(snapshot.pipeline, event) for event in events))
        return None

    async def _record_correction(self, key: Key, pipeline: Object, written: WrittenStatus) -> None:
        """Record that a status is corrected; report managers once they alternate."""
        corrected = written.with_correction(pipeline, self.clock())
        self._written[key] = corrected
        alternating = corrected.managers.alternating
        if not alternating or written.managers.alternating:
            return
        note = (
            f"{alternating} overwrite each other's status of this pipeline, so the operator "
            "corrects it less often; configure the other manager to leave the status alone"
        )
        await _log.awarning("status overwritten repeatedly", managers=corrected.managers.managers)
        await self.post(pipeline, Event(True, STATUS_CONFLICT, "WriteStatus", note))

    async def _put(
        self, pipeline: Object, status: Mapping[str, Any], verb: str = "apply status"
    ) -> None:
        """Write a status, unless the last one was rejected a moment ago, whatever it reported.

        Args:
            pipeline: The pipeline as observed.
            status: The status.
            verb: Distinguishes the report of a rejection from the rejected status.
        """
        metadata = pipeline["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        attempt = self.writes.of((namespace, name), pipeline)
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
        }
        since = self.store.mark()
        try:
            with attempt((verb, names.KIND, name), None):
                applied = await self._apply({**body, "status": dict(status)}, pipeline)
        except NotFound:
            # Whatever the caches hold: the pipeline does not exist, and no event may come to report
            # its deletion.
            self.store.remove(INFERENCE_PIPELINES, namespace, name, uid=uid)
        except Conflict:
            return  # Another one of the name; its own event starts the next iteration.
        else:
            self.store.put(INFERENCE_PIPELINES, applied, since=since)
            key = (namespace, name)
            before = self._written.get(key, WrittenStatus())
            self._written[key] = before.with_status(applied, status)

    async def _apply(self, obj: Object, known: Object) -> Object:
        """Apply a status, and remove what other field managers wrote into it.

        Their list items may leave no room for those of the operator. Then they are removed first.

        Args:
            obj: The pipeline with its status to write.
            known: The pipeline as it was observed.

        Raises:
            Conflict: The pipeline has changed meanwhile; its own event starts an iteration.
        """
        desired = obj["status"]
        try:
            applied = await self.client.apply_status(obj)
        except Invalid as error:
            pointers = foreign_fields(known.get("status") or {}, desired)
            if not pointers or not any(cause.reason == TOO_MANY for cause in error.causes):
                raise
            await self._remove(known, pointers)
            applied = await self.client.apply_status(obj)
        pointers = foreign_fields(applied.get("status") or {}, desired)
        if not pointers:
            return applied
        try:
            return await self._remove(applied, pointers)
        except Conflict:
            return applied

    async def _remove(self, live: Object, pointers: Sequence[str]) -> Object:
        """Remove foreign fields; return the object.

        Raises:
            Conflict: The pipeline has changed meanwhile.
        """
        metadata = live["metadata"]
        key = (metadata["namespace"], metadata["name"])
        try:
            removed = await self.client.json_patch(
                INFERENCE_PIPELINES,
                *key,
                removal(metadata, pointers),
                manager=names.MANAGER_STATUS,
                subresource="status",
            )
        except Invalid as error:  # the failed test of resourceVersion
            raise Conflict(error.status, error.reason, error.message) from error
        fields = tuple(pointers[:_LOGGED_MAX])
        if self._removed.get(key) != fields:  # once, however often another manager repeats them
            self._removed[key] = fields
            await _log.ainfo("fields of others removed from the status", fields=fields)
        return removed

    async def _report_rejection(self, snapshot: Snapshot, error: Invalid) -> str:
        """Report in the previous status that the new one was rejected; return the message."""
        text = (
            "the API server rejects the pipeline's status, so the rest of it is out of date: "
            f"{error.message}; check that the CRD matches this operator's release"
        )
        key = (snapshot.pipeline["metadata"]["namespace"], snapshot.name)
        is_new = self._rejected.get(key) != text
        stalled = statuses.stalled(snapshot, Reason.API_ERROR, text, self.clock(), final=True)
        if statuses.differs(snapshot.pipeline, stalled):
            try:
                await self._put(snapshot.pipeline, stalled, "report rejection")
            except Invalid as second_error:
                if is_new:
                    message = second_error.message
                    await _log.aerror("conditions of a status rejected", error=message)
        if is_new:
            self._rejected[key] = text
            await _log.aerror("status rejected", error=error.message)
            await self.post(
                snapshot.pipeline, Event(True, Reason.API_ERROR.value, "WriteStatus", text)
            )
        return text

    async def post(self, pipeline: Object, event: Event) -> None:
        """Post an event; a failure is logged."""
        fields = {
            "reason": event.reason,
            "action": event.action,
            "note": event.note,
            "instance": self.instance,
        }
        event_body = event_object(pipeline, type=event.type, **fields, now=self.clock())
        error = await post_event(self.client, event_body)
        if error is not None and not isinstance(error, NamespaceTerminating):
            await _log.awarning("event not written", reason=event.reason, error=str(error))
