"""Pods and CPU in the autoscaler's loop: recorded first, changed one at a time, kept."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support import builders
from tests.support.flows import Flow, history
from tests.support.loops import Loop, loop_of
from tests.support.messages import Messages
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
    PodUsage,
)
from triton_pipelines.autoscaling.types import Verdict
from triton_pipelines.cluster.resources import PODS
from triton_pipelines.controllers.pipeline.resize_rejections import RejectionCause, ResizeRejection
from triton_pipelines.controllers.pipeline.state import CpuResizeState

SPEC: dict[str, Any] = {
    "tokenizer": {"instances": {"initial": 1, "min": 1, "max": 2}},
    "scaling": {"pods": {"min": 1, "max": 4}, "scaleUp": {"cooldownSeconds": 2}},
}

RENDERED: dict[str, Any] = {}


def world(**spec: Any) -> World:
    return World(builders.document(**builders.merge(SPEC, spec)), rendered=RENDERED).started()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return loop_of(monkeypatch, world())


def recorded(loop: Loop) -> dict[str, int]:
    return dict(json.loads(loop.live[names.KEY_PODS]))


def flow(
    loop: Loop,
    rate: float = 0.0,
    gpu: Flow | None = None,
    full: float = 0.0,
    cores: float = 0.3,
    throttled: float = 0.0,
    **fields: float,
) -> None:
    """Set the load of each pod.

    Args:
        rate: Requests/s of each pod's tokenizers.
        full: Requests/s of each instance, as an alternative to ``rate``.
        gpu: The GPU step's flow.
        cores: The container's CPU usage.
        throttled: The container's CPU throttling.
        **fields: Other fields of the tokenizers' flow.
    """
    passed = full * loop.counts["tokenizer"] if full else rate

    def says(one: ExpectedPods) -> PipelineSample:
        flows = {"tokenizer": Flow(passed, **fields), "model": gpu or Flow(passed, service=0.0005)}
        usage = PodUsage(loop.now, cpu_cores=cores, throttled=throttled)
        return PipelineSample(
            {pod: history(flows, now=loop.now, usage=usage) for pod in one.pods}, 5.0, "test"
        )

    loop.collector.says = says


async def run(loop: Loop, seconds: float, **load: Any) -> None:
    """So long under one load, the cluster doing its part."""
    end = loop.now + seconds
    while loop.now < end:
        if load:
            flow(loop, **load)
        loop.world.control().run_pods()
        await loop.tick(5.0)
        await loop.settle()


# Each tokenizer carries 100/s, and more arrives than they carry.
FULL: dict[str, Any] = {"full": 99.0, "service": 0.010, "pending": 400.0, "growth": 40.0}
FULL_GPU: dict[str, Any] = {
    "rate": 50.0,
    "service": 0.001,
    "gpu": Flow(50.0, service=0.0195, pending=80.0),
}


@pytest.mark.proves("spec.scaling.pods.max", "behaviour")
async def test_pods_grow_when_counts_stand_at_their_most_and_start_from_them(
    loop: Loop, messages: Messages
) -> None:
    await run(loop, 40, **FULL)
    assert loop.counts == {"tokenizer": 2}
    assert recorded(loop) == {"replicas": 1}, "counts first"
    await run(loop, 60, **FULL)
    assert recorded(loop)["replicas"] > 1
    assert loop.world.deployment["spec"]["replicas"] == recorded(loop)["replicas"]
    (entry,) = [item for item in loop.status()["scaling"]["history"] if item["step"] == "pods"]
    assert entry["reason"].startswith("TokenizerBound: every pod has 2 tokenizer instances")
    events = [
        event.note for made in loop.plans for event in made.events if event.reason == "Scaled"
    ]
    assert any(note.startswith("scaled pods from 1 to ") for note in events)
    assert loop.counts == {"tokenizer": 2}, "new pods start from the recorded counts"
    await run(loop, 600, **FULL)
    assert recorded(loop) == {"replicas": 4}
    limited = loop.world.condition("ScalingLimited")
    assert "scaling.pods.max" in limited["message"]
    messages.check(limited["message"])


async def test_a_full_gpu_grows_pods_and_no_tokenizer(loop: Loop) -> None:
    await run(loop, 90, **FULL_GPU)
    assert loop.status()["scaling"]["bottleneck"] == Verdict.GPU_BOUND
    assert loop.counts == {"tokenizer": 1}
    assert recorded(loop)["replicas"] == 2


@pytest.mark.proves("spec.scaling.pods.min", "behaviour")
async def test_pods_go_before_counts_and_not_below_the_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = loop_of(monkeypatch, world(scaling={"pods": {"min": 2}}))
    await run(loop, 240, **FULL)
    assert (recorded(loop), loop.counts) == ({"replicas": 4}, {"tokenizer": 2})
    await run(loop, 290, rate=5.0, service=0.010)
    assert (recorded(loop), loop.counts) == ({"replicas": 4}, {"tokenizer": 2}), (
        "instances wait for the pods"
    )
    await run(loop, 120, rate=5.0, service=0.010)
    assert recorded(loop) == {"replicas": 2}
    await run(loop, 400, rate=5.0, service=0.010)
    assert (recorded(loop), loop.counts, len(loop.world.serving)) == (
        {"replicas": 2},
        {"tokenizer": 1},
        2,
    )


async def test_no_pod_goes_while_metrics_are_away(loop: Loop) -> None:
    await run(loop, 240, **FULL)
    assert recorded(loop) == {"replicas": 4}
    loop.collector.says = MetricsFailure(MetricsProblem.MISSING, "gone")
    await run(loop, 1200)
    assert recorded(loop) == {"replicas": 4}
    assert loop.world.condition("MetricsAvailable")["status"] == "False"


async def test_nothing_grows_in_a_rollout(loop: Loop) -> None:
    await run(loop, 40, **FULL)
    loop.world.change(model={"maxBatchSize": 16})
    loop.reconcile()
    for _ in range(40):
        flow(loop, **FULL)
        await loop.tick(5.0)
        await loop.settle()
    assert recorded(loop) == {"replicas": 1}, "the new revision's pod does not come"
    await run(loop, 120, **FULL)
    assert recorded(loop)["replicas"] > 1


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_a_pod_that_has_ended_is_history(monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """An evicted pod stays listed as long as its ReplicaSet; it is neither a rollout nor a pod."""
    loop = loop_of(monkeypatch, world())
    ended = loop.world._raw(loop.world.pods[0])
    ended["metadata"] |= {"name": "evicted", "uid": "uid-evicted", "namespace": loop.key[0]}
    ended["metadata"]["labels"] |= {
        names.LABEL_REVISION: "0123456789",
        "pod-template-hash": "0123456789",
    }
    ended["status"] = {"phase": phase, "reason": "Evicted"}
    cached = Loop.cache

    def cache(one: Loop) -> None:
        cached(one)
        one.store.put(PODS, ended)

    monkeypatch.setattr(Loop, "cache", cache)
    await run(loop, 120, **FULL)
    assert recorded(loop)["replicas"] > 1
    assert loop.scaler._states[loop.key].all_pods, "those that are there"
    assert "evicted" not in [pod.name for pod in loop.scaler._states[loop.key].all_pods]


async def test_what_was_decided_survives_the_operator(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(loop, 240, **FULL)
    assert recorded(loop) == {"replicas": 4}
    other = loop_of(monkeypatch, loop.world)
    other.cache()
    await run(other, 120, rate=5.0, service=0.010)
    assert recorded(other) == {"replicas": 4}
    state = other.scaler._states[other.key].scaling_state
    assert state is not None
    assert state.pods is not None
    assert state.pods.scale.last_up is not None, "it knows when it grew last"
    await run(other, 400, rate=5.0, service=0.010)
    assert recorded(other)["replicas"] < 4


async def test_what_cannot_be_recorded_is_not_carried_out(loop: Loop) -> None:
    await run(loop, 40, **FULL)
    loop.writes = False
    await run(loop, 120, **FULL)
    assert loop.world.deployment["spec"]["replicas"] == 1
    loop.writes = True
    await run(loop, 10, **FULL)
    assert loop.world.deployment["spec"]["replicas"] == recorded(loop)["replicas"] > 1


async def test_scaling_that_owns_replicas_again_starts_from_the_current_pods(
    loop: Loop,
) -> None:
    await run(loop, 110, **FULL)
    wanted = recorded(loop)["replicas"]
    assert wanted > 1
    loop.world.document["spec"]["scaling"].pop("pods")
    loop.world.change(replicas=6)
    loop.reconcile()
    await run(loop, 60, rate=40.0, service=0.010)
    assert names.KEY_PODS not in loop.live
    assert loop.world.deployment["spec"]["replicas"] == 6
    loop.collector.says = MetricsFailure(MetricsProblem.MISSING, "gone")
    loop.world.change(scaling={"pods": {"min": 1, "max": 8}})
    loop.reconcile()
    await run(loop, 60)
    assert (recorded(loop), loop.world.deployment["spec"]["replicas"]) == ({"replicas": 6}, 6)


async def test_advisory_tells_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of(monkeypatch, world(scaling={"mode": "Advisory"}))
    await run(loop, 120, **FULL_GPU)
    assert names.KEY_PODS not in loop.live
    assert loop.world.deployment["spec"]["replicas"] == 1
    notes = [
        event.note
        for made in loop.plans
        for event in made.events
        if event.reason == "ScalingAdvised"
    ]
    assert [
        note for note in notes if note.startswith("pods would be scaled from 1 to 2: GPUBound")
    ] != []
    assert len([note for note in notes if note.startswith("pods")]) == 1


async def test_another_owner_of_the_deployments_number_is_not_fought(loop: Loop) -> None:
    """An HPA writes; live scaling wants more all the time; the Deployment is the HPA's."""
    hpa = {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "subresource": "scale",
        "fieldsV1": {"f:spec": {"f:replicas": {}}},
    }
    await run(loop, 40, **FULL)
    for number in range(60):
        loop.world.deployment["spec"]["replicas"] = 2 + number % 2
        loop.world.deployment["metadata"]["managedFields"] = [hpa]
        made = len(loop.plans)
        await run(loop, 15, **FULL)
        assert not [
            item
            for plan in loop.plans[made:]
            for item in plan.apply
            if item["kind"] == "Deployment"
        ]
    assert loop.world.condition("ScalingLimited")["reason"] == "ReplicasOwnerConflict"


# --- CPU in place ---------------------------------------------------------------------------------

IN_PLACE: dict[str, Any] = {
    "tokenizer": {"instances": {"initial": 1, "max": 4}},
    "scaling": {"cpuResize": "InPlace", "pods": {"max": 2}},
}


def limit(loop: Loop) -> int:
    """The CPU limit that all pods ask for."""
    (found,) = {
        loop.world._raw(pod)["spec"]["containers"][0]["resources"]["limits"]["cpu"]
        for pod in loop.world.pods
    }
    return int(str(found).removesuffix("m")) * (1 if str(found).endswith("m") else 1000)


@pytest.mark.proves("spec.scaling.cpuResize", "behaviour")
async def test_cpu_grows_first_and_counts_only_when_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
    messages: Messages,
) -> None:
    loop = loop_of(monkeypatch, world(**IN_PLACE))
    start = limit(loop)
    loop.world.kubelet[loop.world.pods[0].name] = "Deferred"
    for _ in range(10):
        flow(loop, cores=0.98 * start / 1000, throttled=0.3, **FULL)
        await loop.tick(5.0)
        await loop.settle()
    assert limit(loop) > start
    assert recorded(loop) == {"replicas": 1, "cpuMillis": limit(loop)}
    assert loop.counts == {"tokenizer": 1}, "asked for is not given"
    messages.check(loop.world.condition("ScalingLimited")["message"])
    loop.world.kubelet.clear()
    loop.world.run_pods()
    asked = limit(loop)
    for _ in range(5):
        flow(loop, cores=start / 1000, **FULL)
        await loop.tick(5.0)
        await loop.settle()
    assert loop.counts["tokenizer"] > 1
    assert limit(loop) == asked
    *counts, first = [item["step"] for item in loop.status()["scaling"]["history"]]
    assert (set(counts), first) == ({"tokenizer"}, "millicores")
    assert len(loop.world.pods) == 1


async def test_a_node_that_is_too_small_is_remembered_and_pods_are_added(
    monkeypatch: pytest.MonkeyPatch,
    messages: Messages,
) -> None:
    loop = loop_of(monkeypatch, world(**IN_PLACE))
    start = limit(loop)
    loop.world.kubelet[loop.world.pods[0].name] = "Infeasible"
    for _ in range(60):
        flow(loop, cores=0.98 * start / 1000, throttled=0.3, **FULL)
        loop.world.control().run_pods()
        await loop.tick(5.0)
        await loop.settle()
    resizes = [made.resize for made in loop.plans if made.resize is not None]
    assert len(resizes) == 2, "asked once, reverted once"
    assert recorded(loop) == {"replicas": 2, "cpuMillis": start}
    assert loop.counts == {"tokenizer": 1}
    assert "1350m" in loop.world.condition("ScalingLimited")["message"]
    messages.check(loop.world.condition("ScalingLimited")["message"])


def refusing(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, kind: RejectionCause
) -> dict[str, ResizeRejection]:
    """An API server that refuses every resize from now on; what it refused."""
    known: dict[str, ResizeRejection] = {}

    def resize(decided: Any) -> None:
        if (asked := decided.resize) is not None:
            text = f"cannot get {asked.limit}m: no"
            known[asked.uid] = ResizeRejection(
                asked.pod, kind, asked.limit, text, loop.world.now + dt.timedelta(seconds=60)
            )

    monkeypatch.setattr(loop.world, "resize", resize)
    observed = loop.world.observed
    monkeypatch.setattr(
        loop.world, "observed", lambda: replace(observed(), resize_rejections=dict(known))
    )
    loop.scaler.handover.resize_rejections[loop.key] = known
    return known


async def test_a_node_that_the_api_server_says_is_too_small_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
    messages: Messages,
) -> None:
    """Kubernetes 1.36 answers 403 (measured); the pod's spec stays as it was."""
    loop = loop_of(monkeypatch, world(**IN_PLACE))
    start = limit(loop)
    refusing(loop, monkeypatch, RejectionCause.NODE)
    await run(loop, 200, cores=0.98 * start / 1000, throttled=0.3, **FULL)
    assert recorded(loop) == {"replicas": 2, "cpuMillis": start}
    assert "1350m" in loop.world.condition("ScalingLimited")["message"]
    messages.check(loop.world.condition("ScalingLimited")["message"])


@pytest.mark.parametrize(
    "kind",
    [
        RejectionCause.QUOTA,
        RejectionCause.RIGHTS,
        RejectionCause.RANGE,
        RejectionCause.ADMISSION,
        RejectionCause.INVALID,
    ],
)
async def test_a_rejection_that_users_can_resolve_is_reported_and_retried(
    monkeypatch: pytest.MonkeyPatch, kind: RejectionCause
) -> None:
    loop = loop_of(
        monkeypatch, world(**builders.merge(IN_PLACE, {"scaling": {"pods": {"max": 1}}}))
    )
    start = limit(loop)
    with monkeypatch.context() as patched:
        refused = refusing(loop, patched, kind)
        await run(loop, 200, cores=0.98 * start / 1000, throttled=0.3, **FULL)
        wanted = recorded(loop)["cpuMillis"]
        assert wanted > start, "the node is not held to be too small"
        assert 2 <= sum(made.resize is not None for made in loop.plans) <= 4, "now and then"
        reported = loop.world.condition("ScalingLimited")
        assert (reported["reason"], reported["message"]) == (
            "ActuationFailed",
            f"cpu: pod {loop.world.pods[0].name} cannot get {wanted}m: no",
        )
    refused.clear()
    await run(loop, 60, cores=0.98 * start / 1000, throttled=0.3, **FULL)
    assert limit(loop) >= wanted


async def test_cpu_of_another_manager_is_left_alone_and_pods_are_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = loop_of(monkeypatch, world(**IN_PLACE))
    live = loop.world.children["ConfigMap", names.live_name(loop.world.name)]["data"]
    state = loop.world.state.with_states(CpuResizeState(("vpa-updater",)))
    live[names.KEY_STATE] = state.to_json()
    fields: dict[str, Any] = {
        "f:spec": {
            "f:containers": {'k:{"name":"triton"}': {"f:resources": {"f:limits": {"f:cpu": {}}}}}
        }
    }
    for pod in loop.world.pods:
        pod.asked = pod.given = {"limits": {"cpu": "1200m"}}
        loop.world.managed[pod.name] = [
            {
                "manager": "vpa-updater",
                "subresource": "resize",
                "time": "2026-01-01T11:00:00Z",
                "fieldsV1": fields,
            }
        ]
    await run(loop, 150, cores=1.19, throttled=0.3, **FULL)
    assert not [made.resize for made in loop.plans if made.resize is not None]
    assert recorded(loop) == {"replicas": 2, "cpuMillis": 1350}, (
        "no CPU is wanted that nobody gives"
    )
    assert loop.world.condition("ScalingLimited")["reason"] == "CPUOwnerConflict"


# --- what is shown --------------------------------------------------------------------------------


async def test_pods_and_their_cpu_are_metrics_of_the_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = loop_of(monkeypatch, world(**IN_PLACE))
    start = limit(loop)
    loop.world.kubelet[loop.world.pods[0].name] = "Deferred"
    await run(loop, 40, cores=0.98 * start / 1000, throttled=0.3, **FULL)
    metrics, own = loop.scaler.metrics, {"namespace": loop.key[0], "pipeline": loop.key[1]}
    found = {
        (sample.name, sample.labels.get("pod", "")): sample.value
        for family in (metrics.pods_desired, metrics.cpu, metrics.cpu_desired)
        for one in family.collect()
        for sample in one.samples
        if own.items() <= sample.labels.items()
    }
    assert found == {
        ("tritonpipe_pipeline_pods_desired", ""): recorded(loop)["replicas"],
        ("tritonpipe_pod_cpu_limit_cores", loop.world.pods[0].name): start / 1000,
        ("tritonpipe_pod_cpu_limit_desired_cores", ""): recorded(loop)["cpuMillis"] / 1000,
    }
    assert recorded(loop)["cpuMillis"] > start


# --- a record that somebody deletes ---------------------------------------------------------------


@pytest.mark.parametrize("started_anew", [False, True])
async def test_a_deleted_live_config_map_is_recreated_from_the_running_state(
    monkeypatch: pytest.MonkeyPatch, started_anew: bool
) -> None:
    loop = loop_of(monkeypatch, world(**IN_PLACE))
    await run(loop, 30, cores=0.98 * limit(loop) / 1000, throttled=0.3, **FULL)
    await run(loop, 100, cores=1.5, **FULL)
    counts, pods = loop.counts, recorded(loop)
    assert counts["tokenizer"] > 1
    assert (pods["replicas"], pods["cpuMillis"] > 1350) == (2, True)
    loop.collector.says = MetricsFailure(
        MetricsProblem.MISSING, "gone"
    )  # nothing would bring back what is lost
    await run(loop, 10)
    if started_anew:
        tritons = loop.tritons
        loop = loop_of(monkeypatch, loop.world)
        loop.tritons.counts |= tritons.counts
        loop.collector.says = MetricsFailure(MetricsProblem.MISSING, "gone")
    else:
        monkeypatch.setattr(
            loop.scaler._states[loop.key].output, "intent", None
        )  # as long after the last change
    del loop.world.children["ConfigMap", names.live_name(loop.world.name)]
    decided = loop.reconcile()
    assert not [item for item in decided.apply if item["kind"] == "Deployment"]
    assert decided.resize is None
    assert (loop.counts, recorded(loop)) == (counts, pods)
    await run(loop, 60)
    assert (loop.counts, recorded(loop), loop.tritons.loads[-1:] if started_anew else []) == (
        counts,
        pods,
        [],
    )
    assert limit(loop) == pods["cpuMillis"]


async def test_in_mode_advisory_the_number_that_was_left_stays_without_its_record(
    loop: Loop,
) -> None:
    await run(loop, 240, **FULL)
    assert recorded(loop) == {"replicas": 4}
    loop.world.change(scaling={"mode": "Advisory"})
    loop.reconcile()
    del loop.world.children["ConfigMap", names.live_name(loop.world.name)]
    loop.reconcile()
    assert (recorded(loop), loop.world.deployment["spec"]["replicas"]) == ({"replicas": 4}, 4)
    loop.reconcile()
    assert recorded(loop) == {"replicas": 4}


# --- a rollout that fails -------------------------------------------------------------------------


async def lived(loop: Loop, seconds: float, **load: Any) -> None:
    """As :func:`run`, with passes that come of themselves, too."""
    for _ in range(int(seconds / 5)):
        await run(loop, 5, **load)
        loop.reconcile()


async def test_a_rollout_that_fails_half_way_keeps_those_that_serve_from_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pods of both revisions serve: CPU grows; another number of pods rolls the failed one back."""
    loop = loop_of(
        monkeypatch, world(**builders.merge(IN_PLACE, {"scaling": {"pods": {"min": 3, "max": 6}}}))
    )
    start, old = limit(loop), loop.world.deployed
    await lived(loop, 10, rate=20.0, service=0.010)
    loop.world.change(tokenizer={"maxLength": 64}, rollout={"strategy": "Surge"})
    loop.reconcile()
    new = loop.world.deployed
    while new not in {pod.revision for pod in loop.world.serving}:
        await lived(loop, 5, rate=20.0, service=0.010)
    loop.world.verdicts[new] = "bad"
    await lived(loop, 30, rate=20.0, service=0.010)
    assert {pod.revision for pod in loop.world.serving} == {old, new}
    assert loop.world.condition("Ready")["reason"] == "ModelMismatch"
    await lived(loop, 40, cores=0.98 * start / 1000, throttled=0.3, **FULL)
    assert {pod.revision for pod in loop.world.serving if pod.asked} == {old, new}, (
        "CPU of those that serve"
    )
    assert loop.world.deployed == new, "and it is tried on"
    await lived(loop, 300, cores=3.3, **FULL)
    assert recorded(loop)["replicas"] > 3
    assert {pod.revision for pod in loop.world.serving} == {loop.world.deployed} == {old}
    assert len(loop.world.serving) == recorded(loop)["replicas"]
    assert loop.world.condition("Ready")["reason"] == "RolledBack"


async def test_a_revision_that_does_not_come_keeps_those_that_serve_from_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The CPU of serving pods grows; another desired number of pods rolls the revision back."""
    loop = loop_of(monkeypatch, world(**IN_PLACE))
    start, old = limit(loop), loop.world.deployed
    await lived(loop, 10, rate=20.0, service=0.010)
    loop.world.change(tokenizer={"maxLength": 64}, rollout={"strategy": "Surge"})
    loop.reconcile()
    new = loop.world.deployed
    assert new != old
    loop.world.verdicts[new] = "bad"
    await lived(loop, 30, rate=20.0, service=0.010)
    assert {pod.revision for pod in loop.world.pods} == {old, new}
    assert loop.world.condition("Ready")["reason"] == "ModelMismatch"
    await lived(loop, 40, cores=0.98 * start / 1000, throttled=0.3, **FULL)
    assert [pod.asked for pod in loop.world.pods if pod.revision == old and pod.asked], (
        "CPU of those that serve"
    )
    assert loop.world.deployed == new, "and it is tried on"
    await lived(loop, 300, cores=3.3, **FULL)
    assert recorded(loop)["replicas"] == 2
    assert (
        loop.world.deployed,
        {pod.revision for pod in loop.world.serving},
        len(loop.world.serving),
    ) == (old, {old}, 2)
    assert loop.world.condition("Ready")["reason"] == "RolledBack"
    loop.world.verdicts[new] = "good"
    loop.world.change(tokenizer={"maxLength": 96})
    loop.reconcile()
    await lived(loop, 60, rate=20.0, service=0.010)
    assert loop.world.reasons()["Ready"] == "True Succeeded", (
        "what comes next is rolled out as ever"
    )
