"""Test resizing CPU in place.

Covered are the CPU that pods start with, which pod is next, the node's response, and room for a
rollout.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support import builders
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.compile.graph import Options, build
from triton_pipelines.compile.graph.container_resources import cpu_range
from triton_pipelines.controllers.pipeline.actions import Resize
from triton_pipelines.controllers.pipeline.planner import Context, Plan, plan
from triton_pipelines.controllers.pipeline.pod_resize import pending_reason
from triton_pipelines.controllers.pipeline.resize_rejections import RejectionCause, ResizeRejection
from triton_pipelines.controllers.pipeline.scaling_observation import (
    bounds_of,
    observation_of,
    smallest_limit,
)
from triton_pipelines.controllers.pipeline.snapshot import Pod, Snapshot

# 250 m for the server; a core for each of 1 to 4 tokenizers; postprocess has 500 m beside.
SPEC: dict[str, Any] = {
    "scaling": {"cpuResize": "InPlace"},
    "tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}},
}


def world(pods: int = 1, **spec: Any) -> World:
    return World(builders.document(replicas=pods, **builders.merge(SPEC, spec))).started()


def limits(made: World) -> list[tuple[str, str]]:
    """Limit and request of each pod as its spec asks for them."""
    found = []
    for pod in made.pods:
        resources = made._raw(pod)["spec"]["containers"][0]["resources"]
        found.append((resources["limits"]["cpu"], resources["requests"]["cpu"]))
    return found


def record(made: World, millis: int) -> World:
    made.children["ConfigMap", names.live_name(made.name)]["data"][names.KEY_PODS] = json.dumps(
        {"cpuMillis": millis}
    )
    return made


def server(made: World) -> dict[str, Any]:
    return dict(made.deployment["spec"]["template"]["spec"]["containers"][0])


# --- what pods start with -------------------------------------------------------------------------


@pytest.mark.proves("spec.scaling.cpuResize", "behaviour")
def test_the_first_limit_fits_the_initial_instances_and_a_new_one_restarts_nothing() -> None:
    made, fixed = world(), World(builders.document(tokenizer=SPEC["tokenizer"])).started()
    start = server(made)["resources"]
    assert (
        start["limits"]["cpu"]
        == start["requests"]["cpu"]
        == server(fixed)["resources"]["requests"]["cpu"]
    )
    assert server(made)["resizePolicy"] == [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]
    assert "resizePolicy" not in server(fixed)
    most = server(fixed)["resources"]["limits"]["cpu"]
    pipeline = builders.pipeline(**SPEC)
    graph = build(pipeline, Options())
    found = cpu_range(pipeline, graph)
    assert found is not None
    assert (f"{found[0]}m", f"{found[1]}m") == (start["limits"]["cpu"], most)
    bounds = bounds_of(pipeline, graph)
    assert bounds.cpu is not None
    assert bounds.cpu.base == found[0] - 1000


def test_memory_and_shared_memory_are_those_of_the_most_instances() -> None:
    """They cannot be taken from a process that has them."""
    made, fixed = world(), World(builders.document(tokenizer=SPEC["tokenizer"])).started()
    assert (
        server(made)["resources"]["limits"]["memory"]
        == server(fixed)["resources"]["limits"]["memory"]
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"server": {"resources": {"limits": {"cpu": "3"}}}},
        {"tokenizer": {"instances": {"initial": 4}}},
        {"scaling": {"cpuResize": "Disabled"}},
    ],
)
def test_where_there_is_nothing_to_grow_nothing_is_resized(spec: dict[str, Any]) -> None:
    made = world(**spec)
    assert "resizePolicy" not in server(made)
    assert names.KEY_PODS not in made.children["ConfigMap", names.live_name("sentiment")]["data"]
    doubts = [
        item["message"]
        for item in made.status.get("warnings", [])
        if item["path"] == "spec.scaling.cpuResize"
    ]
    assert len(doubts) == (0 if spec.get("scaling") else 1)


# --- one after the other --------------------------------------------------------------------------


def test_pods_are_resized_one_at_a_time_each_when_the_one_before_has_it() -> None:
    made = record(world(3), 3750)
    start = limits(made)[0]
    assert len(set(limits(made))) == 1
    seen = []
    for _ in range(8):
        made.step()
        seen.append(sum(found != start for found in limits(made)))
        made.step()  # until the kubelet has done it nothing else is asked for
        assert sum(found != start for found in limits(made)) == seen[-1]
        made.pass_time(1).control().run_pods()
    assert seen[:4] == [1, 2, 3, 3]
    assert set(limits(made)) == {("3750m", "3750m")}
    assert made.settle().step().is_empty


def test_the_template_keeps_what_pods_start_with_and_new_ones_are_brought_in_line() -> None:
    made = record(world(1), 3750)
    template = made.deployment["spec"]["template"]
    made.settle().change(replicas=2)
    assert limits(made) == [("3750m", "3750m")]
    made.settle()
    assert made.deployment["spec"]["template"] == template, "scaling rolls nothing"
    assert limits(made) == [("3750m", "3750m")] * 2


def test_a_limit_is_lowered_again() -> None:
    made = record(world(1), 3750).settle()
    start = server(made)["resources"]["limits"]["cpu"]
    record(made, 1000).settle()
    assert limits(made) == [(start, start)], "never below what it started with"
    assert json.loads(
        made.children["ConfigMap", names.live_name("sentiment")]["data"][names.KEY_PODS]
    ) == {"cpuMillis": int(start[:-1])}


def test_what_a_pod_is_given_is_recorded_before() -> None:
    made = record(world(1), 100_000)
    made.step(writes=0)
    assert made.pods[0].asked is None
    decided = made.step()
    assert [item["metadata"]["name"] for item in decided.apply] == [names.live_name("sentiment")], (
        "the record is brought within bounds"
    )
    assert decided.resize is not None
    assert decided.resize.limit == 4350


def test_a_deferred_pod_is_waited_for_and_keeps_no_other_waiting() -> None:
    made = world(2)
    made.kubelet[made.pods[0].name] = "Deferred"
    record(made, 3750)
    for _ in range(6):
        made.step()
        made.pass_time(1).control().run_pods()
    pods = [Pod.of(made._raw(pod)) for pod in made.pods]
    assert limits(made) == [("3750m", "3750m")] * 2
    assert pending_reason(pods[0]) == (
        "has a resize that is Deferred on node node-1: Node didn't have enough resource: cpu"
    )
    assert pending_reason(pods[1]) == ""
    seen = observation_of(pods, made.deployment, 3750)
    assert (list(seen.resize_pending), seen.infeasible, seen.ready) == ([pods[0].name], {}, 2)
    assert (smallest_limit(pods) or {})["limits"]["cpu"] == server(made)["resources"]["limits"][
        "cpu"
    ], "counts grow by what is in force"
    assert made.step().is_empty, "the kubelet tries again by itself"
    made.kubelet.clear()
    made.control().run_pods()
    assert pending_reason(Pod.of(made._raw(made.pods[0]))) == ""


def test_an_infeasible_pod_is_told_apart() -> None:
    made = world(1)
    made.kubelet[made.pods[0].name] = "Infeasible"
    record(made, 3750).step()
    pod = Pod.of(made._raw(made.pods[0]))
    ((uid, found),) = observation_of([pod], made.deployment, 3750).infeasible.items()
    assert (uid, found.node, found.requested) == (pod.uid, "node-1", 3750)
    assert f"{found.given}m" == server(made)["resources"]["limits"]["cpu"]


def test_releases_up_to_1_32_tell_it_elsewhere() -> None:
    made = record(world(1), 3750)
    made.step()
    raw = made._raw(made.pods[0])
    raw["status"]["resize"] = "Infeasible"
    assert pending_reason(Pod.of(raw)) == "has a resize that is Infeasible on node node-1"


def test_a_kubelet_that_tells_nothing_is_named() -> None:
    made = record(world(1), 3750)
    raw = made._raw(made.pods[0])
    del raw["status"]["containerStatuses"][0]["resources"]
    assert "Kubernetes 1.33 or later" in pending_reason(Pod.of(raw))


# --- room for a rollout ---------------------------------------------------------------------------


def test_pods_give_back_what_they_reserved_while_one_finds_no_cpu() -> None:
    """Make room for a rollout wherever the first one fitted.

    The old pod's request returns to that of the template; its limit stays.
    """
    made = record(world(1), 3750).settle()
    start = server(made)["resources"]["requests"]["cpu"]
    made.room, made.scheduler = 1, "0/1 nodes are available: 1 Insufficient cpu."
    made.change(tokenizer={"maxLength": 64})
    given_back = False
    for _ in range(4):
        made.pass_time(1).control().run_pods()
        made.step()
        given_back = given_back or limits(made)[0] == ("3750m", start)
    assert given_back
    made.room = None  # and so the new one fits
    made.settle()
    assert limits(made) == [("3750m", "3750m")]
    assert len(made.pods) == 1


def test_of_a_guaranteed_pod_limit_and_request_stay_one() -> None:
    made = record(world(2), 3750).settle()
    raws = [made._raw(pod) for pod in made.pods]
    for raw in raws:
        raw["status"]["qosClass"] = "Guaranteed"
    raws[1]["status"]["conditions"][0] = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "Insufficient cpu",
        "lastTransitionTime": None,
    }
    observed = made.observed()
    changed = Snapshot(
        observed.pipeline, observed.children, tuple(Pod.of(raw) for raw in raws), observed.probes
    )
    assert _plan(made, changed).resize is None


def test_what_the_api_server_refuses_of_one_pod_is_left_alone_and_said() -> None:
    made = record(world(2), 3750)
    first = made.think().resize
    assert isinstance(first, Resize)
    decided = _plan(made, refusing(made, first, "LimitRange"))
    assert decided.resize is not None
    assert decided.resize.pod != first.pod
    assert decided.status is not None
    (found,) = [item for item in decided.status["conditions"] if item["type"] == "ScalingLimited"]
    assert (found["reason"], found["message"]) == (
        "ActuationFailed",
        f"cpu: pod {first.pod} cannot get 3750m: no",
    )
    assert decided.requeue_after == 30
    reported = (_plan(record(made, 1350), refusing(made, first, "LimitRange")).status or {}).get(
        "conditions", ()
    )
    assert not [item for item in reported if item["type"] == "ScalingLimited"], (
        "nobody asks for it any more"
    )


@pytest.mark.parametrize("kind", ["Quota", "Rights", "Absent"])
def test_what_would_be_refused_of_every_pod_is_not_asked_for_pod_by_pod(kind: str) -> None:
    made = record(world(2), 3750)
    first = made.think().resize
    assert isinstance(first, Resize)
    assert _plan(made, refusing(made, first, kind)).resize is None
    made.pass_time(31)
    again = _plan(made, refusing(made, first, kind, until=made.now)).resize
    assert again == first, "its time is over"


def test_a_quota_does_not_block_a_decrease() -> None:
    made = record(world(2), 3750).settle()
    record(made, 2350)
    first = made.think().resize
    assert isinstance(first, Resize)
    decided = _plan(made, refusing(made, first, "Quota"))
    assert decided.resize is not None
    assert decided.resize.pod != first.pod
    assert _plan(made, refusing(made, first, "Rights")).resize is None


def refusing(made: World, resize: Resize, kind: str, until: dt.datetime | None = None) -> Snapshot:
    refusal = ResizeRejection(
        resize.pod,
        RejectionCause(kind),
        resize.limit,
        f"cannot get {resize.limit}m: no",
        until or made.now + dt.timedelta(seconds=30),
    )
    return replace(made.observed(), resize_rejections={resize.uid: refusal})


def _plan(made: World, observed: Snapshot) -> Plan:
    return plan(observed, Context(made.options, lambda uid, revision: "key"), made.now)
