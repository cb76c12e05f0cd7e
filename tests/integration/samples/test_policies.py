"""A real API server enforces the sample admission policies in namespaces with their label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from e2e.local import api
from hack import chart
from tests.support import builders
from tests.support.controlplane import ControlPlane
from triton_pipelines.api import names
from triton_pipelines.cluster.resources import CONFIG_MAPS, INFERENCE_PIPELINES

pytestmark = pytest.mark.integration
FOLDER = chart.MANIFESTS / "policies"
LISTED = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
POLICIES = {name: list(yaml.safe_load_all((FOLDER / name).read_text())) for name in LISTED}
RESTRICTED, FREE = "restricted-team", "free-team"
READY_SECONDS = 60.0
PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
CODE = {"python": {"code": {"inline": "x = 1"}}}
OUTPUTS = [{"name": "OUT", "dataType": "FP32", "dims": [1]}]
STEP = {
    "name": "clean",
    "platform": "python",
    **CODE,
    "inputs": [{"name": "IN", "dataType": "FP32", "dims": [1], "from": "model.logits"}],
    "outputs": OUTPUTS,
}
# Without code: of several policies that reject a resource, only one is named.
FILE_STEP = {
    **{key: value for key, value in STEP.items() if key != "python"},
    "platform": "onnxruntime_onnx",
    "source": {"uri": "s3://models/clean.onnx"},
}
PATCH = {"parameters": {"a": {"string_value": "b"}}}
VLLM = {
    "tokenizer": None,
    "postprocess": None,
    "model": {"platform": "vllm", "source": {"uri": "hf://org/model"}, "outputs": None},
}


def vllm(**arguments: Any) -> dict[str, Any]:
    return {**VLLM, "model": {**VLLM["model"], "vllm": {"engineArgs": arguments}}}


# File of the policy → specs that it rejects, with words of the message.
REJECTED: list[tuple[str, dict[str, Any], str]] = [
    ("pod-templates.yaml", {"server": {"podTemplate": {"spec": {}}}}, "podTemplate is not allowed"),
    (
        "custom-code.yaml",
        {
            "tokenizer": {
                "type": "Python",
                "source": None,
                "outputs": [
                    {"name": name, "dataType": "INT64", "dims": [-1]}
                    for name in ("input_ids", "attention_mask")
                ],
                **CODE,
            }
        },
        "python.code is not allowed",
    ),
    (
        "custom-code.yaml",
        {"postprocess": {"type": "Python", "labels": None, "outputs": OUTPUTS, **CODE}},
        "python.code is not allowed",
    ),
    ("custom-code.yaml", {"steps": [STEP]}, "python.code is not allowed"),
    ("custom-code.yaml", {"auxiliaryModels": [STEP]}, "python.code is not allowed"),
    ("engine-args.yaml", vllm(trust_remote_code=True), "engineArgs may contain only"),
    ("config-patches.yaml", {"tokenizer": {"configPatch": PATCH}}, "configPatch is not allowed"),
    ("config-patches.yaml", {"model": {"configPatch": PATCH}}, "configPatch is not allowed"),
    (
        "config-patches.yaml",
        {"steps": [{**FILE_STEP, "configPatch": PATCH}]},
        "configPatch is not allowed",
    ),
    ("images.yaml", {"server": {"image": "elsewhere/triton:24.10"}}, "must be from registry"),
    ("images.yaml", {"server": {"args": ["--log-verbose=1"]}}, "args and spec.server.env"),
    ("images.yaml", {"server": {"env": [{"name": "A", "value": "b"}]}}, "args and spec.server.env"),
]
RECORDS = "records.yaml"
OPERATOR = "system:serviceaccount:triton-pipelines:triton-pipelines"
GARBAGE_COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"


@pytest.fixture(scope="module")
def admin(api_server: ControlPlane) -> Iterator[httpx.Client]:
    """The administrator, once the API server enforces the policies."""
    with api.client(api_server.kubeconfig) as client:
        for name, labels in ((RESTRICTED, {"tritonpipelines.io/restricted": "true"}), (FREE, {})):
            metadata = {"name": name, "labels": labels}
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
            api.apply(client, f"/api/v1/namespaces/{name}", body)
        paths = [
            f"/apis/admissionregistration.k8s.io/v1/{PLURALS[item['kind']]}/"
            f"{item['metadata']['name']}"
            for items in POLICIES.values()
            for item in items
        ]
        for path, item in zip(
            paths, (item for items in POLICIES.values() for item in items), strict=True
        ):
            api.apply(client, path, item)
        api.wait_for(
            f"{RECORDS} is enforced",
            lambda: not written(client, RESTRICTED, "an-author", record("probe")).is_success,
            READY_SECONDS,
        )
        for file in LISTED:
            if file == RECORDS:
                continue
            spec = next(spec for name, spec, _ in REJECTED if name == file)
            # The API server reads policies with a delay.
            api.wait_for(
                f"{file} is enforced",
                lambda spec=spec: not created(client, RESTRICTED, spec).is_success,
                READY_SECONDS,
            )
        yield client
        for path in paths:
            client.delete(path).raise_for_status()


def created(client: httpx.Client, namespace: str, spec: dict[str, Any]) -> httpx.Response:
    """Create a pipeline with these changes, as a dry run."""
    document = builders.document(namespace=namespace, **spec)
    document["metadata"].pop("uid")
    path = INFERENCE_PIPELINES.path(namespace)
    return client.post(path, params={"dryRun": "All"}, json=document)


def test_every_policy_is_installed_and_tested() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == set(LISTED) == {RECORDS, *(name for name, _, _ in REJECTED)}


@pytest.mark.parametrize(("file", "spec", "words"), REJECTED)
def test_a_policy_rejects_and_only_where_it_is_bound(
    admin: httpx.Client, file: str, spec: dict[str, Any], words: str
) -> None:
    answer = created(admin, RESTRICTED, spec)
    assert answer.status_code == 422, answer.text
    assert POLICIES[file][0]["metadata"]["name"] in answer.json()["message"]
    assert words in answer.json()["message"]
    free = created(admin, FREE, spec)
    assert free.is_success, free.text


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"server": {"image": "registry.example.com/approved/triton:24.10"}},
        vllm(max_model_len=4096),
    ],
)
def test_ordinary_pipelines_are_accepted(admin: httpx.Client, spec: dict[str, Any]) -> None:
    answer = created(admin, RESTRICTED, spec)
    assert answer.is_success, answer.text


def record(name: str, **labels: str) -> dict[str, Any]:
    """A ConfigMap of a revision, as the operator writes it."""
    metadata = {"name": name, "labels": {**names.labels("p"), **labels}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}}


def written(
    client: httpx.Client, namespace: str, user: str, body: dict[str, Any], method: str = "POST"
) -> httpx.Response:
    """Send a ConfigMap as a user with all permissions."""
    name = body["metadata"]["name"] if method != "POST" else None
    headers = {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
    sent = body if method != "DELETE" else None
    return client.request(method, CONFIG_MAPS.path(namespace, name), json=sent, headers=headers)


def test_authors_do_not_write_the_records_of_pipelines(admin: httpx.Client) -> None:
    """Otherwise the files and pod templates in them would bypass the other policies."""
    assert written(admin, RESTRICTED, OPERATOR, record("real")).status_code == 201
    forged = {**record("real"), "data": {"a": "forged"}}
    unlabeled = {**forged, "metadata": {"name": "real"}}
    for method, body in (("POST", record("other")), ("PUT", forged), ("PUT", unlabeled)):
        answer = written(admin, RESTRICTED, "an-author", body, method)
        assert answer.status_code == 422, answer.text
        assert "only the operator writes" in answer.json()["message"]
    assert written(admin, RESTRICTED, OPERATOR, forged, "PUT").is_success
    # It removes owner references after `kubectl delete --cascade=orphan`.
    assert written(admin, RESTRICTED, GARBAGE_COLLECTOR, forged, "PUT").is_success
    assert written(admin, RESTRICTED, "an-author", forged, "DELETE").is_success
    own = {**record("own"), "metadata": {"name": "own"}}
    assert written(admin, RESTRICTED, "an-author", own).status_code == 201, "a source of a model"
    assert written(admin, FREE, "an-author", record("real")).status_code == 201
