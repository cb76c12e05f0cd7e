"""Kopf's part: watches that only store and enqueue. No handler calls the API, patches anything, or raises."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf
from kopf._cogs.structs.references import Insights  # not exported

from triton_pipelines.api import names
from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, WATCHED_CHILDREN, Resource
from triton_pipelines.cluster.store import Key, Store, key_of, owner_key

WATCHED: Final[tuple[Resource, ...]] = (INFERENCE_PIPELINES, *WATCHED_CHILDREN)
# Bound service-account tokens live an hour or more and are rotated at 80 % of that: asking again after ten minutes is early enough.
_CREDENTIAL_LIFETIME: Final = datetime.timedelta(minutes=10)
# Kopf's own finalizer and annotations. It strips this finalizer from objects, so nothing that we manage may bear the name; `on.event` handlers
# alone never write either.
_KOPF_PREFIX: Final = f"kopf.{names.GROUP}"
# From the first lists to all watches; Kopf's own scan is over long before, or never comes again.
WATCHING_SECONDS: Final = 15.0
_LOOK_SECONDS: Final = 0.5
# Between looks at what Kopf watches, once all is.
CHECK_SECONDS: Final = 15.0


class UnwatchedError(RuntimeError):
    """Kinds that the API server lists, and that Kopf does not watch."""


def selector_of(resource: Resource) -> str | None:
    """The label selector of a kind's watch and list: our children only, but every pipeline."""
    return None if resource == INFERENCE_PIPELINES else names.MANAGED_SELECTOR


def kopf_settings(config: OperatorConfig) -> kopf.OperatorSettings:
    """Kopf's settings; each differs from its default for a reason."""
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = f"{_KOPF_PREFIX}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=_KOPF_PREFIX)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=_KOPF_PREFIX)
    # Events about pipelines are the reconciler's; Kopf posts none.
    settings.posting.enabled = False
    settings.posting.reporting_component = names.APP
    # A watch is renewed by the server, by us if that fails, and (default 70 s without a bookmark) when it is frozen.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = config.api_timeout_seconds
    settings.networking.connect_timeout = 10
    settings.networking.trust_env = True
    for resource in WATCHED:
        if selector := selector_of(resource):
            settings.watching.label_selectors[resource.group, resource.version, resource.plural] = (
                selector
            )
    # With namespaced roles CRDs and namespaces cannot be listed.
    settings.scanning.disabled = not config.cluster_wide
    # Kopf's SIGKILL of last resort, after all its and our own stopping. None at all would leave a hung process to the kubelet.
    settings.process.ultimate_exiting_timeout = config.shutdown_seconds + 30
    return settings


def register_watches(
    registry: kopf.OperatorRegistry,
    store: Store,
    enqueue: Callable[[Key], None],
    observe: Callable[[Resource], None],
) -> None:
    """Registers the handlers that keep the store up to date and make the owning pipelines due."""
    for resource in WATCHED:
        kopf.on.event(
            resource.group,
            resource.version,
            resource.plural,
            registry=registry,
            id=f"watch-{resource.plural}",
        )(_handler(resource, store, enqueue, observe))


def _handler(
    resource: Resource,
    store: Store,
    enqueue: Callable[[Key], None],
    observe: Callable[[Resource], None],
) -> Callable[..., Any]:
    # Kopf awaits coroutine functions in place; plain ones would go to a thread.
    async def on_event(event: Any, **_: Any) -> None:
        observe(resource)
        obj = event["object"]
        obj.setdefault("apiVersion", resource.api_version)
        obj.setdefault("kind", resource.kind)
        for owner in take_in(store, resource, event["type"], obj):
            enqueue(owner)

    return on_event


def take_in(
    store: Store, resource: Resource, event_type: str | None, obj: dict[str, Any]
) -> set[Key]:
    """Puts one watch event into the store.

    Returns:
        Pipelines to look at: the owner, and the earlier owner where the label moved. Empty for an echo of what is known already.
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


async def until_watched(insights: Insights, seconds: float = WATCHING_SECONDS) -> None:
    """Returns when Kopf has every kind that we need on its list.

    A kind that has just come can be listed a moment before discovery tells of it. Kopf that asks in that moment finds no such kind and does not
    ask again until a CRD changes (1.3x: a 404 of a group's version is an empty group): nothing would be watched, and nobody told.

    Raises:
        UnwatchedError: not within ``seconds``. A new start asks anew.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while missing := unwatched(insights):
        if loop.time() > end:
            kinds = ", ".join(
                sorted(
                    ".".join(filter(None, (resource.plural, resource.group)))
                    for resource in missing
                )
            )
            raise UnwatchedError(
                f"{kinds}: listed by the API server, but not found by discovery when the watches began; a new start asks again"
            )
        await asyncio.sleep(_LOOK_SECONDS)


def unwatched(insights: Insights) -> list[Resource]:
    """The kinds that we need and that are not on Kopf's list."""
    known = {(known.group, known.version, known.plural) for known in insights.watched_resources}
    return [
        resource
        for resource in WATCHED
        if (resource.group, resource.version, resource.plural) not in known
    ]


async def keep_watched(
    insights: Insights, listed: Callable[[Resource], Awaitable[bool]], every: float = CHECK_SECONDS
) -> None:
    """Looks again and again, for as long as the operator runs: a CRD that is deleted and made anew meets the same moment as at the start.

    ``listed``: whether the API server serves a kind; one that it does not serve is not to be watched, and is looked for again.

    Raises:
        UnwatchedError: a kind is served, and not watched in time.
    """
    await until_watched(insights)
    while True:
        await asyncio.sleep(every)
        missing = unwatched(insights)
        if missing and any([await listed(resource) for resource in missing]):
            await until_watched(insights)


def register_login(
    registry: kopf.OperatorRegistry, kubeconfig: str | None, context: str | None
) -> None:
    """Gives Kopf the credentials of our own client, with an expiration, so that rotated tokens are read anew."""

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection_info(kubeconfig, context)

    kopf.on.login(registry=registry, id="login")(login)


async def connection_info(
    kubeconfig: str | None = None, context: str | None = None
) -> kopf.ConnectionInfo:
    """The credentials in the shape Kopf wants.

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
        # In a cluster the library writes "bearer"; some proxies take the registered spelling only.
        scheme=scheme.capitalize() if token else None,
        token=(token or scheme).strip() or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
        trust_env=True,
        expiration=datetime.datetime.now(datetime.UTC) + _CREDENTIAL_LIFETIME if header else None,
    )
