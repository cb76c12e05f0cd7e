"""List the cluster's nodes, once for all pipelines. Does I/O.

What the nodes provide explains why a pod cannot be scheduled. Users decide how many of their pods
cannot be, and how often these change, but not how often the nodes are listed.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import ClusterError, Forbidden
from triton_pipelines.cluster.resources import NODES
from triton_pipelines.compile.render.pod_scheduling import GPU_PRODUCT_LABEL

from .snapshot import Object

# How long (seconds) a list is used.
NODES_SECONDS: Final = 30.0


@dataclass(slots=True)
class NodeList:
    """The nodes as they were last listed; one instance per process."""

    client: Client
    clock: Callable[[], dt.datetime]
    """Returns the current time in UTC."""
    _nodes: tuple[Object, ...] | None = field(default=None, init=False)
    _listed: dt.datetime = field(default=dt.datetime.min.replace(tzinfo=dt.UTC), init=False)
    """When they were last listed, or the attempt failed."""
    _listing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def read(self) -> tuple[Object, ...] | None:
        """Return name, GPU product and allocatable resources of each node, and if it is cordoned.

        ``None`` if they may not be listed, as for a namespaced operator.
        """
        async with self._listing:
            if (self.clock() - self._listed).total_seconds() >= NODES_SECONDS:
                try:
                    self._nodes = tuple((await self.client.list(NODES, convert=_reduced)).items)
                except Forbidden:
                    self._nodes = None
                except ClusterError:
                    pass  # The last list is better than none, and none is no reason to fail.
                self._listed = self.clock()
        return self._nodes


def _reduced(node: Object) -> Object:
    """Return what explains why a pod cannot be scheduled; the images alone take many times that."""
    metadata = node["metadata"]
    product = (metadata.get("labels") or {}).get(GPU_PRODUCT_LABEL)
    return {
        "metadata": {
            "name": metadata["name"],
            "labels": {GPU_PRODUCT_LABEL: product} if product else {},
        },
        "spec": {"unschedulable": bool((node.get("spec") or {}).get("unschedulable"))},
        "status": {"allocatable": (node.get("status") or {}).get("allocatable") or {}},
    }
