"""The chart on a real API server.

Helm installs, upgrades and removes it. The tests cover what its roles allow, and its pod under the
restricted standard.
"""

import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from e2e.local import api, binaries
from hack import chart
from tests.support.controlplane import ControlPlane
from triton_pipelines.cluster import resources
from triton_pipelines.cluster.resources import Resource

pytestmark = pytest.mark.integration

RELEASE = "triton-pipelines"
CRD_PATH = (
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferencepipelines.tritonpipelines.io"
)
WRITTEN = ("get", "list", "watch", "create", "update", "patch", "delete")
CHILDREN = tuple(resource for resource in resources.WATCHED_CHILDREN if resource != resources.PODS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    """Start a separate control plane.

    The chart installs cluster-wide objects that would interfere with other tests.
    """
    with ControlPlane(controllers=True) as plane:
        yield plane


@pytest.fixture(scope="module")
def connection(cluster: ControlPlane) -> Iterator[httpx.Client]:
    with api.client(cluster.kubeconfig) as client:
        for name in ("team-a", "team-b"):
            api.apply(
                client,
                f"/api/v1/namespaces/{name}",
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
            )
        yield client


def helm(cluster: ControlPlane, *arguments: str) -> str:
    command = [str(binaries.path_of("helm")), f"--kubeconfig={cluster.kubeconfig}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def install(cluster: ControlPlane, release: str, namespace: str, values: str) -> None:
    file = str(chart.CHART / "ci" / f"{values}-values.yaml")
    helm(
        cluster,
        "install",
        release,
        str(chart.CHART),
        f"--namespace={namespace}",
        "--create-namespace",
        f"--values={file}",
    )


@pytest.fixture(scope="module")
def cluster_wide(cluster: ControlPlane, connection: httpx.Client) -> Iterator[str]:
    """User name of the operator's account of a cluster-wide installation."""
    install(cluster, RELEASE, chart.NAMESPACE, "default")
    yield f"system:serviceaccount:{chart.NAMESPACE}:{RELEASE}"
    helm(cluster, "uninstall", RELEASE, f"--namespace={chart.NAMESPACE}")


@pytest.fixture(scope="module")
def namespaced(cluster: ControlPlane, connection: httpx.Client) -> Iterator[str]:
    """User name of the operator's account of an installation for team-a and team-b."""
    install(cluster, "scoped-triton-pipelines", "scoped", "namespaced")
    yield "system:serviceaccount:scoped:scoped-triton-pipelines"
    helm(cluster, "uninstall", "scoped-triton-pipelines", "--namespace=scoped")


def may(
    connection: httpx.Client,
    user: str,
    verb: str,
    resource: Resource,
    namespace: str = "",
    subresource: str = "",
) -> bool:
    attributes = {
        "verb": verb,
        "group": resource.group,
        "version": resource.version,
        "resource": resource.plural,
    }
    review: dict[str, Any] = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user,
            "resourceAttributes": {
                **attributes,
                "namespace": namespace,
                "subresource": subresource,
            },
        },
    }
    answer = connection.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=review)
    answer.raise_for_status()
    allowed: bool = answer.json()["status"]["allowed"]
    return allowed


def rights(connection: httpx.Client, user: str, namespace: str) -> dict[str, set[str]]:
    """Return the verbs that a user holds in a namespace (empty: everywhere), by kind.

    The answer is that of the API server itself.
    """
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
    found = {
        resource.plural: {
            verb for verb in verbs if may(connection, user, verb, resource, namespace)
        }
        for resource in (*resources.ALL, resources.SECRETS)
    }
    for subresource in ("status", "finalizers", "scale"):
        pipelines = resources.INFERENCE_PIPELINES
        found[f"{pipelines.plural}/{subresource}"] = {
            v for v in verbs if may(connection, user, v, pipelines, namespace, subresource)
        }
    found["pods/resize"] = {
        verb for verb in verbs if may(connection, user, verb, resources.PODS, namespace, "resize")
    }
    return {kind: held for kind, held in found.items() if held}


PIPELINE_RIGHTS = {
    "inferencepipelines": {"list", "watch"},
    "inferencepipelines/status": {"patch"},
    "inferencepipelines/finalizers": {"update"},
    **{resource.plural: set(WRITTEN) for resource in CHILDREN},
    **{
        plural: {"get", "list", "create", "update", "patch", "delete"}
        for plural in ("podmonitors", "prometheusrules")
    },
    "jobs": set(WRITTEN) - {"update"},
    "secrets": {"create", "patch", "delete"},
    "replicasets": {"get"},
    "pods": {"get", "list", "watch", "delete"},
    "pods/resize": {"patch"},
    "events": {"create"},
}


def test_cluster_wide_operator_holds_exactly_its_rights(
    connection: httpx.Client, cluster_wide: str
) -> None:
    # Nodes are no namespaced kind, so the review for them ignores the namespace.
    assert rights(connection, cluster_wide, "team-a") == {**PIPELINE_RIGHTS, "nodes": {"list"}}
    assert rights(connection, cluster_wide, "") == {**PIPELINE_RIGHTS, "nodes": {"list"}}
    definitions = Resource("apiextensions.k8s.io", "v1", "", "customresourcedefinitions")
    assert {verb for verb in WRITTEN if may(connection, cluster_wide, verb, definitions)} == {
        "list",
        "watch",
    }
    namespaces = Resource("", "v1", "", "namespaces")
    assert {verb for verb in WRITTEN if may(connection, cluster_wide, verb, namespaces)} == set()


def test_namespaced_operator_holds_its_rights_there_alone(
    connection: httpx.Client, namespaced: str
) -> None:
    assert rights(connection, namespaced, "team-a") == PIPELINE_RIGHTS
    assert rights(connection, namespaced, "team-b") == PIPELINE_RIGHTS
    assert rights(connection, namespaced, "scoped") == {"secrets": {"create"}, "leases": {"create"}}
    assert rights(connection, namespaced, "default") == {}
    assert rights(connection, namespaced, "") == {}


def test_the_right_to_resize_pods_can_be_left_out() -> None:
    for settings, there in (((), True), (("--set", "rbac.podResize=false"), False)):
        roles = [
            item
            for item in chart.render(*settings, namespace="ops")
            if item["kind"] in ("ClusterRole", "Role")
        ]
        assert (
            any(
                "pods/resize" in rule.get("resources", ())
                for role in roles
                for rule in role["rules"]
            )
            is there
        )


def test_no_operator_may_read_secrets(
    connection: httpx.Client, cluster_wide: str, namespaced: str
) -> None:
    for user, namespace in (
        (cluster_wide, "team-a"),
        (cluster_wide, chart.NAMESPACE),
        (namespaced, "team-a"),
        (namespaced, "scoped"),
    ):
        assert [
            verb
            for verb in ("get", "list", "watch")
            if may(connection, user, verb, resources.SECRETS, namespace)
        ] == []


PEOPLE = [
    (
        "view",
        {
            "inferencepipelines": {"get", "list", "watch"},
            "status": {"get", "list", "watch"},
            "scale": {"get", "list", "watch"},
        },
    ),
    (
        "edit",
        {
            "inferencepipelines": {
                "get",
                "list",
                "watch",
                "create",
                "update",
                "patch",
                "delete",
                "deletecollection",
            },
            "status": {"get", "list", "watch"},
            "scale": {"get", "list", "watch", "update", "patch"},
        },
    ),
]


@pytest.mark.parametrize(("role", "expected"), PEOPLE, ids=[role for role, _ in PEOPLE])
def test_roles_of_people_include_pipelines(
    connection: httpx.Client, cluster_wide: str, role: str, expected: dict[str, set[str]]
) -> None:
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"people-{role}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"person-{role}"}
        ],
    }
    api.apply(
        connection,
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/team-b/rolebindings/people-{role}",
        binding,
    )

    def held() -> dict[str, set[str]]:
        found = rights(connection, f"person-{role}", "team-b")
        return {
            kind.rpartition("/")[2]: verbs
            for kind, verbs in found.items()
            if kind.startswith("inferencepipelines")
        }

    # The aggregation controller adds the rules within moments.
    api.wait_for(f"aggregated {role}: {expected}", lambda: held() == expected, 20)


def test_pods_are_admitted_under_the_restricted_standard(
    connection: httpx.Client, cluster_wide: str
) -> None:
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "restricted", "labels": labels},
    }
    api.apply(connection, "/api/v1/namespaces/restricted", namespace)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": RELEASE}}
    api.apply(connection, f"/api/v1/namespaces/restricted/serviceaccounts/{RELEASE}", account)
    (deployment,) = (item for item in chart.render() if item["kind"] == "Deployment")
    pod = {"apiVersion": "v1", "kind": "Pod", **deployment["spec"]["template"]}
    pod["metadata"] = {**pod["metadata"], "name": "operator"}
    path, query = "/api/v1/namespaces/restricted/pods", {"dryRun": "All"}
    accepted = connection.post(path, params=query, json=pod)
    assert accepted.status_code == 201, accepted.text
    assert "Warning" not in accepted.headers
    # The standard is really enforced here.
    pod["spec"]["containers"][0]["securityContext"].pop("capabilities")
    refused = connection.post(path, params=query, json=pod)
    assert refused.status_code == 403, refused.text
    assert "unrestricted capabilities" in refused.json()["message"]


def test_server_side_dry_run_takes_every_values_file(
    cluster: ControlPlane, connection: httpx.Client
) -> None:
    for path in sorted((chart.CHART / "ci").glob("*-values.yaml")):
        off = (
            "metrics.podMonitor",
            "monitoring.podMonitor",
            "monitoring.prometheusRule",
        )  # their CRDs belong to another project
        monitor = [f"--set={one}.enabled=false" for one in off]
        helm(
            cluster,
            "install",
            "probe",
            str(chart.CHART),
            "--namespace=default",
            f"--values={path}",
            "--dry-run=server",
            "--set",
            "crds.enabled=false",
            *monitor,
        )


@pytest.fixture
def empty() -> Iterator[ControlPlane]:
    """An API server on which nothing is installed."""
    with ControlPlane() as plane:
        yield plane


def operator_workers(client: httpx.Client, deployment: str) -> str:
    pod = client.get(deployment).json()["spec"]["template"]["spec"]
    environment = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    return str(environment["TRITONPIPE_WORKERS"])


def kept(client: httpx.Client, pipeline: str) -> tuple[str, str]:
    """Return the identities of the CustomResourceDefinition and of a pipeline."""
    found = [client.get(path).raise_for_status().json() for path in (CRD_PATH, pipeline)]
    return found[0]["metadata"]["uid"], found[1]["metadata"]["uid"]


def test_lifecycle_of_a_release_keeps_crd_and_pipelines(empty: ControlPlane) -> None:
    """Install, upgrade, roll back, remove, install again."""
    release = [
        "lifecycle",
        str(chart.CHART),
        "--namespace=lifecycle",
        "--set",
        "fullnameOverride=lifecycle",
    ]
    deployment = "/apis/apps/v1/namespaces/lifecycle/deployments/lifecycle"
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/lifecycle"
    sample = yaml.safe_load((chart.MANIFESTS / "samples" / "sentiment.yaml").read_text())
    pipeline = f"{resources.INFERENCE_PIPELINES.path('default', sample['metadata']['name'])}"
    with api.client(empty.kubeconfig) as client:
        helm(empty, "install", *release, "--create-namespace")
        assert operator_workers(client, deployment) == "8"
        established = "customresourcedefinition/inferencepipelines.tritonpipelines.io"
        subprocess.run(
            [
                empty.kubectl,
                f"--kubeconfig={empty.kubeconfig}",
                "wait",
                "--for=condition=Established",
                established,
            ],
            check=True,
        )
        api.apply(client, pipeline, sample)
        installed = kept(client, pipeline)
        narrowed = ["operator.workers=3", "rbac.podResize=false"]
        helm(empty, "upgrade", *release, *(f"--set={setting}" for setting in narrowed))
        assert operator_workers(client, deployment) == "3"
        assert "pods/resize" not in client.get(role).text
        assert kept(client, pipeline) == installed
        helm(empty, "rollback", "lifecycle", "1", "--namespace=lifecycle")
        assert operator_workers(client, deployment) == "8"
        assert "pods/resize" in client.get(role).text
        assert kept(client, pipeline) == installed
        helm(empty, "uninstall", "lifecycle", "--namespace=lifecycle")
        assert client.get(deployment).status_code == client.get(role).status_code == 404
        assert kept(client, pipeline) == installed
        # Helm adopts the CustomResourceDefinition that the removal kept.
        helm(empty, "install", *release)
        assert operator_workers(client, deployment) == "8"
        assert kept(client, pipeline) == installed


@pytest.mark.parametrize("folder", ["base", "overlays/namespaced"])
def test_kustomize_applies(empty: ControlPlane, folder: str) -> None:
    path = chart.MANIFESTS / folder
    access = [str(empty.kubectl), f"--kubeconfig={empty.kubeconfig}"]
    first = subprocess.run(
        [*access, "apply", "--server-side", "--kustomize", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert first.returncode == 0, first.stderr
    assert "Warning" not in first.stderr
    again = subprocess.run(
        [*access, "diff", "--server-side", "--kustomize", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
