"""Thin asynchronous client of the API server on raw dicts, over ``kubernetes.aio``'s connections.

Typed models are not used: parsing 500 Deployments into them takes 222 ms, into dicts 17 ms.
Time-outs, the limit of concurrent requests, retries and metrics are in :mod:`.transport`.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from triton_pipelines.api import names
from triton_pipelines.cluster.errors import Gone, NotFound, ResponseTooLarge
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    INFERENCE_PIPELINES,
    PODS,
    Resource,
    resource_of,
)
from triton_pipelines.cluster.transport import (
    APPLY,
    JSON,
    JSON_PATCH,
    METADATA,
    METADATA_LIST,
    STRATEGIC_MERGE_PATCH,
    ClientOptions,
    Login,
    Object,
    RequestObserver,
    Transport,
    always,
    ignore_request,
)

__all__ = ["PAGE_SIZE", "Client", "ClientOptions", "Object", "ObjectList"]

Propagation = Literal["Background", "Foreground", "Orphan"]

# Page size of a LIST, also of the watches. client-go reads 500, but 500 objects of 1.5 MiB, the
# most that the API server stores, would exceed the operator's memory.
PAGE_SIZE: Final = 25
# The same for kinds whose objects are small as a rule, and for metadata.
SMALL_PAGE_SIZE: Final = 100
_LARGE_KINDS: Final = (CONFIG_MAPS, INFERENCE_PIPELINES)


@dataclass(frozen=True, slots=True)
class ObjectList:
    """All objects of a LIST over all its pages."""

    items: list[Object]
    """The objects."""
    resource_version: str
    """The resourceVersion at which the list was read."""


@dataclass(slots=True)
class Client:
    """Client of one API server. Create it inside a running event loop and ``close()`` it."""

    login: Login
    """Returns address and credentials; called at the first request and again after a 401."""
    options: ClientOptions = field(default_factory=ClientOptions)
    """Limits."""
    observe: RequestObserver = ignore_request
    """Called once per attempt, for metrics."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits between attempts; replaced in tests."""
    uniform: Callable[[float, float], float] = random.uniform
    """Jitter; replaced in tests."""
    may_write: Callable[[], bool] = always
    """Called before each write attempt; False raises :class:`NotLeading`."""
    _transport: Transport = field(init=False)
    _send: Callable[..., Awaitable[Object]] = field(init=False)
    """:meth:`Transport.send`, with the user to impersonate."""

    def __post_init__(self) -> None:
        self._transport = Transport(
            self.login, self.options, self.observe, self.sleep, self.uniform, self.may_write
        )
        self._send = self._transport.send

    def acting_as(self, user: str) -> Client:
        """Return a client that impersonates a user over the same connections.

        Args:
            user: name of the user; empty: the account of the login.
        """
        client = copy.copy(self)
        client._send = partial(self._transport.send, user=user)
        return client

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        await self._transport.close()

    # --- reading --------------------------------------------------------------------------------

    async def get(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        metadata_only: bool = False,
    ) -> Object:
        """Return one object, or nothing but its metadata.

        Raises:
            NotFound: it does not exist.
        """
        accept = METADATA if metadata_only else JSON
        path = resource.path(namespace, name)
        return await self._send("get", "GET", resource, path, accept=accept, repeatable=True)

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        metadata_only: bool = False,
        convert: Callable[[Object], Object] | None = None,
    ) -> ObjectList:
        """Return all objects of a kind with ``apiVersion`` and ``kind``, read in pages.

        If the continue token expires between two pages (410), the list is restarted once.

        Args:
            resource: the kind.
            namespace: the namespace; ``None`` lists all.
            label_selector: a label selector.
            field_selector: a field selector.
            metadata_only: whether the objects have nothing but their metadata.
            convert: returns what is kept of an object; each page is converted at once.
        """
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        query = {key: value for key, value in selectors.items() if value}
        is_small = metadata_only or resource not in _LARGE_KINDS
        pages = partial(
            self._list_pages,
            resource,
            namespace,
            query,
            SMALL_PAGE_SIZE if is_small else PAGE_SIZE,
            METADATA_LIST if metadata_only else JSON,
            convert,
        )
        try:
            return await pages()
        except Gone:
            return await pages()

    async def _list_pages(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        limit: int,
        accept: str,
        convert: Callable[[Object], Object] | None,
    ) -> ObjectList:
        items: list[Object] = []
        token = ""
        while True:
            page_query = {**query, "limit": str(limit), **({"continue": token} if token else {})}
            try:
                page = await self._send(
                    "list",
                    "GET",
                    resource,
                    resource.path(namespace),
                    query=page_query,
                    accept=accept,
                    repeatable=True,
                )
            except ResponseTooLarge:
                if limit == 1:
                    raise
                # Objects are larger than usual: read the same page and all later ones in parts.
                limit = max(1, limit // 10)
                continue
            for item in page.get("items") or ():
                # Items of a typed list have neither; all callers rely on both. Those of a list of
                # metadata have those of the metadata.
                item["apiVersion"], item["kind"] = resource.api_version, resource.kind
                items.append(convert(item) if convert is not None else item)
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                return ObjectList(items, str(metadata.get("resourceVersion", "")))

    # --- writing --------------------------------------------------------------------------------

    async def apply(
        self,
        obj: Object,
        *,
        manager: str = names.MANAGER_CHILDREN,
        force: bool = True,
        dry_run: bool = False,
        subresource: str | None = None,
    ) -> Object:
        """Apply a full set of the manager's fields; creates the object if it is missing.

        ``metadata.resourceVersion`` in ``obj`` makes the call conditional; with ``metadata.uid`` it
        never creates a second object.

        Raises:
            Conflict: a precondition failed, or another manager owns a field and ``force`` is off.
            Invalid: the API server rejects the content.
        """
        resource = resource_of(obj)
        namespace, name = _key(obj)
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        if dry_run:
            query["dryRun"] = "All"
        verb = f"apply {subresource}" if subresource else "apply"
        path = resource.path(namespace, name, subresource)
        return await self._send(
            verb,
            "PATCH",
            resource,
            path,
            query=query,
            body=obj,
            content_type=APPLY,
            repeatable=True,
        )

    async def apply_status(self, obj: Object, *, manager: str = names.MANAGER_STATUS) -> Object:
        """Apply the ``status`` subresource. With ``metadata.resourceVersion`` it is conditional.

        Raises:
            Conflict: the object changed since.
            NotFound: the object does not exist (apply never creates through a subresource).
        """
        return await self.apply(obj, manager=manager, subresource="status")

    async def replace(self, obj: Object, *, manager: str = names.MANAGER_CHILDREN) -> Object:
        """Replace a whole object (PUT); ``metadata.resourceVersion`` makes it conditional.

        Raises:
            Conflict: the object changed since.
        """
        resource = resource_of(obj)
        path = resource.path(*_key(obj))
        return await self._send(
            "replace",
            "PUT",
            resource,
            path,
            query={"fieldManager": manager},
            body=obj,
            repeatable=True,
        )

    async def json_patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        operations: Sequence[Object],
        *,
        manager: str = names.MANAGER_CHILDREN,
        subresource: str | None = None,
    ) -> Object:
        """Send a JSON patch. Not repeated once it may have reached the server.

        Its operations name list items by index.

        Raises:
            Invalid: an operation failed, such as a ``test``.
        """
        query = {"fieldManager": manager}
        path = resource.path(namespace, name, subresource)
        return await self._send(
            f"patch {subresource}" if subresource else "patch",
            "PATCH",
            resource,
            path,
            query=query,
            body=[*operations],
            content_type=JSON_PATCH,
            repeatable=False,
        )

    async def resize_pod(
        self,
        namespace: str,
        name: str,
        patch: Object,
        *,
        uid: str | None = None,
        manager: str = names.MANAGER_CHILDREN,
    ) -> Object:
        """Patch a pod through its ``resize`` subresource (Kubernetes 1.33 or newer).

        Raises:
            Conflict: another pod has the name now (uid).
            NotFound: the pod does not exist, or the API server has no such subresource.
            Invalid: it must not be resized so, for example if its QoS class would change.
        """
        path = PODS.path(namespace, name, "resize")
        query = {"fieldManager": manager}
        return await self._send(
            "resize",
            "PATCH",
            PODS,
            path,
            query=query,
            body={**patch, "metadata": {"uid": uid}} if uid else patch,
            content_type=STRATEGIC_MERGE_PATCH,
            repeatable=True,
        )

    async def create(self, obj: Object) -> Object:
        """Create an object (POST).

        Never repeated once the request may have reached the server, except after a 429, which was
        not processed.

        Raises:
            Conflict: with ``already_exists`` if there is an object of that name.
        """
        resource = resource_of(obj)
        namespace = (obj.get("metadata") or {}).get("namespace")
        return await self._send(
            "create",
            "POST",
            resource,
            resource.path(namespace),
            body=obj,
            repeatable=False,
        )

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Propagation = "Background",
        grace_seconds: int | None = None,
    ) -> bool:
        """Delete one object under preconditions.

        Returns:
            False if it did not exist.

        Raises:
            Conflict: another object has the name now (uid), or it changed (resourceVersion).
        """
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
        }
        conditions = {"uid": uid, "resourceVersion": resource_version}
        if preconditions := {key: value for key, value in conditions.items() if value}:
            body["preconditions"] = preconditions
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            await self._send(
                "delete",
                "DELETE",
                resource,
                resource.path(namespace, name),
                body=body,
                repeatable=True,
            )
        except NotFound:
            return False
        return True


def _key(obj: Mapping[str, Any]) -> tuple[str | None, str]:
    return (metadata := obj.get("metadata") or {}).get("namespace"), metadata.get("name") or ""
