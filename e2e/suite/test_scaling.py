"""Live scaling on a real node: counts follow the load in running pods, visibly to everyone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from e2e.suite.installation import NAMESPACE, Installation
from e2e.suite.kube import Kube, Object, wait_for
from e2e.suite.pipelines import condition
from e2e.suite.reach import Reach
from e2e.suite.story import watched
from e2e.suite.test_faults import wait_operator
from e2e.suite.tiny import SAFE_CLIENTS, TinyPipeline, assert_none_lost, document
from triton_pipelines.api import names

STEP = "slow"
SERVICE_SECONDS = 0.1
# Six clients with two requests/s each are 1.2 instances' worth of work. One instance falls behind
# slowly enough that all requests are answered in time.
LOAD: Mapping[str, Any] = {
    "clients": SAFE_CLIENTS,
    "workers": 3,
    "interval": 0.5,
    "open_loop": True,
}
MOST = 4
GROWN_SECONDS = 120.0
STABLE_SECONDS = 10
SHRUNK_SECONDS = 120.0
RECORDED_SECONDS = 60.0
# A step whose work is declared, not done. It keeps an instance as busy as a slow tokenizer would,
# and leaves the node's two cores free.
CODE = f"""
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        time.sleep({SERVICE_SECONDS})
        return pb_utils.InferenceResponse([pb_utils.Tensor("SAME", pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy())])
"""  # noqa: E501


def slow_step(**instances: int) -> dict[str, Any]:
    return {
        "name": STEP,
        "platform": "python",
        "instances": {"max": MOST} | instances,
        "resourcesPerInstance": {"cpu": "100m", "memory": "100Mi"},
        "inputs": [{"name": "TEXT", "dataType": "STRING", "dims": [1], "from": "pipeline.TEXT"}],
        "outputs": [{"name": "SAME", "dataType": "STRING", "dims": [1]}],
        "python": {"code": {"inline": CODE}},
    }


def spec(mode: str = "Active", **instances: int) -> dict[str, Any]:
    """What makes the tiny pipeline slow, and scaling quick to see it."""
    return {
        "steps": [slow_step(**instances)],
        "tokenizer": {"inputs": {"textFrom": f"{STEP}.SAME"}, "instances": {"count": 1}},
        "scaling": {
            "mode": mode,
            "windows": {"fastSeconds": 4, "slowSeconds": 10},
            "scaleDown": {"stabilizationSeconds": STABLE_SECONDS, "maxStepPercent": 100},
        },
    }


class Scaled:
    """What is recorded, reported and running for a pipeline's slow step."""

    def __init__(self, pipeline: TinyPipeline) -> None:
        self._pipeline = pipeline

    def recorded(self) -> int:
        """The count that new pods start from."""
        data = self._pipeline.kube.get(
            "ConfigMap", self._pipeline.namespace, names.live_name(self._pipeline.name)
        )["data"]
        return int(json.loads(data[names.KEY_COUNTS])[STEP])

    def running(self) -> list[int]:
        """Instances as each serving pod's Triton has them."""
        return [self._instances(pod["metadata"]["name"]) for pod in self._pipeline.serving_pods()]

    def _instances(self, pod: str) -> int:
        path = (
            f"/api/v1/namespaces/{self._pipeline.namespace}/pods/{pod}:{names.PORT_HTTP}/proxy/v2/"
            f"models/{STEP}/config"
        )
        return int(self._pipeline.kube.request("GET", path)["instance_group"][0]["count"])

    def scaling(self) -> Mapping[str, Any]:
        """Scaling's part of the status."""
        found: Mapping[str, Any] = self._pipeline.status().get("scaling") or {}
        return found

    def wait_running(self, holds: Callable[[int], bool], what: str, deadline: float) -> int:
        """Wait until every serving pod has the recorded count and that is as wanted; returns it."""

        def seen() -> tuple[int, list[int]]:
            return self.recorded(), self.running()

        def good(now: tuple[int, list[int]]) -> bool:
            return holds(now[0]) and bool(now[1]) and set(now[1]) == {now[0]}

        return wait_for(f"{what} instances recorded and running", seen, good, deadline)[0]


def starts(pipeline: TinyPipeline) -> dict[str, int]:
    """Return the restarts of all containers of each pod, by UID."""
    return {
        pod["metadata"]["uid"]: sum(
            one["restartCount"] for one in pod["status"].get("containerStatuses") or ()
        )
        for pod in pipeline.pods()
    }


def events(pipeline: TinyPipeline, reason: str) -> list[str]:
    return [event["note"] for event in pipeline.events() if event["reason"] == reason]


def test_counts_follow_the_load_in_place(
    kube: Kube, installation: Installation, tiny: TinyPipeline
) -> None:
    before = tiny.serve("old", **spec())["status"]["revision"]
    scaled = Scaled(tiny)
    assert scaled.wait_running(lambda count: count == 1, "1", RECORDED_SECONDS) == 1
    pods = starts(tiny)
    operator = {pod["metadata"]["name"] for pod in installation.operator_pods()}
    with tiny.load(**LOAD) as load, watched(kube, tiny.namespace, names.PLURAL) as story:
        # Killed right after its intent is recorded: the next operator continues from there.
        wanted = wait_for(
            "a higher count recorded", scaled.recorded, lambda count: count > 1, GROWN_SECONDS
        )
        kube.kubectl(
            "delete", "pod", f"--namespace={NAMESPACE}", "--force", "--grace-period=0", *operator
        )
        wait_operator(installation, operator)
        grown = scaled.wait_running(
            lambda count: count >= wanted, f"at least {wanted}", GROWN_SECONDS
        )
        load.wait_requests()
        tiny.wait(
            "its status tells",
            lambda item: (
                _reported_step(item)["instances"]
                == _reported_step(item)["desiredInstances"]
                == scaled.recorded()
            ),
            RECORDED_SECONDS,
        )
        tiny.wait_condition("ScalingActive", "True", "Succeeded")
        tiny.wait_condition("MetricsAvailable", "True", "Succeeded")
        title = kube.kubectl("get", "ipl", tiny.name, f"--namespace={tiny.namespace}")
        assert "BOTTLENECK" in title.splitlines()[0]
        wait_for(
            "the bottleneck among the columns",
            lambda: (
                str(scaled.scaling()["bottleneck"]),
                kube.kubectl("get", "ipl", tiny.name, f"--namespace={tiny.namespace}"),
            ),
            lambda seen: seen[0] in seen[1],
            RECORDED_SECONDS,
        )
    assert starts(tiny) == pods, "no pod was made anew or restarted"
    assert_none_lost(load, {"old"})
    (change, *_) = [
        item for item in reversed(scaled.scaling()["history"]) if item["to"] > item["from"]
    ]
    assert (change["step"], change["from"]) == (STEP, 1)
    assert "requests/s" in change["reason"]
    noted = wait_for("events of it", lambda: events(tiny, "Scaled"), bool, RECORDED_SECONDS)
    start = f"scaled {STEP} from 1 to {wanted}"
    assert any(note.startswith(f"{start}: StepBound") for note in noted), noted
    assert start in kube.kubectl("describe", "ipl", tiny.name, f"--namespace={tiny.namespace}")

    # The load has ended: down again, in place, once the stabilization is over.
    assert grown > 1
    scaled.wait_running(lambda count: count == 1, "1", SHRUNK_SECONDS)
    tiny.wait(
        "its status tells", lambda item: _reported_step(item)["instances"] == 1, RECORDED_SECONDS
    )
    assert starts(tiny) == pods
    assert tiny.status()["revision"] == before
    assert {
        (state["spec"]["scaling"]["mode"], state["metadata"]["generation"])
        for state in story.states()
    } == {("Active", 1)}, "nobody wrote the spec"
    assert {status for status, _, _ in story.conditions("Ready")} == {"True"}

    # A new bound applies at once. It does not wait for the rollout of pods that are sized for it.
    tiny.patch({"spec": {"steps": [slow_step(min=2, max=3)]}})
    wait_for(
        "the new minimum recorded", scaled.recorded, lambda count: count == 2, RECORDED_SECONDS
    )
    tiny.wait_ready()
    scaled.wait_running(lambda count: count == 2, "2", RECORDED_SECONDS)


def _reported_step(item: Object) -> Mapping[str, Any]:
    return next(step for step in item["status"]["steps"] if step["name"] == STEP)


@pytest.fixture
def bystanders(kube: Kube, test_namespace: str, reach: Reach) -> tuple[TinyPipeline, TinyPipeline]:
    """One pipeline that scaling advises on, and one that it ignores."""
    if not reach.routed:
        pytest.skip(
            "the cluster's service range is not routed here: a forwarded port ends at one pod"
        )
    advised, disabled = (
        TinyPipeline(kube, test_namespace, reach, name) for name in ("advised", "disabled")
    )
    advised.apply(document("old", **spec("Advisory")))
    disabled.apply(document("old", **spec("Disabled")))
    return advised, disabled


def test_advice_changes_nothing_and_disabled_does_not_look(
    bystanders: tuple[TinyPipeline, TinyPipeline],
) -> None:
    advised, disabled = bystanders
    for pipeline in bystanders:
        pipeline.wait_ready()
    pods = [starts(pipeline) for pipeline in bystanders]
    with advised.load(**LOAD) as seen, disabled.load(**LOAD):
        item = advised.wait("advice to grow", lambda item: _advice(item) != [], GROWN_SECONDS)
        seen.wait_requests()
        assert [Scaled(pipeline).running() for pipeline in bystanders] == [[1], [1]]
    (advice, *_) = _advice(item)
    assert (advice["step"], advice["from"]) == (STEP, 1)
    reported = condition(item["status"], "ScalingActive")
    assert (reported["status"], reported["reason"]) == ("False", "Advisory")
    assert f"{STEP} would be scaled from 1 to {advice['to']}" in reported["message"]
    wait_for("an event of it", lambda: events(advised, "ScalingAdvised"), bool, RECORDED_SECONDS)
    assert [Scaled(pipeline).recorded() for pipeline in bystanders] == [1, 1]
    status = disabled.status()
    assert "scaling" not in status
    assert not {entry["type"] for entry in status["conditions"]} & {
        "ScalingActive",
        "MetricsAvailable",
        "ScalingLimited",
    }
    assert not [event for pipeline in bystanders for event in events(pipeline, "Scaled")]
    assert [starts(pipeline) for pipeline in bystanders] == pods


def _advice(item: Object) -> list[Mapping[str, Any]]:
    scaling = (item.get("status") or {}).get("scaling") or {}
    return [entry for entry in scaling.get("history") or () if entry["to"] > entry["from"]]


# Half a core per instance: the limit that the pod starts with has no room for a second one.
CORES = "500m"


def _cpu(pod: Object, part: str = "status") -> str:
    """The server's CPU limit: in force (`status`), or asked for (`spec`)."""
    containers = (
        pod["status"].get("containerStatuses") or ()
        if part == "status"
        else pod["spec"]["containers"]
    )
    found: Mapping[str, Any] = next(
        (item for item in containers if item["name"] == names.CONTAINER_SERVER), {}
    )
    return str(((found.get("resources") or {}).get("limits") or {}).get("cpu", ""))


def test_a_pods_cpu_grows_in_place_before_its_count(tiny: TinyPipeline) -> None:
    """The step is granted half a core per instance and uses none.

    Its CPU reservation is therefore the limit.
    """
    wanted = spec(max=2)
    wanted["steps"][0]["resourcesPerInstance"]["cpu"] = CORES
    wanted["tokenizer"]["resourcesPerInstance"] = {"cpu": "50m"}
    wanted["scaling"]["cpuResize"] = "InPlace"
    wanted["server"] = {"resources": {"requests": {"cpu": None}, "limits": {"cpu": None}}}
    tiny.serve("old", **wanted)
    scaled = Scaled(tiny)
    (pod,) = tiny.serving_pods()
    start, pods = _cpu(pod), starts(tiny)
    assert start == _cpu(pod, "spec") != ""
    with tiny.load(**LOAD) as load:
        given = wait_for(
            "more CPU in force",
            lambda: {_cpu(one) for one in tiny.serving_pods()},
            lambda found: found not in ({start}, {""}),
            GROWN_SECONDS,
        )
        grown = scaled.wait_running(lambda count: count == 2, "2", GROWN_SECONDS)
        load.wait_requests()
    assert grown == 2
    assert starts(tiny) == pods, "no pod was made anew or restarted"
    assert_none_lost(load, {"old"})
    steps = [
        item["step"] for item in reversed(scaled.scaling()["history"]) if item["to"] > item["from"]
    ]
    assert steps == ["millicores", STEP], "CPU first, and the count when it was there"
    assert any(
        note.startswith("scaled millicores from ") and "CPUBound" in note
        for note in events(tiny, "Scaled")
    )

    # The next revision starts like the first, fits next to it, and gets as much.
    tiny.patch({"spec": {"tokenizer": {"maxLength": 16}}})
    tiny.wait_ready()
    fresh = wait_for(
        "the new pod has it, too",
        lambda: {_cpu(one) for one in tiny.serving_pods()},
        lambda found: found == given,
        RECORDED_SECONDS,
    )
    assert fresh == given
    assert not set(starts(tiny)) & set(pods)
