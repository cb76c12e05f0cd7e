"""Test that the number of pods has one owner.

It is the spec, live scaling, or another manager, which is named and not fought.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.controllers.pipeline.live_config_map import positive_integers
from triton_pipelines.controllers.pipeline.planner import Plan
from triton_pipelines.controllers.pipeline.policies.replicas import decide_replicas
from triton_pipelines.controllers.pipeline.snapshot import Object
from triton_pipelines.controllers.pipeline.state import ReplicasState

PODS: dict[str, Any] = {
    "scaling": {"pods": {"min": 2, "max": 5}},
    "tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}},
}


def world(**spec: Any) -> World:
    return World(builders.document(**spec)).started()


def entry(
    manager: str, subresource: str = "", operation: str = "Update", field: str = "f:replicas"
) -> Object:
    return {
        "manager": manager,
        "operation": operation,
        "subresource": subresource,
        "fieldsV1": {"f:spec": {field: {}}},
    }


def written(made: World, number: int, *managers: Object) -> World:
    """Somebody else has written the Deployment's number."""
    made.deployment["spec"]["replicas"] = number
    made.deployment["metadata"]["managedFields"] = list(managers)
    return made


def applied(decided: Plan) -> Object | None:
    return next((item for item in decided.apply if item["kind"] == "Deployment"), None)


def limited(made: World) -> Object:
    return made.condition("ScalingLimited")


# --- more pods than find room, and a rollout ------------------------------------------------------


@pytest.mark.parametrize("strategy", ["Auto", "NoSurge", "Recreate"])
def test_a_pod_that_scaling_wants_and_that_finds_no_room_stops_no_rollout(strategy: str) -> None:
    made = World(
        builders.document(**builders.merge(PODS, {"rollout": {"strategy": strategy}})), room=3
    ).started()
    made.children["ConfigMap", names.live_name(made.name)]["data"][names.KEY_PODS] = json.dumps(
        {"replicas": 4}
    )
    made.settle()
    assert (len(made.serving), len(made.pods)) == (3, 4)
    old = made.deployed
    made.change(tokenizer={"maxLength": 64})
    for _ in range(60):
        made.pass_time(5).control().run_pods()
        made.step()
        assert strategy == "Recreate" or len(made.serving) >= 2, "one at a time"
    assert made.deployed != old
    assert made.reasons()["Ready"] == "True Succeeded"
    assert ({pod.revision for pod in made.pods}, len(made.serving)) == ({made.deployed}, 3)
    assert made.deployment["spec"]["replicas"] == 4, "a fourth is wanted as ever"
    assert (made.state.rollout.verified, made.state.replicas.rollout_pods) == (made.deployed, 0)
    assert recorded(made) == {"replicas": 4}


@pytest.mark.parametrize("edited", [-5, 1, True])
def test_what_an_edit_has_made_of_a_rollouts_pods_takes_none_below_the_least(edited: int) -> None:
    made = world(**builders.merge(PODS, {"rollout": {"strategy": "Surge"}}))
    made.change(tokenizer={"maxLength": 64}).step()
    live = made.children["ConfigMap", names.live_name(made.name)]["data"]
    live[names.KEY_STATE] = json.dumps(
        builders.merge(json.loads(live[names.KEY_STATE]), {"replicas": {"rollout_pods": edited}})
    )
    made.step()
    number = made.deployment["spec"]["replicas"]
    assert (number, type(number)) == (2, int)
    made.settle()
    assert (len(made.serving), made.reasons()["Ready"]) == (2, "True Succeeded")


# --- a second owner of the Deployment's number ----------------------------------------------------


def test_an_autoscaler_of_the_deployment_keeps_the_number_and_is_named() -> None:
    made = written(world(), 4, entry("kube-controller-manager", "scale"))
    writes, events = 0, []
    for seconds in range(0, 3600, 15):
        made.pass_time(15).control().run_pods()
        written(made, 3 + seconds % 3, entry("kube-controller-manager", "scale"))
        decided = made.step()
        writes += applied(decided) is not None
        events += [event for event in decided.events if event.reason == "ReplicasOwnerConflict"]
    assert writes == 0
    assert [event.warning for event in events] == [True], "told once"
    assert (limited(made)["status"], limited(made)["reason"]) == ("True", "ReplicasOwnerConflict")
    for word in (
        "kube-controller-manager",
        "instead of 1",
        "InferencePipeline sentiment",
        "kubectl scale deployment sentiment --replicas=1",
    ):
        assert word in limited(made)["message"]
    assert made.condition("Ready")["status"] == "True"
    assert "Reconciling" not in made.reasons()


def test_its_number_is_not_touched_by_other_changes() -> None:
    made = written(world(), 4, entry("kube-controller-manager", "scale"))
    made.control().run_pods().run_pods()
    made.change(tokenizer={"maxLength": 64})
    change = applied(made.step())
    assert change is not None
    assert "replicas" not in change["spec"]


def test_the_number_is_given_back() -> None:
    made = written(world(), 4, entry("kube-controller-manager", "scale"))
    made.step()
    assert limited(made)
    written(made, 1, entry("kubectl", "scale"))
    change = applied(made.step())
    assert change is not None
    assert change["spec"]["replicas"] == 1, "the number is ours again, too"
    assert not limited(made)
    written(made, 1, entry(names.MANAGER_CHILDREN, operation="Apply"), entry("kubectl", "scale"))
    assert made.settle().reasons()["Ready"] == "True Succeeded"


def test_a_manual_edit_is_corrected_once() -> None:
    made = written(world(), 5, entry("kubectl-edit"))
    repaired = applied(made.step())
    assert repaired is not None
    assert repaired["spec"]["replicas"] == 1
    assert not limited(made)
    made.pass_time(660)
    assert applied(written(made, 5, entry("kubectl-edit")).step()) is not None, (
        "ten minutes later it is another slip"
    )


def test_a_manager_that_repeats_its_write_wins(messages: Messages) -> None:
    made = written(world(), 5, entry("own-autoscaler"))
    writes = 0
    for number in range(240):
        made.pass_time(15).control().run_pods()
        writes += applied(made.step()) is not None
        written(made, 3 + number % 3, entry("own-autoscaler"))
    assert writes == 1
    messages.check(limited(made)["message"])
    assert limited(made)["reason"] == "ReplicasOwnerConflict"
    written(made, 1, entry("own-autoscaler"))
    made.step()
    assert not limited(made)


def test_our_own_entries_are_not_another_manager() -> None:
    made = written(
        world(),
        5,
        entry(names.MANAGER_CHILDREN, operation="Apply"),
        entry("kube-controller-manager", "scale"),
    )
    repaired = applied(made.step())
    assert repaired is not None
    assert repaired["spec"]["replicas"] == 1


def test_status_of_a_deployment_is_no_number_of_pods() -> None:
    made = written(world(), 5, entry("kube-controller-manager", "status", field="f:template"))
    assert applied(made.step()) is not None


def test_suspend_wins_over_everybody() -> None:
    made = written(world(), 4, entry("kube-controller-manager", "scale")).change(suspend="Enabled")
    change = applied(made.step())
    assert change is not None
    assert change["spec"]["replicas"] == 0
    assert not limited(made)


# --- live scaling owns it -------------------------------------------------------------------------


def recorded(made: World) -> dict[str, int]:
    return dict(
        json.loads(
            made.children["ConfigMap", names.live_name(made.name)]["data"].get(names.KEY_PODS, "{}")
        )
    )


@pytest.mark.proves("spec.scaling.pods.min", "behaviour")
@pytest.mark.proves("spec.scaling.pods.max", "behaviour")
def test_bounds_hold_from_the_first_pass() -> None:
    made = world(**PODS)
    assert (len(made.serving), recorded(made)) == (2, {"replicas": 2})
    made.change(replicas=4).settle()
    assert len(made.serving) == 2, "spec.replicas is ignored"
    made.change(scaling={"pods": {"min": 3}}).settle()
    assert len(made.serving) == 3
    made.change(scaling={"pods": {"min": 1, "max": 1}}).settle()
    assert (len(made.serving), recorded(made)) == (1, {"replicas": 1})


def test_what_runs_is_taken_over() -> None:
    made = world(replicas=4, tokenizer=PODS["tokenizer"])
    made.change(**PODS).settle()
    assert (len(made.serving), recorded(made)) == (4, {"replicas": 4})


def test_the_record_is_applied_before_the_deployment() -> None:
    made = World(builders.document(**PODS))
    kinds = [(item["kind"], item["metadata"]["name"]) for item in made.step().apply]
    assert kinds.index(("ConfigMap", names.live_name("sentiment"))) < kinds.index(
        ("Deployment", "sentiment")
    )


def test_suspension_keeps_the_record() -> None:
    made = world(**PODS)
    made.children["ConfigMap", names.live_name("sentiment")]["data"][names.KEY_PODS] = (
        '{"replicas": 4}'
    )
    made.settle().change(suspend="Enabled").settle()
    assert (made.serving, recorded(made)) == ([], {"replicas": 4})
    made.change(suspend="Disabled").settle()
    assert len(made.serving) == 4


def test_giving_up_ownership_goes_back_to_the_spec() -> None:
    made = world(replicas=3, **PODS)
    del made.document["spec"]["scaling"]["pods"]
    made.change(replicas=1).settle()
    assert (len(made.serving), recorded(made)) == (1, {})


@pytest.mark.parametrize(
    "text",
    ['{"replicas": "4"}', '{"replicas": true}', '{"replicas": -3}', "[]", "{", '{"replicas": 400}'],
)
def test_an_invalid_record_is_corrected(text: str) -> None:
    made = world(**PODS)
    made.children["ConfigMap", names.live_name("sentiment")]["data"][names.KEY_PODS] = text
    made.settle()
    assert recorded(made) == {"replicas": 5 if "400" in text else 2}


@pytest.mark.parametrize("mode", ["Advisory", "Disabled"])
def test_unless_active_the_number_stays(mode: str) -> None:
    made = world(replicas=1, **builders.merge(PODS, {"scaling": {"mode": mode}}))
    assert (len(made.serving), recorded(made)) == (1, {})
    made = world(**PODS)
    made.children["ConfigMap", names.live_name("sentiment")]["data"][names.KEY_PODS] = (
        '{"replicas": 4}'
    )
    made.settle().change(scaling={"mode": mode}).settle()
    assert (len(made.serving), recorded(made)) == (4, {"replicas": 4})


def test_a_pod_on_its_way_is_no_rollout() -> None:
    made = world(**PODS)
    made.children["ConfigMap", names.live_name("sentiment")]["data"][names.KEY_PODS] = (
        '{"replicas": 3}'
    )
    made.room = 2
    for _ in range(10):
        made.pass_time(5).control().run_pods()
        made.step()
        assert made.reasons()["Ready"] == "True Succeeded"
        assert "Reconciling" not in made.reasons()
    assert "Insufficient nvidia.com/gpu" in made.condition("Ready")["message"], (
        "what the third pod waits for is said"
    )
    made.room = None
    assert len(made.settle().serving) == 3


def test_a_rollout_is_one_all_the_same() -> None:
    made = world(**PODS).change(tokenizer={"maxLength": 64})
    made.step()
    assert made.reasons()["Ready"] == "False Progressing"
    assert made.settle().reasons()["Ready"] == "True Succeeded"


def test_an_external_scaler_of_the_pipeline_is_reported(messages: Messages) -> None:
    made = world(**PODS)
    made.document["spec"]["replicas"] = 5
    made.document["metadata"]["managedFields"] = [entry("kube-controller-manager", "scale")]
    made.settle()
    assert limited(made)["reason"] == "ReplicasOwnerConflict"
    messages.check(limited(made)["message"])
    assert len(made.serving) == 2
    del made.document["spec"]["scaling"]["pods"]
    made.change().settle()
    assert len(made.serving) == 5, "without scaling.pods it is served"
    assert not limited(made)


def test_a_single_kept_pod_is_reported_in_the_singular(messages: Messages) -> None:
    made = world(scaling={"pods": {"min": 1, "max": 4}})
    made.document["spec"]["replicas"] = 5
    made.document["metadata"]["managedFields"] = [entry("kube-controller-manager", "scale")]
    made.settle()
    assert "spec.replicas" in limited(made)["message"]
    messages.check(limited(made)["message"])


def test_a_replica_count_without_a_manager_came_through_the_scale_subresource() -> None:
    made = world(**PODS)

    def reported(replicas: int, *managers: Object) -> str:
        document = {
            **made.document,
            "metadata": {
                **made.document["metadata"],
                "managedFields": [entry("kubectl", field="f:model"), *managers],
            },
        }
        document["spec"] = {**made.document["spec"], "replicas": replicas}
        return decide_replicas(
            builders.pipeline(**PODS, replicas=replicas),
            replace(made.observed(), pipeline=document),
            ReplicasState(),
            made.now,
        ).conflict

    assert reported(1) == "", "1 is the default"
    assert reported(7).startswith(
        "an unnamed manager sets spec.replicas to 7 through the scale subresource (an HPA, "
        "KEDA or kubectl scale)"
    )
    assert reported(7, entry("kubectl-edit")) == "", (
        "whoever writes it by an edit is warned instead"
    )
    assert reported(7, entry("keda", "scale")).startswith("keda sets spec.replicas")


def test_budget_follows_the_number() -> None:
    made = world(**PODS)
    assert ("PodDisruptionBudget", "sentiment") in made.children
    made.change(scaling={"pods": {"min": 1, "max": 1}}).settle()
    assert ("PodDisruptionBudget", "sentiment") not in made.children


def test_what_is_remembered_of_a_mending_survives_and_can_be_broken() -> None:
    made = written(world(), 5, entry("kubectl-edit"))
    made.step()
    state = made.state.replicas
    assert (state.managers, dt.datetime.fromisoformat(state.corrected)) == (
        ("kubectl-edit",),
        made.now,
    )
    data = made.children["ConfigMap", names.live_name("sentiment")]["data"]
    data[names.KEY_STATE] = json.dumps(
        builders.merge(json.loads(data[names.KEY_STATE]), {"replicas": {"corrected": "yesterday"}})
    )
    assert made.state.replicas.corrected == ""


def test_where_no_fewest_is_written_it_is_one_pod() -> None:
    made = world(scaling={"pods": {"max": 3}}, replicas=7)
    assert made.deployment["spec"]["replicas"] == 3
    assert world(scaling={"pods": {"max": 3}}).deployment["spec"]["replicas"] == 1


def test_recorded_numbers_that_cannot_be_counts_are_absent() -> None:
    text = '{"a": 1, "zero": 0, "less": -1, "bool": true, "text": "2", "large": 2147483648}'
    assert positive_integers(text) == {"a": 1}
    assert positive_integers(None) == positive_integers("[1]") == {}
