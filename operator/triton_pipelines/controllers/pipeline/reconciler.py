"""Reconcile one pipeline: observe from caches, probe pods that are due, plan, apply.

The only part of this package that does I/O.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from triton_pipelines.api import names
from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.health import InferenceHealth
from triton_pipelines.cluster.apply import apply_over, metadata_of
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    NotFound,
)
from triton_pipelines.cluster.events import event_object, post_event
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    JOBS,
    NETWORK_POLICIES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
    resource_of,
)
from triton_pipelines.cluster.store import Store, owner_key
from triton_pipelines.cluster.work_queue import Key, Result
from triton_pipelines.compile.graph import Graph, Options
from triton_pipelines.compile.graph.example_request import ExampleRequest, example_of, probe_blocker
from triton_pipelines.compile.graph.graph import Fetch
from triton_pipelines.controllers.handover import Handover

from . import status as statuses
from .actions import Deletion, Plan, Resize, soonest
from .apply_failure import ApplyFailure, events_after_failure, status_after_failure
from .chain import Context
from .compiled_pipeline import CompiledPipeline
from .config_map_sources import read_sources
from .deployment_progress import is_rolling_out
from .effective_spec import Resolver
from .owner_references import FormerChild, NameTaken, check_owner
from .plan import is_unmanaged, plan
from .policies.last_good_spec import last_good_after
from .resize_rejections import rejection_of, rejections_of
from .snapshot import Object, Pod, Probe, Snapshot, is_alive, is_pipeline_pod
from .status_events import Event, transitions

CHILD_RESOURCES: tuple[Resource, ...] = (
    DEPLOYMENTS,
    CONFIG_MAPS,
    SERVICES,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    JOBS,
)
RESOURCE_OF_KIND = {resource.kind: resource for resource in (*CHILD_RESOURCES, SECRETS, PODS)}
# How often (seconds) a pod that is not ready is probed for the reason. A ready one is probed every
# health.periodSeconds.
UNREADY_PROBE_SECONDS = 5.0
# How often (seconds) the content of ConfigMap sources is compared while they are not watched: they
# do not have our label.
SOURCE_POLL_SECONDS = 60.0
REJECTIONS = (Forbidden, Invalid, NameTaken, FormerChild)
# Delay (seconds) before the next iteration while the garbage collector deletes children of a former
# pipeline of the same name. They usually go within moments.
FORMER_CHILD_SECONDS = 2.0

_log = structlog.get_logger(__name__)


class StatusRejected(Exception):  # noqa: N818
    """The API server does not take a status of ours: a defect, or a CRD of another release."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A pod to probe: its address, its models and the test inference, if any."""

    pod: Pod
    graph: Graph
    control_key: str
    example: ExampleRequest | None


Prober = Callable[[ProbeTarget, dt.datetime], Awaitable[Probe]]


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
    resolver: Resolver = field(init=False)
    _probes: dict[Key, dict[str, Probe]] = field(default_factory=dict)
    _starting: set[Key] = field(default_factory=set)
    """Pipelines whose Deployment is being applied right now."""
    _deleted_pods: dict[Key, set[str]] = field(default_factory=dict)
    """Uids of pods that were deleted here."""
    _rejected_status: dict[Key, str] = field(default_factory=dict)
    """Messages of rejected status writes, as reported."""
    _tuning_rejection: dict[Key, str] = field(default_factory=dict)
    """Why an object of a tuning run was rejected."""
    _terminating: set[Key] = field(default_factory=set)
    """Pipelines whose namespace is terminating; logged once."""
    _accepted: dict[Key, tuple[str, str]] = field(default_factory=dict)
    """Uid of the pipeline and its last spec that was acted on."""

    def __post_init__(self) -> None:
        self.resolver = Resolver(self.options)

    async def reconcile(self, key: Key) -> Result:
        """Run one reconcile iteration.

        Errors of the API server are raised unchanged: the queue backs off by their class.
        """
        try:
            result = await self._reconcile(key)
        except StatusRejected:
            return Result(requeue_after=SOURCE_POLL_SECONDS, outcome="stalled")
        except NamespaceTerminating as error:
            # Every object of the namespace is about to go. Watch events and the resync still
            # reconcile the pipeline, so a namespace of the same name starts afresh.
            if key not in self._terminating:
                self._terminating.add(key)
                await _log.ainfo("namespace is terminating; nothing is applied", error=str(error))
            return Result(outcome="terminating")
        self._terminating.discard(key)
        return result

    async def _reconcile(self, key: Key) -> Result:
        raw = self.store.get(INFERENCE_PIPELINES, *key)
        if raw is None:
            for known in (self._probes, self._rejected_status, self._accepted):
                known.pop(key, None)
            self.handover.resize_rejections.pop(key, None)
            self.handover.effective_specs.pop(key, None)
            self.resolver.forget(key)
            return Result()
        if is_unmanaged(raw):
            return Result()
        sources = self.resolver.read(raw).sources
        snapshot = await self._observe(key, raw, sources)
        compiled = self.resolver.resolve(snapshot)
        acted = self.resolver.effective_spec(snapshot, compiled)
        if (effective := self.resolver.effective(raw)) is not None:
            self.handover.effective_specs[key] = effective
        probe_after = (
            await self._probe_due_pods(key, acted[1], acted[0]) if acted is not None else None
        )
        self.handover.resize_rejections[key] = rejections_of(
            self.handover.resize_rejections.get(key, {}), {pod.uid for pod in snapshot.pods}
        )
        snapshot = replace(
            snapshot,
            probes=dict(self._probes.get(key, {})),
            resize_rejections=dict(self.handover.resize_rejections[key]),
        )
        # Nothing is awaited from here until the key is in _starting, so that no two iterations take
        # the same free place.
        decided = plan(
            snapshot,
            Context(self.options, self.derive, self._may_roll(key), self.resolver.resolve),
            self.clock(),
            compiled,
        )
        self._accepted[key] = (
            raw["metadata"].get("uid", ""),
            last_good_after(snapshot, decided.apply),
        )
        if any(item["kind"] == "Deployment" for item in decided.apply):
            self._starting.add(key)
        try:
            await self._carry_out(key, snapshot, decided)
        except NamespaceTerminating:
            raise
        except REJECTIONS as error:
            result = await self._report_apply_failure(key, snapshot, decided, error)
            if isinstance(error, Forbidden):
                raise
            return result
        finally:
            self._starting.discard(key)
        if decided.status is not None:
            await self._write_status(snapshot, decided.status, decided.events)
        has_unreported = (
            await self._create_tuning_objects(key, snapshot, decided)
            or self.handover.resize_rejections[key] != snapshot.resize_rejections
        )  # The next iteration reports it.
        poll_after = SOURCE_POLL_SECONDS if sources else None
        return Result(
            requeue_after=soonest(
                decided.requeue_after, probe_after, poll_after, 0.0 if has_unreported else None
            )
        )

    # --- observe ----------------------------------------------------------------------------

    async def _observe(self, key: Key, raw: Object, sources: Sequence[Fetch]) -> Snapshot:
        children = {
            (resource.kind, item["metadata"]["name"]): item
            for resource in CHILD_RESOURCES
            for item in self.store.children(resource, key)
        }
        known = list(self.store.children(PODS, key))
        pods = tuple(Pod.of(item) for item in known if is_alive(item) and is_pipeline_pod(item))
        tuning_pods = tuple(Pod.of(item) for item in known if not is_pipeline_pod(item))
        if deleted := self._deleted_pods.pop(key, set()) & {pod.uid for pod in pods}:
            self._deleted_pods[key] = deleted
            pods = tuple(replace(pod, deleting=True) if pod.uid in deleted else pod for pod in pods)
        digests, missing = await read_sources(self.client, key[0], sources)
        unplaced = any(
            pod.condition("PodScheduled").get("status") == "False" for pod in (*pods, *tuning_pods)
        )
        nodes = await self._list_nodes() if unplaced else None
        published = self.handover
        scaling = (published.intent(key), published.view(key), published.latencies.get(key))
        uid, last = raw["metadata"].get("uid", ""), self._accepted.get(key, ("", ""))
        return Snapshot(
            raw,
            children,
            pods,
            {},
            digests,
            missing,
            nodes,
            *scaling,
            tuning_pods=tuning_pods,
            tuning_rejection=self._tuning_rejection.pop(key, ""),
            monitoring=published.monitoring.get(key),
            last_good_in_memory=last[1] if last[0] == uid else "",
        )

    async def _list_nodes(self) -> tuple[Object, ...] | None:
        try:
            return tuple((await self.client.list(NODES)).items)
        except Forbidden:
            # A namespaced operator may not see nodes; the scheduler's own message is shown.
            return None

    # --- probe pods -------------------------------------------------------------------------

    async def _probe_due_pods(
        self, key: Key, compiled: CompiledPipeline, snapshot: Snapshot
    ) -> float | None:
        """Probe the pods that are due, concurrently.

        Only pods that run the effective spec are probed: other revisions may have other model names
        and inputs. Their last result stays.

        Returns:
            The seconds until the next pod is due.
        """
        now = self.clock()
        pipeline, state = compiled.pipeline, snapshot.state().revision
        # The second is a revision of the same spec that waits to be replaced by one with this
        # operator's templates.
        revisions = {
            compiled.revision.name,
            state.desired if state.generation == snapshot.generation else "",
        }
        health = pipeline.spec.health
        effective = health.inference is InferenceHealth.AUTO and not probe_blocker(
            pipeline, compiled.graph
        )
        known = self._probes.setdefault(key, {})
        running = {pod.uid: pod for pod in snapshot.pods if pod.server_running and not pod.deleting}
        for uid in set(known) - set(running):
            del known[uid]
        pods = {uid: pod for uid, pod in running.items() if pod.revision in revisions}

        def due_in(pod: Pod) -> float:
            last = known.get(pod.uid)
            is_unverified = (
                last is not None and effective and last.inference_error is None and not last.error
            )
            if last is None or (pod.ready and (is_unverified or not last.ensemble_ready)):
                return 0.0
            # A first wrong answer may be an accident; a rollout is decided by the second.
            settled = (
                pod.ready
                and not last.error
                and not last.inference_error
                and last.consecutive_wrong != 1
            )
            period = (
                float(health.period_seconds)
                if settled
                else min(UNREADY_PROBE_SECONDS, float(health.period_seconds))
            )
            return period - (now - last.at).total_seconds()

        due = [pod for pod in pods.values() if due_in(pod) <= 0]
        if due:
            example = (
                example_of(pipeline, compiled.graph) if any(pod.ready for pod in due) else None
            )
            targets = [
                ProbeTarget(
                    pod,
                    compiled.graph,
                    self.derive(pipeline.metadata.uid, pod.revision),
                    example if pod.ready else None,
                )
                for pod in due
            ]
            results = await asyncio.gather(*(self.prober(target, now) for target in targets))
            known.update(
                {
                    pod.uid: result.merged_with(known.get(pod.uid))
                    for pod, result in zip(due, results, strict=True)
                }
            )
        return max(1.0, min(due_in(pod) for pod in pods.values())) if pods else None

    def _may_roll(self, key: Key) -> bool:
        rolling = {
            owner_key(DEPLOYMENTS, item)
            for item in self.store.all(DEPLOYMENTS)
            if is_rolling_out(item) and is_pipeline_pod(item)
        } | self._starting
        return len(rolling - {key, None}) < self.max_concurrent_rollouts

    # --- apply ------------------------------------------------------------------------------

    async def _report_apply_failure(
        self, key: Key, snapshot: Snapshot, decided: Plan, error: ApplyFailure
    ) -> Result:
        """Report what the API server rejected, then release what an ended tuning run holds.

        The result of the run is in the status by then. If the status cannot be written at present,
        the Job stays, and the next iteration reads its result again.
        """
        try:
            await self._write_status(
                snapshot, status_after_failure(snapshot, decided, error, self.clock())
            )
        except StatusRejected:
            # Others need the room, and no later iteration can write this status.
            await self._clear(key, decided)
            raise
        await self._clear(key, decided)
        for event in events_after_failure(decided):
            await self._post(snapshot.pipeline, event)
        waiting = isinstance(error, FormerChild)
        return Result(
            requeue_after=FORMER_CHILD_SECONDS if waiting else SOURCE_POLL_SECONDS,
            outcome="waiting" if waiting else "stalled",
        )

    async def _carry_out(self, key: Key, snapshot: Snapshot, decided: Plan) -> None:
        uid = snapshot.pipeline["metadata"].get("uid", "")
        for item in decided.apply[: decided.apply_before_clear]:
            await self._apply(item, uid)
        await self._clear(key, decided)
        for item in decided.apply[decided.apply_before_clear :]:
            await self._apply(item, uid)
        for deletion in decided.delete:
            await self._delete(key, deletion)
        if decided.resize is not None:
            await self._resize(key, snapshot, decided.resize)
        for event in decided.action_events:
            await self._post(snapshot.pipeline, event)

    async def _clear(self, key: Key, decided: Plan) -> None:
        for deletion in decided.clear:
            if self.store.get(RESOURCE_OF_KIND[deletion.kind], key[0], deletion.name) is not None:
                await self._delete(key, deletion)

    async def _create_tuning_objects(self, key: Key, snapshot: Snapshot, decided: Plan) -> bool:
        """Create what a tuning run needs, and return whether that was rejected.

        A rejection ends the run and does not affect the pipeline.
        """
        try:
            for item in decided.tuning_objects:
                await self._apply(item, snapshot.pipeline["metadata"].get("uid", ""))
        except NamespaceTerminating:
            raise
        except REJECTIONS as error:
            self._tuning_rejection[key] = (
                f"the API server rejects an object of the run: {getattr(error, 'message', error)}"
            )
            return True
        return False

    async def _resize(self, key: Key, snapshot: Snapshot, resize: Resize) -> None:
        """Give one pod another CPU limit.

        A rejection by the API server is reported, and the resize is retried after a while.
        """
        since, known = self.store.mark(), self.handover.resize_rejections.setdefault(key, {})
        try:
            self.store.put(
                PODS, await self.client.resize_pod(key[0], resize.pod, resize.patch), since=since
            )
        except (Forbidden, Invalid, NotFound) as error:
            if isinstance(error, NotFound) and error.of_an_object:
                return  # The pod has just been deleted, which the watch reports.
            before = known.get(resize.uid)
            known[resize.uid] = now = rejection_of(
                error, resize.pod, resize.limit, before, self.clock()
            )
            if before is None or (before.cause, before.limit) != (now.cause, now.limit):
                await self._post(
                    snapshot.pipeline,
                    Event(True, Reason.ACTUATION_FAILED.value, "Resize", now.text),
                )
            return
        known.pop(resize.uid, None)
        await _log.ainfo("resized", pod=resize.pod, cpu_millis=resize.limit)

    async def _apply(self, item: Object, uid: str) -> None:
        resource = resource_of(item)
        namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
        if resource == SECRETS:
            # Never read, but not taken from others either.
            check_owner(await metadata_of(self.client, item), item, uid)
            await self.client.apply(item)
        else:
            known = self.store.get(resource, namespace, name)
            if known is None:
                known = await self._uncached(resource, namespace, name)
            check_owner(known, item, uid)
            since = self.store.mark()
            self.store.put(resource, await apply_over(self.client, item, known), since=since)
        await _log.ainfo("applied", kind=item["kind"], object=name)

    async def _uncached(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Return an object that the caches do not know.

        ``None`` if there is none. Otherwise its label was removed by hand, or it belongs to another
        owner.
        """
        try:
            return await self.client.get(resource, namespace, name)
        except NotFound:
            return None

    async def _delete(self, key: Key, deletion: Deletion) -> None:
        resource = RESOURCE_OF_KIND[deletion.kind]
        try:
            await self.client.delete(resource, key[0], deletion.name, uid=deletion.uid or None)
        except Conflict:
            return  # Another object has the name now.
        await _log.ainfo("deleted", kind=deletion.kind, object=deletion.name)
        if resource == PODS:
            # Deletion takes time; until the watch reports it, the object must not be deleted again.
            self._deleted_pods.setdefault(key, set()).add(deletion.uid)
            return
        self.store.remove(resource, key[0], deletion.name, uid=deletion.uid or None)

    async def _write_status(
        self, snapshot: Snapshot, status: Mapping[str, Any], events: tuple[Event, ...] | None = None
    ) -> None:
        """Write a status and post its events.

        Args:
            snapshot: What was observed.
            status: The status to write.
            events: Events to post. ``None``: write only if the status changes anything, and post
                the events of that change.

        Raises:
            StatusRejected: The API server rejects it. The conditions of the pipeline say so if
                they can be written.
        """
        if events is None:
            if not statuses.differs(snapshot.pipeline, status):
                return
            events = tuple(transitions(snapshot.status, status))
        try:
            await self._put_status(snapshot.pipeline, status)
        except Invalid as error:
            raise StatusRejected(await self._report_status_rejection(snapshot, error)) from error
        self._rejected_status.pop((snapshot.pipeline["metadata"]["namespace"], snapshot.name), None)
        for event in events:
            await self._post(snapshot.pipeline, event)

    async def _put_status(self, pipeline: Object, status: Mapping[str, Any]) -> None:
        metadata = pipeline["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
        }
        since = self.store.mark()
        try:
            applied = await self.client.apply_status({**body, "status": dict(status)})
        except NotFound:
            # Whatever the caches hold: the pipeline does not exist, and no event may come to report
            # its deletion.
            self.store.remove(INFERENCE_PIPELINES, namespace, name, uid=uid)
        except Conflict:
            return  # Another one of the name; its own event starts the next iteration.
        else:
            self.store.put(INFERENCE_PIPELINES, applied, since=since)

    async def _report_status_rejection(self, snapshot: Snapshot, error: Invalid) -> str:
        """Report in the previous status that the new one was rejected; return the message."""
        text = (
            "the API server rejects the pipeline's status, so the rest of it is out of date:"
            f" {error.message}; is the CRD that of this operator's release?"
        )
        key = (snapshot.pipeline["metadata"]["namespace"], snapshot.name)
        stalled = statuses.stalled(snapshot, Reason.API_ERROR, text, self.clock(), final=True)
        if statuses.differs(snapshot.pipeline, stalled):
            try:
                await self._put_status(snapshot.pipeline, stalled)
            except Invalid as second_error:
                await _log.aerror("conditions of a status rejected", error=second_error.message)
        if self._rejected_status.get(key) != text:
            self._rejected_status[key] = text
            await _log.aerror("status rejected", error=error.message)
            await self._post(
                snapshot.pipeline, Event(True, Reason.API_ERROR.value, "WriteStatus", text)
            )
        return text

    async def _post(self, pipeline: Object, event: Event) -> None:
        fields = {
            "reason": event.reason,
            "action": event.action,
            "note": event.note,
            "instance": self.instance,
        }
        event_body = event_object(pipeline, type=event.type, **fields, now=self.clock())
        error = await post_event(self.client, event_body)
        if error is not None and not isinstance(error, NamespaceTerminating):
            await _log.awarning("event not written", reason=event.reason, error=str(error))


__all__ = ["ClusterError", "ProbeTarget", "Prober", "Reconciler"]
