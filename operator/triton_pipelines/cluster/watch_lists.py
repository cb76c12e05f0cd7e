"""Take over the lists that Kopf reads before it watches.

Kopf would start a task for each listed object, which takes most of the CPU time of a list. The
objects are passed on page by page instead, and Kopf gets empty pages: it needs nothing but their
resourceVersion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from triton_pipelines.cluster.resources import Resource


class WatchLists:
    """The lists of all watched kinds; one instance per process."""

    def __init__(
        self,
        resources: Iterable[Resource],
        scopes: Iterable[str | None],
        take: Callable[[Resource, dict[str, Any]], None],
    ) -> None:
        """Create it.

        Args:
            resources: the watched kinds.
            scopes: the watched namespaces; ``None`` stands for all.
            take: called with each listed object.
        """
        namespaces = tuple(scopes)
        self._resources = {
            resource.path(namespace): resource for resource in resources for namespace in namespaces
        }
        self._take = take
        self._missing = set(self._resources)
        self._is_complete = asyncio.Event()

    def take_page(self, path: str, page: Any) -> Any:
        """Pass on the objects of a page, if it is one of a watched kind.

        Args:
            path: the decoded path of the request's URL, below that of the API server.
            page: the answer.

        Returns:
            The page without these objects, or any other answer unchanged.
        """
        path = quote(path)
        resource = self._resources.get(path)
        if resource is None or not isinstance(page, dict) or "items" not in page:
            return page
        for item in page["items"] or ():
            self._take(resource, item)
        if not (page.get("metadata") or {}).get("continue"):
            self._missing.discard(path)
            if not self._missing:
                self._is_complete.set()
        return {**page, "items": []}

    async def wait(self) -> None:
        """Wait until every kind has been listed."""
        await self._is_complete.wait()
