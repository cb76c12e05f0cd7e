"""State of the policies in the live ConfigMap."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.controllers.pipeline.certificate_state import CertificateState
from triton_pipelines.controllers.pipeline.report_state import ScalingReportState, WarningsState
from triton_pipelines.controllers.pipeline.state import (
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

# A state of every policy that has one, apart from those of REPORTS: a rollout under watch, and a
# tuning run that waits for the end of the watch.
DOCUMENT: dict[str, dict[str, Any]] = {
    "revision": {"generation": 2, "desired": "2861b88211", "spec": "7875988c8efce99e"},
    "rollout": {
        "mode_revision": "0123456789",
        "mode": "NoSurge",
        "verified": "2861b88211",
        "failed_revision": "fedcba9876",
        "failed_spec": "00112233",
        "failed_reason": "RolloutFailed",
        "failed_message": "no progress within 600 s",
        "restored": "ecde444fbb",
        "left": "2026-01-01T12:06:00Z",
        "overdue_revision": "bbbbbbbbbb",
    },
    "stalled_rollout": {"revision": "aaaaaaaaaa", "pods": 2},
    "slo_guard": {
        "revision": "2861b88211",
        "predecessor": "ecde444fbb",
        "before": 40.0,
        "rate": 50.0,
        "since": "2026-01-01T12:01:00Z",
    },
    "replicas": {
        "managers": ["argocd", "helm"],
        "corrected": "2026-01-01T12:02:00+00:00",
        "alternating": {"last": "argocd", "changes": 2, "at": "2026-01-01T12:02:00+00:00"},
        "rollout_pods": 3,
    },
    "cpu_resize": {"managers": ["vpa-updater"], "corrected": "2026-01-01T12:03:00+00:00"},
    "pod_repair": {"repaired": "2026-01-01T12:04:00Z", "count": 1, "answered": {"uid-1": 0}},
    "control_secrets": {
        "digests": {"2861b88211": "d1523f61a5e05901", "ecde444fbb": "16939d9e0a76caac"}
    },
    "tuning_run": {
        "waiting_since": "2026-01-01T12:00:45Z",
        "request": "monday",
        "serial": 1,
        "state": "Pending",
    },
}
FIELDS = [(policy, name) for policy, document in DOCUMENT.items() for name in document]
"""Each field of the document, by policy."""

FAILED = {name: DOCUMENT["rollout"][name] for name in ("failed_revision", "restored")}


def test_every_field_of_the_document_arrives() -> None:
    state = PipelineState.parse(json.dumps(DOCUMENT))
    assert state == PipelineState(
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
            "2026-01-01T12:06:00Z",
            "bbbbbbbbbb",
        ),
        StalledRolloutState("aaaaaaaaaa", 2),
        SloGuardState("2861b88211", "ecde444fbb", 40.0, 50.0, "2026-01-01T12:01:00Z"),
        ReplicasState(
            ("argocd", "helm"),
            "2026-01-01T12:02:00+00:00",
            DOCUMENT["replicas"]["alternating"],
            3,
        ),
        CpuResizeState(("vpa-updater",), "2026-01-01T12:03:00+00:00"),
        PodRepairState("2026-01-01T12:04:00Z", 1, {"uid-1": 0}),
        ControlSecretsState(DOCUMENT["control_secrets"]["digests"]),
        TuningRunState(DOCUMENT["tuning_run"]),
    )
    assert json.loads(state.to_json()) == DOCUMENT


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
    state = PipelineState.parse(json.dumps(DOCUMENT)).with_states(*REPORTS)
    assert PipelineState.parse(state.to_json()) == state
    assert set(json.loads(state.to_json())) == set(STATES) == {f.name for f in fields(state)}


@pytest.mark.parametrize("text", [None, "", "no JSON", "[]", '{"rollout": 7, "tuning_run": []}'])
def test_what_cannot_be_read_counts_as_empty(text: str | None) -> None:
    assert PipelineState.parse(text) == PipelineState()
    assert PipelineState().to_json() == "{}"


@pytest.mark.parametrize(("policy", "name"), FIELDS)
@pytest.mark.parametrize("value", [7.5, "x", [], {"a": {}}, None, True])
def test_no_edit_of_a_field_breaks_the_rest(policy: str, name: str, value: Any) -> None:
    document = DOCUMENT | {policy: {**DOCUMENT[policy], name: value}}
    edited, known = (PipelineState.parse(json.dumps(one)) for one in (document, DOCUMENT))
    assert replace(edited, **{policy: getattr(known, policy)}) == known


@pytest.mark.parametrize("policy", DOCUMENT)
@pytest.mark.parametrize("value", [7.5, "x", [], {"a": {}}, None, True])
def test_no_edit_of_a_policys_state_breaks_the_rest(policy: str, value: Any) -> None:
    edited, known = (
        PipelineState.parse(json.dumps(one)) for one in (DOCUMENT | {policy: value}, DOCUMENT)
    )
    assert replace(edited, **{policy: getattr(known, policy)}) == known


@pytest.mark.parametrize("managers", ["argocd", 7, {"argocd": 1}, [7, "", None]])
@pytest.mark.parametrize("policy", ["replicas", "cpu_resize"])
def test_managers_that_are_not_a_list_of_names_own_nothing(policy: str, managers: Any) -> None:
    state = PipelineState.parse(json.dumps({policy: {"managers": managers}}))
    assert getattr(state, policy).others.owners == ""


def test_keys_of_no_policy_are_ignored() -> None:
    unknown = {"restored": "ecde444fbb", "a_later_policy": {"revision": "2861b88211"}}
    assert PipelineState.parse(json.dumps(unknown)) == PipelineState()


@pytest.mark.parametrize("reason", Reason)
def test_a_rollback_of_any_reason_is_remembered(reason: Reason) -> None:
    state = PipelineState.parse(json.dumps({"rollout": {**FAILED, "failed_reason": reason}}))
    rollout = state.rollout
    assert (rollout.failed_reason, rollout.target("fedcba9876")) == (reason.value, "ecde444fbb")


def test_a_rollback_of_an_unknown_reason_is_forgotten() -> None:
    """The reason was edited, or is one of a later release."""
    document = {"rollout": {**FAILED, "failed_reason": "ReasonOfALaterRelease"}}
    rollout = PipelineState.parse(json.dumps(document)).rollout
    assert (rollout.failed_reason, rollout.target("fedcba9876")) == ("", "fedcba9876")


@pytest.mark.parametrize("reason", ["ReasonOfALaterRelease", "", 7, None, ["Succeeded"]])
def test_an_unknown_reason_in_the_previous_status_counts_as_another(reason: Any) -> None:
    before, after = (
        {"conditions": [{"type": "Ready", "status": "False", "reason": one, "message": "slow"}]}
        for one in (reason, "SLOViolated")
    )
    assert [event.reason for event in transitions(before, after)] == ["SLOViolated"]
    assert transitions(after, after) == []


@pytest.mark.parametrize("depth", [65, 500, 900, 5_000])
def test_an_edited_document_that_is_too_deep_counts_as_empty(depth: int) -> None:
    """The latency and the monitoring loop read it for all namespaces."""
    assert json_object('{"a":' * depth + "1" + "}" * depth) == {}
    assert json_object('{"a":' * 64 + "1" + "}" * 64) != {}
