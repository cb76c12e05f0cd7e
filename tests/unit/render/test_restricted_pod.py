"""What a restricted ``server.podTemplate`` may not give a pod, and what it still may."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.builders import built, options
from tests.support.podtemplates import SIDECAR, TRITON, templated
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.graph.options import PodTemplateMode
from triton_pipelines.compile.render import review

FIELD = "spec.server.podTemplate"
ALLOWED = options(pod_template=PodTemplateMode.ALLOW)
RESTRICTED = options()


def findings(template: Any, given: Options = RESTRICTED, **changes: Any) -> list[str]:
    one = templated(template, given, **changes)
    return [
        str(finding) for finding in (*one.findings, *review(one.pipeline, one.graph, one.options))
    ]


def of_spec(given: Options = RESTRICTED, **changes: Any) -> list[str]:
    return [str(finding) for finding in built(given, **changes).findings]


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


def sidecar(**fields: Any) -> dict[str, Any]:
    return pod(containers=[{**SIDECAR, **fields}])


def volume(**kind: Any) -> dict[str, Any]:
    return pod(volumes=[{"name": "x", **kind}])


REFUSED: list[tuple[Any, str]] = [
    (pod(hostNetwork=True), "spec.hostNetwork"),
    (pod(hostPID=True), "spec.hostPID"),
    (pod(hostIPC=True), "spec.hostIPC"),
    (pod(nodeName="node-1"), "spec.nodeName"),
    (volume(hostPath={"path": "/"}), "spec.volumes[x].hostPath"),
    (volume(nfs={"server": "s", "path": "/"}), "spec.volumes[x].nfs"),
    (
        volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}),
        "spec.volumes[x].projected.sources[0].serviceAccountToken",
    ),
    (
        volume(projected={"sources": [{"podCertificate": {"keyType": "RSA", "signerName": "s"}}]}),
        "spec.volumes[x].projected.sources[0].podCertificate",
    ),
    (
        pod(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
        "spec.securityContext.sysctls[0]",
    ),
    (
        pod(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        "spec.securityContext.seccompProfile.type",
    ),
    (
        pod(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
        "spec.securityContext.appArmorProfile.type",
    ),
    (
        pod(securityContext={"seLinuxOptions": {"type": "spc_t"}}),
        "spec.securityContext.seLinuxOptions.type",
    ),
    (
        pod(securityContext={"seLinuxOptions": {"user": "system_u"}}),
        "spec.securityContext.seLinuxOptions.user",
    ),
    (
        pod(securityContext={"windowsOptions": {"hostProcess": True}}),
        "spec.securityContext.windowsOptions.hostProcess",
    ),
    (
        sidecar(ports=[{"containerPort": 80, "hostPort": 80}]),
        "spec.containers[proxy].ports[0].hostPort",
    ),
    (
        sidecar(livenessProbe={"httpGet": {"port": 80, "host": "10.0.0.1"}}),
        "spec.containers[proxy].livenessProbe.httpGet.host",
    ),
    (
        sidecar(lifecycle={"preStop": {"tcpSocket": {"port": 80, "host": "10.0.0.1"}}}),
        "spec.containers[proxy].lifecycle.preStop.tcpSocket.host",
    ),
    (pod(serviceAccountName="deployer"), "spec.serviceAccountName"),
    (pod(serviceAccount="deployer"), "spec.serviceAccount"),
]
SECURITY: list[tuple[dict[str, Any], str]] = [
    ({"privileged": True}, "privileged"),
    ({"capabilities": {"add": ["SYS_ADMIN"]}}, "capabilities.add"),
    ({"procMount": "Unmasked"}, "procMount"),
    ({"seccompProfile": {"type": "Unconfined"}}, "seccompProfile.type"),
    ({"windowsOptions": {"hostProcess": True}}, "windowsOptions.hostProcess"),
]


@pytest.mark.parametrize(("template", "path"), REFUSED, ids=[path for _, path in REFUSED])
def test_what_reaches_beyond_the_pod_is_refused(template: Any, path: str) -> None:
    (reported,) = findings(template)
    assert reported.startswith(f"{FIELD}.{path}: ")
    assert "ask the operator's administrator" in reported
    assert "--pod-template=allow" in reported or "--service-accounts" in reported
    assert findings(template, ALLOWED) == []


@pytest.mark.parametrize(("security", "field"), SECURITY, ids=[field for _, field in SECURITY])
@pytest.mark.parametrize(
    ("part", "container"),
    [
        ("containers", TRITON),
        ("containers", SIDECAR),
        ("initContainers", {"name": "before", "image": "x:1"}),
    ],
)
def test_no_container_has_rights_on_its_node(
    part: str, container: dict[str, Any], security: dict[str, Any], field: str
) -> None:
    template = pod(**{part: [{**container, "securityContext": security}]})
    (reported,) = findings(template)
    assert reported.startswith(
        f"{FIELD}.spec.{part}[{container['name']}].securityContext.{field}: "
    )
    assert findings(template, ALLOWED) == []


@pytest.mark.parametrize(
    "template",
    [
        pod(hostNetwork=False, serviceAccountName="default", hostUsers=False),
        pod(securityContext={"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}),
        pod(securityContext={"seccompProfile": {"type": "RuntimeDefault"}, "fsGroup": 7}),
        sidecar(securityContext={"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}),
        sidecar(securityContext={"procMount": None, "seLinuxOptions": {"type": "container_t"}}),
        sidecar(ports=[{"containerPort": 80}], envFrom=[{"configMapRef": {"name": "a"}}]),
        sidecar(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
        volume(secret={"secretName": "tls"}),
        volume(persistentVolumeClaim={"claimName": "lookup"}),
        volume(projected={"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "tls"}}]}),
        volume(image={"reference": "registry.example/data:1"}),
        {"metadata": {"annotations": {"prometheus.io/scrape": "true"}}},
        {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "inference"}}},
        pod(nodeSelector={"pool": "gpu"}, tolerations=[{"operator": "Exists"}]),
    ],
)
def test_ordinary_settings_stay_allowed(template: Any) -> None:
    assert findings(template) == []


def test_the_label_of_a_queue_reaches_the_pods_of_a_restricted_pipeline() -> None:
    label = {"kueue.x-k8s.io/queue-name": "inference"}
    made = built(server={"podTemplate": {"metadata": {"labels": label}}}).render().template
    assert made["metadata"]["labels"].items() >= label.items()


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_labels_and_annotations_are_on_a_list(part: str) -> None:
    template = {"metadata": {part: {"app": "payments"}}}
    (reported,) = findings(template)
    assert reported.startswith(f"{FIELD}.metadata.{part}[app]: not allowed, because ")
    assert "--pod-metadata" in reported
    assert findings(template, options(pod_metadata=("ap*",))) == []
    assert findings(template, options(pod_metadata=("example.com/*",))) == [reported]
    assert findings(template, ALLOWED) == []


def test_service_accounts_are_on_a_list() -> None:
    changes: dict[str, Any] = {"server": {"serviceAccountName": "deployer"}}
    assert of_spec(**changes) == [
        "spec.server.serviceAccountName: pipelines cannot use service account 'deployer'; "
        "use default, or ask the operator's administrator to add 'deployer' to "
        "--service-accounts"
    ]
    listed = options(service_accounts=("deployer",))
    assert of_spec(listed, **changes) == []
    assert findings(pod(serviceAccountName="deployer"), listed) == []
    assert of_spec(ALLOWED, **changes) == []
    assert of_spec(options(pod_template=PodTemplateMode.FORBID), **changes) != []
    # The name of a pipeline is chosen by its author, so it is not allowed by itself.
    assert of_spec(**changes, name="deployer") != []


SECRETS = [
    ("sh.helm.release.v1.app.v1", "is the Secret of a Helm release"),
    ("deployer-token-x7k2p", "contains the token of a service account"),
    ("other-0123456789", "has the name of a pipeline's control key"),
]


@pytest.mark.parametrize(("name", "words"), SECRETS)
def test_some_secrets_stay_outside_of_pods(name: str, words: str) -> None:
    key = {"secretKeyRef": {"name": name, "key": "k"}}
    control_key = [{"name": "TRITONPIPE_CONTROL_KEY", "valueFrom": key}]
    places: list[tuple[Any, str]] = [
        (sidecar(env=control_key), "containers[proxy].env[TRITONPIPE_CONTROL_KEY]"),
        (sidecar(envFrom=[{"secretRef": {"name": name}}]), "containers[proxy].envFrom[0]"),
        (volume(secret={"secretName": name}), "volumes[x].secret"),
        (volume(projected={"sources": [{"secret": {"name": name}}]}), "volumes[x].projected"),
        (
            volume(csi={"driver": "d", "nodePublishSecretRef": {"name": name}}),
            "volumes[x].csi.nodePublishSecretRef",
        ),
    ]
    for template, path in places:
        (reported,) = findings(template)
        assert reported.startswith(f"{FIELD}.spec.{path}"), reported
        assert f"Secret {name} {words}" in reported
        assert findings(template, ALLOWED) == []
    env = {"env": [{"name": "A", "valueFrom": key}]}
    (reported,) = of_spec(server=env)
    assert reported.startswith("spec.server.env[0].valueFrom.secretKeyRef.name: ")
    source = {"uri": "https://models.example/m.onnx", "secretRef": {"name": name}}
    (reported,) = of_spec(model={"source": source})
    assert reported.startswith("spec.model.source.secretRef.name: ")
    assert of_spec(ALLOWED, model={"source": source}) == []


def test_the_operator_key_stays_outside_of_pods() -> None:
    template = volume(secret={"secretName": "triton-pipelines-operator-key"})
    assert findings(template) == []
    (reported,) = findings(template, namespace="triton-pipelines")
    assert "is the operator key" in reported


def test_the_hash_of_a_generated_secret_is_not_taken_for_a_revision() -> None:
    assert findings(volume(secret={"secretName": "tls-bcdf245678"})) == []


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ({"configMapRef": {"name": "a"}}, True),
        ({"configMapRef": {"name": "a"}, "prefix": "TRITONPIPE"}, True),
        ({"configMapRef": {"name": "a"}, "prefix": "TRITONPIPE_X"}, True),
        ({"configMapRef": {"name": "a"}, "prefix": "NVIDIA_"}, True),
        ({"secretRef": {"name": "a"}, "prefix": "APP_"}, False),
    ],
)
@pytest.mark.parametrize(
    ("part", "container"), [("containers", "triton"), ("initContainers", "load")]
)
def test_sources_of_variables_cannot_set_reserved_ones(
    part: str, container: str, source: dict[str, Any], refused: bool
) -> None:
    template = pod(**{part: [{"name": container, "envFrom": [source]}]})
    reported = findings(template)
    assert [line.partition(": ")[0] for line in reported] == (
        [f"{FIELD}.spec.{part}[{container}].envFrom[0].prefix"] if refused else []
    )
    assert findings(template, ALLOWED) == []
