"""Apply the objects of pipelines. Does I/O."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from triton_pipelines.cluster.apply import apply_over, metadata_of
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import SECRETS, Resource, resource_of
from triton_pipelines.cluster.store import Store

from .owner_references import check_owner
from .snapshot import Object

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ChildWriter:
    """Applies objects and puts them into the caches; one instance per process."""

    client: Client
    store: Store

    async def apply(self, item: Object, uid: str) -> None:
        """Apply an object of the pipeline with this ``uid``.

        Raises:
            NameTaken: Its name belongs to another owner.
            FormerChild: Its name belongs to a pipeline that was deleted.
            ClusterError: The API server rejects it.
        """
        resource = resource_of(item)
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        if resource == SECRETS:
            # Never read, but not taken from others either.
            check_owner(await metadata_of(self.client, item), item, uid)
            await self.client.apply(item)
        else:
            known = self.store.get(resource, namespace, name)
            if known is None:
                known = await self._uncached(resource, namespace, name)
            check_owner(known, item, uid)
            since = self.store.mark()
            self.store.put(resource, await apply_over(self.client, item, known), since=since)
        await _log.ainfo("applied", kind=item["kind"], object=name)

    async def _uncached(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Return an object that the caches do not know.

        ``None`` if there is none. Otherwise its label was removed by hand, or it belongs to another
        owner.
        """
        try:
            return await self.client.get(resource, namespace, name)
        except NotFound:
            return None
