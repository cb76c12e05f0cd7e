"""Test why a resize is rejected, and when it is requested again.

The messages are those of the API server (Kubernetes 1.36).
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.support import builders
from tests.support.messages import Messages
from triton_pipelines.api import names
from triton_pipelines.cluster.errors import from_response
from triton_pipelines.controllers.pipeline.resize_rejections import (
    RejectionCause,
    cause_of,
    rejection_of,
    retry_delay,
    with_quota_advice,
)
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

NOW = dt.datetime(2026, 1, 1, 12, 0, tzinfo=dt.UTC)
FORBIDDEN = 'pods "p" is forbidden: '
QUOTA = (
    FORBIDDEN
    + "exceeded quota: compute, requested: limits.cpu=2, used: limits.cpu=3, limited: limits.cpu=4"
)
RIGHTS = FORBIDDEN + (
    'User "system:serviceaccount:ops:triton-pipelines" cannot patch resource "pods/resize" in '
    'API group "" in the namespace "nlp"'
)
NODE = (
    FORBIDDEN
    + "node didn't have enough allocatable resources: cpu, requested: 3350, allocatable: 2000"
)


def error(status: int, message: str, **details: Any) -> Any:
    return from_response(
        status, "", {"kind": "Status", "message": message, "details": details}, None
    )


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (403, NODE, RejectionCause.NODE),
        (
            403,
            FORBIDDEN + 'pod resize is only supported on linux nodes, node "w" is "windows"',
            RejectionCause.NODE,
        ),
        (403, QUOTA, RejectionCause.QUOTA),
        (
            403,
            FORBIDDEN + "status unknown for quota: compute, resources: limits.cpu",
            RejectionCause.QUOTA,
        ),
        (
            403,
            FORBIDDEN + "failed quota: compute: must specify limits.cpu for: load",
            RejectionCause.QUOTA,
        ),
        (403, RIGHTS, RejectionCause.RIGHTS),
        (
            403,
            FORBIDDEN + "maximum cpu usage per Container is 2, but limit is 3350m",
            RejectionCause.RANGE,
        ),
        (
            403,
            FORBIDDEN
            + "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
            RejectionCause.RANGE,
        ),
        (
            403,
            'admission webhook "sizes.example.com" denied the request: no',
            RejectionCause.ADMISSION,
        ),
        (403, FORBIDDEN + 'node "n" not found', RejectionCause.ADMISSION),
        (
            422,
            (
                'Pod "p" is invalid: spec: Invalid value: "": Pod QOS Class may not change as a '
                "result of resizing"
            ),
            RejectionCause.INVALID,
        ),
        (404, "the server could not find the requested resource", RejectionCause.ABSENT),
    ],
)
def test_a_refusal_is_known_by_its_words(
    status: int, message: str, kind: RejectionCause, messages: Messages
) -> None:
    found = rejection_of(error(status, message), "p", 3350, None, NOW)
    assert found.cause is kind
    assert "3350m" in found.text
    assert f" ({message}); " in found.text, "the API server's own words are told"
    messages.check(found.text)
    assert found.is_node_limit == (kind is RejectionCause.NODE), (
        "nothing else bounds what the pod can have"
    )


def test_a_node_is_known_by_its_cause_whatever_the_words() -> None:
    assert (
        cause_of(error(403, FORBIDDEN + "too small", causes=[{"reason": "NodeCapacity"}]))
        is RejectionCause.NODE
    )


def test_a_name_in_a_message_makes_no_quota() -> None:
    """A webhook that speaks of one is a webhook."""
    assert (
        cause_of(
            error(403, 'admission webhook "quota.example.com" denied the request: over budget')
        )
        is RejectionCause.ADMISSION
    )


def test_it_is_requested_with_backoff_that_restarts_after_another_rejection() -> None:
    last, rests = None, []
    for _ in range(8):
        last = rejection_of(error(403, QUOTA), "p", 3350, last, NOW)
        rests.append((last.until - NOW).total_seconds())
    assert rests == [30, 60, 120, 240, 480, 900, 900, 900]
    assert (
        rejection_of(error(403, RIGHTS), "p", 3350, last, NOW).until - NOW
    ).total_seconds() == 30
    assert last is not None
    assert retry_delay({"uid": last}, NOW) == 900
    assert retry_delay({"uid": last}, last.until) is None


def test_a_pod_that_has_gone_is_told_from_a_cluster_that_cannot() -> None:
    assert error(404, 'pods "p" not found', name="p").of_an_object
    assert not error(404, "the server could not find the requested resource").of_an_object


UNSET = 'pods "sentiment-6c9d8f7b5-x2" is forbidden: failed quota: team: must specify '
LOADER_WAY = "resources of init container load in spec.server.podTemplate.spec.initContainers"


@pytest.mark.parametrize(
    ("rest", "fields", "ways"),
    [
        ("limits.cpu for: load", "limits.cpu", [LOADER_WAY]),
        (
            "limits.cpu for: load,triton; limits.memory for: sidecar",
            "limits.cpu, limits.memory",
            [LOADER_WAY, "spec.server.resources"],
        ),
        ("limits.cpu for: tune", "limits.cpu", []),
        (
            "limits.cpu,limits.memory",
            "limits.cpu, limits.memory",
            [LOADER_WAY, "spec.server.resources"],
        ),
    ],
    ids=["loader", "several", "tuner", "older"],
)
def test_an_unset_resource_that_a_quota_counts_is_named_with_its_field(
    rest: str, fields: str, ways: list[str]
) -> None:
    said = with_quota_advice(UNSET + rest)
    assert said.startswith(f"{UNSET}{rest}; ResourceQuota team counts {fields}: ")
    assert [
        way for way in (LOADER_WAY, "spec.server.resources") if f"set it in {way}" in said
    ] == ways
    assert said.endswith("give the namespace a LimitRange with defaults")


def test_it_is_explained_where_a_deployment_tells_it() -> None:
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "message": f"{UNSET}limits.cpu for: load",
    }
    observed = Snapshot(
        {"metadata": {"name": "p"}}, {("Deployment", "p"): {"status": {"conditions": [failure]}}}
    )
    assert observed.pods_rejected == with_quota_advice(failure["message"]) != failure["message"]


def test_other_refusals_of_pods_stay_as_they_are() -> None:
    said = (
        'pods "p" is forbidden: exceeded quota: team, requested: limits.cpu=2, used: '
        "limits.cpu=5, limited: limits.cpu=5"
    )
    assert with_quota_advice(said) == said


def test_the_way_out_is_one() -> None:
    """The pod template takes the limit that the message asks for."""
    limit = [{"name": names.CONTAINER_LOADER, "resources": {"limits": {"cpu": "2"}}}]
    spec = (
        builders.built(server={"podTemplate": {"spec": {"initContainers": limit}}})
        .render()
        .template["spec"]
    )
    (loader,) = (item for item in spec["initContainers"] if item["name"] == names.CONTAINER_LOADER)
    assert loader["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}
