"""Clients distribute their requests over three pods; no pod receives far more than its share."""

import functools
from collections.abc import Callable, Iterator, Mapping

import pytest

from e2e.load.generator import Load, under_load
from e2e.suite.kube import Kube, wait_for
from e2e.suite.name_server import name_server
from e2e.suite.reach import Endpoint
from e2e.suite.tiny import TEXTS, TinyPipeline, judge
from triton_pipelines.api import names

PODS = 3
MOST = 1.5
"""Largest part of the requests that a pod may receive, as a multiple of its share."""
CONNECTIONS = 150
"""Kept HTTP connections. Of so many, chance gives a pod 1.5 times its share once in 30 000 runs."""
ADDRESSES_SECONDS = 60.0
SCALED_SECONDS = 90.0
ANSWERS = 100
"""Far more than the operator's own test requests in that time."""
ROUND_ROBIN = "grpc-round-robin"


def addresses(kube: Kube, namespace: str, service: str) -> set[str]:
    """Addresses of a Service's ready pods, to which its DNS name resolves."""
    path = (
        f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        f"?labelSelector=kubernetes.io/service-name={service}"
    )
    return {
        address
        for item in kube.request("GET", path)["items"]
        for endpoint in item.get("endpoints") or ()
        if (endpoint.get("conditions") or {}).get("ready")
        for address in endpoint["addresses"]
    }


@pytest.fixture(scope="module")
def tiny(module_tiny: TinyPipeline) -> TinyPipeline:
    """Return a pipeline that each test leaves with three pods."""
    return module_tiny


@pytest.fixture(scope="module")
def pods(kube: Kube, tiny: TinyPipeline) -> Iterator[Endpoint]:
    """Three pods behind a headless Service, by its name."""
    tiny.serve("old", replicas=PODS, server={"service": {"headless": "Enabled"}})
    service = names.headless_service_name(tiny.name)
    assert kube.get("Service", tiny.namespace, service)["spec"]["clusterIP"] == "None"
    wait_for(
        "addresses of all pods",
        lambda: addresses(kube, tiny.namespace, service),
        lambda some: len(some) == PODS,
        ADDRESSES_SECONDS,
    )
    with name_server(functools.partial(addresses, kube)) as server:
        name = f"{service}.{tiny.namespace}:{names.PORT_GRPC}"
        yield Endpoint("", f"dns://{server}/{name}", "")


def received(tiny: TinyPipeline, send: Callable[[], None]) -> Mapping[str, int]:
    """Return how many requests each pod answered while ``send`` ran."""
    before = tiny.inferences_by_pod()
    send()
    after = tiny.inferences_by_pod()
    assert before.keys() == after.keys()
    return {pod: after[pod] - count for pod, count in before.items()}


def assert_shares(counts: Mapping[str, int]) -> None:
    """Assert that all pods take part, and that none receives far more than its share."""
    assert len(counts) == PODS
    assert max(counts.values()) <= MOST * sum(counts.values()) / PODS, counts


def test_no_pod_receives_more_than_its_share(tiny: TinyPipeline, pods: Endpoint) -> None:
    def round_robin() -> None:
        load = Load(pods, tiny.name, TEXTS, judge, clients=(ROUND_ROBIN,), workers=2, interval=0.02)
        with under_load(load):
            load.wait_requests(150)
        assert not [outcome.error for outcome in load.outcomes if outcome.error]

    def kept_connections() -> None:
        with tiny.load(clients=("http-keep-alive",), workers=CONNECTIONS, interval=1.0) as load:
            load.wait_requests(2)

    assert_shares(received(tiny, round_robin))
    assert_shares(received(tiny, kept_connections))


def test_clients_follow_the_pods(kube: Kube, tiny: TinyPipeline, pods: Endpoint) -> None:
    """A removed pod costs no request, and an added one receives its share."""

    def scale(replicas: int) -> None:
        kube.kubectl(
            "scale",
            f"{names.PLURAL}/{tiny.name}",
            f"--namespace={tiny.namespace}",
            f"--replicas={replicas}",
        )
        wait_for(
            f"{replicas} pods",
            lambda: (len(tiny.pod_names()), len(tiny.serving_pods())),
            lambda counts: counts == (replicas, replicas),
            SCALED_SECONDS,
        )

    with under_load(Load(pods, tiny.name, TEXTS, judge, clients=(ROUND_ROBIN,))) as load:
        scale(1)
        load.wait_requests()
        scale(PODS)
        before = tiny.inferences_by_pod()
        wait_for(
            "answers of all pods",
            tiny.inferences_by_pod,
            lambda now: all(now[pod] >= count + ANSWERS for pod, count in before.items()),
            SCALED_SECONDS,
        )
    assert not [outcome.error for outcome in load.outcomes if outcome.error]
