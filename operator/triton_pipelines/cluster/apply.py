"""Apply a child object over its live state, whatever was changed in it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Conflict, Invalid, NotFound
from triton_pipelines.cluster.resources import resource_of

_REPAIRER: Final = f"{names.MANAGER_CHILDREN}-repair"
_STRIP_ATTEMPTS: Final = 3
# A resourceVersion that no object has, since etcd starts at this revision and each write increases
# it. The API server compares the version of an apply only with that of an existing object.
_NO_VERSION: Final = "1"


async def metadata_of(client: Client, obj: Object) -> Object | None:
    """Return an object's metadata without reading the object; ``None`` if it does not exist.

    A dry-run apply of nothing is answered with the object as it is. For Secrets the client requests
    metadata only, so that no right to read them is needed and their content is never received.
    """
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace")}
    nothing = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata}
    seen = await client.apply(nothing, manager=names.MANAGER_LOOK, force=False, dry_run=True)
    # An object that would be created by the apply has no version yet.
    return seen if seen["metadata"].get("resourceVersion") else None


async def apply_new(client: Client, desired: Object) -> Object | None:
    """Apply an object that should not exist yet, without reading it first.

    Returns:
        The created object; ``None`` if there is one of that name, which is unchanged.
    """
    metadata = {**desired["metadata"], "resourceVersion": _NO_VERSION}
    try:
        return await client.apply({**desired, "metadata": metadata})
    except Conflict:
        return None


async def apply_over(client: Client, desired: Object, live: Mapping[str, Any] | None) -> Object:
    """Apply an object; if fields of other managers make that invalid, replace it and apply again.

    Apply merges, and some manual edits make the merge invalid: a changed port number (ours is added
    next to it, with the same name), or a changed kind of a volume (it gets two). Replacing exactly
    the known state fixes those. Labels and annotations of others, and a replica count that the
    operator does not own, are kept.

    Args:
        client: the client.
        desired: the full set of the operator's fields.
        live: the known state of the object; None if it does not exist.

    Returns:
        The object as it is now.

    Raises:
        Invalid: the desired content itself is rejected; the message is that of the first attempt.
        Conflict: the live object is newer than ``live``; read it again.
    """
    try:
        return await client.apply(desired)
    except Invalid as refused:
        if live is None:
            raise
        try:
            await client.replace(_replacement(desired, live), manager=_REPAIRER)
        except Invalid:
            raise refused from None
        applied = await client.apply(desired)
        return await _strip_manager(client, applied, _REPAIRER)


def _replacement(desired: Object, live: Mapping[str, Any]) -> Object:
    replacement = copy.deepcopy(desired)
    metadata, known = replacement["metadata"], live["metadata"]
    metadata["resourceVersion"] = known["resourceVersion"]
    metadata["uid"] = known["uid"]
    for field in ("labels", "annotations"):
        merged = {**(known.get(field) or {}), **(metadata.get(field) or {})}
        if merged:
            metadata[field] = merged
    replicas = (live.get("spec") or {}).get("replicas")
    if replicas is not None and "spec" in replacement:
        replacement["spec"].setdefault("replicas", replicas)
    return replacement


async def _strip_manager(client: Client, obj: Object, manager: str) -> Object:
    """Drop a manager's entries from managedFields; else apply could never remove what it co-owns.

    Best effort: other writes may come in between each time, and a remaining entry is harmless.
    """
    resource = resource_of(obj)
    for _ in range(_STRIP_ATTEMPTS):
        metadata = obj["metadata"]
        kept = [
            entry
            for entry in metadata.get("managedFields") or ()
            if entry.get("manager") != manager
        ]
        operations: list[Object] = [
            {
                "op": "test",
                "path": "/metadata/resourceVersion",
                "value": metadata["resourceVersion"],
            },
            {"op": "replace", "path": "/metadata/managedFields", "value": kept},
        ]
        try:
            return await client.json_patch(
                resource, metadata.get("namespace"), metadata["name"], operations, manager=manager
            )
        except Invalid:
            # The test failed: the object changed since.
            obj = await client.get(resource, metadata.get("namespace"), metadata["name"])
        except NotFound:
            break
    return obj
