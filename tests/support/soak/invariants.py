"""Invariants: what holds after every fault. Each returns the violations as text. No I/O.

``tests/unit/soak`` feeds each of them a world that violates it.
"""

from __future__ import annotations

import bisect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.soak.observation import Observation, PodSample, Write
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Object

Invariant = Callable[[Observation], list[str]]

FILES_MAX = 150
"""Open files and sockets of an operator process; about 60 with a handful of pipelines."""
MEMORY_MAX_MIB = 400.0
"""Resident memory of an operator process; about 110 MiB with a handful of pipelines."""
THREADS_MAX = 64
HISTORY_DEFAULT = 3
"""Default of ``spec.rollout.revisionHistoryLimit``."""
_MAX_LENGTH = re.compile(r'key: "tritonpipe.max_length"\s+value \{ string_value: "(\d+)" \}')
_ONE_PER_PIPELINE = ("Deployment", "Service")


def only_the_leader_writes(seen: Observation) -> list[str]:
    """Every write was sent by the replica that had last acquired or renewed the Lease."""
    terms = sorted(
        (item.answered or 0.0, item.replica)
        for item in seen.writes
        if item.is_lease and item.succeeded
    )
    times = [at for at, _ in terms]
    found = []
    for write in seen.writes:
        if write.is_lease:
            continue
        index = bisect.bisect_right(times, write.at) - 1
        holder = terms[index][1] if index >= 0 else "no replica"
        if holder != write.replica:
            found.append(f"{write.replica} wrote while {holder} led: {_text(write)}")
    return found


def one_replica_leads(seen: Observation) -> list[str]:
    """After a fault, exactly one replica holds the Lease."""
    return [] if len(seen.leaders) == 1 else [f"replicas that lead: {list(seen.leaders)}"]


def nothing_is_written_when_settled(seen: Observation) -> list[str]:
    """A settled operator writes nothing but its Lease."""
    return [
        f"{write.replica} wrote after everything had settled: {_text(write)}"
        for write in seen.writes
        if write.at >= seen.settled_since and not write.is_lease
    ]


def status_matches_spec(seen: Observation) -> list[str]:
    """Every pipeline reports that the present spec is what serves."""
    found = []
    for item in seen.pipelines:
        name, status = item["metadata"]["name"], item.get("status") or {}
        ready = _condition(status, "Ready")
        if status.get("observedGeneration") != item["metadata"]["generation"]:
            found.append(f"{name}: the status is of an earlier generation")
        elif ready.get("status") != "True":
            found.append(f"{name}: Ready is {ready.get('status')} ({ready.get('reason')})")
        elif status.get("servingRevision") != status.get("revision"):
            found.append(f"{name}: the serving revision is not that of the spec")
    return found


def objects_match_spec(seen: Observation) -> list[str]:
    """Every pipeline is stored, and its objects have what the user wrote last."""
    stored = {item["metadata"]["name"]: item for item in seen.pipelines}
    found = [f"{name} is not stored" for name in seen.desired if name not in stored]
    found += [f"{name} is stored, but was deleted" for name in stored if name not in seen.desired]
    for name, spec in seen.desired.items():
        if name not in stored:
            continue
        deployment = _child(seen, "Deployment", name)
        if deployment is None:
            found.append(f"{name} has no Deployment")
            continue
        if deployment["spec"]["replicas"] != spec.get("replicas", 1):
            found.append(f"{name}: the Deployment has {deployment['spec']['replicas']} replicas")
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        revision = _child(
            seen, "ConfigMap", names.revision_name(name, labels[names.LABEL_REVISION])
        )
        length = str((spec.get("tokenizer") or {}).get("maxLength", ""))
        if revision is None:
            found.append(f"{name}: the Deployment's revision has no ConfigMap")
        elif length and _max_length(revision) != length:
            found.append(
                f"{name}: the revision has maxLength {_max_length(revision)}, not {length}"
            )
    return found


def instance_counts_match(seen: Observation) -> list[str]:
    """Every ready pod runs the recorded number of instances, which is at least the spec's."""
    found = []
    for name, spec in seen.desired.items():
        least = ((spec.get("tokenizer") or {}).get("instances") or {}).get("min", 1)
        live = _child(seen, "ConfigMap", names.live_name(name))
        text = (live or {}).get("data", {}).get(names.KEY_COUNTS, "{}")
        recorded = json.loads(text).get("tokenizer", 1)
        if recorded < least:
            found.append(
                f"{name}: {recorded} instances are recorded, the spec's minimum is {least}"
            )
        found += [
            f"{name}: {pod.name} runs {pod.instances} instances, {recorded} are recorded"
            for pod in (seen.samples[-1].pods if seen.samples else ())
            if pod.pipeline == name and pod.ready and pod.instances != recorded
        ]
    return found


def scaling_has_metrics(seen: Observation) -> list[str]:
    """Scaling reads the metrics of every pipeline and finds it idle: its pods have no traffic."""
    found = []
    for item in seen.pipelines:
        name, status = item["metadata"]["name"], item.get("status") or {}
        available = _condition(status, "MetricsAvailable")
        verdict = (status.get("scaling") or {}).get("bottleneck")
        if available.get("status") != "True":
            found.append(f"{name}: MetricsAvailable is {available.get('status')}")
        elif verdict != "Idle":
            why = _condition(status, "ScalingActive").get("message")
            found.append(f"{name}: scaling reports {verdict}: {why}")
    return found


def every_object_has_an_owner(seen: Observation) -> list[str]:
    """Every object of a pipeline belongs to a stored pipeline, directly or through its owner."""
    known = {item["metadata"]["uid"] for item in (*seen.pipelines, *seen.children)}
    pipelines = {item["metadata"]["uid"] for item in seen.pipelines}
    found = []
    for item in seen.children:
        owners = {owner["uid"] for owner in item["metadata"].get("ownerReferences") or ()}
        allowed = known if item["kind"] in ("Pod", "ReplicaSet") else pipelines
        if not owners & allowed:
            found.append(f"{_name(item)} has no owner that exists")
    return found


def nothing_of_deleted_pipelines_is_left(seen: Observation) -> list[str]:
    """Every object is of a pipeline that the user wants."""
    return [
        f"{_name(item)} is left of a deleted pipeline"
        for item in seen.children
        if item["metadata"]["labels"].get(names.LABEL_PIPELINE) not in seen.desired
    ]


def objects_exist_once(seen: Observation) -> list[str]:
    """A pipeline has one Deployment and one Service."""
    counts = Counter(
        (item["kind"], item["metadata"]["labels"].get(names.LABEL_PIPELINE))
        for item in seen.children
        if item["kind"] in _ONE_PER_PIPELINE
    )
    return [
        f"{name} has {counts[kind, name]} objects of kind {kind}"
        for name in seen.desired
        for kind in _ONE_PER_PIPELINE
        if counts[kind, name] != 1
    ]


def revision_history_is_bounded(seen: Observation) -> list[str]:
    """No more old revisions are kept than the spec says."""
    kept = Counter(
        item["metadata"]["labels"][names.LABEL_PIPELINE]
        for item in seen.children
        if item["kind"] == "ConfigMap" and names.LABEL_REVISION in item["metadata"]["labels"]
    )
    found = []
    for name, spec in seen.desired.items():
        limit = (spec.get("rollout") or {}).get("revisionHistoryLimit", HISTORY_DEFAULT)
        if kept[name] > limit + 1:
            found.append(f"{name} has {kept[name]} revisions, the limit is {limit} old ones")
    return found


def the_last_serving_pod_is_not_deleted(seen: Observation) -> list[str]:
    """The operator deletes no pod that is its pipeline's last one to serve."""
    found = []
    times = [sample.at for sample in seen.samples]
    for write, pod in _pod_deletions(seen):
        index = bisect.bisect_right(times, write.at) - 1
        if index < 0:
            continue
        sample = seen.samples[index]
        this = next((state for state in sample.pods if state.name == pod), None)
        if this is None or not this.ready or this.faulty:
            continue
        if not _serving(sample, this.pipeline) - {pod}:
            found.append(f"{write.replica} deleted {pod}, the last serving pod of {this.pipeline}")
    return found


def no_request_is_lost(seen: Observation) -> list[str]:
    """No request fails but those sent to a pod that the run itself had broken."""
    return [
        f"a request to {request.pipeline} failed ({request.pod or 'no ready pod'}): {request.error}"
        for request in seen.requests
        if request.error and not request.excused
    ]


def namespaces_are_unchanged(seen: Observation) -> list[str]:
    """No namespace was created, deleted or replaced."""
    return [
        f"namespace {name} {what}"
        for what, old, new in (
            ("is new", seen.first_namespaces, seen.namespaces),
            ("is gone", seen.namespaces, seen.first_namespaces),
        )
        for uid, name in new.items()
        if uid not in old
    ]


def processes_are_those_started(seen: Observation) -> list[str]:
    """Every process of the run is one that it has started and not ended."""
    return [
        *(f"process {pid} is left" for pid in sorted(seen.pids - seen.expected_pids)),
        *(f"process {pid} has ended" for pid in sorted(seen.expected_pids - seen.pids)),
        *(f"port {port} of an ended process is open" for port in seen.open_ports),
    ]


def resources_of_processes_are_bounded(seen: Observation) -> list[str]:
    """Files, sockets, memory and threads of the operator stay within bounds."""
    found = []
    for process in seen.processes:
        for what, used, most in (
            ("open files", process.files, FILES_MAX),
            ("MiB of memory", process.memory_mib, MEMORY_MAX_MIB),
            ("threads", process.threads, THREADS_MAX),
        ):
            if used > most:
                found.append(f"{process.name} has {used:g} {what}, the bound is {most:g}")
    return found


CONVERGENCE: tuple[Invariant, ...] = (
    one_replica_leads,
    status_matches_spec,
    objects_match_spec,
    instance_counts_match,
    scaling_has_metrics,
    every_object_has_an_owner,
    nothing_of_deleted_pipelines_is_left,
    objects_exist_once,
    revision_history_is_bounded,
    processes_are_those_started,
)
"""What holds a bounded time after the end of a fault."""
ALWAYS: tuple[Invariant, ...] = (
    only_the_leader_writes,
    the_last_serving_pod_is_not_deleted,
    no_request_is_lost,
    namespaces_are_unchanged,
    resources_of_processes_are_bounded,
)
"""What holds at any time."""
SETTLED: tuple[Invariant, ...] = (nothing_is_written_when_settled,)
"""What holds while nothing changes."""
INVARIANTS = (*CONVERGENCE, *ALWAYS, *SETTLED)


def violations(seen: Observation, *invariants: Invariant) -> list[str]:
    """Return all violations, each with the name of its invariant."""
    return [
        f"{invariant.__name__}: {text}"
        for invariant in invariants or INVARIANTS
        for text in invariant(seen)
    ]


def _pod_deletions(seen: Observation) -> Iterator[tuple[Write, str]]:
    for write in seen.writes:
        path = write.target.partition("?")[0].split("/")
        if write.method == "DELETE" and write.succeeded and path[-2:-1] == ["pods"]:
            yield write, path[-1]


def _serving(sample: PodSample, pipeline: str) -> set[str]:
    return {
        pod.name for pod in sample.pods if pod.pipeline == pipeline and pod.ready and not pod.faulty
    }


def _child(seen: Observation, kind: str, name: str) -> Object | None:
    return next(
        (
            item
            for item in seen.children
            if item["kind"] == kind and item["metadata"]["name"] == name
        ),
        None,
    )


def _max_length(revision: Object) -> str:
    """Return the tokenizer's maximum length in a revision's model configs."""
    found = _MAX_LENGTH.search("\n".join(revision["data"].values()))
    return found[1] if found else ""


def _condition(status: Object, kind: str) -> dict[str, Any]:
    return next((item for item in status.get("conditions") or () if item["type"] == kind), {})


def _name(item: Object) -> str:
    return f"{item['kind']} {item['metadata']['name']}"


def _text(write: Write) -> str:
    return f"{write.method} {write.target.partition('?')[0]}"
