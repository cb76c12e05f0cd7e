"""A pipeline's life after its first answer: suspended, paused, tampered with, scaled.

All tests share one pipeline, since its pods take longer to start than most changes take.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.suite import clients
from e2e.suite.kube import Kube, Object
from e2e.suite.pipelines import Pipeline, check_answer, golden, small
from e2e.suite.reach import Endpoint, Reach
from triton_pipelines.api import names

Open = Callable[[Pipeline], Endpoint]


def answers(endpoint: Endpoint) -> None:
    cases = golden("sentiment", 2, longest=32)
    check_answer(
        "sentiment", cases, clients.grpc(endpoint, "sentiment", [case["text"] for case in cases])
    )


@pytest.fixture(scope="module")
def running(kube: Kube, module_namespace: str, reach: Reach) -> Iterator[tuple[Pipeline, Endpoint]]:
    """Return a pipeline that is Ready at least once."""
    pipeline = Pipeline(kube, module_namespace, "sentiment")
    pipeline.apply(small("sentiment"))
    pipeline.wait_ready()
    with reach.service(module_namespace, "sentiment") as endpoint:
        yield pipeline, endpoint


@pytest.fixture
def served(running: tuple[Pipeline, Endpoint]) -> Iterator[tuple[Pipeline, Endpoint]]:
    """Return a pipeline that serves with one pod; its spec is restored at the end."""
    with running[0].restored():
        yield running


@pytest.mark.proves("spec.suspend", "behaviour")
def test_suspend_takes_the_pods_and_keeps_the_rest(served: tuple[Pipeline, Endpoint]) -> None:
    pipeline, endpoint = served
    kept = {
        kind: {item["metadata"]["uid"] for item in pipeline.children(kind)}
        for kind in ("Service", "ConfigMap", "Secret", "Deployment")
    }

    pipeline.patch({"spec": {"suspend": "Enabled"}})
    reported = pipeline.wait_condition("Ready", "True", "Suspended")
    assert "suspend" in reported["message"]
    pipeline.wait("no pods", lambda _: not pipeline.pods())
    pipeline.wait_condition("Available", "False", "Suspended")
    assert {
        kind: {item["metadata"]["uid"] for item in pipeline.children(kind)} for kind in kept
    } == kept

    pipeline.patch({"spec": {"suspend": "Disabled"}})
    pipeline.wait_condition("Ready", "True", "Succeeded")
    answers(endpoint)


def test_a_paused_pipeline_is_left_alone_until_it_is_resumed(
    kube: Kube, served: tuple[Pipeline, Endpoint]
) -> None:
    pipeline, _ = served
    before = pipeline.status()
    pipeline.patch({"metadata": {"annotations": {names.ANNOTATION_PAUSED: "true"}}})
    pipeline.patch({"spec": {"replicas": 2}})
    kube.patch(
        "Service",
        pipeline.namespace,
        pipeline.name,
        {"metadata": {"labels": {names.LABEL_INSTANCE: "edited"}}},
    )

    # Another pipeline, created later, is processed to the end. The paused one has therefore been
    # skipped and is not just waiting.
    witness = Pipeline(kube, pipeline.namespace, "witness")
    witness.apply(small("sentiment", suspend="Enabled"))
    witness.wait_condition("Ready", "True", "Suspended")
    assert kube.get("Deployment", pipeline.namespace, pipeline.name)["spec"]["replicas"] == 1
    assert (
        kube.get("Service", pipeline.namespace, pipeline.name)["metadata"]["labels"][
            names.LABEL_INSTANCE
        ]
        == "edited"
    )
    assert pipeline.status()["revision"] == before["revision"]

    kube.delete(names.KIND, witness.namespace, witness.name)
    pipeline.patch({"metadata": {"annotations": {names.ANNOTATION_PAUSED: None}}})
    pipeline.wait("two pods", lambda item: item["status"]["readyReplicas"] == 2)
    kube.wait(
        "Service",
        pipeline.namespace,
        pipeline.name,
        lambda item: _label(item) == pipeline.name,
        "label repaired",
    )


def _label(item: Object | None) -> str:
    return str(((item or {}).get("metadata") or {}).get("labels", {}).get(names.LABEL_INSTANCE))


EDITS: dict[str, dict[str, Any]] = {
    "Service": {"spec": {"selector": {names.LABEL_PIPELINE: "nobody"}}},
    "Deployment": {
        "spec": {"replicas": 3, "template": {"spec": {"terminationGracePeriodSeconds": 600}}}
    },
    "NetworkPolicy": {"spec": {"ingress": []}},
}


@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_by_hand_is_taken_back(
    kube: Kube, served: tuple[Pipeline, Endpoint], kind: str
) -> None:
    pipeline, endpoint = served
    before = kube.get(kind, pipeline.namespace, pipeline.name)["spec"]
    edited = kube.patch(kind, pipeline.namespace, pipeline.name, EDITS[kind])
    assert edited["spec"] != before
    kube.wait(
        kind,
        pipeline.namespace,
        pipeline.name,
        lambda item: item is not None and item["spec"] == before,
        "as it was",
    )
    pipeline.wait_ready()
    pipeline.wait("one pod", lambda _: len(pipeline.pods()) == 1)
    answers(endpoint)


def test_an_edited_revision_is_taken_back(kube: Kube, served: tuple[Pipeline, Endpoint]) -> None:
    pipeline, _ = served
    name = names.revision_name(pipeline.name, pipeline.status()["revision"])
    # Its content is immutable to everyone; what it is found by is not.
    kube.patch(
        "ConfigMap",
        pipeline.namespace,
        name,
        {"metadata": {"labels": {names.LABEL_INSTANCE: "edited"}}},
    )
    kube.wait(
        "ConfigMap",
        pipeline.namespace,
        name,
        lambda item: _label(item) == pipeline.name,
        "label repaired",
    )


def test_edited_state_is_brought_back_within_bounds(
    kube: Kube, served: tuple[Pipeline, Endpoint]
) -> None:
    pipeline, _ = served
    name = names.live_name(pipeline.name)
    before = kube.get("ConfigMap", pipeline.namespace, name)["data"]
    most = int(pipeline.status()["tokenizer"]["summary"].partition("/")[2])
    kube.patch(
        "ConfigMap",
        pipeline.namespace,
        name,
        {"data": {names.KEY_COUNTS: '{"tokenizer": 4000}', names.KEY_RESOLVED: None}},
    )

    def repaired(item: Object | None) -> bool:
        data: dict[str, str] = (item or {}).get("data") or {}
        counts = json.loads(data.get(names.KEY_COUNTS, "{}"))
        return bool(
            counts.keys() == {"tokenizer"}
            and 1 <= counts["tokenizer"] <= most
            and data.get(names.KEY_RESOLVED) == before[names.KEY_RESOLVED]
        )

    # The running pods show what the sources resolved to. A count is what scaling has decided or, if
    # it has not decided yet, the edited count as far as the spec allows it.
    kube.wait(
        "ConfigMap",
        pipeline.namespace,
        name,
        repaired,
        f"a count of 1 to {most}, sources as before",
    )
    kube.patch(
        "ConfigMap",
        pipeline.namespace,
        name,
        {"data": {names.KEY_COUNTS: before[names.KEY_COUNTS]}},
    )
    pipeline.wait(
        "count as before", lambda item: item["status"]["tokenizer"]["desiredInstances"] == 1
    )


@pytest.mark.parametrize(
    "kind", ["Service", "Deployment", "NetworkPolicy", "ConfigMap", "live ConfigMap"]
)
def test_a_deleted_child_comes_back(
    kube: Kube, served: tuple[Pipeline, Endpoint], reach: Reach, kind: str
) -> None:
    pipeline, _ = served
    name = pipeline.name
    if kind == "ConfigMap":
        name = names.revision_name(pipeline.name, pipeline.status()["revision"])
    elif kind == "live ConfigMap":
        kind, name = "ConfigMap", names.live_name(pipeline.name)
    before = kube.get(kind, pipeline.namespace, name)
    kube.delete(kind, pipeline.namespace, name)
    uid = before["metadata"]["uid"]
    # What scaling adds to the live ConfigMap follows the planner's part of it, and may not yet have
    # been there before: the pods are new after the Deployment was deleted.
    kube.wait(
        kind,
        pipeline.namespace,
        name,
        lambda item: (
            item is not None
            and item["metadata"]["uid"] != uid
            and item.get("data", {}).keys() >= before.get("data", {}).keys()
        ),
        "recreated, with all keys",
    )
    pipeline.wait_ready()
    # The Service may have a new address.
    with reach.service(pipeline.namespace, pipeline.name) as way:
        answers(way)


def test_a_deleted_secret_comes_back_when_a_pod_needs_it(
    kube: Kube, served: tuple[Pipeline, Endpoint]
) -> None:
    pipeline, _ = served
    name = names.revision_name(pipeline.name, pipeline.status()["revision"])
    key = pipeline.control_key()
    kube.delete("Secret", pipeline.namespace, name)
    # Secrets are never read: that one is missing shows in a pod that cannot start.
    (pod,) = pipeline.pods()
    kube.delete("Pod", pipeline.namespace, pod["metadata"]["name"])
    kube.wait("Secret", pipeline.namespace, name, lambda item: item is not None, "made anew")
    pipeline.wait(
        "a new pod serves",
        lambda item: (
            item["status"]["readyReplicas"] == 1 and _uids(pipeline) != {pod["metadata"]["uid"]}
        ),
    )
    pipeline.wait_ready()
    assert pipeline.control_key() == key


def _uids(pipeline: Pipeline) -> set[str]:
    return {item["metadata"]["uid"] for item in pipeline.pods()}


def test_scale_through_its_subresource(
    kube: Kube, served: tuple[Pipeline, Endpoint], open_endpoint: Open
) -> None:
    pipeline, _ = served
    first = pipeline.status()["revision"]
    where = f"--namespace={pipeline.namespace}"
    assert (
        kube.find("PodDisruptionBudget", pipeline.namespace, pipeline.name) is None
    )  # it would block drains of a single pod

    kube.kubectl("scale", "ipl", pipeline.name, where, "--replicas=2")
    item = pipeline.wait("two pods", lambda item: item["status"]["readyReplicas"] == 2)
    assert item["status"]["revision"] == first  # more of the same, no rollout
    budget = kube.wait(
        "PodDisruptionBudget",
        pipeline.namespace,
        pipeline.name,
        lambda found: _allowed(found) == 1,
        "one pod may go",
    )
    assert budget is not None
    assert budget["spec"]["maxUnavailable"] == 1
    scale = kube.request(
        "GET",
        f"/apis/{names.API_VERSION}/namespaces/{pipeline.namespace}/{names.PLURAL}/{pipeline.name}/scale",
    )
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 2)
    selected = kube.objects("Pod", pipeline.namespace, scale["status"]["selector"])
    assert {pod["metadata"]["uid"] for pod in selected} == _uids(pipeline)
    answers(open_endpoint(pipeline))

    kube.kubectl("scale", "ipl", pipeline.name, where, "--replicas=1")
    pipeline.wait("one pod", lambda _: len(pipeline.pods()) == 1)
    kube.wait_gone("PodDisruptionBudget", pipeline.namespace, pipeline.name)
    pipeline.wait_ready()


def _allowed(budget: Object | None) -> int:
    return int(((budget or {}).get("status") or {}).get("disruptionsAllowed", -1))
