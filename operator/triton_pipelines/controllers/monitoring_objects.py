"""PodMonitors and PrometheusRules of the pipelines, kept as their specs ask for it, beside the passes.

Their kinds are another operator's, and may come and go while this one runs: each round asks for them anew with the list that it needs in
any case. No pipeline waits for them, or suffers from what becomes of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.v1alpha1 import InferencePipeline, Presence
from triton_pipelines.cluster.apply import apply_over
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.diff import needs_apply
from triton_pipelines.cluster.errors import ClusterError, Conflict, Forbidden, Invalid, NotFound
from triton_pipelines.cluster.resources import (
    INFERENCE_PIPELINES,
    POD_MONITORS,
    PROMETHEUS_RULES,
    Resource,
)
from triton_pipelines.cluster.store import Key, Store, key_of
from triton_pipelines.compile.render.monitoring import pod_monitor, prometheus_rule
from triton_pipelines.controllers.current_specs import Specs
from triton_pipelines.controllers.pipeline.owner_references import (
    FormerChild,
    NameTaken,
    check_owner,
    owned,
)
from triton_pipelines.controllers.pipeline.plan import is_unmanaged
from triton_pipelines.controllers.pipeline.snapshot import reported_monitoring_findings

# Nothing urgent comes of these objects; what is edited by hand is put right, and a CRD is noticed, within so many seconds.
ROUND_SECONDS: Final = 30.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: its resource, the field that asks for it, and how it is made."""

    resource: Resource
    field: str
    wanted: Callable[[InferencePipeline], Presence | None]
    render: Callable[[InferencePipeline, Mapping[str, str]], Object]

    @property
    def path(self) -> str:
        """The field of the resource."""
        return f"spec.observability.{self.field}"


KINDS: Final = (
    Kind(
        POD_MONITORS,
        "podMonitor",
        lambda pipeline: pipeline.spec.observability.pod_monitor,
        pod_monitor,
    ),
    Kind(
        PROMETHEUS_RULES,
        "prometheusRule",
        lambda pipeline: pipeline.spec.observability.prometheus_rule,
        prometheus_rule,
    ),
)


@dataclass(slots=True)
class Monitors:
    """Makes, mends and removes these objects. ``run`` ends only when cancelled.

    ``scopes``: namespaces to list, ``(None,)`` all at once; ``labels``: of every object, for the selectors of the Prometheus that is to
    see them; ``automatic``: the fields for which Auto makes one; ``enqueue`` makes a reconcile pass due.
    """

    client: Client
    store: Store
    scopes: tuple[str | None, ...]
    labels: Mapping[str, str]
    automatic: frozenset[str]
    enqueue: Callable[[Key], None]
    round_seconds: float = ROUND_SECONDS
    specs: Specs = field(default_factory=Specs)
    _found: dict[Key, tuple[Finding, ...]] = field(default_factory=dict)

    def findings(self, key: Key) -> tuple[Finding, ...] | None:
        """What is to be said of the pipeline's objects; ``None``: it has not been looked at yet."""
        return self._found.get(key)

    async def run(self) -> None:
        """Round after round; one that fails is logged, and the next one tries again."""
        while True:
            try:
                await self.round()
            except Exception as error:
                await _log.aerror("monitoring objects failed", error=str(error), exc_info=error)
            await asyncio.sleep(self.round_seconds)

    async def round(self) -> None:
        """One look at every pipeline."""
        served = {kind.field: await self._list(kind.resource) for kind in KINDS}
        pipelines = set(self.store.pipelines())
        self._found = {key: found for key, found in self._found.items() if key in pipelines}
        self.specs.keep(pipelines)
        for key in pipelines:
            raw = self.store.get(INFERENCE_PIPELINES, *key)
            if raw is None or is_unmanaged(raw):
                continue
            pipeline = self.specs.of(self.store, raw)
            if pipeline is None:
                continue
            said = tuple(
                [
                    finding
                    for kind in KINDS
                    for finding in await self._see_to(kind, pipeline, key, served[kind.field])
                ]
            )
            # At the first look the status may still say what was true before this process began.
            before = (
                self._found[key]
                if key in self._found
                else tuple(reported_monitoring_findings(raw.get("status") or {}))
            )
            self._found[key] = said
            if said != before:
                self.enqueue(key)

    async def _list(self, resource: Resource) -> Mapping[Key, Object] | str:
        """What there is of the kind, or why it cannot be had."""
        found: dict[Key, Object] = {}
        try:
            for scope in self.scopes:
                listed = await self.client.list(
                    resource, scope, label_selector=names.MANAGED_SELECTOR
                )
                found |= {key_of(item): item for item in listed.items}
        except NotFound:
            return f"the cluster does not serve {resource.kind} ({resource.group}): install the Prometheus operator's CRDs, or say Disabled"
        except Forbidden as error:
            return f"the operator may not list {resource.plural}: {error.message}; the chart's roles grant it"
        except ClusterError as error:
            return f"{resource.plural} cannot be listed: {error.message}"
        return found

    async def _see_to(
        self, kind: Kind, pipeline: InferencePipeline, key: Key, served: Mapping[Key, Object] | str
    ) -> list[Finding]:
        wanted = kind.wanted(pipeline) or Presence.AUTO
        if isinstance(served, str):
            return (
                [Finding(kind.path, served, Severity.WARNING)] if wanted is Presence.ENABLED else []
            )
        known = served.get(key)
        uid = str(pipeline.metadata.uid)
        try:
            if wanted is Presence.ENABLED or (
                wanted is Presence.AUTO and kind.field in self.automatic
            ):
                await self._apply(kind, kind.render(pipeline, self.labels), known, uid)
            elif known is not None and owned(known, uid):
                await self.client.delete(kind.resource, *key, uid=known["metadata"]["uid"])
                await _log.ainfo(
                    "deleted", kind=kind.resource.kind, namespace=key[0], object=key[1]
                )
        except Conflict:
            return []  # it changed meanwhile: the next round sees it
        except (NameTaken, FormerChild) as error:
            return [Finding(kind.path, str(error), Severity.WARNING)]
        except (Forbidden, Invalid) as error:
            return [
                Finding(kind.path, f"the API server refuses it: {error.message}", Severity.WARNING)
            ]
        except ClusterError as error:
            await _log.awarning(
                "not applied",
                kind=kind.resource.kind,
                namespace=key[0],
                object=key[1],
                error=error.message,
            )
        return []

    async def _apply(self, kind: Kind, item: Object, known: Object | None, uid: str) -> None:
        if not needs_apply(known, item, names.MANAGER_CHILDREN):
            return
        if known is None:
            known = await self._foreign(kind.resource, item)
        check_owner(known, item, uid)
        await apply_over(self.client, item, known)
        await _log.ainfo(
            "applied",
            kind=item["kind"],
            namespace=item["metadata"]["namespace"],
            object=item["metadata"]["name"],
        )

    async def _foreign(self, resource: Resource, item: Object) -> Object | None:
        """An object of the name that bears no label of ours."""
        try:
            return await self.client.get(
                resource, item["metadata"]["namespace"], item["metadata"]["name"]
            )
        except NotFound:
            return None
