"""Watch the cluster with Kopf. Handlers only update the store and enqueue pipelines.

No handler calls the API server, patches an object or raises.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import kopf
import structlog

from triton_pipelines.api import names
from triton_pipelines.api.depth import MAX_DOCUMENT_DEPTH, is_deeper_than
from triton_pipelines.cluster.client import PAGE_SIZE, Object
from triton_pipelines.cluster.kopf_internals import Insights, watched_kinds
from triton_pipelines.cluster.kopf_session import bounded_session
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, WATCHED_CHILDREN, Resource
from triton_pipelines.cluster.store import Key, Store, key_of, owner_key
from triton_pipelines.cluster.watch_lists import Scope, WatchLists

WATCHED: Final[tuple[Resource, ...]] = (INFERENCE_PIPELINES, *WATCHED_CHILDREN)
# Bound service account tokens are valid for an hour or more and are rotated at 80 % of that:
# reading them every ten minutes is early enough.
_CREDENTIAL_LIFETIME: Final = datetime.timedelta(minutes=10)
# Prefix of Kopf's own finalizer and annotations. Kopf strips this finalizer from objects, so no
# managed object may have it; `on.event` handlers alone never write either.
_KOPF_PREFIX: Final = f"kopf.{names.GROUP}"
# From the first lists to all watches: by then Kopf's own discovery is done, or is not repeated.
WATCHING_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.5
_log = structlog.get_logger(__name__)
# Seconds between the attempts of a list or watch request.
_RETRY_SECONDS: Final = (1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0)
_RETRY_SECONDS_MAX: Final = 60.0
# Time between two checks of what Kopf watches.
CHECK_SECONDS: Final = 15.0


class WatchObserver(Protocol):
    """Counts watch events, for metrics."""

    def observe_event(self, resource: Resource) -> None:
        """Count an event of a kind."""
        ...

    def observe_too_deep(self, resource: Resource) -> None:
        """Count an event of an object that is nested too deeply to be valid."""
        ...


class _NoDiffBase(kopf.DiffBaseStorage):
    """Kopf's record of the last handled state, empty: handlers of raw events compare nothing.

    Kopf would otherwise copy each object of each event.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class _EndlessBackoffs:
    """Kopf's back-offs after failed requests, without an end.

    After the last one, Kopf would end the operator: a namespace that the operator may no longer
    read would end it for all others.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain(_RETRY_SECONDS, itertools.repeat(_RETRY_SECONDS_MAX))


class UnwatchedError(RuntimeError):
    """Kinds that the API server lists and that Kopf does not watch."""


def selector_of(resource: Resource) -> str | None:
    """Return the label selector of a kind's watch and list: our children, but every pipeline."""
    return None if resource == INFERENCE_PIPELINES else names.MANAGED_SELECTOR


def kopf_settings(
    *, cluster_wide: bool, request_timeout_seconds: float, shutdown_seconds: float
) -> kopf.OperatorSettings:
    """Return Kopf's settings; each one differs from its default for a reason.

    Args:
        cluster_wide: whether all namespaces are watched.
        request_timeout_seconds: time-out of one request to the API server.
        shutdown_seconds: time that running reconciles get at the end.
    """
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = f"{_KOPF_PREFIX}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=_KOPF_PREFIX)
    settings.persistence.diffbase_storage = _NoDiffBase()
    # The reconciler posts events about pipelines; Kopf posts none.
    settings.posting.enabled = False
    settings.posting.reporting_component = names.APP
    # A watch is renewed by the server, by the client if that fails, and by Kopf if it is frozen
    # (default: 70 s without a bookmark).
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = PAGE_SIZE
    settings.networking.request_timeout = request_timeout_seconds
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _EndlessBackoffs()
    settings.networking.trust_env = True
    for resource in WATCHED:
        if selector := selector_of(resource):
            kind = (resource.group, resource.version, resource.plural)
            settings.watching.label_selectors[kind] = selector
    # With namespaced roles, CRDs and namespaces cannot be listed.
    settings.scanning.disabled = not cluster_wide
    # Kopf's SIGKILL of last resort, after its own shutdown and ours. Without it a process that
    # hangs would be left to the kubelet.
    settings.process.ultimate_exiting_timeout = shutdown_seconds + 30
    return settings


@dataclass(frozen=True, slots=True)
class ObjectEvents:
    """Stores what lists and watches report, and makes pipelines due.

    A pipeline is stored once all kinds are listed where it is: with half of its objects in the
    store, it would be reconciled as if the others did not exist.
    """

    store: Store
    """Updated with each event."""
    enqueue: Callable[[Key, Resource], None]
    """Makes the owning pipelines due; the second argument is the kind that changed."""
    observer: WatchObserver
    """Counts the events."""
    scopes: tuple[Scope, ...] = (None,)
    """The watched namespaces; ``None`` stands for all."""
    _held: dict[Scope, dict[Key, Object]] = field(default_factory=dict)
    """Pipelines of the scopes that are not listed yet."""

    def __post_init__(self) -> None:
        self._held.update({scope: {} for scope in self.scopes})

    def release(self, scope: Scope) -> None:
        """Store the pipelines of a scope in which every kind has been listed."""
        for pipeline in self._held.pop(scope, {}).values():
            self._update(INFERENCE_PIPELINES, None, pipeline)

    def take_listed(self, resource: Resource, obj: Object) -> None:
        """Handle an object of a list."""
        self.handle(resource, None, obj)

    def handle(self, resource: Resource, event_type: str | None, obj: Object) -> None:
        """Handle an event.

        Args:
            resource: the object's kind.
            event_type: as for :func:`update_store`.
            obj: the object.
        """
        self.observer.observe_event(resource)
        obj.setdefault("apiVersion", resource.api_version)
        obj.setdefault("kind", resource.kind)
        # Schemas of the API server's own kinds have a fixed depth, apart from managedFields. A
        # pipeline may have been stored before its schema had one.
        if resource == INFERENCE_PIPELINES and is_deeper_than(obj, MAX_DOCUMENT_DEPTH):
            self.observer.observe_too_deep(resource)
            namespace, name = key_of(obj)
            _log.warning(
                "object is nested too deeply; its deepest values are read as null",
                kind=resource.kind,
                namespace=namespace,
                object=name,
            )
        scope = None if None in self.scopes else key_of(obj)[0]
        if resource != INFERENCE_PIPELINES or scope not in self._held:
            self._update(resource, event_type, obj)
        elif event_type == "DELETED":
            self._held[scope].pop(key_of(obj), None)
        else:
            self._held[scope][key_of(obj)] = obj

    def _update(self, resource: Resource, event_type: str | None, obj: Object) -> None:
        for owner in update_store(self.store, resource, event_type, obj):
            self.enqueue(owner, resource)


def register_watches(registry: kopf.OperatorRegistry, events: ObjectEvents) -> None:
    """Register the handlers of watch events.

    Args:
        registry: where to register them.
        events: handles them.
    """
    for resource in WATCHED:
        kopf.on.event(
            resource.group,
            resource.version,
            resource.plural,
            registry=registry,
            id=f"watch-{resource.plural}",
        )(_handler(resource, events))


def _handler(resource: Resource, events: ObjectEvents) -> Callable[..., Any]:
    # Kopf awaits coroutine functions in place; plain functions would run in a thread.
    async def on_event(event: Any, **_: Any) -> None:
        events.handle(resource, event["type"], event["object"])

    return on_event


def update_store(store: Store, resource: Resource, event_type: str | None, obj: Object) -> set[Key]:
    """Apply one watch event to the store.

    Args:
        store: the caches.
        resource: the object's kind.
        event_type: DELETED, or anything else for an object that exists.
        obj: the object.

    Returns:
        Pipelines to reconcile: the owner, and the previous owner if the label changed. Empty if
        the store already had this state.
    """
    namespace, name = key_of(obj)
    before = store.get(resource, namespace, name)
    uid = obj["metadata"].get("uid")
    changed = (
        store.remove(resource, namespace, name, uid=uid)
        if event_type == "DELETED"
        else store.put(resource, obj)
    )
    if not changed:
        return set()
    owners = {owner_key(resource, obj), owner_key(resource, before) if before else None}
    return {owner for owner in owners if owner is not None}


async def wait_until_watched(insights: Insights, seconds: float = WATCHING_SECONDS) -> None:
    """Wait until Kopf watches every kind that the operator needs.

    A kind that was just created can be listed shortly before discovery reports it. If Kopf runs its
    discovery in that moment, it finds no such kind and does not retry until a CRD changes (Kopf
    1.3x: a 404 of a group's version counts as an empty group). Nothing would be watched, without
    any error.

    Args:
        insights: what Kopf watches.
        seconds: how long to wait.

    Raises:
        UnwatchedError: a kind is still not watched. A restart runs discovery again.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while missing := unwatched(insights):
        if loop.time() > end:
            kinds = (
                f"{resource.plural}.{resource.group}" if resource.group else resource.plural
                for resource in missing
            )
            raise UnwatchedError(
                f"{', '.join(sorted(kinds))}: listed by the API server, but not found by "
                "discovery when the watches started; restart the operator to try again"
            )
        await asyncio.sleep(_POLL_SECONDS)


def unwatched(insights: Insights) -> list[Resource]:
    """Return the kinds that the operator needs and Kopf does not watch."""
    known = watched_kinds(insights)
    return [
        resource
        for resource in WATCHED
        if (resource.group, resource.version, resource.plural) not in known
    ]


async def check_watches(
    insights: Insights,
    is_served: Callable[[Resource], Awaitable[bool]],
    interval: float = CHECK_SECONDS,
) -> None:
    """Check forever that every served kind is watched.

    A CRD that is deleted and created again causes the same race as at start-up.

    Args:
        insights: what Kopf watches.
        is_served: returns whether the API server serves a kind. One that is not served cannot be
            watched, and is checked again.
        interval: seconds between two checks.

    Raises:
        UnwatchedError: a kind is served, and not watched in time.
    """
    await wait_until_watched(insights)
    while True:
        await asyncio.sleep(interval)
        missing = unwatched(insights)
        served = [await is_served(resource) for resource in missing]
        if any(served):
            await wait_until_watched(insights)


def register_login(
    registry: kopf.OperatorRegistry,
    kubeconfig: str | None,
    context: str | None,
    lists: WatchLists,
) -> None:
    """Register a login that gives Kopf the credentials of the operator's own client.

    They expire, so that rotated tokens are read again.

    Args:
        registry: where to register it.
        kubeconfig: as for the client.
        context: as for the client.
        lists: takes over what Kopf lists.
    """

    async def login(**_: Any) -> kopf.AiohttpSession:
        return bounded_session(await connection_info(kubeconfig, context), lists)

    kopf.on.login(registry=registry, id="login")(login)


async def connection_info(
    kubeconfig: str | None = None, context: str | None = None
) -> kopf.ConnectionInfo:
    """Return the credentials as Kopf needs them.

    Raises:
        LoginError: as ``cluster.login.load_configuration``.
    """
    configuration = await load_configuration(kubeconfig, context)
    header: str | None = await configuration.get_api_key_with_prefix(
        "BearerToken", alias="authorization"
    )
    scheme, _, token = (header or "").strip().partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        # In a cluster the library writes "bearer"; some proxies accept only the registered
        # spelling.
        scheme=scheme.capitalize() if token else None,
        token=(token or scheme).strip() or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
        trust_env=True,
        expiration=datetime.datetime.now(datetime.UTC) + _CREDENTIAL_LIFETIME if header else None,
    )
