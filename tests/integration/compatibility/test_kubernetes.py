"""The chart and its operator on the API server of each supported Kubernetes version.

No version but the pinned one has controllers here, so no pod starts and nothing is collected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from e2e.local import api, binaries
from hack import chart
from hack.compatibility import DEVICE_CLAIMS_SINCE, IMAGE_VOLUMES_SINCE, RESIZE_SINCE, minor
from tests.corpus import Sample, bad, good
from tests.support.builders import merge
from tests.support.causes import causes_of
from tests.support.controlplane import ControlPlane
from tests.support.golden import CASES, path_of
from tests.support.installed import DEADLINE_SECONDS, InstalledOperator, installed_operator
from triton_pipelines.api import names
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INFERENCE_PIPELINES,
    SERVICES,
    resource_of,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NAMESPACE = "compatible"
PIPELINES = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
STRICT_DRY_RUN = {"dryRun": "All", "fieldValidation": "Strict"}
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{names.PLURAL}.{names.GROUP}"
SAMPLE = yaml.safe_load((chart.MANIFESTS / "samples" / "sentiment.yaml").read_text())
NAME = SAMPLE["metadata"]["name"]
DEVICE_CLAIMS = "mig-dra"
"""The golden file with a ResourceClaim of Dynamic Resource Allocation."""
IMAGE_FIELD_SINCE = (1, 31)
"""First minor version whose API server knows image volumes, which it removes by default."""
IMAGE_SOURCE = "image-source"
"""The golden file and the resource with an image volume."""


@pytest.fixture(
    scope="module",
    params=[
        *(
            pytest.param(version, marks=pytest.mark.older_kubernetes)
            for version in binaries.OLDER_KUBERNETES
        ),
        binaries.KUBERNETES_VERSION,
    ],
)
def version(request: pytest.FixtureRequest) -> str:
    """Return the version of Kubernetes, such as 1.30.14."""
    return str(request.param)


@pytest.fixture(scope="module")
def operator(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledOperator]:
    """Install the chart with its CRD and policies, and run the operator with its own rights."""
    with (
        ControlPlane(kubernetes=version) as plane,
        installed_operator(
            plane, tmp_path_factory.mktemp("operator"), "operator", "--set=crds.enabled=true"
        ) as running,
    ):
        api.apply(
            running.connection,
            f"/api/v1/namespaces/{NAMESPACE}",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        )
        api.wait_for(
            "the kind",
            lambda: running.connection.get(PIPELINES).status_code == 200,
            DEADLINE_SECONDS,
        )
        yield running


@pytest.fixture
def connection(operator: InstalledOperator) -> httpx.Client:
    """Return the administrator's connection."""
    return operator.connection


def test_the_server_is_of_that_version(connection: httpx.Client, version: str) -> None:
    assert connection.get("/version").json()["gitVersion"] == f"v{version}"


def test_the_definition_is_established(connection: httpx.Client) -> None:
    conditions = {
        one["type"]: one["status"]
        for one in connection.get(DEFINITION).json()["status"]["conditions"]
    }
    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


def is_refused(sample: Sample, status: dict[str, Any]) -> bool:
    """Return whether an answer refuses a resource for the reason that its file names.

    Messages of our own rules are compared. The server's own ones differ between versions.
    """
    if not sample.server_path:
        return sample.server_text in status["message"]
    text = sample.message if sample.message in sample.server_text else ""
    return any(
        field == sample.server_path and text in message for field, message in causes_of(status)
    )


def test_every_rule_refuses_what_it_should(connection: httpx.Client) -> None:
    samples = bad()
    assert len(samples) > 200
    wrong = {}
    for sample in samples:
        answer = connection.post(PIPELINES, params=STRICT_DRY_RUN, json=sample.document)
        if answer.status_code not in (400, 422) or not is_refused(sample, answer.json()):
            wrong[sample.name] = answer.json()
    assert wrong == {}


def test_every_valid_resource_is_stored_as_written(connection: httpx.Client) -> None:
    for sample in good():
        answer = connection.post(PIPELINES, params=STRICT_DRY_RUN, json=sample.document)
        assert answer.status_code == 201, f"{sample.name}: {answer.text}"
        assert "warning" not in answer.headers, sample.name


def rendered(case: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a golden file."""
    text = path_of(case).read_text(encoding="utf-8").replace("REVISION", "0123456789")
    for part in text.split("===== "):
        if "\napiVersion: " in part:
            yield yaml.safe_load(part.split("\n", 1)[1])


def test_every_rendered_object_is_accepted(connection: httpx.Client, version: str) -> None:
    # Kubernetes 1.34 accepts the Deployment with an image volume, and removes the volume.
    needed = {DEVICE_CLAIMS: DEVICE_CLAIMS_SINCE, IMAGE_SOURCE: IMAGE_VOLUMES_SINCE}
    assert set(needed) < set(CASES)
    for case in CASES:
        if minor(version) < needed.get(case, (0, 0)):
            continue
        for item in rendered(case):
            path = resource_of(item).path(NAMESPACE, item["metadata"]["name"])
            answer = connection.patch(
                path,
                params={**STRICT_DRY_RUN, "fieldManager": names.MANAGER_CHILDREN, "force": "true"},
                headers={"Content-Type": "application/apply-patch+yaml"},
                content=json.dumps(
                    {**item, "metadata": {**item["metadata"], "namespace": NAMESPACE}}
                ).encode(),
            )
            assert answer.status_code in (200, 201), f"{case} {item['kind']}: {answer.text}"


def conditions(item: dict[str, Any]) -> set[tuple[str, str, str, int]]:
    """Return type, status, reason and observed generation of each condition."""
    return {
        (one["type"], one["status"], one["reason"], one["observedGeneration"])
        for one in item.get("status", {}).get("conditions", ())
    }


def test_the_operator_creates_scales_and_leaves_a_pipeline(
    operator: InstalledOperator, connection: httpx.Client
) -> None:
    pipeline = INFERENCE_PIPELINES.path(NAMESPACE, NAME)
    deployment = DEPLOYMENTS.path(NAMESPACE, NAME)
    api.apply(connection, pipeline, SAMPLE)

    def read(path: str) -> dict[str, Any]:
        answer = connection.get(path)
        return dict(answer.json()) if answer.status_code == 200 else {}

    api.wait_for("the Deployment", lambda: bool(read(deployment)), DEADLINE_SECONDS)
    api.wait_for(
        "the status",
        lambda: ("Ready", "False", "Progressing", 1) in conditions(read(pipeline)),
        DEADLINE_SECONDS,
    )
    assert read(pipeline)["status"]["revision"]
    assert read(SERVICES.path(NAMESPACE, NAME))["spec"]["ports"]
    (owner,) = read(deployment)["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (read(pipeline)["metadata"]["uid"], True)

    scaled = connection.patch(
        f"{pipeline}/scale",
        headers={"Content-Type": "application/merge-patch+json"},
        content=json.dumps({"spec": {"replicas": 2}}),
    )
    assert scaled.status_code == 200, scaled.text
    api.wait_for(
        "two replicas", lambda: read(deployment)["spec"]["replicas"] == 2, DEADLINE_SECONDS
    )

    live = CONFIG_MAPS.path(NAMESPACE, f"{NAME}-live")
    api.wait_for("the live ConfigMap", lambda: bool(read(live)), DEADLINE_SECONDS)
    connection.delete(pipeline).raise_for_status()
    assert read(pipeline) == {}, "a finalizer keeps the pipeline"
    assert operator.refused() == set()
    assert "Traceback" not in operator.log.read_text()


def stalled(connection: httpx.Client, path: str) -> dict[str, Any]:
    """Return the condition Stalled of a pipeline; empty without one."""
    answer = connection.get(path).json()
    found = {one["type"]: one for one in answer.get("status", {}).get("conditions", ())}
    return dict(found.get("Stalled", {}))


def test_an_invalid_pod_says_nothing_about_image_volumes(
    operator: InstalledOperator, connection: httpx.Client, version: str
) -> None:
    (sample,) = (sample.document for sample in good() if sample.name == IMAGE_SOURCE)
    name = "invalid-pod"
    pipeline = INFERENCE_PIPELINES.path(NAMESPACE, name)
    changes = {
        "metadata": {"name": name},
        "spec": {"server": {"tolerations": [{"key": "not a key", "operator": "Exists"}]}},
    }
    api.apply(connection, pipeline, merge(sample, changes))

    api.wait_for("the condition", lambda: stalled(connection, pipeline), DEADLINE_SECONDS)
    condition = stalled(connection, pipeline)
    # Kubernetes 1.30 does not know the field, whatever else is invalid.
    unknown = minor(version) < IMAGE_FIELD_SINCE
    assert condition["reason"] == ("SourceUnavailable" if unknown else "InvalidSpec")
    assert ("tolerations" in condition["message"]) is not unknown
    connection.delete(pipeline).raise_for_status()


def test_an_image_source_needs_image_volumes(
    operator: InstalledOperator, connection: httpx.Client, version: str
) -> None:
    (sample,) = (sample.document for sample in good() if sample.name == IMAGE_SOURCE)
    pipeline = INFERENCE_PIPELINES.path(NAMESPACE, IMAGE_SOURCE)
    deployment = DEPLOYMENTS.path(NAMESPACE, IMAGE_SOURCE)
    api.apply(connection, pipeline, sample)

    if minor(version) >= IMAGE_VOLUMES_SINCE:
        api.wait_for(
            "the Deployment",
            lambda: connection.get(deployment).status_code == 200,
            DEADLINE_SECONDS,
        )
        volumes = connection.get(deployment).json()["spec"]["template"]["spec"]["volumes"]
        assert [one["image"]["reference"] for one in volumes if "image" in one] == [
            sample["spec"]["source"]["uri"].removeprefix("image://")
        ]
        assert stalled(connection, pipeline) == {}
    else:
        api.wait_for("the condition", lambda: stalled(connection, pipeline), DEADLINE_SECONDS)
        condition = stalled(connection, pipeline)
        assert condition["reason"] == "SourceUnavailable"
        for text in ("spec.source.uri", "use oci://", "feature gate ImageVolume"):
            assert text in condition["message"]
        assert connection.get(deployment).status_code == 404
    connection.delete(pipeline).raise_for_status()
    assert "Traceback" not in operator.log.read_text()


def test_pods_can_be_resized_since_the_documented_version(
    connection: httpx.Client, version: str
) -> None:
    served = {one["name"] for one in connection.get("/api/v1").json()["resources"]}
    assert ("pods/resize" in served) == (minor(version) >= RESIZE_SINCE)


def test_the_policies_of_the_chart_are_valid(connection: httpx.Client) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    policies = connection.get(path).json()["items"]
    assert len(policies) >= 2
    assert len(connection.get(f"{path.replace('policies', 'policybindings')}").json()["items"]) >= 2
