"""Keep the PodMonitor and PrometheusRule of each pipeline as its spec asks.

Both kinds belong to another operator and may be installed or removed at any time, so each round
lists them again. They are applied in a loop of their own: no pipeline waits for them or fails
because of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.observability import Presence
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cluster.apply import apply_new, apply_over
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.diff import needs_apply
from triton_pipelines.cluster.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    NotFound,
)
from triton_pipelines.cluster.impersonation import Writer
from triton_pipelines.cluster.resources import (
    INFERENCE_PIPELINES,
    POD_MONITORS,
    PROMETHEUS_RULES,
    Resource,
)
from triton_pipelines.cluster.store import Key, Store, key_of
from triton_pipelines.cluster.work_queue import Backoff
from triton_pipelines.compile.graph.acting_account import acting_account
from triton_pipelines.compile.graph.options import Options
from triton_pipelines.compile.render.monitoring import (
    MonitoringSettings,
    pod_monitor,
    prometheus_rule,
)
from triton_pipelines.controllers.current_specs import CurrentSpecs
from triton_pipelines.controllers.failure_log import NO_PIPELINE, FailureLog
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pipeline.child_conflicts import digest_of
from triton_pipelines.controllers.pipeline.live_config_map import stored_state
from triton_pipelines.controllers.pipeline.owner_references import (
    FormerChild,
    NameTaken,
    check_owner,
    owned,
)
from triton_pipelines.controllers.rejected_writes import Attempt, RejectedWrites
from triton_pipelines.controllers.unmanaged import is_unmanaged
from triton_pipelines.pod_calls import NamespaceSlots, PendingCalls

# Time between two rounds. A manual edit is reverted, and a new CRD noticed, within this time.
ROUND_SECONDS: Final = 30.0
# How long (seconds) a round waits for its writes. Slower ones go on during the next rounds.
PATIENCE_SECONDS: Final = 5.0
# Pipelines that are handled concurrently, one in each namespace: each may send a request.
SLOTS: Final = 8
# Back-off of a rejected object (:class:`RejectedWrites`).
REJECTED: Final = Backoff("monitoring", 60.0, 1200.0)
KIND: Final = "Monitoring"
"""Label of failures."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MonitoringKind:
    """One kind of object."""

    resource: Resource
    """Its API resource."""
    field: str
    """The field under ``spec.observability`` that requests it."""
    presence: Callable[[InferencePipeline], Presence | None]
    """Returns the value of that field."""
    render: Callable[[InferencePipeline, MonitoringSettings], Object]
    """Renders the object."""

    @property
    def path(self) -> str:
        """Return the field path in the resource."""
        return f"spec.observability.{self.field}"


KINDS: Final = (
    MonitoringKind(
        POD_MONITORS,
        "podMonitor",
        lambda pipeline: pipeline.spec.observability.pod_monitor,
        pod_monitor,
    ),
    MonitoringKind(
        PROMETHEUS_RULES,
        "prometheusRule",
        lambda pipeline: pipeline.spec.observability.prometheus_rule,
        prometheus_rule,
    ),
)


@dataclass(slots=True)
class MonitoringObjects:
    """Applies and deletes these objects. ``run`` ends only when cancelled."""

    client: Client
    """Client of the API server."""
    store: Store
    """The operator's caches."""
    scopes: tuple[str | None, ...]
    """Namespaces to list; ``(None,)`` lists all at once."""
    settings: MonitoringSettings
    """What is written into every object."""
    automatic: frozenset[str]
    """Fields for which Auto creates an object."""
    enqueue: Callable[[Key], None]
    """Makes a reconcile due; called when findings change."""
    handover: Handover
    """Where findings are published."""
    specs: CurrentSpecs
    """Effective specs, parsed once for all parts that read them."""
    failures: FailureLog
    """Counts and logs unexpected errors."""
    options: Options
    """The operator's options; they say in whose name objects are written."""
    writes: RejectedWrites
    """Writes that are not repeated yet."""
    round_seconds: float = ROUND_SECONDS
    """Time between two rounds."""
    _calls: PendingCalls[str, None] = field(
        default_factory=lambda: PendingCalls(PATIENCE_SECONDS), init=False
    )
    """By namespace."""
    _slots: NamespaceSlots = field(default_factory=lambda: NamespaceSlots(SLOTS, 1), init=False)

    async def run(self) -> None:
        """Repeat rounds forever; a failed round is reported, and the next one tries again."""
        try:
            while True:
                try:
                    await self.round()
                except Exception as error:
                    await self.failures.report(NO_PIPELINE, KIND, error)
                await asyncio.sleep(self.round_seconds)
        finally:
            self._calls.cancel()

    async def round(self) -> None:
        """Bring the objects of every pipeline to the desired state once.

        A failure in one pipeline does not affect others, and slow writes in one namespace do not
        delay other namespaces.
        """
        served = {kind.field: await self._list(kind.resource) for kind in KINDS}
        pipelines = set(self.store.pipelines())
        published = self.handover.monitoring
        for key in published.keys() - pipelines:
            del published[key]
            self.writes.forget(key)
        self.specs.keep(pipelines)
        self.failures.keep(pipelines)
        by_namespace: dict[str, list[Key]] = {}
        for key in pipelines:
            by_namespace.setdefault(key[0], []).append(key)
        await self._calls.results(
            {
                namespace: partial(self._reconcile_namespace, keys, served)
                for namespace, keys in by_namespace.items()
            }
        )

    async def _reconcile_namespace(
        self, keys: Sequence[Key], served: Mapping[str, Mapping[Key, Object] | str]
    ) -> None:
        """Handle the pipelines of one namespace, one after another."""
        for key in keys:
            try:
                async with self._slots.hold(key[0]):
                    await self._reconcile_all(key, served)
            except Exception as error:
                await self.failures.report(key, KIND, error)

    async def _reconcile_all(
        self, key: Key, served: Mapping[str, Mapping[Key, Object] | str]
    ) -> None:
        """Bring the objects of one pipeline to the desired state, and publish the findings."""
        raw, published = self.store.get(INFERENCE_PIPELINES, *key), self.handover.monitoring
        if raw is None or is_unmanaged(raw):
            return
        pipeline = self.specs.of(self.store, raw)
        if pipeline is None:
            return
        findings: list[Finding] = []
        attempt = self.writes.of(key, raw)
        for kind in KINDS:
            findings += await self._reconcile(kind, pipeline, key, served[kind.field], attempt)
        before = published.get(key)
        if before is None:
            # In the first round the status may still have findings of an earlier process.
            before = tuple(stored_state(self.store, key).warnings.monitoring)
        published[key] = tuple(findings)
        if published[key] != before:
            self.enqueue(key)

    async def _list(self, resource: Resource) -> Mapping[Key, Object] | str:
        """Return the existing objects of a kind, or why they are unknown."""
        found: dict[Key, Object] = {}
        try:
            for scope in self.scopes:
                listed = await self.client.list(
                    resource, scope, label_selector=names.MANAGED_SELECTOR
                )
                found |= {key_of(item): item for item in listed.items}
        except NotFound:
            return (
                f"the cluster does not serve {resource.kind} ({resource.group}); install "
                f"the Prometheus Operator CRDs, or disable {resource.kind} in "
                "spec.observability"
            )
        except Forbidden as error:
            return (
                f"the operator cannot list {resource.plural}: {error.message}; grant this "
                "permission with the roles of the chart"
            )
        except ClusterError as error:
            return f"{resource.plural} cannot be listed: {error.message}"
        return found

    async def _reconcile(
        self,
        kind: MonitoringKind,
        pipeline: InferencePipeline,
        key: Key,
        served: Mapping[Key, Object] | str,
        attempt: Attempt,
    ) -> list[Finding]:
        """Apply or delete one object.

        Args:
            kind: Its kind.
            pipeline: The pipeline with its effective spec.
            key: The pipeline's key.
            served: Existing objects of the kind, or why they are unknown.
            attempt: Returns the context of one write.

        Returns:
            What the status has to report about it.
        """
        presence = kind.presence(pipeline) or Presence.AUTO
        if isinstance(served, str):
            is_required = presence is Presence.ENABLED
            return [_not_applied(kind, served)] if is_required else []
        try:
            await self._apply_or_delete(kind, pipeline, presence, served.get(key), attempt)
        except Conflict:
            return []  # it changed meanwhile: the next round sees it
        except NamespaceTerminating:
            return []
        except (NameTaken, FormerChild) as error:
            return [_not_applied(kind, str(error))]
        except (Forbidden, Invalid) as error:
            return [_not_applied(kind, f"the API server rejects the object: {error.message}")]
        except ClusterError as error:
            await _log.awarning(
                "not applied",
                kind=kind.resource.kind,
                namespace=key[0],
                object=key[1],
                error=error.message,
            )
        return []

    async def _apply_or_delete(
        self,
        kind: MonitoringKind,
        pipeline: InferencePipeline,
        presence: Presence,
        known: Object | None,
        attempt: Attempt,
    ) -> None:
        uid, writer = str(pipeline.metadata.uid), self._writer(pipeline)
        is_automatic = presence is Presence.AUTO and kind.field in self.automatic
        if presence is Presence.ENABLED or is_automatic:
            item = kind.render(pipeline, self.settings)
            if needs_apply(known, item, names.MANAGER_CHILDREN):
                with attempt(("apply", kind.resource.kind, pipeline.name), digest_of(item)):
                    await self._apply(kind, item, known, uid, writer)
        elif known is not None and owned(known, uid):
            namespace, name = key_of(known)
            with attempt(("delete", kind.resource.kind, name), known["metadata"]["uid"]):
                async with writer.explaining(kind.resource, name):
                    await writer.client.delete(
                        kind.resource, namespace, name, uid=known["metadata"]["uid"]
                    )
            await _log.ainfo("deleted", kind=kind.resource.kind, namespace=namespace, object=name)

    def _writer(self, pipeline: InferencePipeline) -> Writer:
        account = acting_account(pipeline.spec.service_account_name, self.options)
        return Writer.of(self.client, pipeline.namespace, account)

    async def _apply(
        self,
        kind: MonitoringKind,
        item: Object,
        known: Object | None,
        uid: str,
        writer: Writer,
    ) -> None:
        namespace, name = key_of(item)
        async with writer.explaining(kind.resource, name):
            if known is not None or await apply_new(writer.client, item) is None:
                known = known or await self._unlabeled(kind.resource, item)
                check_owner(known, item, uid)
                await apply_over(writer.client, item, known)
        await _log.ainfo("applied", kind=item["kind"], namespace=namespace, object=name)

    async def _unlabeled(self, resource: Resource, item: Object) -> Object | None:
        """Return an existing object of the same name without the operator's label, if any."""
        try:
            return await self.client.get(resource, *key_of(item))
        except NotFound:
            return None


def _not_applied(kind: MonitoringKind, message: str) -> Finding:
    return Finding(kind.path, message, Severity.WARNING, code=FindingCode.MONITORING_NOT_APPLIED)
