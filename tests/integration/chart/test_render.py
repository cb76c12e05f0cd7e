"""What the chart renders.

The tests cover lint, schemas, the operator's own reading of its settings, and equality with the
kustomize manifests.
"""

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from e2e.local import binaries
from hack import chart
from hack.dashboards import grafana
from tests.support import libyaml
from tests.support.chart import environment, operator_container
from triton_pipelines.api import names
from triton_pipelines.app.config import ENV_PREFIX, OperatorConfig, load_config

pytestmark = pytest.mark.integration

CI_VALUES = sorted((chart.CHART / "ci").glob("*-values.yaml"))
SCHEMA_VERSIONS = ("1.30", "1.36")
NO_SCHEMA = {"PodMonitor", "PrometheusRule"}
"""Kinds of other projects: no schema in kubernetes-validate."""


def render(values: str, *arguments: str) -> list[dict[str, Any]]:
    return chart.render("--values", str(chart.CHART / "ci" / f"{values}-values.yaml"), *arguments)


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in objects if item["kind"] == kind]


def deployment(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = of_kind(objects, "Deployment")
    return found


def operator_config(objects: list[dict[str, Any]]) -> OperatorConfig:
    """Return the configuration that the operator reads from the rendered environment.

    The environment is set as the kubelet would set it.
    """
    return load_config(
        {}, environment(objects, namespace=chart.NAMESPACE, pod="triton-pipelines-0")
    )


@pytest.mark.parametrize("path", CI_VALUES, ids=lambda path: path.name)
def test_lint_is_strictly_clean(path: Path) -> None:
    command = [binaries.path_of("helm"), "lint", "--strict", chart.CHART, "--values", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", SCHEMA_VERSIONS)
@pytest.mark.parametrize("path", CI_VALUES, ids=lambda path: path.name)
def test_objects_fit_the_schemas_of_kubernetes(path: Path, version: str) -> None:
    objects = chart.render("--values", str(path), "--kube-version", f"{version}.0")
    assert objects
    for item in objects:
        if item["kind"] not in NO_SCHEMA:
            kubernetes_validate.validate(item, version, strict=True)


def test_every_object_is_labelled_and_in_its_namespace() -> None:
    cluster_scoped = {
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    for item in (*render("full"), *render("default")):
        labels = item["metadata"]["labels"]
        assert labels[names.LABEL_NAME] == names.APP, item["metadata"]["name"]
        # This label identifies children of pipelines. The operator's own objects must not match it.
        assert labels[names.LABEL_MANAGED_BY] != names.MANAGED_BY
        assert ("namespace" in item["metadata"]) == (item["kind"] not in cluster_scoped), item[
            "kind"
        ]


def test_crd_in_the_chart_is_the_generated_one() -> None:
    (installed,) = of_kind(render("default"), "CustomResourceDefinition")
    (source,) = (
        libyaml.load(path.read_text())
        for path in chart.CRDS.glob("*.yaml")
        if path.name != "kustomization.yaml"
    )
    assert installed["spec"] == source["spec"]
    assert installed["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (removed,) = of_kind(render("full"), "CustomResourceDefinition")
    assert "annotations" not in removed["metadata"]
    assert not of_kind(render("minimal"), "CustomResourceDefinition")


def test_braces_survive_the_template_engine(tmp_path: Path) -> None:
    text = (
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: "
        "things.example.com\n  annotations:\n"
        "    example.com/x: '{{ .Values }}'\nspec:\n  description: 'a {{ template }} }} and "
        "{{{nested}}}'\n"
    )
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: braces\nversion: 0.1.0\n")
    (tmp_path / "values.yaml").write_text("crds: {enabled: true, keep: true}\n")
    (tmp_path / "templates" / "_helpers.tpl").write_text(
        '{{- define "triton-pipelines.labels" -}}\na: b\n{{- end -}}\n'
    )
    (tmp_path / "templates" / "crd.yaml").write_text(chart.crd_template(text, "crds/things.yaml"))
    command = [binaries.path_of("helm"), "template", "x", tmp_path]
    rendered = yaml.safe_load(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    source = yaml.safe_load(text)
    assert rendered["spec"] == source["spec"]
    assert rendered["metadata"]["annotations"] == {
        **source["metadata"]["annotations"],
        "helm.sh/resource-policy": "keep",
    }


def test_default_values_are_the_operators_own_defaults() -> None:
    config = operator_config(render("default"))
    image = operator_container(render("default"))["image"]
    expected = OperatorConfig(
        instance="triton-pipelines-0",
        operator_namespace=chart.NAMESPACE,
        loader_image=image,
        leader_elect=True,
        leader_elect_lease="triton-pipelines",
    )
    assert config == expected


def test_full_values_reach_the_operator() -> None:
    config = operator_config(render("full"))
    registry = "registry.example.com:5000/nvidia/tritonserver"
    families = {
        "vllm": f"{registry}:25.03-vllm-python-py3",
        "tensorrtllm": f"{registry}:25.03-trtllm-python-py3",
    }
    assert dict(config.images) == {"default": f"{registry}:25.03-py3", **families}
    assert (config.render_options.server_image, dict(config.render_options.family_images)) == (
        f"{registry}:25.03-py3",
        families,
    )
    assert config.loader_image == "registry.example.com:5000/mirror/triton-pipelines:0.1.0-loader"
    assert config.image_pull_policy == "Always"
    assert config.source_map == (
        "hf://=https://hub.example.com",
        "s3://models/=https://mirror.example.com/models/",
    )
    assert config.substitute_runner == {"onnxruntime_onnx"}
    assert (config.custom_code, config.pod_template) == ("forbid", "forbid")
    assert (config.workers, config.max_concurrent_rollouts, config.api_max_in_flight) == (16, 2, 64)
    assert (
        config.resync_seconds,
        config.relist_seconds,
        config.api_timeout_seconds,
        config.shutdown_seconds,
    ) == (300, 120, 12.5, 45)
    assert config.metrics_authentication == "token"
    assert config.metrics_tls_folder == Path("/etc/tritonpipe/metrics-tls")
    assert (config.metrics_port, config.liveness_port, config.log_level) == (9090, 9091, "debug")
    assert (config.operator_key_secret, config.operator_key_file) == (
        "tritonpipe-key",
        Path("/etc/tritonpipe/operator/operator-key"),
    )
    assert dict(config.monitoring_labels) == {"release": "prometheus", "team": "nlp"}
    assert config.docs_url == "https://docs.example.org/triton-pipelines/"
    assert config.monitoring_auto == (), "the chart makes one of each for all pipelines"
    assert config.cluster_wide
    assert operator_config(render("namespaced")).namespaces == ("team-a", "team-b")


def test_every_option_of_the_operator_can_be_set() -> None:
    # Not for a pod in a cluster: addresses to bind, a kubeconfig, and how long to wait for the
    # kubelet's own mounting.
    inside = {"kubeconfig", "context", "metrics_host", "liveness_host", "operator_key_wait_seconds"}
    rendered = {
        item["name"]
        for values in ("full", "namespaced")
        for item in operator_container(render(values))["env"]
    }
    settable = {
        name.removeprefix(ENV_PREFIX).lower() for name in rendered if name.startswith(ENV_PREFIX)
    }
    assert settable == OperatorConfig.model_fields.keys() - inside


def test_pod_agrees_with_the_configuration() -> None:
    objects = render("full")
    config, main = operator_config(objects), operator_container(objects)
    pod = deployment(objects)["spec"]["template"]["spec"]
    assert {port["name"]: port["containerPort"] for port in main["ports"]} == {
        "metrics": 9090,
        "liveness": 9091,
    }
    assert {main[probe]["httpGet"]["port"] for probe in ("livenessProbe", "startupProbe")} == {
        "liveness"
    }
    mounts = {mount["mountPath"]: mount["name"] for mount in main["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    key = volumes[mounts[str(config.operator_key_file.parent)]]["secret"]
    assert (key["secretName"], key["optional"]) == (config.operator_key_secret, True)
    assert pod["terminationGracePeriodSeconds"] > config.shutdown_seconds


def test_replicas_elect_a_leader_and_are_spread() -> None:
    for values, replicas in (("default", 1), ("full", 2)):
        objects = render(values)
        config, spec = operator_config(objects), deployment(objects)["spec"]
        assert spec["replicas"] == replicas
        # A new pod stands by before an old one ends, so at least two meet: they need the election.
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        assert config.leader_elect
        (rule,) = (
            rule
            for role in of_kind(objects, "Role")
            for rule in role["rules"]
            if "leases" in rule["resources"] and "resourceNames" in rule
        )
        assert (rule["resourceNames"], rule["verbs"]) == (
            [config.leader_elect_lease],
            ["get", "update"],
        )
        budgets = of_kind(objects, "PodDisruptionBudget")
        spread = spec["template"]["spec"].get("topologySpreadConstraints", [])
        assert len(budgets) == len(spread) == replicas - 1
        for selector in (budget["spec"]["selector"] for budget in budgets):
            assert selector == spec["selector"]
    timing = operator_config(render("full")).lease_timing
    assert (timing.duration, timing.renew_deadline, timing.retry_period) == (30, 20.0, 4.0)


def test_pod_is_the_one_that_pipelines_let_in() -> None:
    for values in ("default", "full"):
        labels = deployment(render(values))["spec"]["template"]["metadata"]["labels"]
        assert (
            labels.items()
            >= {names.LABEL_NAME: names.APP, names.LABEL_COMPONENT: "operator"}.items()
        )


def test_pod_labels_cannot_take_it_away_from_its_selector() -> None:
    found = deployment(
        render("default", "--set-string", r"podLabels.app\.kubernetes\.io/component=other")
    )
    assert found["spec"]["template"]["metadata"]["labels"][names.LABEL_COMPONENT] == "operator"


def test_only_the_operator_gets_a_token() -> None:
    objects = render("default")
    (account,) = of_kind(objects, "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert deployment(objects)["spec"]["template"]["spec"]["automountServiceAccountToken"] is True


def test_namespaced_installation_has_no_cluster_role() -> None:
    objects = render("namespaced")
    assert not of_kind(objects, "ClusterRole")
    assert not of_kind(objects, "ClusterRoleBinding")
    assert sorted(item["metadata"]["namespace"] for item in of_kind(objects, "Role")) == [
        "team-a",
        "team-b",
        chart.NAMESPACE,
    ]


REFUSED = [
    (["--set", "imagee.tag=x"], "imagee"),
    (["--set", "operator.worker=3"], "worker"),
    (["--set", "operator.workers=0"], "/operator/workers"),
    (["--set", "operator.customCode=maybe"], "/operator/customCode"),
    (["--set", "watch.namespaces={team-*}"], "/watch/namespaces/0"),
    (["--set", "operator.sourceMap={hf://}"], "/operator/sourceMap/0"),
    (["--set", "image.digest=abc"], "/image/digest"),
    (["--set", "metrics.authentication=token"], "tlsSecret"),
    (["--set", "metrics.podMonitor.interval=soon"], "/metrics/podMonitor/interval"),
    (["--set", "monitoring.podMonitor.interval=5"], "/monitoring/podMonitor/interval"),
    (["--set", 'monitoring.docsUrl=https://a"b'], "/monitoring/docsUrl"),
    (["--set", "prometheus.url=prometheus:9090"], "/prometheus/url"),
    (
        ["--set", "prometheus.url=http://a", "--set", "prometheus.connections[0].url=http://b"],
        "prometheus.url and prometheus.connections are both set",
    ),
    (
        ["--set", "serviceAccount.create=false"],
        "serviceAccount.name is needed with serviceAccount.create=false",
    ),
    (["--kube-version", "1.29.0"], "requires kubeVersion"),
]


@pytest.mark.parametrize(("arguments", "named"), REFUSED, ids=[case[1] for case in REFUSED])
def test_wrong_values_are_refused_by_name(arguments: list[str], named: str) -> None:
    with pytest.raises(chart.ChartError) as caught:
        chart.render(*arguments)
    assert named in str(caught.value)


def kustomize(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    command = [binaries.path_of("kubectl"), "kustomize", chart.MANIFESTS / folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return by_name([document for document in libyaml.load_all(done.stdout) if document])


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    found = {
        (item["kind"], f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"): item
        for item in objects
    }
    assert len(found) == len(objects)
    return found


def sorted_environment(
    objects: dict[tuple[str, str], dict[str, Any]],
) -> dict[tuple[str, str], dict[str, Any]]:
    for item in objects.values():
        if item["kind"] == "Deployment":
            item["spec"]["template"]["spec"]["containers"][0]["env"].sort(
                key=lambda variable: variable["name"]
            )
    return objects


@pytest.mark.parametrize(
    ("folder", "arguments"),
    [("base", []), ("overlays/namespaced", ["--set", f"watch.namespaces={{{chart.NAMESPACE}}}"])],
    ids=["base", "namespaced"],
)
def test_kustomize_installs_what_the_chart_installs(folder: str, arguments: list[str]) -> None:
    from_kustomize = kustomize(folder)
    namespace = from_kustomize.pop(("Namespace", f"/{chart.NAMESPACE}"))
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    crd = ("CustomResourceDefinition", f"/{names.PLURAL}.{names.GROUP}")
    from_chart = by_name([chart.without_helm_labels(item) for item in chart.render(*arguments)])
    assert from_kustomize.pop(crd)["spec"] == from_chart.pop(crd)["spec"]
    assert sorted_environment(from_kustomize) == sorted_environment(from_chart)


def test_dashboards_are_those_of_kustomize_with_the_addresses_of_the_values() -> None:
    made = [
        item
        for item in of_kind(render("full"), "ConfigMap")
        if item["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    from_kustomize = kustomize("monitoring")
    assert len(made) == 2
    for item in made:
        name = item["metadata"]["name"].replace("tritonpipe-", "triton-pipelines-")
        other = from_kustomize["ConfigMap", f"{chart.NAMESPACE}/{name}"]
        expected = {
            key: text.replace(grafana.DOCS_URL, "https://docs.example.org/triton-pipelines")
            for key, text in other["data"].items()
        }
        assert item["data"] == expected
        assert item["data"] != other["data"]
        assert item["metadata"]["annotations"] == {"grafana_folder": "Inference"}
        assert item["metadata"]["labels"]["folder"] == "inference"


def test_kustomize_files_are_up_to_date() -> None:
    stale = chart.differences(chart.rendered_from_chart())
    assert [str(path.relative_to(chart.ROOT)) for path in stale] == [], "run `python -m hack.chart`"
