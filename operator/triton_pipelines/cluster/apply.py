"""Applying a child object over whatever became of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Invalid, NotFound
from triton_pipelines.cluster.resources import resource_of

_REPAIR_SUFFIX: Final = "-repair"
_STRIP_ATTEMPTS: Final = 3


async def metadata_of(client: Client, obj: Object) -> Object | None:
    """What is known of an object of this name without reading it: its metadata alone, ``None`` where there is none.

    An apply of nothing, tried without effect, is answered with the object as it is. For Secrets the client asks for metadata only, so
    that no right to read them is needed, and nothing of their content comes here.
    """
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace")}
    nothing = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata}
    seen = await client.apply(nothing, manager=names.MANAGER_LOOK, force=False, dry_run=True)
    # One that would only now be made has no version yet.
    return seen if seen["metadata"].get("resourceVersion") else None


async def apply_over(
    client: Client,
    desired: Object,
    live: Mapping[str, Any] | None,
    *,
    manager: str = names.MANAGER_CHILDREN,
) -> Object:
    """Applies an object; where that is refused because of what others put beside our fields, replaces it and applies again.

    Apply merges, and some edits by hand make the merge invalid: a port's number changed (ours comes back beside it, with the same name), a
    volume's kind changed (it gets two). A replacement on exactly the state that was seen mends those. Others' labels and annotations, and a
    replica count that we do not own, are kept.

    Args:
        client: the client.
        desired: full set of our fields.
        live: what is known of the object; None when it is not there.
        manager: field manager.

    Returns:
        The object as it is now.

    Raises:
        Invalid: our own content is refused; the message of the first attempt.
        Conflict: the live object is newer than ``live``; look again.
    """
    try:
        return await client.apply(desired, manager=manager)
    except Invalid as refused:
        if live is None:
            raise
        repairer = manager + _REPAIR_SUFFIX
        try:
            await client.replace(_replacement(desired, live), manager=repairer)
        except Invalid:
            raise refused from None
        applied = await client.apply(desired, manager=manager)
        return await _strip_manager(client, applied, repairer)


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
    """Drops a manager's entries from managedFields, or what it co-owns could never be given up by apply.

    Best effort: someone else's writes may come between each time, and then a leftover entry is harmless.
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
            # The test did not hold: it changed since.
            obj = await client.get(resource, metadata.get("namespace"), metadata["name"])
        except NotFound:
            break
    return obj
