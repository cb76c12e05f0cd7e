"""Write the objects of one pipeline, and keep the caches up to date with them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import structlog

from triton_pipelines.cluster.apply import apply_new, apply_over, metadata_of
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    NotFound,
)
from triton_pipelines.cluster.impersonation import Writer
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
    resource_of,
)
from triton_pipelines.cluster.store import Store
from triton_pipelines.compile.graph.options import Options
from triton_pipelines.compile.render.restricted_workload import unsafe_fields
from triton_pipelines.controllers.rejected_writes import Attempt, WriteName

from .actions import Resize
from .child_conflicts import ChildName, digest_of, name_of
from .owner_references import FormerChild, NameTaken, UnsafeTemplate, check_owner
from .snapshot import Object

CHILD_RESOURCES: tuple[Resource, ...] = (
    DEPLOYMENTS,
    CONFIG_MAPS,
    SERVICES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    JOBS,
)
RESOURCE_OF_KIND = {resource.kind: resource for resource in (*CHILD_RESOURCES, SECRETS, PODS)}
# Kinds of objects that no other object of a pipeline needs to exist before or after.
_UNORDERED_KINDS: Final = frozenset({"Service", "NetworkPolicy", "PodDisruptionBudget"})
# Errors by which the API server rejects an object for good.
REJECTIONS: Final = (Forbidden, Invalid, NameTaken, FormerChild, UnsafeTemplate)
_WORKLOADS: Final = (DEPLOYMENTS, JOBS)

_log = structlog.get_logger(__name__)


def _always(_write: WriteName, _content: object) -> AbstractContextManager[None]:
    """Send every write."""
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class ChildWriter:
    """Writes objects of one namespace. Errors of the API server are raised.

    Pods that would gain more than authors of pipelines may give them are not created.
    """

    reader: Client
    """Reads with the operator's own account."""
    writer: Writer
    """Writes in the name of the pipeline's account."""
    store: Store
    """The operator's caches."""
    namespace: str
    """The pipeline's namespace."""
    options: Options
    """What pods may contain."""
    attempt: Attempt = _always
    """Returns the context of one write."""
    delayed: frozenset[ChildName] = frozenset()
    """Objects that are not applied yet, because another manager undoes each correction."""
    applied: list[Object] = field(default_factory=list, init=False)
    """What has been applied, in order."""

    async def apply(self, item: Object, uid: str) -> None:
        """Apply an object, unless it is delayed, or its name belongs to another owner.

        Args:
            item: The object.
            uid: UID of the pipeline.
        """
        if name_of(item) in self.delayed:
            return
        resource = resource_of(item)
        name = item["metadata"]["name"]
        if resource in _WORKLOADS:
            self._check_pods(item)
        known, since = self.store.get(resource, self.namespace, name), self.store.mark()
        # An object that was deleted or replaced since its last rejection is written at once.
        content = (known and known["metadata"].get("uid"), digest_of(item))
        with self.attempt(("apply", resource.kind, name), content):
            async with self.writer.explaining(resource, name):
                applied = await apply_new(self.writer.client, item) if known is None else None
                if applied is None:
                    known = known or await self._uncached(resource, item)
                    check_owner(known, item, uid)
                    since = self.store.mark()
                    # Only metadata of a Secret is known, so it is never replaced.
                    live = known if resource != SECRETS else None
                    applied = await apply_over(self.writer.client, item, live)
        if resource != SECRETS:
            self.store.put(resource, applied, since=since)
        self.applied.append(item)
        _log.info("applied", kind=item["kind"], object=name)

    def _check_pods(self, workload: Object) -> None:
        if (finding := next(unsafe_fields(workload, self.options), None)) is not None:
            raise UnsafeTemplate(
                f"{workload['kind']} {workload['metadata']['name']} is not applied, because the "
                f"pod template that was recorded for it was changed: {finding}; delete the "
                "ConfigMaps of the pipeline's revisions, so that the operator recreates them"
            )

    async def apply_all(self, items: Sequence[Object], uid: str) -> None:
        """Apply objects in their order; those that nothing orders at the same time.

        If one of these fails, the others are applied nevertheless, and nothing after them.

        Args:
            items: The objects.
            uid: UID of the pipeline.
        """
        for is_unordered, group in groupby(items, lambda item: item["kind"] in _UNORDERED_KINDS):
            if is_unordered:
                applied = (self.apply(item, uid) for item in group)
                results = await asyncio.gather(*applied, return_exceptions=True)
                if error := next((one for one in results if one is not None), None):
                    raise error
            else:
                for item in group:
                    await self.apply(item, uid)

    async def apply_optional(self, items: Sequence[Object], uid: str) -> str:
        """Apply objects without which the pipeline works.

        Args:
            items: The objects.
            uid: UID of the pipeline.

        Returns:
            Why one of them was rejected; empty if none was.
        """
        try:
            await self.apply_all(items, uid)
        except NamespaceTerminating:
            raise
        except REJECTIONS as error:
            return f"the API server rejects one of its objects: {getattr(error, 'message', error)}"
        return ""

    async def _uncached(self, resource: Resource, item: Object) -> Object | None:
        """Return an object that exists, although the caches do not know it.

        Its label was removed by hand, it belongs to another owner, or it is a Secret, of which only
        the metadata is read. ``None`` if it has just been deleted.
        """
        if resource == SECRETS:
            return await metadata_of(self.writer.client, item)
        try:
            return await self.reader.get(resource, self.namespace, item["metadata"]["name"])
        except NotFound:
            return None

    async def delete(self, resource: Resource, name: str, uid: str) -> bool:
        """Delete an object; return False if another object has the name now.

        Args:
            resource: Its kind.
            name: Its name.
            uid: Its UID; empty for Secrets, which are never read.
        """
        try:
            with self.attempt(("delete", resource.kind, name), uid):
                async with self.writer.explaining(resource, name):
                    await self.writer.client.delete(resource, self.namespace, name, uid=uid or None)
        except Conflict:
            return False
        _log.info("deleted", kind=resource.kind, object=name)
        return True

    async def resize(self, resize: Resize) -> None:
        """Give one pod another CPU limit.

        Raises:
            Conflict: Another pod has its name now.
        """
        since = self.store.mark()
        async with self.writer.explaining(PODS, resize.pod, "resize"):
            resized = await self.writer.client.resize_pod(
                self.namespace, resize.pod, resize.patch, uid=resize.uid
            )
        self.store.put(PODS, resized, since=since)
