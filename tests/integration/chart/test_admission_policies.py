"""What the operator's account may do, with the chart's policies on a real API server.

The account is impersonated, as if somebody had its token. Without the policies its roles permit
all of what is refused here.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from e2e.local import api
from hack import chart
from tests.support import builders
from tests.support.controlplane import ControlPlane
from tests.support.podtemplates import templated
from triton_pipelines.api import names
from triton_pipelines.cluster.resources import SECRETS, resource_of
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.graph.options import PodTemplateMode
from triton_pipelines.compile.render.objects import control_secret, deployment, service
from triton_pipelines.compile.render.preflight_objects import preflight_job, preflight_policy

pytestmark = pytest.mark.integration
RELEASE = "policed-triton-pipelines"
TEAM = "policed-team"
WRITER = "policed-writer"
READY_SECONDS = 60.0
REVISION = "0123456789"
CONTENT = "cGFzc3dvcmQ="
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts/{name}",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{name}",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/{name}",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/{name}",
    "ValidatingAdmissionPolicy": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}"
    ),
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{name}"
    ),
}


def secret(name: str, namespace: str = TEAM, **fields: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "data": {"key": CONTENT},
        **fields,
    }


def path_of(item: dict[str, Any]) -> str:
    metadata = item["metadata"]
    return resource_of(item).path(metadata["namespace"], metadata["name"])


@pytest.fixture(scope="module")
def admin(api_server: ControlPlane) -> Iterator[httpx.Client]:
    """The administrator of a cluster with namespaces for these tests."""
    with api.client(api_server.kubeconfig) as client:
        for name in (RELEASE, TEAM, "kube-policed"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            api.apply(client, f"/api/v1/namespaces/{name}", body)
        yield client


@pytest.fixture(scope="module")
def account(api_server: ControlPlane, admin: httpx.Client) -> Iterator[httpx.Client]:
    """The operator's account, once the API server enforces the policies.

    Before that, its roles permit what the policies refuse.
    """
    rendered = chart.render(
        *("--set", "crds.enabled=false"),
        *("--set", f"operator.impersonatedServiceAccounts={{{WRITER}}}"),
        release=RELEASE,
        namespace=RELEASE,
    )
    paths = {
        id(item): PATHS[item["kind"]].format(**{"namespace": "", **item["metadata"]})
        for item in rendered
        if item["kind"] in PATHS
    }
    is_policy = {id(item): item["kind"].startswith("Validating") for item in rendered}
    foreign = {**deployed(), "metadata": {"name": "foreign", "namespace": TEAM}}
    hosted = deployed({"hostPID": True})
    with api.client(api_server.kubeconfig) as client:
        client.headers["Impersonate-User"] = f"system:serviceaccount:{RELEASE}:{RELEASE}"
        client.headers["Impersonate-Group"] = "system:serviceaccounts"
        for policies in (False, True):
            for item in rendered:
                if id(item) in paths and is_policy[id(item)] is policies:
                    api.apply(admin, paths[id(item)], item)
            for item in (foreign, hosted):

                def is_answered(item: dict[str, Any] = item, policies: bool = policies) -> bool:
                    answer = applied(client, item, dry=True)
                    return answer.is_success is not policies

                # The API server reads roles and policies with a delay.
                api.wait_for("roles or policies are in force", is_answered, READY_SECONDS)
        yield client
        for path in paths.values():
            admin.delete(path).raise_for_status()


def applied(
    client: httpx.Client,
    item: dict[str, Any],
    *,
    dry: bool = False,
    manager: str = names.MANAGER_CHILDREN,
) -> httpx.Response:
    """Server-side apply as the operator does."""
    return client.patch(
        path_of(item),
        params={"fieldManager": manager, "force": "true"} | ({"dryRun": "All"} if dry else {}),
        headers={"Content-Type": "application/apply-patch+yaml"},
        content=json.dumps(item).encode(),
    )


def merged(
    client: httpx.Client, item: dict[str, Any], patch: dict[str, Any], *, dry: bool = True
) -> httpx.Response:
    return client.patch(
        path_of(item),
        params={"dryRun": "All"} if dry else {},
        headers={"Content-Type": "application/merge-patch+json"},
        content=json.dumps(patch).encode(),
    )


def deployed(pod: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A Deployment as the operator makes it, with more of a pod than it would."""
    options: Options = builders.options(pod_template=PodTemplateMode.ALLOW)
    one = templated({"spec": pod or {}}, options, namespace=TEAM, **changes)
    template = one.render().template
    return deployment(one.pipeline, template, one.pipeline.spec.rollout.strategy, 1)


def checked(pod: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The objects of a preflight as the operator makes them, with more of a pod than it would."""
    options: Options = builders.options(pod_template=PodTemplateMode.ALLOW)
    one = templated({"spec": pod or {}}, options, namespace=TEAM)
    policy = preflight_policy(one.pipeline, REVISION)
    assert policy is not None
    return [policy, preflight_job(one.pipeline, REVISION, one.render().template)]


def own_secret() -> dict[str, Any]:
    item = control_secret(builders.pipeline(namespace=TEAM), REVISION, "KEY")
    return copy.deepcopy(item)


def refused(answer: httpx.Response, words: str) -> None:
    assert answer.status_code in (403, 422), answer.text
    assert "denied request" in answer.text
    assert words in answer.json()["message"]
    assert CONTENT not in answer.text


def taken(answer: httpx.Response) -> None:
    assert answer.status_code in (200, 201), answer.text


def test_the_operator_writes_its_own_objects(account: httpx.Client) -> None:
    pipeline = builders.pipeline(namespace=TEAM)
    look = own_secret()
    nothing = {key: look[key] for key in ("apiVersion", "kind")} | {
        "metadata": {key: look["metadata"][key] for key in ("name", "namespace")}
    }
    taken(applied(account, nothing, dry=True, manager=names.MANAGER_LOOK))
    for item in (own_secret(), service(pipeline), deployed(), *checked()):
        taken(applied(account, item))
        taken(applied(account, item))
    taken(applied(account, nothing, dry=True, manager=names.MANAGER_LOOK))
    for item in (own_secret(), service(pipeline), deployed(), *checked()):
        taken(account.delete(path_of(item)))


@pytest.mark.parametrize("part", ["labels", "ownerReferences"])
def test_what_was_removed_by_hand_is_restored(
    admin: httpx.Client, account: httpx.Client, part: str
) -> None:
    for item in (own_secret(), service(builders.pipeline(namespace=TEAM))):
        taken(applied(account, item))
        taken(merged(admin, item, {"metadata": {part: None}}, dry=False))
        if item["kind"] == "Secret":
            taken(merged(account, item, {}))
        taken(applied(account, item))
        taken(account.delete(path_of(item)))


def test_the_operator_key_is_created(account: httpx.Client) -> None:
    item = secret("triton-pipelines-operator-key", RELEASE)
    taken(account.post(SECRETS.path(RELEASE), json=item))
    refused(
        account.post(SECRETS.path(RELEASE), json=secret("another-key", RELEASE)),
        "its labels and an InferencePipeline",
    )


def test_a_dry_run_does_not_return_other_secrets(
    admin: httpx.Client, account: httpx.Client
) -> None:
    item = secret("db")
    taken(applied(admin, item))
    refused(merged(account, item, {}), "objects that belong to an InferencePipeline")
    labels = own_secret()["metadata"]
    adopted = {"metadata": {key: labels[key] for key in ("labels", "ownerReferences")}}
    refused(merged(account, item, adopted), "objects that belong to an InferencePipeline")
    refused(account.delete(path_of(item)), "objects that belong to an InferencePipeline")
    named = secret(f"db-{REVISION}")
    taken(applied(admin, named))
    refused(merged(account, named, {}), "objects that belong to an InferencePipeline")


def test_no_secret_receives_a_token(account: httpx.Client) -> None:
    item = own_secret()
    item["type"] = "kubernetes.io/service-account-token"
    item["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "default"}
    refused(applied(account, item), "type Opaque")
    item = own_secret()
    item["metadata"]["name"] = "other"
    refused(applied(account, item), "named after a pipeline and a revision")


def test_namespaces_of_kubernetes_are_left_alone(account: httpx.Client) -> None:
    for item in (deployed(), own_secret()):
        item["metadata"]["namespace"] = "kube-policed"
        refused(applied(account, item, dry=True), "namespaces of Kubernetes")


def test_other_objects_are_left_alone(admin: httpx.Client, account: httpx.Client) -> None:
    item = deployed()
    item["metadata"] = {"name": "payments", "namespace": TEAM}
    refused(applied(account, item), "its labels and an InferencePipeline")
    taken(applied(admin, item))
    refused(merged(account, item, {"spec": {"replicas": 0}}), "that belong to an Inference")
    refused(account.delete(path_of(item)), "that belong to an InferencePipeline")
    taken(admin.delete(path_of(item)))


NODE = {"name": "x", "hostPath": {"path": "/"}}
TOKEN = {"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
UNCONFINED = {"type": "Unconfined"}
ELSEWHERE = {"host": "169.254.169.254", "port": 80}
SIDECAR = {"name": "proxy", "image": "registry.example/proxy:1"}


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"hostNetwork": True}, "host namespaces"),
        ({"hostIPC": True}, "host namespaces"),
        ({"nodeName": "n"}, "choose their node"),
        ({"volumes": [NODE]}, "hostPath"),
        ({"volumes": [TOKEN]}, "token of a service account"),
        ({"serviceAccountName": "deployer"}, "only the service account default"),
        ({"containers": [{**SIDECAR, "securityContext": {"privileged": True}}]}, "privileged"),
        (
            {
                "initContainers": [
                    {**SIDECAR, "securityContext": {"capabilities": {"add": ["ALL"]}}}
                ]
            },
            "add capabilities",
        ),
        (
            {"containers": [{**SIDECAR, "ports": [{"containerPort": 80, "hostPort": 80}]}]},
            "ports of the node",
        ),
        ({"volumes": [{"name": "x", "nfs": {"server": "s", "path": "/"}}]}, "name of the node"),
        ({"securityContext": {"seccompProfile": UNCONFINED}}, "a protection of the node"),
        (
            {"containers": [{**SIDECAR, "securityContext": {"appArmorProfile": UNCONFINED}}]},
            "a protection of the node",
        ),
        (
            {"containers": [{**SIDECAR, "securityContext": {"seLinuxOptions": {"type": "spc_t"}}}]},
            "a protection of the node",
        ),
        (
            {
                "hostUsers": False,
                "containers": [{**SIDECAR, "securityContext": {"procMount": "Unmasked"}}],
            },
            "a protection of the node",
        ),
        (
            {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
            "safe sysctls",
        ),
        ({"containers": [{**SIDECAR, "livenessProbe": {"httpGet": ELSEWHERE}}]}, "name a host"),
        (
            {"containers": [{**SIDECAR, "lifecycle": {"preStop": {"httpGet": ELSEWHERE}}}]},
            "name a host",
        ),
    ],
)
def test_pods_do_not_reach_beyond_themselves(
    admin: httpx.Client, account: httpx.Client, pod: dict[str, Any], words: str
) -> None:
    refused(applied(account, deployed(pod), dry=True), words)
    taken(applied(admin, deployed(pod), dry=True))


def test_neither_does_the_pod_of_a_preflight(admin: httpx.Client, account: httpx.Client) -> None:
    _, job = checked({"hostPID": True})
    job["metadata"]["name"] += "-2"  # a Job's template is immutable
    refused(applied(account, job, dry=True), "host namespaces")
    taken(applied(admin, job, dry=True))


def test_other_accounts_are_not_concerned(admin: httpx.Client) -> None:
    item = {**secret("mine"), "type": "Opaque"}
    taken(applied(admin, item))
    taken(admin.delete(path_of(item)))


@pytest.fixture
def writer(
    api_server: ControlPlane, admin: httpx.Client, account: httpx.Client
) -> Iterator[httpx.Client]:
    """An account of the team in whose name the operator writes, with the chart's role for it."""
    assert account, "the roles and policies are in force"
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
    body = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": WRITER, "namespace": TEAM},
        "roleRef": {**reference, "name": f"{RELEASE}-writer"},
        "subjects": [{"kind": "ServiceAccount", "name": WRITER, "namespace": TEAM}],
    }
    api.apply(admin, PATHS["RoleBinding"].format(**body["metadata"]), body)
    with api.client(api_server.kubeconfig) as client:
        client.headers["Impersonate-User"] = f"system:serviceaccount:{TEAM}:{WRITER}"
        api.wait_for(
            "the role is in force",
            lambda: applied(client, own_secret(), dry=True).is_success,
            READY_SECONDS,
        )
        yield client


def test_accounts_that_the_operator_impersonates_are_limited_alike(
    admin: httpx.Client, writer: httpx.Client
) -> None:
    for item in (own_secret(), service(builders.pipeline(namespace=TEAM)), deployed()):
        taken(applied(writer, item))
        taken(writer.delete(path_of(item)))
    foreign = secret("db2")
    taken(applied(admin, foreign))
    refused(merged(writer, foreign, {}), "objects that belong to an InferencePipeline")
    refused(applied(writer, deployed({"hostPID": True}), dry=True), "host namespaces")
    outside = {**deployed(), "metadata": {"name": "payments", "namespace": TEAM}}
    refused(applied(writer, outside), "its labels and an InferencePipeline")
    elsewhere = own_secret()
    elsewhere["metadata"]["namespace"] = RELEASE
    assert applied(writer, elsewhere, dry=True).status_code == 403


def test_the_operator_impersonates_only_accounts_of_the_list(
    admin: httpx.Client, account: httpx.Client
) -> None:
    assert account, "the roles are in force"
    for name, allowed in ((WRITER, True), ("default", False)):
        attributes = {
            "verb": "impersonate",
            "resource": "serviceaccounts",
            "name": name,
            "namespace": TEAM,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{RELEASE}:{RELEASE}",
                "resourceAttributes": attributes,
            },
        }
        answer = admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review)
        assert answer.json()["status"]["allowed"] is allowed
