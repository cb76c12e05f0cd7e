"""Observe the pods of a pipeline. Reads the ReplicaSets that they name from the API server, once.

ReplicaSets are not watched: they change seldom, and 1 000 pipelines keep several thousand of them.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import DEPLOYMENTS, INFERENCE_PIPELINES, REPLICA_SETS
from triton_pipelines.cluster.store import Key, Store
from triton_pipelines.controllers.handover import Handover
from triton_pipelines.controllers.pod_ownership import (
    ReplicaSetOwner,
    controller_of,
    named_replica_sets,
    own_deployments,
    owned_pods,
    unknown_replica_sets,
)
from triton_pipelines.redaction import MASK

from .actions import soonest
from .snapshot import LABEL_TEMPLATE_HASH, Object, Pod, is_alive

# Maximum number of ReplicaSets that one iteration reads: pods with forged owner references must not
# delay other pipelines. A Deployment has pods of two or three at a time.
READS_MAX: Final = 16
# Seconds until the next iteration if some were not read in this one.
NEXT_READ_SECONDS: Final = 1.0
# A ReplicaSet that was not one of the pipeline's is read again after this long (seconds), doubled
# each time: a Deployment that was recreated adopts those of its predecessor.
REREAD_SECONDS: Final = 10.0
REREAD_SECONDS_MAX: Final = 640.0


@dataclass(frozen=True, slots=True)
class ObservedPods:
    """The pods of one pipeline."""

    server: tuple[Pod, ...]
    """Pods that serve it, except those that have ended."""
    tuning: tuple[Pod, ...]
    """Pods of its tuning run, in any phase."""
    preflight: tuple[Pod, ...]
    """Pods of its preflight, in any phase."""


@dataclass(slots=True)
class PodObserver:
    """Returns the pods that pipelines own; one instance per process."""

    client: Client
    store: Store
    handover: Handover
    clock: Callable[[], dt.datetime]
    """Returns the current time in UTC."""
    derive: Callable[[str, str], str]
    """Returns the control key of a pipeline's uid and a revision."""
    _deleted: dict[Key, set[str]] = field(default_factory=dict)
    """Uids of pods that were deleted here."""

    async def observe(self, key: Key) -> ObservedPods:
        """Return the pods of a pipeline.

        Raises:
            ClusterError: A ReplicaSet cannot be read.
        """
        await self._read_replica_sets(key)
        found = owned_pods(self.store, self.handover.replica_sets.get(key, {}), key)
        pods = tuple(self._pod(key, item) for item in found.server if is_alive(item))
        if deleted := self._deleted.pop(key, set()) & {pod.uid for pod in pods}:
            self._deleted[key] = deleted
            pods = tuple(replace(pod, deleting=True) if pod.uid in deleted else pod for pod in pods)
        return ObservedPods(
            pods,
            tuple(self._pod(key, item) for item in found.tuning),
            tuple(self._pod(key, item) for item in found.preflight),
        )

    def _pod(self, key: Key, raw: Object) -> Pod:
        """Return a pod whose last log lines do not repeat its control key, which it knows."""
        pod = Pod.of(raw)
        if not any(pod.termination_messages()):
            return pod
        pipeline = self.store.get(INFERENCE_PIPELINES, *key) or {"metadata": {}}
        secret = self.derive(pipeline["metadata"].get("uid", ""), pod.revision)
        if not any(secret in message for message in pod.termination_messages()):
            return pod
        return Pod.of(json.loads(json.dumps(raw).replace(secret, MASK)))

    def recheck_after(self, key: Key) -> float | None:
        """Return the seconds until a ReplicaSet is read again; ``None`` if all are known."""
        known = self.handover.replica_sets.get(key, {})
        unknown = unknown_replica_sets(self.store, known, key)
        if unknown.keys() - known.keys():
            return NEXT_READ_SECONDS
        now = self.clock().timestamp()
        due = [known[uid].at + known[uid].reread_seconds - now for uid in unknown]
        return soonest(*(max(seconds, NEXT_READ_SECONDS) for seconds in due))

    def mark_deleted(self, key: Key, uid: str) -> None:
        """Remember that a pod was deleted until the watch reports it."""
        self._deleted.setdefault(key, set()).add(uid)

    def forget(self, key: Key) -> None:
        """Drop what is known about a deleted pipeline."""
        self._deleted.pop(key, None)
        self.handover.replica_sets.pop(key, None)

    async def _read_replica_sets(self, key: Key) -> None:
        """Read what is not known, and drop what no pod names any more."""
        named, now = named_replica_sets(self.store, key), self.clock().timestamp()
        before = self.handover.replica_sets.get(key, {})
        known = {uid: owner for uid, owner in before.items() if uid in named}
        self.handover.replica_sets[key] = known
        deployments = frozenset(own_deployments(self.store, key))
        due = [
            (uid, name)
            for uid, name in unknown_replica_sets(self.store, known, key).items()
            if uid not in known
            or now - known[uid].at >= known[uid].reread_seconds
            or known[uid].deployments != deployments
        ]
        due.sort(key=lambda item: item[0] in known)  # those that were never read first
        for uid, name in due[:READS_MAX]:
            found = await self._read(key[0], name, uid, now)
            last = known.get(uid)
            if last is not None and last.deployments == deployments:
                seconds = min(2 * last.reread_seconds, REREAD_SECONDS_MAX)
                found = replace(found, reread_seconds=max(seconds, found.reread_seconds))
            known[uid] = replace(found, deployments=deployments)

    async def _read(self, namespace: str, name: str, uid: str, now: float) -> ReplicaSetOwner:
        # No ReplicaSet that is created later has this uid.
        none = ReplicaSetOwner("", "", now, REREAD_SECONDS_MAX)
        try:
            metadata = (await self.client.get(REPLICA_SETS, namespace, name))["metadata"]
        except NotFound:
            return none
        if metadata.get("uid") != uid:
            return none
        controller = controller_of({"metadata": metadata}, DEPLOYMENTS)
        return ReplicaSetOwner(
            deployment=str(controller.get("uid") or ""),
            template_hash=str((metadata.get("labels") or {}).get(LABEL_TEMPLATE_HASH) or ""),
            at=now,
            reread_seconds=REREAD_SECONDS,
        )
