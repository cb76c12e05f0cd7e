"""Pods that terminate while others serve: fewer replicas, and evictions as in a node drain."""

from http import HTTPStatus

from kubernetes.client.exceptions import ApiException

from e2e.suite.kube import Kube, wait_for
from e2e.suite.measured import Record
from e2e.suite.tiny import LOADED_DRAIN_SECONDS, TinyPipeline, assert_none_lost, wait_left
from triton_pipelines.api import names

REPLACED_SECONDS = 90.0


def evict(kube: Kube, namespace: str, pod: str) -> HTTPStatus:
    """Request a pod's eviction once.

    Returns CREATED, or TOO_MANY_REQUESTS if the disruption budget forbids it now.
    """
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
    }
    try:
        kube.request("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)
    except ApiException as error:
        if error.status == HTTPStatus.TOO_MANY_REQUESTS:
            return HTTPStatus.TOO_MANY_REQUESTS
        raise
    return HTTPStatus.CREATED


def test_fewer_replicas_cost_no_request(kube: Kube, tiny: TinyPipeline, measured: Record) -> None:
    tiny.serve("old", replicas=2, rollout={"drainSeconds": LOADED_DRAIN_SECONDS})
    assert kube.find("PodDisruptionBudget", tiny.namespace, tiny.name) is not None
    before = tiny.pod_names()
    with tiny.load() as load:
        kube.kubectl(
            "scale", f"{names.PLURAL}/{tiny.name}", f"--namespace={tiny.namespace}", "--replicas=1"
        )
        wait_for("one pod left", tiny.pod_names, lambda pods: len(pods) == 1, REPLACED_SECONDS)
        load.wait_requests()
    measured("scaled from 2 replicas to 1", load.summary())
    assert_none_lost(load, {"old"})
    assert tiny.pod_names() < before
    tiny.wait_ready()
    tiny.wait(
        "one replica, ready",
        lambda item: (item["status"]["replicas"], item["status"]["readyReplicas"]) == (1, 1),
    )
    # With one replica a budget would only block drains.
    kube.wait_gone("PodDisruptionBudget", tiny.namespace, tiny.name)


def test_a_drain_takes_pod_after_pod_and_costs_no_request(
    kube: Kube, tiny: TinyPipeline, measured: Record
) -> None:
    tiny.serve("old", replicas=2, rollout={"drainSeconds": LOADED_DRAIN_SECONDS})
    kube.wait(
        "PodDisruptionBudget",
        tiny.namespace,
        tiny.name,
        lambda item: item is not None and (item.get("status") or {}).get("disruptionsAllowed") == 1,
        "one disruption allowed",
    )
    before = sorted(tiny.pod_names())
    with tiny.load() as load:
        assert evict(kube, tiny.namespace, before[0]) is HTTPStatus.CREATED
        assert evict(kube, tiny.namespace, before[1]) is HTTPStatus.TOO_MANY_REQUESTS, (
            "both pods at once"
        )
        # Like `kubectl drain`: retry until the budget allows it, which it does when the first pod's
        # replacement is ready.
        wait_for(
            "second eviction",
            lambda: evict(kube, tiny.namespace, before[1]),
            lambda status: status is HTTPStatus.CREATED,
            REPLACED_SECONDS,
        )
        assert len(tiny.serving_pods()) >= 1
        wait_left(tiny, set(before))
        wait_for(
            "two pods ready",
            tiny.serving_pods,
            lambda pods: len(pods) == 2,
            REPLACED_SECONDS,
            lambda pods: f"{len(pods)} pods",
        )
        load.wait_requests()
    measured("drained pod by pod, replicas 2", load.summary())
    assert_none_lost(load, {"old"})
    assert not tiny.pod_names() & set(before)
    tiny.wait_ready()
