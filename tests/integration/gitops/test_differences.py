"""Manifests in Git against the live object on a real API server.

No tool reports a difference that no one made, and all tools report one that someone made.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.local import api
from tests.support import libyaml, statuses
from tests.support.controlplane import ControlPlane
from tests.support.dryrun import differences
from tests.support.kstatus import verdicts
from triton_pipelines.api import names
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
NAMESPACE = "gitops"
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))
WAYS = {"client-side", "server-side", "argo threeWay", "argo structured", "argo serverSide"}


@pytest.fixture(scope="module")
def connection(api_server: ControlPlane) -> Iterator[httpx.Client]:
    crd = libyaml.load((ROOT / "crds" / f"{names.PLURAL}.{names.GROUP}.yaml").read_text())
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{names.PLURAL}.{names.GROUP}"
    with api.client(api_server.kubeconfig) as client:
        api.apply(client, path, crd)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        api.apply(client, f"/api/v1/namespaces/{NAMESPACE}", namespace)

        def served() -> bool:
            known = client.get(f"/apis/{names.API_VERSION}").status_code == 200
            # Clients that compare by schema need the kind in the published OpenAPI document, which
            # follows a moment later.
            return known and names.KIND in client.get("/openapi/v2").text

        api.wait_for("the CRD", served, 60)
        yield client


def sample(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = libyaml.load(path.read_text())
    return {**found, "metadata": {**found["metadata"], "namespace": NAMESPACE}}


def kubectl_apply(server: ControlPlane, item: dict[str, Any], *flags: str) -> None:
    command = [
        str(server.kubectl),
        f"--kubeconfig={server.kubeconfig}",
        "apply",
        *flags,
        "--filename=-",
    ]
    subprocess.run(command, input=json.dumps(item), capture_output=True, text=True, check=True)


def as_operator(connection: httpx.Client, item: dict[str, Any]) -> None:
    """Write a full status as the operator does.

    It uses server-side apply of the status subresource with its own field manager.
    """
    path = INFERENCE_PIPELINES.path(NAMESPACE, item["metadata"]["name"], "status")
    status = statuses.ready()["status"]
    body = {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "metadata": {"name": item["metadata"]["name"]},
        "status": status,
    }
    query = {"fieldManager": names.MANAGER_STATUS, "force": "true"}
    connection.patch(
        path,
        params=query,
        headers={"Content-Type": "application/apply-patch+yaml"},
        content=json.dumps(body),
    ).raise_for_status()


@pytest.mark.parametrize(
    "flags",
    [(), ("--server-side",), ("--server-side", "--field-manager=argocd-controller")],
    ids=["client", "server", "argo"],
)
def test_reconciled_samples_show_no_difference(
    api_server: ControlPlane, connection: httpx.Client, flags: tuple[str, ...]
) -> None:
    items = [sample(path) for path in SAMPLES]
    for item in items:
        item["metadata"]["name"] += f"-{len(flags)}"
    kubectl_apply(api_server, {"apiVersion": "v1", "kind": "List", "items": items}, *flags)
    for item in items:
        as_operator(connection, item)
    assert differences(api_server.kubeconfig, items).found() == {}


def test_every_tool_shows_a_manual_change(
    api_server: ControlPlane, connection: httpx.Client
) -> None:
    item = sample(ROOT / "manifests" / "samples" / "sentiment.yaml")
    item["metadata"]["name"] = "changed"
    item["spec"]["replicas"] = 2
    kubectl_apply(api_server, item)
    path = INFERENCE_PIPELINES.path(NAMESPACE, "changed")
    patched = connection.patch(
        path,
        headers={"Content-Type": "application/merge-patch+json"},
        content=json.dumps({"spec": {"replicas": 3}}),
    )
    patched.raise_for_status()
    found = differences(api_server.kubeconfig, [item]).found()
    assert found.keys() == WAYS
    assert all("replicas" in text for text in found.values()), found


def test_an_object_that_is_not_there_is_an_error(
    api_server: ControlPlane, connection: httpx.Client
) -> None:
    item = sample(ROOT / "manifests" / "samples" / "sentiment.yaml")
    item["metadata"]["name"] = "nowhere"
    with pytest.raises(RuntimeError, match="nowhere"):
        differences(api_server.kubeconfig, [item])


@pytest.mark.parametrize("flags", [(), ("--server-side",)], ids=["client", "server"])
def test_no_tool_reports_a_new_resource_as_current(
    api_server: ControlPlane, connection: httpx.Client, flags: tuple[str, ...]
) -> None:
    item = sample(ROOT / "manifests" / "samples" / "sentiment.yaml")
    item["metadata"]["name"] = f"new-{len(flags)}"
    kubectl_apply(api_server, item, *flags)
    live = connection.get(INFERENCE_PIPELINES.path(NAMESPACE, item["metadata"]["name"])).json()
    assert [verdict.status for verdict in verdicts([live])] == ["InProgress"]
    as_operator(connection, item)
    live = connection.get(INFERENCE_PIPELINES.path(NAMESPACE, item["metadata"]["name"])).json()
    assert [verdict.status for verdict in verdicts([live])] == ["Current"]
