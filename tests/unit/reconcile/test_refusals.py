"""Why a resize is refused, in the API server's words (Kubernetes 1.36), and when it is asked for again."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from triton_pipelines.cluster.errors import from_response
from triton_pipelines.reconcile.refusals import Refused, asked_again, kind_of, refused

NOW = dt.datetime(2026, 1, 1, 12, 0, tzinfo=dt.UTC)
FORBIDDEN = 'pods "p" is forbidden: '
QUOTA = FORBIDDEN + "exceeded quota: compute, requested: limits.cpu=2, used: limits.cpu=3, limited: limits.cpu=4"
RIGHTS = FORBIDDEN + 'User "system:serviceaccount:ops:triton-pipelines" cannot patch resource "pods/resize" in API group "" in the namespace "nlp"'
NODE = FORBIDDEN + "node didn't have enough allocatable resources: cpu, requested: 3350, allocatable: 2000"


def error(status: int, message: str, **details: Any) -> Any:
    return from_response(status, "", {"kind": "Status", "message": message, "details": details}, None)


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (403, NODE, Refused.NODE),
        (403, FORBIDDEN + 'pod resize is only supported on linux nodes, node "w" is "windows"', Refused.NODE),
        (403, QUOTA, Refused.QUOTA),
        (403, FORBIDDEN + "status unknown for quota: compute, resources: limits.cpu", Refused.QUOTA),
        (403, FORBIDDEN + "failed quota: compute: must specify limits.cpu for: load", Refused.QUOTA),
        (403, RIGHTS, Refused.RIGHTS),
        (403, FORBIDDEN + "maximum cpu usage per Container is 2, but limit is 3350m", Refused.RANGE),
        (403, FORBIDDEN + "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000", Refused.RANGE),
        (403, 'admission webhook "sizes.example.com" denied the request: no', Refused.ADMISSION),
        (403, FORBIDDEN + 'node "n" not found', Refused.ADMISSION),
        (422, 'Pod "p" is invalid: spec: Invalid value: "": Pod QOS Class may not change as a result of resizing', Refused.INVALID),
        (404, "the server could not find the requested resource", Refused.ABSENT),
    ],
)
def test_a_refusal_is_known_by_its_words(status: int, message: str, kind: Refused) -> None:
    found = refused(error(status, message), "p", 3350, None, NOW)
    assert found.kind is kind
    assert found.text.startswith("cpu: pod p is not given 3350m: ")
    assert found.text.endswith(message), "the API server's own words are told"
    assert found.binds == (kind is Refused.NODE), "nothing else bounds what the pod can have"


def test_a_node_is_known_by_its_cause_whatever_the_words() -> None:
    assert kind_of(error(403, FORBIDDEN + "too small", causes=[{"reason": "NodeCapacity"}])) is Refused.NODE


def test_a_name_in_a_message_makes_no_quota() -> None:
    """A webhook that speaks of one is a webhook."""
    assert kind_of(error(403, 'admission webhook "quota.example.com" denied the request: over budget')) is Refused.ADMISSION


def test_it_is_asked_for_ever_more_seldom_and_anew_after_another_refusal() -> None:
    last, rests = None, []
    for _ in range(8):
        last = refused(error(403, QUOTA), "p", 3350, last, NOW)
        rests.append((last.until - NOW).total_seconds())
    assert rests == [30, 60, 120, 240, 480, 900, 900, 900]
    assert (refused(error(403, RIGHTS), "p", 3350, last, NOW).until - NOW).total_seconds() == 30
    assert last is not None
    assert asked_again({"uid": last}, NOW) == 900
    assert asked_again({"uid": last}, last.until) is None


def test_a_pod_that_has_gone_is_told_from_a_cluster_that_cannot() -> None:
    assert error(404, 'pods "p" not found').of_an_object
    assert not error(404, "the server could not find the requested resource").of_an_object
