"""Take over the lists that Kopf reads before it watches.

Kopf would start a task for each listed object, which takes most of the CPU time of a list. The
objects are passed on page by page instead, and Kopf gets empty pages: it needs nothing but their
resourceVersion.

Each scope is listed by itself: one that cannot be read does not keep the others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import structlog

from triton_pipelines.cluster.resources import Resource

Scope = str | None
"""A watched namespace; ``None`` stands for all."""
_log = structlog.get_logger(__name__)


class WatchLists:
    """The lists of all watched kinds; one instance per process."""

    def __init__(
        self,
        resources: Iterable[Resource],
        scopes: Iterable[Scope],
        take: Callable[[Resource, dict[str, Any]], None],
        on_listed: Callable[[Scope], None] = lambda _: None,
    ) -> None:
        """Create it.

        Args:
            resources: the watched kinds.
            scopes: the watched namespaces; ``None`` stands for all.
            take: called with each listed object.
            on_listed: called once with each scope, when every kind has been listed there.
        """
        kinds, namespaces = tuple(resources), tuple(scopes)
        self._paths: dict[str, tuple[Resource, Scope]] = {
            kind.path(namespace): (kind, namespace) for kind in kinds for namespace in namespaces
        }
        self._take, self._on_listed = take, on_listed
        self._missing = {
            namespace: {kind.path(namespace) for kind in kinds} for namespace in namespaces
        }
        self._failing: dict[Scope, set[str]] = {namespace: set() for namespace in namespaces}
        self._has_failed = set[Scope]()
        self._can_start = asyncio.Event()

    def take_page(self, path: str, page: Any) -> Any:
        """Pass on the objects of a page, if it is one of a watched kind.

        Args:
            path: the decoded path of the request's URL, below that of the API server.
            page: the answer.

        Returns:
            The page without these objects, or any other answer unchanged.
        """
        path = quote(path)
        if path not in self._paths or not isinstance(page, dict) or "items" not in page:
            return page
        resource, scope = self._paths[path]
        for item in page["items"] or ():
            self._take(resource, item)
        missing = self._missing[scope]
        if not (page.get("metadata") or {}).get("continue") and path in missing:
            missing.discard(path)
            if not missing:
                self._on_listed(scope)
            self._update()
        return {**page, "items": []}

    def observe(self, path: str, error: str = "") -> None:
        """Take note of the outcome of a list or watch request; other requests are ignored.

        Args:
            path: as for :meth:`take_page`.
            error: why it failed; empty if it did not.
        """
        path = quote(path)
        if path not in self._paths:
            return
        resource, scope = self._paths[path]
        failing = self._failing[scope]
        was_failing = bool(failing)
        if error:
            failing.add(path)
            self._has_failed.add(scope)
            self._update()
        else:
            failing.discard(path)
        if bool(failing) == was_failing:
            return
        if failing:
            _log.warning(
                "namespace cannot be read; retrying with back-off",
                namespace=scope,
                resource=resource.plural,
                error=error,
                is_listed=self.is_listed(scope),
            )
        else:
            _log.info("namespace can be read again", namespace=scope)

    def is_listed(self, scope: Scope) -> bool:
        """Return whether every kind has been listed in a scope."""
        return not self._missing[scope]

    def is_failing(self, scope: Scope) -> bool:
        """Return whether the last list or watch request of a kind has failed in a scope."""
        return bool(self._failing[scope])

    def _update(self) -> None:
        listed = {scope for scope, missing in self._missing.items() if not missing}
        if listed and self._missing.keys() == listed | self._has_failed:
            self._can_start.set()

    async def wait(self) -> None:
        """Wait until every kind has been listed, apart from scopes where a request has failed.

        At least one scope has been listed by then. Nothing is written on behalf of the others.
        """
        await self._can_start.wait()
