"""Thin asynchronous client of the API server on raw dicts, over ``kubernetes.aio``'s connections.

Only this module has time-outs, the limit of concurrent requests, retries and metrics. Typed models
are not used: parsing 500 Deployments into them takes 222 ms, into dicts 17 ms.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from triton_pipelines.api import names
from triton_pipelines.cluster.errors import (
    ClusterError,
    Gone,
    NotFound,
    TooMany,
    Unauthorized,
    Unavailable,
    from_response,
)
from triton_pipelines.cluster.resources import PODS, SECRETS, Resource, resource_of
from triton_pipelines.cluster.session import Session, in_use

Object = dict[str, Any]
Login = Callable[[], Awaitable[Configuration]]
Propagation = Literal["Background", "Foreground", "Orphan"]

_JSON: Final = "application/json"
# Otherwise the answer to a write contains the whole Secret.
_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
# JSON is YAML except that YAML has no surrogate pairs of escapes for characters beyond U+FFFF, such
# as an emoji in a label: they have to be sent unescaped. With a parameter in the content type, the
# generated client sends bytes unchanged; the API server drops it.
_APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
_JSON_PATCH: Final = "application/json-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_CONNECT_TIMEOUT_SECONDS: Final = 10.0
# Page size of a LIST; client-go's default.
PAGE_SIZE: Final = 500


class RequestObserver(Protocol):
    """Called after every attempt of a request."""

    def __call__(self, *, verb: str, resource: str, code: str, seconds: float) -> None:
        """Observe an attempt.

        Args:
            verb: what was requested.
            resource: plural of the kind.
            code: HTTP status, ``Timeout``, ``ConnectFailed`` or ``ConnectionLost``.
            seconds: its duration.
        """
        ...


def _observe_nothing(*, verb: str, resource: str, code: str, seconds: float) -> None:
    """Default hook."""


@dataclass(frozen=True, slots=True)
class ObjectList:
    """All objects of a LIST over all its pages."""

    items: list[Object]
    """The objects."""
    resource_version: str
    """The resourceVersion at which the list was read."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Limits of the client."""

    timeout_seconds: float = 30.0
    """Time-out of one attempt, including the answer."""
    max_in_flight: int = 32
    """Concurrent requests; the API server's own fairness sheds load above its share."""
    attempts: int = 4
    """Attempts per call, for calls that may be repeated."""
    backoff_seconds: float = 0.2
    """First wait between two attempts; doubles, with full jitter."""
    max_backoff_seconds: float = 5.0
    """Longest wait between two attempts."""
    max_retry_after_seconds: float = 10.0
    """Longest ``Retry-After`` that a call waits for; a longer one is left to the caller."""


@dataclass(slots=True)
class Client:
    """Client of one API server. Create it inside a running event loop and ``close()`` it."""

    login: Login
    """Returns address and credentials; called at the first request and again after a 401."""
    options: ClientOptions = field(default_factory=ClientOptions)
    """Limits."""
    observe: RequestObserver = _observe_nothing
    """Called once per attempt, for metrics."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits between attempts; replaced in tests."""
    uniform: Callable[[float, float], float] = random.uniform
    """Jitter; replaced in tests."""
    _session: Session | None = field(default=None, init=False)
    _login_lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.options.max_in_flight)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            session.retired = True
            await session.api.close()  # type: ignore[no-untyped-call]

    # --- reading --------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """Return one object.

        Raises:
            NotFound: it does not exist.
        """
        return await self._call(
            "get", "GET", resource, resource.path(namespace, name), repeatable=True
        )

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> ObjectList:
        """Return all objects of a kind with ``apiVersion`` and ``kind``, read in pages.

        If the continue token expires between two pages (410), the list is restarted once.

        Args:
            resource: the kind.
            namespace: the namespace; ``None`` lists all.
            label_selector: a label selector.
            field_selector: a field selector.
        """
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        query = {key: value for key, value in selectors.items() if value}
        try:
            return await self._list_pages(resource, namespace, query)
        except Gone:
            return await self._list_pages(resource, namespace, query)

    async def _list_pages(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str]
    ) -> ObjectList:
        items: list[Object] = []
        token = ""
        while True:
            page_query = {
                **query,
                "limit": str(PAGE_SIZE),
                **({"continue": token} if token else {}),
            }
            page = await self._call(
                "list", "GET", resource, resource.path(namespace), query=page_query, repeatable=True
            )
            for item in page.get("items") or ():
                # Items of a typed list have neither; all callers rely on both.
                item.setdefault("apiVersion", resource.api_version)
                item.setdefault("kind", resource.kind)
                items.append(item)
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
        return await self._call(
            verb,
            "PATCH",
            resource,
            path,
            query=query,
            body=obj,
            content_type=_APPLY,
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
        return await self._call(
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
    ) -> Object:
        """Send a JSON patch. Not repeated once it may have reached the server.

        Its operations name list items by index.

        Raises:
            Invalid: an operation failed, such as a ``test``.
        """
        query = {"fieldManager": manager}
        path = resource.path(namespace, name)
        return await self._call(
            "patch",
            "PATCH",
            resource,
            path,
            query=query,
            body=[*operations],
            content_type=_JSON_PATCH,
            repeatable=False,
        )

    async def resize_pod(
        self, namespace: str, name: str, patch: Object, *, manager: str = names.MANAGER_CHILDREN
    ) -> Object:
        """Patch a pod through its ``resize`` subresource (Kubernetes 1.33 or newer).

        Raises:
            NotFound: the pod does not exist, or the API server has no such subresource.
            Invalid: it must not be resized so, for example if its QoS class would change.
        """
        path = PODS.path(namespace, name, "resize")
        query = {"fieldManager": manager}
        return await self._call(
            "resize",
            "PATCH",
            PODS,
            path,
            query=query,
            body=patch,
            content_type=_STRATEGIC,
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
        return await self._call(
            "create", "POST", resource, resource.path(namespace), body=obj, repeatable=False
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
            await self._call(
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

    # --- requests -------------------------------------------------------------------------------

    async def _call(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | Sequence[Object] | None = None,
        content_type: str = _JSON,
        repeatable: bool,
    ) -> Object:
        target = f"{path}?{urlencode(query)}" if query else path
        renewed = False
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self._slots:
                    session = await self._current_session()
                    return await self._attempt(
                        session, verb, method, resource, target, body, content_type
                    )
            except Unauthorized:
                if renewed:
                    raise
                renewed = True
                await self._renew(session)
            except (TooMany, Unavailable) as error:
                delay = self._delay(error, attempt, repeatable)
                if delay is None:
                    raise
                await self.sleep(delay)

    def _delay(self, error: ClusterError, attempt: int, repeatable: bool) -> float | None:
        """Return the seconds until the next attempt; None if the error is raised."""
        # A call that timed out used up its time: the caller's own back-off decides.
        if attempt >= self.options.attempts or error.reason == "Timeout":
            return None
        # A 429 was not processed, and without a connection nothing was sent: both may be repeated,
        # creates included.
        if not (repeatable or isinstance(error, TooMany) or error.reason == "ConnectFailed"):
            return None
        ceiling = min(
            self.options.max_backoff_seconds, self.options.backoff_seconds * 2 ** (attempt - 1)
        )
        jittered = self.uniform(0.0, ceiling)
        if error.retry_after is None:
            return jittered
        if error.retry_after > self.options.max_retry_after_seconds:
            return None
        return error.retry_after + jittered

    async def _attempt(
        self,
        session: Session,
        verb: str,
        method: str,
        resource: Resource,
        target: str,
        body: Object | Sequence[Object] | None,
        content_type: str,
    ) -> Object:
        started, code = time.perf_counter(), "Cancelled"
        accept = _METADATA if resource == SECRETS and method in ("PATCH", "POST") else _JSON
        try:
            async with in_use(session) as api:
                status, reason, raw, retry_after = await self._exchange(
                    api, method, target, body, {"Accept": accept, "Content-Type": content_type}
                )
            code = str(status)
        except TimeoutError as error:
            code = "Timeout"
            seconds = self.options.timeout_seconds
            raise Unavailable(
                0, code, f"{method} {target}: no answer within {seconds:g} s"
            ) from error
        except aiohttp.ClientConnectorError as error:
            code = "ConnectFailed"
            raise Unavailable(0, code, f"{method} {target}: cannot connect: {error}") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            code = "ConnectionLost"
            raise Unavailable(
                0, code, f"{method} {target}: connection broke: {type(error).__name__}"
            ) from error
        finally:
            self.observe(
                verb=verb,
                resource=resource.plural,
                code=code,
                seconds=time.perf_counter() - started,
            )
        parsed = _parse(raw)
        if 200 <= status < 300:
            if not isinstance(parsed, dict):
                raise Unavailable(
                    status, "BadAnswer", f"{method} {target}: the answer is not a JSON object"
                )
            return parsed
        raise from_response(status, reason, parsed, retry_after)

    async def _exchange(
        self,
        api: ApiClient,
        method: str,
        target: str,
        body: Object | Sequence[Object] | None,
        headers: dict[str, str],
    ) -> tuple[int, str, bytes, str | None]:
        headers["User-Agent"] = names.APP
        await api.update_params_for_auth(headers, None, ["BearerToken"], target, method, None)
        # `connect` also limits the wait for a free connection, hence sock_connect.
        timeout = aiohttp.ClientTimeout(
            total=self.options.timeout_seconds, sock_connect=_CONNECT_TIMEOUT_SECONDS
        )
        sent = (
            json.dumps(body, ensure_ascii=False).encode()
            if headers["Content-Type"] == _APPLY
            else body
        )
        response = await api.call_api(
            method, api.configuration.host + target, headers, sent, _request_timeout=timeout
        )
        raw = await response.read()  # type: ignore[no-untyped-call]
        return response.status, response.reason or "", raw, response.headers.get("Retry-After")

    async def _current_session(self) -> Session:
        async with self._login_lock:
            if self._session is None:
                self._session = Session(ApiClient(await self.login()))
            return self._session

    async def _renew(self, stale: Session) -> None:
        """Read the credentials again after a 401, once for all requests that used ``stale``."""
        async with self._login_lock:
            if self._session is not stale:
                return
            self._session = Session(ApiClient(await self.login()))
        stale.retired = True
        if not stale.users:
            await stale.api.close()  # type: ignore[no-untyped-call]


def _key(obj: Mapping[str, Any]) -> tuple[str | None, str]:
    return (metadata := obj.get("metadata") or {}).get("namespace"), metadata.get("name") or ""


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else {}
    except ValueError:
        return None
