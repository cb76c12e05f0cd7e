"""Post Kubernetes events (``events.k8s.io/v1``), as shown by ``kubectl describe``."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal

from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.cluster.resources import EVENTS
from triton_pipelines.redaction import redact_url

EventType = Literal["Normal", "Warning"]
# Limits of the API (k8s.io/kubernetes/pkg/apis/core/validation/events.go).
NOTE_LIMIT_BYTES: Final = 1024
_CONTROLLER: Final = f"{names.GROUP}/{names.APP}"
_DEFAULT_NAMESPACE: Final = "default"


def event_object(
    regarding: Mapping[str, Any],
    *,
    type: EventType,
    reason: str,
    action: str,
    note: str,
    instance: str,
    now: datetime.datetime,
    name: str | None = None,
) -> Object:
    """Return an event about an object.

    Args:
        regarding: the raw object; its kind, name, namespace, uid and resourceVersion are taken.
        type: Normal or Warning.
        reason: why, machine-readable, at most 128 characters (``RolloutStarted``).
        action: what was attempted, machine-readable, at most 128 characters (``Apply``).
        note: for people; credentials in URLs are masked, and it is cut at 1024 bytes.
        instance: the reporting process, usually the pod's name.
        now: the moment, timezone-aware.
        name: of the event; by default the object's name and a random part.
    """
    metadata = regarding.get("metadata") or {}
    namespace = metadata.get("namespace") or _DEFAULT_NAMESPACE
    subject = str(metadata.get("name", ""))
    reference = {
        "apiVersion": regarding.get("apiVersion"),
        "kind": regarding.get("kind"),
        "name": subject,
        "namespace": metadata.get("namespace"),
        "uid": metadata.get("uid"),
        "resourceVersion": metadata.get("resourceVersion"),
    }
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": name or f"{subject}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
        "eventTime": now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": type,
        "reason": reason[:128],
        "action": action[:128],
        "note": cut_utf8(redact_url(note), NOTE_LIMIT_BYTES),
        "regarding": {key: value for key, value in reference.items() if value},
        "reportingController": _CONTROLLER,
        "reportingInstance": instance[:128],
    }


async def post_event(client: Client, event: Object) -> ClusterError | None:
    """Post an event, best effort: a failure must never fail a reconcile.

    Returns:
        The error, for the caller's log, or None.
    """
    try:
        await client.create(event)
    except ClusterError as error:
        return error
    return None


def cut_utf8(text: str, limit: int) -> str:
    """Return text of at most ``limit`` bytes of UTF-8, cut between characters.

    An ellipsis marks a cut.
    """
    raw = text.encode(errors="replace")
    if len(raw) <= limit:
        return text
    return raw[: limit - 3].decode(errors="ignore") + "…"
