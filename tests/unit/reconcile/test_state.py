"""State of the policies in the live ConfigMap, and the flat document of earlier releases."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from tests.support import builders
from tests.support.tuningworld import Tuning
from tests.support.worlds import World
from triton_pipelines.api import names
from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.controllers.pipeline.certificate_state import CertificateState
from triton_pipelines.controllers.pipeline.latency_figures import Latencies, RevisionLatency
from triton_pipelines.controllers.pipeline.report_state import ScalingReportState, WarningsState
from triton_pipelines.controllers.pipeline.state import (
    FLAT_FIELDS,
    STATES,
    ControlSecretsState,
    CpuResizeState,
    PipelineState,
    PodRepairState,
    ReplicasState,
    RevisionState,
    RolloutState,
    SloGuardState,
    StalledRolloutState,
    TuningRunState,
    json_object,
)
from triton_pipelines.controllers.pipeline.status_events import transitions

SLO = {"p99Milliseconds": 100, "networkAndQueueBudgetMilliseconds": 20}
# Written by the release before this format: a rollout under watch, and a tuning run that waits for
# the end of the watch.
RECORDED: dict[str, Any] = {
    "generation": 2,
    "proven": "2861b88211",
    "secrets": {"2861b88211": "d1523f61a5e05901", "ecde444fbb": "16939d9e0a76caac"},
    "spec": "7875988c8efce99e",
    "tuning": {
        "asked": "2026-01-01T12:00:45Z",
        "request": "monday",
        "serial": 1,
        "state": "Pending",
    },
    "wanted": "2861b88211",
    "watch": {
        "before": 40.0,
        "predecessor": "ecde444fbb",
        "rate": 50.0,
        "revision": "2861b88211",
        "since": "2026-01-01T12:01:00Z",
    },
}
# The same with every field that such a document may have.
FLAT: dict[str, Any] = RECORDED | {
    "mode_revision": "0123456789",
    "mode": "NoSurge",
    "failed_revision": "fedcba9876",
    "failed_spec": "00112233",
    "failed_reason": "RolloutFailed",
    "failed_message": "no progress within 600 s",
    "restored": "ecde444fbb",
    "stuck": "aaaaaaaaaa",
    "stuck_pods": 2,
    "rollout_pods": 3,
    "mended_manager": "argocd and helm",
    "mended": "2026-01-01T12:02:00+00:00",
    "turns": {"last": "argocd", "often": 2, "at": "2026-01-01T12:02:00+00:00"},
    "resized_manager": "vpa-updater",
    "resized": "2026-01-01T12:03:00+00:00",
    "healed": "2026-01-01T12:04:00Z",
}

FAILED = {name: FLAT[name] for name in ("failed_revision", "restored")}


def test_every_field_of_the_flat_document_arrives() -> None:
    assert set(FLAT) == set(FLAT_FIELDS)
    assert PipelineState.parse(json.dumps(FLAT)) == PipelineState(
        RevisionState(2, "2861b88211", "7875988c8efce99e"),
        RolloutState(
            "0123456789",
            "NoSurge",
            "2861b88211",
            "fedcba9876",
            "00112233",
            "RolloutFailed",
            "no progress within 600 s",
            "ecde444fbb",
        ),
        StalledRolloutState("aaaaaaaaaa", 2),
        SloGuardState("2861b88211", "ecde444fbb", 40.0, 50.0, "2026-01-01T12:01:00Z"),
        ReplicasState(("argocd and helm",), "2026-01-01T12:02:00+00:00", FLAT["turns"], 3),
        CpuResizeState(("vpa-updater",), "2026-01-01T12:03:00+00:00"),
        PodRepairState("2026-01-01T12:04:00Z"),
        ControlSecretsState(RECORDED["secrets"]),
        TuningRunState(RECORDED["tuning"]),
    )


def _warnings(code: FindingCode) -> tuple[Finding, ...]:
    return (
        Finding("spec.model", "one", Severity.WARNING, code=code),
        Finding("spec", "", Severity.WARNING, code=code),
    )


REPORTS = (
    WarningsState(
        ("a", "b"),
        "2861b88211",
        _warnings(FindingCode.LOADER_WARNING),
        "no metrics",
        _warnings(FindingCode.MONITORING_NOT_APPLIED),
    ),
    ScalingReportState("the pods themselves", ("tokenizer", "cpu"), ("the GPU is shared",)),
    CertificateState({"certs": "0123"}, {"0123": "PEM"}, {"0123": "sentiment.nlp.svc"}),
)


@pytest.mark.parametrize("entry", [7, "x", {"path": 1, "message": "y"}, {"path": "x"}, None])
def test_an_unreadable_entry_of_a_report_is_left_out(entry: Any) -> None:
    state = PipelineState().with_states(*REPORTS)
    document = json.loads(state.to_json())
    for policy, key in (("warnings", "loader"), ("warnings", "monitoring")):
        document[policy][key].append(entry)
    assert PipelineState.parse(json.dumps(document)) == state


def test_a_state_of_every_policy_survives_being_written() -> None:
    state = PipelineState.parse(json.dumps(FLAT)).with_states(*REPORTS)
    assert PipelineState.parse(state.to_json()) == state
    assert set(json.loads(state.to_json())) == set(STATES) == {f.name for f in fields(state)}


@pytest.mark.parametrize("text", [None, "", "no JSON", "[]", '{"rollout": 7, "tuning_run": []}'])
def test_what_cannot_be_read_counts_as_empty(text: str | None) -> None:
    assert PipelineState.parse(text) == PipelineState()
    assert PipelineState().to_json() == "{}"


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("value", [7.5, "x", [], {"a": {}}, None, True])
def test_no_edit_of_a_field_breaks_the_rest(name: str, value: Any) -> None:
    policy = FLAT_FIELDS[name][0]
    edited = PipelineState.parse(json.dumps({**FLAT, name: value}))
    known = PipelineState.parse(json.dumps(FLAT))
    assert replace(edited, **{policy: getattr(known, policy)}) == known


def downgrade(world: World) -> None:
    """Write the state as the release before this format did."""
    data = world.children["ConfigMap", names.live_name(world.name)]["data"]
    nested = json.loads(data[names.KEY_MEMORY])
    flat = {
        name: nested[policy] if not part else nested[policy][part]
        for name, (policy, part) in FLAT_FIELDS.items()
        if policy in nested and (not part or part in nested[policy])
    }
    data[names.KEY_MEMORY] = json.dumps(flat, sort_keys=True)


def flat_part(state: PipelineState) -> PipelineState:
    """Return the part of a state that the flat document has."""
    return replace(state, pod_repair=replace(state.pod_repair, answered={}))


def test_an_upgrade_during_a_watched_rollout_rewrites_the_live_config_map_alone() -> None:
    world = Tuning(builders.document(slo=SLO)).settle()
    world.latencies = Latencies({world.deployed: RevisionLatency(30.0, 40.0, 50.0)})
    world.change(tokenizer={"maxLength": 64}, tuning={"request": "monday"}).settle()
    before = world.state
    assert before.slo_guard.since
    assert before.tuning_run.document
    downgrade(world)
    assert world.state == flat_part(before)
    decided = world.step()
    assert [item["metadata"]["name"] for item in decided.apply] == [names.live_name(world.name)]
    assert (decided.delete, decided.clear, decided.tuning_objects, decided.action_events) == (
        (),
        (),
        (),
        (),
    )
    assert world.step().is_empty


def test_an_upgrade_at_any_moment_of_a_rollout_rolls_nothing_else() -> None:
    plain, upgraded = (World(builders.document(replicas=2), room=2).started() for _ in range(2))
    for world in (plain, upgraded):
        world.change(tokenizer={"maxLength": 64})
    for _ in range(12):
        for world in (plain, upgraded):
            world.step()
            world.pass_time(5).control().run_pods()
        downgrade(upgraded)
        assert flat_part(upgraded.state) == flat_part(plain.state)
        assert upgraded.deployment["spec"] == plain.deployment["spec"]
        assert upgraded.status == plain.status


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("SLOBroken", "SLOViolated"),
        ("NotRagged", "RaggedUnsupported"),
        ("BatchingDefeated", "BatchingIneffective"),
        *((reason, reason) for reason in Reason),
    ],
)
def test_a_rollback_of_any_former_reason_is_remembered(former: str, present: str) -> None:
    flat = PipelineState.parse(json.dumps(FLAT | {"failed_reason": former})).rollout
    nested = PipelineState.parse(json.dumps({"rollout": {**FAILED, "failed_reason": former}}))
    for rollout in (flat, nested.rollout):
        assert (rollout.failed_reason, rollout.target("fedcba9876")) == (present, "ecde444fbb")


def test_a_former_reason_in_the_status_causes_no_event() -> None:
    before, after = (
        {"conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": "slow"}]}
        for reason in ("SLOBroken", "SLOViolated")
    )
    assert transitions(before, after) == []
    assert [event.reason for event in transitions({}, after)] == ["SLOViolated"]


@pytest.mark.parametrize("depth", [65, 500, 900, 5_000])
def test_an_edited_document_that_is_too_deep_counts_as_empty(depth: int) -> None:
    """The latency and the monitoring loop read it for all namespaces."""
    assert json_object('{"a":' * depth + "1" + "}" * depth) == {}
    assert json_object('{"a":' * 64 + "1" + "}" * 64) != {}
