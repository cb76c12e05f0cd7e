"""The CPU of the pods has one owner: live scaling, or somebody else who is named and not fought."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import ModelPod, World, rfc3339
from triton_pipelines.api import names
from triton_pipelines.api.wording import listed
from triton_pipelines.controllers.pipeline.planner import Plan
from triton_pipelines.controllers.pipeline.state import PipelineState

SPEC: dict[str, Any] = {
    "scaling": {"cpuResize": "InPlace"},
    "tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}},
}
VPA = "vpa-updater"


def world(pods: int = 1) -> World:
    made = World(builders.document(replicas=pods, **SPEC)).started()
    made.children["ConfigMap", names.live_name(made.name)]["data"][names.KEY_PODS] = json.dumps(
        {"cpuMillis": 3750}
    )
    return made.settle()


def writes(
    made: World,
    cpu: str,
    manager: str = VPA,
    pod: int = 0,
    subresource: str = "resize",
    fields: tuple[str, ...] = ("limits", "requests"),
) -> None:
    """Somebody resizes a pod, and the API server notes who."""
    target = made.pods[pod]
    target.asked = {**(target.asked or {}), **{field: {"cpu": cpu} for field in fields}}
    owned: dict[str, Any] = {f"f:{field}": {"f:cpu": {}} for field in fields}
    container = {f'k:{{"name":"{names.CONTAINER_SERVER}"}}': {"f:resources": owned}}
    made.managed[target.name] = [
        {
            "manager": manager,
            "operation": "Update",
            "subresource": subresource,
            "time": rfc3339(made.now),
            "fieldsV1": {"f:spec": {"f:containers": container}},
        }
    ]
    made.run_pods()


def passes(made: World, number: int = 1, seconds: float = 15) -> list[Plan]:
    """Passes with time between them; the kubelet gives what is asked for."""
    done = []
    for _ in range(number):
        made.pass_time(seconds).control().run_pods()
        done.append(made.step())
    return done


def limited(made: World) -> Any:
    return made.condition("ScalingLimited")


def test_one_resize_by_another_manager_is_corrected_without_a_report() -> None:
    made = world()
    writes(made, "2")
    (first, *rest) = passes(made, 4)
    assert first.resize is not None
    assert first.resize.limit == 3750
    assert all(one.resize is None for one in rest)
    assert not limited(made)
    made.pass_time(660)
    writes(made, "2")
    assert passes(made)[0].resize is not None, "ten minutes later it is another slip"


def test_a_manager_that_resizes_again_is_named_and_wins() -> None:
    made, resizes, events = world(), 0, []
    for number in range(100):
        writes(made, f"{2 + number % 2}")
        for done in passes(made, 2):
            resizes += done.resize is not None
            events += [event for event in done.events if event.reason == "CPUOwnerConflict"]
    assert resizes == 1, "mended once"
    assert [event.warning for event in events] == [True], "told once"
    found = limited(made)
    assert (found["status"], found["reason"]) == ("True", "CPUOwnerConflict")
    for word in (VPA, made.pods[0].name, "3750m", "updateMode to Off"):
        assert word in found["message"]
    assert made.state.cpu_resize.kept_by == VPA
    assert made.condition("Ready")["status"] == "True"


@pytest.mark.parametrize(
    "managers",
    [(VPA, "kubectl"), (VPA, "kubectl", "tuner"), tuple("abcdefg")],
    ids=["two", "three", "seven"],
)
def test_alternating_managers_are_named_and_win(managers: tuple[str, ...]) -> None:
    made, resizes, events = world(), 0, []
    for number in range(60):
        # Not what it has already, which would be nobody's deviation.
        writes(made, f"{2 + number % 2}", manager=managers[number % len(managers)])
        for done in passes(made, 2):
            resizes += done.resize is not None
            events += [event for event in done.events if event.reason == "CPUOwnerConflict"]
    assert resizes == min(len(managers), 4), "each is mended once"
    assert len(events) == 1, "told once"
    assert limited(made)["reason"] == "CPUOwnerConflict"
    assert listed(sorted(managers)[:4]) + " repeatedly resize the pods" in limited(made)["message"]
    writes(made, "3750m", manager=managers[0])
    passes(made, 2)
    assert (made.state.cpu_resize.kept_by, limited(made)) == ("", {})


def test_it_is_left_unchanged_after_a_restart_of_the_operator() -> None:
    """Keep the state in the live ConfigMap: a new process must not start the conflict again."""
    made = world()
    for cpu in ("2", "3", "2"):
        writes(made, cpu)
        passes(made)
    assert made.state == PipelineState.parse(made.state.to_json())
    writes(made, "3")
    assert passes(made, 3)[-1].resize is None


def test_what_was_written_to_several_pods_before_is_one_slip() -> None:
    made = world(3)
    for pod in range(3):
        writes(made, "2", pod=pod)
    resized = [done.resize.pod for done in passes(made, 6) if done.resize is not None]
    assert sorted(resized) == sorted(pod.name for pod in made.pods)
    assert not limited(made)


def test_no_pod_is_resized_while_one_is_left_to_another_manager() -> None:
    made = world(2)
    for cpu in ("2", "3", "2"):
        writes(made, cpu)
        passes(made)
    made.pods[1].asked = made.pods[1].given = None  # as one that has just started
    assert all(done.resize is None for done in passes(made, 3))


def test_the_report_is_removed_once_no_other_manager_owns_the_field() -> None:
    made = world()
    for cpu in ("2", "3", "2"):
        writes(made, cpu)
        passes(made)
    assert limited(made)
    writes(made, "3750m")
    passes(made, 2)
    assert not limited(made)
    assert made.state.cpu_resize.kept_by == ""


@pytest.mark.parametrize(
    ("manager", "subresource"),
    [("kubectl", ""), ("kubelet", "status"), (names.MANAGER_CHILDREN, "resize")],
)
def test_a_cpu_change_without_another_manager_is_always_corrected(
    manager: str, subresource: str
) -> None:
    made, resizes = world(), 0
    for number in range(4):
        writes(made, f"{2 + number % 2}", manager=manager, subresource=subresource)
        resizes += sum(done.resize is not None for done in passes(made, 2))
    assert resizes == 4
    assert not limited(made)


def test_only_what_deviates_makes_an_owner() -> None:
    """The request is another's and as it is wanted; the limit is not theirs."""
    made = world()
    for _ in range(3):
        writes(made, "3750m", fields=("requests",))
        made.pods[0].asked = {**(made.pods[0].asked or {}), "limits": {"cpu": "2"}}
        made.run_pods()
        assert any(done.resize is not None for done in passes(made, 2))
    assert not limited(made)


# --- an autoscaler that writes pods as they are made ----------------------------------------------


@dataclass
class Admitted(World):
    """A cluster whose Vertical Pod Autoscaler changes pods at admission."""

    vpa: str = (
        "Pod resources updated by sentiment: container 0: cpu request, memory request, cpu limit"
    )
    """Annotation that the autoscaler sets on a pod; empty: none."""
    cpu: str = "2"
    """CPU request and limit that the autoscaler sets."""

    def _create(self, count: int, template: str) -> None:
        super()._create(count, template)
        for pod in self.pods[len(self.pods) - max(count, 0) :]:
            pod.asked = pod.given = {"limits": {"cpu": self.cpu}, "requests": {"cpu": self.cpu}}
            self.made.add(pod.name)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.made: set[str] = set()

    def _raw(self, pod: ModelPod) -> dict[str, Any]:
        raw = super()._raw(pod)
        if pod.name in self.made and self.vpa:
            raw["metadata"]["annotations"] = {"vpaUpdates": self.vpa}
        return raw

    def resize(self, decided: Plan) -> None:
        super().resize(decided)
        if decided.resize is not None:
            writes(
                self,
                str(decided.resize.limit) + "m",
                names.MANAGER_CHILDREN,
                [pod.name for pod in self.pods].index(decided.resize.pod),
            )


def evicted(made: World) -> None:
    """Its updater takes each pod away that has not what it gave."""
    for pod in made.pods:
        pod.away |= (pod.asked or {}).get("limits") != {"cpu": "2"}


def test_an_autoscaler_that_evicts_what_is_resized_is_named_and_left_alone(
    messages: Messages,
) -> None:
    made = Admitted(builders.document(replicas=2, **SPEC))
    made.step()
    resizes, gone = 0, 0
    for _ in range(12):
        resizes += sum(done.resize is not None for done in passes(made, 3))
        evicted(made)
        gone += sum(pod.away for pod in made.pods)
    # Both were made before the first mending: one slip. What comes for them is meant.
    assert resizes == gone <= 2
    assert limited(made)["reason"] == "CPUOwnerConflict"
    assert "VerticalPodAutoscaler" in limited(made)["message"]
    messages.check(limited(made)["message"])
    assert len(made.serving) == 2
    # It is taken away, and the pods are made anew.
    assert gone >= 1
    made.vpa, made.cpu = "", "1350m"
    for pod in made.pods:
        pod.away = True
    made.settle()
    assert (limited(made), made.state.cpu_resize.kept_by) == ({}, "")


@pytest.mark.parametrize(
    "said",
    [
        "",
        "Pod resources updated by sentiment: container 0: memory request",
        "Pod resources updated by sentiment: container 1: cpu request, cpu limit",
        "Pod resources updated by sentiment: container 10: cpu request, cpu limit",
        "somebody's own words: container 0: cpu limit",
    ],
)
def test_an_unclaimed_cpu_change_at_admission_is_corrected_in_each_pod(
    said: str,
) -> None:
    """As a policy that rounds numbers does it, which takes no pod away."""
    made = Admitted(builders.document(replicas=1, **SPEC), vpa=said)
    made.step()
    for _ in range(2):
        assert any(done.resize is not None for done in passes(made, 5))
        made.pods[0].away = True
    assert not limited(made)
