"""The samples for the Gateway API, checked by a real API server with the projects' own kinds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.local import api, binaries
from tests.support import libyaml
from tests.support.causes import causes_of
from tests.support.controlplane import ControlPlane
from tests.support.serving import SAMPLES, run_here
from triton_pipelines.cluster.resources import Resource

pytestmark = pytest.mark.integration

FOLDER = SAMPLES.parent / "gateway"
ROUTES = ("gateways", "grpcroutes", "httproutes")
NAMES = tuple(path.stem for path in sorted(FOLDER.glob("*.yaml")))


def definitions() -> Iterator[Path]:
    """Yield the files of the kinds that the samples use."""
    sources = binaries.module_sources("gateway-api")
    folder = sources["sigs.k8s.io/gateway-api"] / "config/crd/standard"
    for name in ROUTES:
        yield folder / f"gateway.networking.k8s.io_{name}.yaml"
    folder = sources["sigs.k8s.io/gateway-api-inference-extension"] / "config/crd/bases"
    yield folder / "inference.networking.k8s.io_inferencepools.yaml"


@pytest.fixture(scope="module")
def connection() -> Iterator[httpx.Client]:
    """Serve the kinds on an API server of their own."""
    with ControlPlane(crds=tuple(definitions())) as plane, api.client(plane.kubeconfig) as client:
        yield client


def sample(name: str) -> dict[str, Any]:
    """Return a sample."""
    document: dict[str, Any] = libyaml.load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return document


def dry_run(connection: httpx.Client, item: dict[str, Any]) -> httpx.Response:
    """Create an object strictly, without storing it."""
    group, version = item["apiVersion"].split("/")
    kind = item["kind"]
    path = Resource(group, version, kind, f"{kind.lower()}s").path("default")
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    return connection.post(path, params=query, json=item)


def test_the_samples_are_found() -> None:
    assert NAMES == ("gateway", "grpcroute", "httproute", "inferencepool")


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_accepted(connection: httpx.Client, name: str) -> None:
    answer = dry_run(connection, sample(name))
    assert answer.status_code == 201, answer.text
    assert "warning" not in answer.headers


def _unknown_method(route: dict[str, Any]) -> None:
    route["spec"]["rules"][0]["matches"][0]["method"] = {"method": "Model Infer"}


def _path_without_slash(route: dict[str, Any]) -> None:
    route["spec"]["rules"][0]["matches"][0]["path"]["value"] = "v2/models/sentiment"


def _picker_without_port(pool: dict[str, Any]) -> None:
    del pool["spec"]["endpointPickerRef"]["port"]


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("grpcroute", _unknown_method, "spec.rules[0].matches[0].method"),
        ("httproute", _path_without_slash, "spec.rules[0].matches[0].path"),
        ("inferencepool", _picker_without_port, "spec.endpointPickerRef"),
    ],
)
def test_a_faulty_one_is_refused(
    connection: httpx.Client, name: str, change: Callable[[dict[str, Any]], None], field: str
) -> None:
    """The kinds are the real ones: their rules apply."""
    faulty = copy.deepcopy(sample(name))
    change(faulty)
    answer = dry_run(connection, faulty)
    assert answer.status_code == 422, answer.text
    assert field in {cause for cause, _ in causes_of(answer.json())}


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    """Return the objects of the pipeline that the samples name, by kind."""
    code, printed, errors = run_here("render", str(SAMPLES / "sentiment.yaml"), "--manifests")
    assert code == 0, errors
    return {item["kind"]: item for item in libyaml.load_all(printed)}


@pytest.mark.parametrize(("name", "protocol"), [("httproute", "http"), ("grpcroute", "grpc")])
def test_a_route_leads_to_the_port_of_its_protocol(
    objects: dict[str, dict[str, Any]], name: str, protocol: str
) -> None:
    ports = {port["port"]: port["name"] for port in objects["Service"]["spec"]["ports"]}
    (backend,) = sample(name)["spec"]["rules"][0]["backendRefs"]
    assert backend["name"] == objects["Service"]["metadata"]["name"]
    assert ports[backend["port"]] == protocol
    assert sample(name)["spec"]["parentRefs"] == [{"name": sample("gateway")["metadata"]["name"]}]


def test_the_pool_selects_the_pods_of_the_pipeline(objects: dict[str, dict[str, Any]]) -> None:
    pool = sample("inferencepool")["spec"]
    assert pool["selector"]["matchLabels"] == objects["Service"]["spec"]["selector"]
    containers = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    ports = {port["containerPort"] for one in containers for port in one["ports"]}
    assert {port["number"] for port in pool["targetPorts"]} <= ports
