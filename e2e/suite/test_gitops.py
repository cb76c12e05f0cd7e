"""GitOps tools see a pipeline as in sync and healthy after the operator has worked on it.

Each tool applies its own rules.
"""

from collections.abc import Iterator

import pytest

from e2e.suite.kube import Kube, Object
from e2e.suite.pipelines import Pipeline, sample, small
from tests.support import dryrun, kstatus

SAMPLES = ("sentiment", "embedding")


def manifest(name: str, namespace: str) -> Object:
    document = small(name)
    document["metadata"]["namespace"] = namespace
    return document


@pytest.fixture(scope="module", params=["client-side", "server-side"])
def worked_on(
    request: pytest.FixtureRequest, kube: Kube, module_namespace: str
) -> Iterator[list[Object]]:
    """Both samples, applied the one or the other way, ready, with a status."""
    manifests = [manifest(name, module_namespace) for name in SAMPLES]
    flags = (
        ("--server-side", f"--field-manager={dryrun.ARGO_MANAGER}")
        if request.param == "server-side"
        else ()
    )
    for document in manifests:
        kube.kubectl("apply", *flags, "--filename=-", input=_yaml(document))
    for name in SAMPLES:
        Pipeline(kube, module_namespace, name).wait_ready()
    yield manifests
    for name in SAMPLES:
        kube.delete("InferencePipeline", module_namespace, name)
    for name in SAMPLES:
        kube.wait_gone("InferencePipeline", module_namespace, name)


def _yaml(document: Object) -> str:
    import yaml

    return str(yaml.safe_dump(document))


def test_no_tool_sees_a_difference(kube: Kube, worked_on: list[Object]) -> None:
    assert dryrun.differences(kube.kubeconfig, worked_on, context=kube.context).found() == {}


def test_every_tool_sees_a_change(kube: Kube, worked_on: list[Object]) -> None:
    changed = [{**item, "spec": {**item["spec"], "replicas": 2}} for item in worked_on]
    found = dryrun.differences(kube.kubeconfig, changed, context=kube.context).found()
    assert {"client-side", "argo threeWay", "argo structured", "argo serverSide"} <= found.keys()


def test_the_operator_writes_no_field_of_the_spec(kube: Kube, worked_on: list[Object]) -> None:
    for document in worked_on:
        item = kube.get(
            "InferencePipeline", document["metadata"]["namespace"], document["metadata"]["name"]
        )
        owners = {
            entry["manager"]
            for entry in item["metadata"]["managedFields"]
            if "f:spec" in entry.get("fieldsV1", {})
        }
        assert not [owner for owner in owners if owner.startswith("triton-pipelines")]


def test_kstatus_calls_it_current(kube: Kube, worked_on: list[Object]) -> None:
    live = [
        kube.get("InferencePipeline", item["metadata"]["namespace"], item["metadata"]["name"])
        for item in worked_on
    ]
    assert [verdict.status for verdict in kstatus.verdicts(live)] == ["Current", "Current"]


def test_kstatus_follows_a_rollout_and_a_failure(kube: Kube, pipeline: Pipeline) -> None:
    seen = []

    def verdict(item: Object) -> str:
        found = kstatus.verdicts([item])[0].status
        seen.append(found)
        return found

    pipeline.apply(small("sentiment"))
    pipeline.wait("Current for kstatus", lambda item: verdict(item) == "Current")
    assert "InProgress" in seen
    assert set(seen) <= {"InProgress", "Current"}

    seen.clear()
    wrong = sample("sentiment")["spec"]["model"]["outputs"][0] | {"dims": [3]}
    pipeline.patch(
        {"spec": {"model": {"outputs": [wrong]}, "postprocess": {"labels": ["a", "b", "c"]}}}
    )
    pipeline.wait("Failed for kstatus", lambda item: verdict(item) == "Failed")
    assert set(seen) <= {"InProgress", "Failed"}
