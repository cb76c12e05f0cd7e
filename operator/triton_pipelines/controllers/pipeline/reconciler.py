"""Reconcile one pipeline: observe from caches, probe pods that are due, plan, apply.

I/O is here, in ``child_writer``, ``pod_probes``, ``prober``, ``status_writer``, ``node_list``,
``config_map_sources``, ``tls_secret`` and ``image_volumes`` only.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from triton_pipelines.api.base import Finding
from triton_pipelines.api.conditions import Reason
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    NotFound,
)
from triton_pipelines.cluster.impersonation import Writer
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS
from triton_pipelines.cluster.store import Store
from triton_pipelines.cluster.work_queue import Key, Result
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.graph.graph import Fetch
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.rejected_writes import RejectedWrites
from triton_pipelines.controllers.unmanaged import is_unmanaged

from .actions import ApplyStage, Deletion, Plan, Resize, soonest
from .apply_failure import ApplyFailure, events_after_failure, status_after_failure
from .background_compiler import BackgroundCompiler, CompilationPending
from .chain import Context
from .child_conflicts import ChildConflicts
from .child_writer import CHILD_RESOURCES, REJECTIONS, RESOURCE_OF_KIND, ChildWriter
from .compiled_pipeline import CompiledPipeline
from .config_map_sources import ConfigMapSources
from .deployment_progress import may_roll, rolling_pipelines
from .effective_spec import EffectiveSpec, Resolver
from .image_volumes import ImageVolumes
from .node_list import NodeList
from .owner_references import FormerChild, former_child_wait
from .planner import plan
from .pod_observer import PodObserver
from .pod_probes import PodProbes, Prober, ProbesPending
from .policies.last_good_spec import effective_spec, last_good_after
from .resize_rejections import rejection_of, rejections_of
from .settled import SettledPipelines
from .snapshot import Object, Snapshot
from .status_events import Event
from .status_writer import StatusRejected, StatusWriter
from .tls_secret import TlsSecrets
from .tls_trust import NO_TLS, tls_trust

# How often (seconds) the content of ConfigMap sources is compared while they are not watched: they
# do not have our label.
SOURCE_POLL_SECONDS = 60.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Reconciler:
    """Runs reconcile iterations; one instance per process.

    Iterations over different pipelines run concurrently.
    """

    client: Client
    store: Store
    options: Options
    derive: Callable[[str, str], str]
    """Returns the control key of a pipeline's uid and a revision."""
    prober: Prober
    """Probes one pod."""
    clock: Callable[[], dt.datetime]
    """Returns the current time in UTC."""
    instance: str
    handover: Handover
    max_concurrent_rollouts: int = 5
    enqueue: Callable[[Key], None] = lambda _: None
    """Makes a pipeline due when probes that took long have ended."""
    release: Callable[[str], None] = lambda _: None
    """Closes the prober's connection to a pod, by uid."""
    resolver: Resolver = field(init=False)
    _compiler: BackgroundCompiler = field(init=False)
    _pods: PodObserver = field(init=False)
    _probes: PodProbes = field(init=False)
    _status: StatusWriter = field(init=False)
    _sources: ConfigMapSources = field(init=False)
    _tls: TlsSecrets = field(init=False)
    _images: ImageVolumes = field(init=False)
    _nodes: NodeList = field(init=False)
    _settled: SettledPipelines = field(init=False)
    _writes: RejectedWrites = field(init=False)
    _conflicts: ChildConflicts = field(default_factory=ChildConflicts)
    _starting: set[Key] = field(default_factory=set)
    """Pipelines whose Deployment or preflight is being applied right now."""
    _rejections: dict[Key, dict[ApplyStage, str]] = field(default_factory=dict)
    """Why an object of a preflight or a tuning run was rejected."""
    _terminating: set[Key] = field(default_factory=set)
    """Pipelines whose namespace is terminating; logged once."""
    _accepted: dict[Key, tuple[str, str]] = field(default_factory=dict)
    """Uid of the pipeline and its last spec that was acted on."""

    def __post_init__(self) -> None:
        self.resolver = Resolver(self.options)
        self._compiler = BackgroundCompiler(self.resolver, self.enqueue)
        self._pods = PodObserver(self.client, self.store, self.handover, self.clock, self.derive)
        self._sources = ConfigMapSources(self.client)
        self._tls = TlsSecrets(self.client)
        self._images = ImageVolumes(self.client, self.options)
        self._nodes = NodeList(self.client, self.clock)
        self._probes = PodProbes(self.prober, self.derive, self.clock, self.enqueue, self.release)
        self._settled = SettledPipelines(self.store, self.handover, self._probes, self.clock)
        writes = self._writes = RejectedWrites(self.clock)
        self._status = StatusWriter(self.client, self.store, self.clock, self.instance, writes)

    async def reconcile(self, key: Key) -> Result:
        """Run one reconcile iteration.

        Errors of the API server are raised unchanged: the queue backs off by their class.
        """
        try:
            result = await self._reconcile(key)
        except ProbesPending:
            # The end of the probes enqueues the pipeline, the time is for the worst case.
            return Result(requeue_after=SOURCE_POLL_SECONDS, outcome="probing")
        except CompilationPending:
            return Result(requeue_after=SOURCE_POLL_SECONDS, outcome="compiling")
        except StatusRejected:
            return Result(requeue_after=SOURCE_POLL_SECONDS, outcome="stalled")
        except NamespaceTerminating as error:
            # Every object of the namespace is about to go. Watch events and the resync still
            # reconcile the pipeline, so a namespace of the same name starts afresh.
            if key not in self._terminating:
                self._terminating.add(key)
                await _log.ainfo("namespace is terminating; nothing is applied", error=str(error))
            return Result(outcome="terminating")
        finally:
            self._starting.discard(key)
            self._compiler.end_iteration(key)
        self._terminating.discard(key)
        return replace(result, cpu_seconds=self._compiler.take_cpu_seconds(key))

    async def _reconcile(self, key: Key) -> Result:
        raw = self.store.get(INFERENCE_PIPELINES, *key)
        if raw is None:
            self._forget(key)
            return Result()
        if is_unmanaged(raw):
            return Result()
        if (repeated := await self._settled.repeat(key)) is not None:
            return repeated
        published = self._settled.published(key)
        spec = await self._compiler.read(key, raw)
        snapshot = await self._observe(key, raw, spec.sources)
        snapshot = await self._tls.observe(key, spec.pipeline, snapshot, self.clock())
        compiled = await self._compiler.compile(key, spec, snapshot)
        snapshot = await self._images.observe(compiled, snapshot, self.clock())
        await self._compiler.compile_last_good(key, snapshot, compiled)
        acted = effective_spec(snapshot, compiled, self.resolver.resolve)
        snapshot, probe_after = await self._probe(key, snapshot, acted)
        inputs = published, self._settled.observed(key)
        decided = self._decide(key, snapshot, compiled)
        try:
            await self._carry_out(key, snapshot, decided)
        except NamespaceTerminating:
            raise
        except REJECTIONS as error:
            result = await self._report_apply_failure(key, snapshot, decided, error)
            if isinstance(error, Forbidden):
                raise
            return result
        correct_after = await self._status.write(snapshot, decided.status, decided.events)
        has_unreported = (
            await self._create_optional_objects(key, snapshot, decided)
            or self.handover.resize_rejections[key] != snapshot.resize_rejections
        )  # The next iteration reports it.
        # What the caches do not show has to be read again soon.
        poll_after = SOURCE_POLL_SECONDS if spec.sources else None
        tls_after = self._tls.recheck_after(key, self.clock())
        known_after = soonest(tls_after, poll_after, correct_after)
        conflict_after = self._conflicts.recheck_after(key, self.clock())
        report_after = 0.0 if has_unreported else None
        rest = (known_after, self._pods.recheck_after(key), conflict_after, report_after)
        if soonest(*rest) is None and snapshot.nodes is None:
            self._settled.keep(key, inputs, decided, acted)
        return Result(requeue_after=soonest(decided.requeue_after, probe_after, *rest))

    def _decide(
        self, key: Key, snapshot: Snapshot, compiled: CompiledPipeline | list[Finding] | None
    ) -> Plan:
        """Return the plan; a rollout that it starts takes a free place.

        Nothing is awaited in between, so that no two iterations take the same place.
        """
        context = Context(self.options, self.derive, self._may_roll(key), self.resolver.resolve)
        decided = plan(snapshot, context, self.clock(), compiled)
        uid = snapshot.pipeline["metadata"].get("uid", "")
        self._accepted[key] = (uid, last_good_after(snapshot, decided.apply))
        if decided.starts_rollout:
            self._starting.add(key)
        return decided

    def _forget(self, key: Key) -> None:
        """Drop what is known about a deleted pipeline."""
        self._pods.forget(key)
        self._probes.forget(key)
        self._tls.forget(key)
        self._sources.forget(key)
        self.handover.tls.pop(key, None)
        self._status.forget(key)
        self._accepted.pop(key, None)
        self._settled.forget(key)
        self._conflicts.forget(key)
        self._writes.forget(key)
        self._rejections.pop(key, None)
        self.handover.resize_rejections.pop(key, None)
        self.handover.effective_specs.pop(key, None)
        self._compiler.forget(key)

    # --- observe

    async def _observe(self, key: Key, raw: Object, sources: Sequence[Fetch]) -> Snapshot:
        children = {
            (resource.kind, item["metadata"]["name"]): item
            for resource in CHILD_RESOURCES
            for item in self.store.children(resource, key)
        }
        pods = await self._pods.observe(key)
        digests, missing = await self._sources.read(key, sources)
        unplaced = any(
            pod.condition("PodScheduled").get("status") == "False"
            for pod in (*pods.server, *pods.tuning)
        )
        nodes = await self._nodes.read() if unplaced else None
        published = self.handover
        scaling = (published.intent(key), published.view(key), published.latencies.get(key))
        rejections = self._rejections.pop(key, {})
        uid, last = raw["metadata"].get("uid", ""), self._accepted.get(key, ("", ""))
        return Snapshot(
            raw,
            children,
            pods.server,
            {},
            digests,
            missing,
            nodes,
            *scaling,
            tuning_pods=pods.tuning,
            tuning_rejection=rejections.get(ApplyStage.TUNING_RUN, ""),
            preflight_pods=pods.preflight,
            preflight_rejection=rejections.get(ApplyStage.PREFLIGHT, ""),
            monitoring=published.monitoring.get(key),
            last_good_in_memory=last[1] if last[0] == uid else "",
            conflicts=self._conflicts.findings(key, self.clock()),
        )

    async def _probe(
        self, key: Key, snapshot: Snapshot, acted: tuple[Snapshot, CompiledPipeline] | None
    ) -> tuple[Snapshot, float | None]:
        """Publish the effective spec and probe its pods.

        Returns:
            The snapshot with probe results and resize rejections, and the seconds until the next
            pod is due.
        """
        trust = tls_trust(snapshot, self.handover.tls.get(key, NO_TLS))
        self.handover.tls[key] = trust
        probe_after = None
        if acted is not None:
            self.handover.effective_specs[key] = EffectiveSpec.of(snapshot.pipeline, acted[1])
            probe_after = await self._probes.refresh(key, acted[1], acted[0], trust)
        self.handover.resize_rejections[key] = rejections_of(
            self.handover.resize_rejections.get(key, {}), {pod.uid for pod in snapshot.pods}
        )
        probed = replace(
            snapshot,
            probes=self._probes.of(key),
            resize_rejections=dict(self.handover.resize_rejections[key]),
        )
        return probed, probe_after

    def _may_roll(self, key: Key) -> bool:
        rolling = rolling_pipelines(self.store, self.clock()) | self._starting
        return may_roll(rolling, key, self.max_concurrent_rollouts)

    # --- apply ------------------------------------------------------------------------------

    async def _report_apply_failure(
        self, key: Key, snapshot: Snapshot, decided: Plan, error: ApplyFailure
    ) -> Result:
        """Report what the API server rejected, then release what an ended tuning run holds.

        The result of the run is in the status by then. If the status cannot be written at present,
        the Job stays, and the next iteration reads its result again.
        """
        status = status_after_failure(snapshot, decided, error, self.clock())
        try:
            await self._status.write(snapshot, status)
        except StatusRejected:
            # Others need the room, and no later iteration can write this status.
            await self._clear(key, decided)
            raise
        await self._clear(key, decided)
        for event in events_after_failure(decided):
            await self._status.post(snapshot.pipeline, event)
        if isinstance(error, FormerChild):
            return Result(former_child_wait(snapshot.pipeline, self.clock()), "waiting")
        return Result(requeue_after=SOURCE_POLL_SECONDS, outcome="stalled")

    async def _carry_out(self, key: Key, snapshot: Snapshot, decided: Plan) -> None:
        uid, writer = snapshot.pipeline["metadata"].get("uid", ""), self._writer(key, decided)
        now, first = self.clock(), decided.apply_before_clear
        try:
            await writer.apply_all(decided.apply[:first], uid)
            await self._clear(key, decided)
            await writer.apply_all(decided.apply[first:], uid)
        finally:
            self._conflicts.record(key, writer.applied, snapshot.children, decided.objects, now)
        for deletion in decided.delete:
            await self._delete(key, deletion, writer)
        if decided.resize is not None:
            await self._resize(key, snapshot, decided.resize, writer)
        for event in decided.action_events:
            await self._status.post(snapshot.pipeline, event)

    async def _clear(self, key: Key, decided: Plan) -> None:
        for deletion in decided.clear:
            if self.store.get(RESOURCE_OF_KIND[deletion.kind], key[0], deletion.name) is not None:
                await self._delete(key, deletion, self._writer(key, decided))

    def _writer(self, key: Key, decided: Plan) -> ChildWriter:
        writer = Writer.of(self.client, key[0], decided.account)
        pipeline = self.store.get(INFERENCE_PIPELINES, *key) or {"metadata": {}}
        attempt = self._writes.of(key, pipeline)
        delayed = self._conflicts.delayed(key, decided.objects, self.clock())
        return ChildWriter(self.client, writer, self.store, key[0], self.options, attempt, delayed)

    async def _create_optional_objects(self, key: Key, snapshot: Snapshot, decided: Plan) -> bool:
        """Create what a preflight and a tuning run need, and return whether that was rejected.

        A rejection ends the one or the other and does not affect the pipeline.
        """
        uid, writer = snapshot.pipeline["metadata"].get("uid", ""), self._writer(key, decided)
        objects, now, rejections = decided.optional_objects, self.clock(), dict[ApplyStage, str]()
        try:
            for stage, items in objects.items():
                if rejection := await writer.apply_optional(items, uid):
                    rejections[stage] = rejection
        finally:
            self._conflicts.record(key, writer.applied, snapshot.children, decided.objects, now)
        if rejections:
            self._rejections[key] = rejections
        return bool(rejections)

    async def _resize(
        self, key: Key, snapshot: Snapshot, resize: Resize, writer: ChildWriter
    ) -> None:
        """Give one pod another CPU limit.

        A rejection by the API server is reported, and the resize is retried after a while.
        """
        known = self.handover.resize_rejections.setdefault(key, {})
        try:
            await writer.resize(resize)
        except Conflict:
            return  # Another pod has the name now, which the watch reports.
        except (Forbidden, Invalid, NotFound) as error:
            if isinstance(error, NotFound) and error.of_an_object:
                return  # The pod has just been deleted, which the watch reports.
            before = known.get(resize.uid)
            known[resize.uid] = now = rejection_of(
                error, resize.pod, resize.limit, before, self.clock()
            )
            if before is None or (before.cause, before.limit) != (now.cause, now.limit):
                event = Event(True, Reason.ACTUATION_FAILED.value, "Resize", now.text)
                await self._status.post(snapshot.pipeline, event)
            return
        known.pop(resize.uid, None)
        await _log.ainfo("resized", pod=resize.pod, cpu_millis=resize.limit)

    async def _delete(self, key: Key, deletion: Deletion, writer: ChildWriter) -> None:
        resource = RESOURCE_OF_KIND[deletion.kind]
        if not await writer.delete(resource, deletion.name, deletion.uid):
            return
        if resource == PODS:
            # Deletion takes time; until the watch reports it, the object must not be deleted again.
            self._pods.mark_deleted(key, deletion.uid)
        else:
            self.store.remove(resource, key[0], deletion.name, uid=deletion.uid or None)
