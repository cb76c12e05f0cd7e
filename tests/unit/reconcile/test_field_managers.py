"""Test managers that alternate in writing the Deployment's or the pipeline's number of pods.

Each manager is corrected once, all are named, and none is fought.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import World, rfc3339
from triton_pipelines.api import names
from triton_pipelines.api.wording import listed
from triton_pipelines.controllers.pipeline.field_managers import AlternatingManagers, OtherManagers
from triton_pipelines.controllers.pipeline.planner import Plan
from triton_pipelines.controllers.pipeline.policies.replicas import UNNAMED_SCALER
from triton_pipelines.controllers.pipeline.snapshot import Object
from triton_pipelines.controllers.pipeline.state import PipelineState

PODS: dict[str, Any] = {
    "scaling": {"pods": {"min": 2, "max": 5}},
    "tokenizer": {"instances": {"initial": 1, "min": 1, "max": 4}},
}
HPA = "kube-controller-manager"
RENDERED: dict[str, Any] = {}


def world(**spec: Any) -> World:
    return World(builders.document(**spec), rendered=RENDERED).started()


def written(
    made: World, number: int, manager: str, subresource: str = "", *, behind: float = 0
) -> None:
    """Write the Deployment's number of pods as another manager.

    The API server records who wrote and when. Its clock is ``behind`` seconds behind the operator's
    clock.
    """
    made.deployment["spec"]["replicas"] = number
    fields: Object = {"f:spec": {"f:replicas": {}}}
    at = rfc3339(made.now - dt.timedelta(seconds=behind))
    entry = {
        "manager": manager,
        "operation": "Update",
        "subresource": subresource,
        "time": at,
        "fieldsV1": fields,
    }
    made.deployment["metadata"]["managedFields"] = [entry]


def declared(made: World, number: int, *managers: str) -> None:
    """Write the pipeline's own number of pods as other managers.

    Args:
        made: The world to change.
        number: The number of pods.
        *managers: The managers that own the number. "" writes through the scale subresource where
            the API server records no manager, "NAME/scale" where it does.
    """
    made.change(replicas=number)
    written = [name.partition("/") for name in managers if name]
    owners = [
        {
            "manager": name,
            "operation": "Update",
            "subresource": by,
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }
        for name, _, by in written
    ]
    made.document["metadata"]["managedFields"] = [
        {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {"f:model": {}}}},
        *owners,
    ]


def step(made: World) -> Plan:
    """One pass; then its conditions are the operator's, as the API server notes it."""
    decided = made.step()
    if (entries := made.document["metadata"].get("managedFields")) is not None:
        kept = [entry for entry in entries if entry["manager"] != names.MANAGER_STATUS]
        owned: Object = {
            f'k:{{"type":"{item["type"]}"}}': {".": {}, **{f"f:{field}": {} for field in item}}
            for item in made.status["conditions"]
        }
        status = {
            "manager": names.MANAGER_STATUS,
            "operation": "Apply",
            "subresource": "status",
            "fieldsV1": {"f:status": {"f:conditions": owned}},
        }
        made.document["metadata"]["managedFields"] = [*kept, status]
    return decided


def applied(decided: Plan) -> bool:
    return any(item["kind"] == "Deployment" for item in decided.apply)


def limited(made: World) -> Object:
    return made.condition("ScalingLimited")


def passes(made: World, number: int = 2, seconds: float = 15) -> list[Plan]:
    """Passes with time between them, the cluster doing its part."""
    done = []
    for _ in range(number):
        made.pass_time(seconds).control().run_pods()
        done.append(step(made))
    return done


def conflicts(plans: Sequence[Plan]) -> list[str]:
    return [
        event.note
        for decided in plans
        for event in decided.events
        if event.reason == "ReplicasOwnerConflict"
    ]


# --- the Deployment's number ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "managers",
    [("argocd", "helm"), ("argocd", "helm", "kubectl-edit"), tuple("abcdefg")],
    ids=["two", "three", "seven"],
)
@pytest.mark.parametrize("spec", [{}, PODS], ids=["spec", "scaling"])
def test_alternating_managers_of_the_deployment_are_named_and_win(
    managers: tuple[str, ...], spec: dict[str, Any], messages: Messages
) -> None:
    made, done = world(**spec), list[Plan]()
    for number in range(20):
        written(made, 3 + number % 2, managers[number % len(managers)])
        done += passes(made)
    assert sum(map(applied, done)) == min(len(managers), 4), "each is mended once"
    assert len(conflicts(done)) == 1, "told once"
    assert limited(made)["reason"] == "ReplicasOwnerConflict"
    expected = (
        f"{listed(sorted(managers)[:4])} alternately set the number of pods of Deployment "
        "sentiment to 4 instead of"
    )
    assert limited(made)["message"].startswith(expected)
    assert "InferencePipeline" in limited(made)["message"]
    messages.check(limited(made)["message"])
    assert len(made.serving) == 4
    written(made, 2 if spec else 1, managers[0])
    passes(made)
    assert (limited(made), made.state.replicas.managers) == ({}, ())


def test_whoever_edits_what_an_autoscaler_has_joins_it(messages: Messages) -> None:
    """Mended to the pipeline's number, the pods would go, and the autoscaler bring them back."""
    made, done = world(), list[Plan]()
    for number in range(20):
        written(made, 4, HPA, "scale")
        done += passes(made)
        written(made, 5, "argocd")
        done += passes(made)
        assert len(made.serving) == 5, number
    assert not any(map(applied, done))
    assert len(conflicts(done)) == 1
    assert HPA in limited(made)["message"]
    messages.check(limited(made)["message"])


def test_two_autoscalers_of_the_deployment_are_both_named(messages: Messages) -> None:
    made, done = world(), list[Plan]()
    for manager in (HPA, "keda-operator") * 5:
        written(made, 3 if manager == HPA else 5, manager, "scale")
        done += passes(made)
    assert not any(map(applied, done))
    assert len(conflicts(done)) == 1
    assert HPA in limited(made)["message"]
    messages.check(limited(made)["message"])


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_an_operator_killed_before_a_correction_reports_no_conflict(
    kept: int,
) -> None:
    """The record of a mending comes before the deed."""
    made = world()
    written(made, 5, "kubectl-edit")
    made.pass_time(5).control().run_pods()
    decided = made.think()
    made.step(writes=min(kept, len(decided.apply) - 1))
    assert made.deployment["spec"]["replicas"] == 5
    assert any(map(applied, passes(made)))
    assert (limited(made), made.deployment["spec"]["replicas"]) == ({}, 1)


@pytest.mark.parametrize(("behind", "seconds"), [(2, 1), (5, 3), (30, 15)])
def test_a_manager_that_reverts_a_correction_at_once_wins_despite_clock_skew(
    behind: float, seconds: float, messages: Messages
) -> None:
    """Recognize a write that follows a correction although its time is from before it.

    Such times occur as long as the operator's clock is ahead.
    """
    made, done = world(), list[Plan]()
    for _ in range(20):
        made.pass_time(seconds)
        written(made, 5, "argocd", behind=behind)
        done += passes(made, 1, 0.5)
    assert 1 <= sum(map(applied, done)) <= behind / seconds + 1
    assert not applied(done[-1])
    messages.check(limited(made)["message"])


def test_a_manager_that_repeatedly_wakes_a_pipeline_without_pods_wins(messages: Messages) -> None:
    """As KEDA does it, which scales from 0. Who writes 0 into the spec gets it in any case."""
    made = world(replicas=0)
    done = []
    for _ in range(10):
        written(made, 1, "keda-operator", "scale")
        done += passes(made)
    assert sum(map(applied, done)) == 1
    messages.check(limited(made)["message"])
    assert len(made.serving) == 1
    made.change(replicas=2)
    assert not any(map(applied, passes(made)))
    made.change(replicas=0)
    assert any(map(applied, passes(made)))
    assert (made.serving, limited(made)) == ([], {})


def test_a_manager_that_wakes_a_pipeline_once_is_corrected_once(
    messages: Messages,
) -> None:
    """Where it is at rest it says what the pipeline says: that is no giving back."""
    made, done = world(replicas=0), list[Plan]()
    for _ in range(2):
        written(made, 1, "keda-operator", "scale")
        done += passes(made)
    assert sum(map(applied, done)) == 1
    for _ in range(3):
        written(made, 0, "keda-operator", "scale")
        asleep = passes(made, 3, 600)
        assert (made.serving, limited(made)) == ([], {})
        written(made, 1, "keda-operator", "scale")
        awake = passes(made, 3, 600)
        assert not any(map(applied, (*asleep, *awake)))
        assert len(made.serving) == 1
        messages.check(limited(made)["message"])
    written(made, 0, "keda-operator", "scale")
    made.change(replicas=0, rollout={"drainSeconds": 9})
    assert any(map(applied, passes(made))), "somebody has asked for it anew"
    assert made.state.replicas.managers == ()


def test_an_autoscaler_is_told_again_only_when_it_is_another() -> None:
    """Keep the state beyond the process, so that a new one does not start the conflict again."""
    made = world()
    for manager in ("argocd", "helm", "argocd"):
        written(made, 5, manager)
        passes(made)
    assert made.state == PipelineState.parse(made.state.to_json())
    assert made.state.replicas.managers == ("argocd", "helm")
    assert made.state.replicas.corrected == ""


def test_a_correction_is_forgotten_when_it_is_due() -> None:
    """The reconciler skips iterations until the time that a plan names."""
    made = world()
    written(made, 5, "kubectl-edit")
    rest = passes(made, 4)[-1]
    assert rest.is_empty
    assert made.state.replicas.others.names == "kubectl-edit"
    assert rest.requeue_after is not None
    made.pass_time(rest.requeue_after)
    step(made)
    assert made.state.replicas.others == OtherManagers()
    assert step(made).requeue_after is None


# --- the pipeline's own number --------------------------------------------------------------------


@pytest.mark.parametrize("spec", [{}, PODS], ids=["spec", "scaling"])
@pytest.mark.parametrize(
    "managers",
    [("argocd", ""), ("argocd", "helm"), ("argocd", "", "helm")],
    ids=["autoscaler", "two", "three"],
)
def test_alternating_managers_of_spec_replicas_are_named_and_followed(
    managers: tuple[str, ...], spec: dict[str, Any], messages: Messages
) -> None:
    made, done = world(**spec), list[Plan]()
    for number in range(12):
        declared(made, 3 + number % 2, managers[number % len(managers)])
        done += passes(made, 4)
        assert len(made.serving) == (2 if spec else 3 + number % 2)
    assert limited(made)["reason"] == "ReplicasOwnerConflict"
    who = listed(sorted(manager or UNNAMED_SCALER for manager in managers))
    assert who in limited(made)["message"]
    messages.check(limited(made)["message"])
    assert (
        "2 pods are kept" if spec else "the number of pods changes with every write"
    ) in limited(made)["message"]
    messages.check(limited(made)["message"])
    # An autoscaler of a pipeline whose pods are scaling's is told from its first write.
    assert len(conflicts(done)) <= 2
    assert made.condition("Ready")["status"] == "True"
    rest = passes(made, 4)
    assert all(decided.is_empty for decided in rest[1:])
    assert rest[-1].requeue_after is not None
    made.pass_time(rest[-1].requeue_after)
    step(made)
    assert "alternate" not in limited(made).get("message", ""), "ten minutes after the last turn"
    assert step(made).requeue_after is None


def test_a_number_that_changes_hands_is_no_conflict() -> None:
    """Git gives it to an autoscaler; the autoscaler goes, and Git takes it again."""
    made, done = world(), list[Plan]()
    for number, manager in ((2, "argocd"), (3, ""), (4, ""), (2, ""), (3, "argocd"), (2, "argocd")):
        declared(made, number, manager)
        done += passes(made, 4)
        assert len(made.serving) == number
    assert conflicts(done) == []
    assert limited(made) == {}
    assert made.state.replicas.alternating["changes"] == 2
    made.pass_time(660)
    declared(made, 4, "")
    passes(made)
    assert (limited(made), made.state.replicas.alternating["changes"]) == ({}, 1), (
        "of long ago it is no turn"
    )


def test_an_autoscaler_whose_name_becomes_known_is_one_writer(messages: Messages) -> None:
    """The API server keeps no manager of it until somebody else has written the number."""
    made = world()
    for number, manager in ((3, ""), (2, "argocd"), (3, f"{HPA}/scale"), (2, "argocd")):
        declared(made, number, manager)
        passes(made, 4)
    assert HPA in limited(made)["message"]
    messages.check(limited(made)["message"])


def test_managers_with_equal_values_do_not_alternate() -> None:
    made = world()
    for number, others in enumerate(
        (["argocd"], ["argocd", "aaa"], ["aaa", "argocd"], ["argocd"]) * 3
    ):
        declared(made, 2, *others)
        step(made)
        assert made.state.replicas.alternating == {"last": "argocd"}, number


def test_a_defaulted_field_has_no_manager() -> None:
    made = world()
    declared(made, 1, "")
    passes(made)
    assert made.state.replicas.alternating == {}
    declared(made, 3, "argocd")
    passes(made)
    declared(made, 1, "")
    passes(made)
    assert made.state.replicas.alternating["last"] == UNNAMED_SCALER, "an autoscaler at its least"


@pytest.mark.parametrize(
    "broken",
    [
        {"last": 5},
        {"last": "a", "changes": "3"},
        {"last": "a", "changes": True},
        {"last": "a", "changes": 3, "at": "yesterday"},
        {"managers": []},
        [],
    ],
)
def test_an_invalid_record_of_alternating_writers_is_discarded(broken: Any) -> None:
    made = world()
    data = made.children["ConfigMap", names.live_name(made.name)]["data"]
    data[names.KEY_STATE] = json.dumps(
        {**json.loads(data[names.KEY_STATE]), "replicas": {"alternating": broken}}
    )
    declared(made, 3, "argocd")
    passes(made)
    assert AlternatingManagers.parse(made.state.replicas.alternating).alternating == ""
    assert made.state.replicas.alternating["last"] == "argocd"
