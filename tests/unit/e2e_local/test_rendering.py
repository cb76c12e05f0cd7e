"""Certificates, flags and configuration files of control plane and node."""

import base64
import datetime
import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.local import control, node, pki
from e2e.local.images import PAUSE_IMAGE, build, buildah
from e2e.local.network import Subnets

NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
CONTROL = control.ControlSpec(
    name="tritonpipe-x",
    folder=Path("/state/control"),
    binaries=Path("/bin"),
    advertise_address="10.99.2.2",
    api_port=6443,
    etcd_port=2379,
    etcd_peer_port=2380,
    service_range="10.96.32.0/20",
    node_name="x-node",
)
NODE = node.NodeSpec(
    name="x-node",
    cluster="x",
    state=Path("/state"),
    control=Path("/state/control"),
    binaries=Path("/bin"),
    subnets=Subnets(2),
)


@pytest.fixture(scope="module")
def written() -> dict[str, bytes]:
    return dict(control.files(CONTROL, NOW))


def client_certificate(kubeconfig: bytes) -> x509.Certificate:
    user = yaml.safe_load(kubeconfig)["users"][0]["user"]
    return x509.load_pem_x509_certificate(base64.b64decode(user["client-certificate-data"]))


def test_api_server_certificate_covers_every_way_to_it(written: dict[str, bytes]) -> None:
    certificate = x509.load_pem_x509_certificate(written["apiserver.crt"])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(address) for address in names.get_values_for_type(x509.IPAddress)} == {
        "127.0.0.1",
        "10.96.32.1",
        "10.99.2.2",
    }
    assert {"localhost", "kubernetes.default.svc"} <= set(names.get_values_for_type(x509.DNSName))
    assert (
        certificate.not_valid_before_utc < NOW < certificate.not_valid_after_utc == NOW + pki.VALID
    )


@pytest.mark.parametrize(
    ("file", "user", "groups"),
    [
        ("admin", "admin", ["system:masters"]),
        ("controller-manager", "system:kube-controller-manager", []),
        ("scheduler", "system:kube-scheduler", []),
        ("proxy", "system:kube-proxy", []),
        ("kubelet", "system:node:x-node", ["system:nodes"]),
    ],
)
def test_client_identities(
    written: dict[str, bytes], file: str, user: str, groups: list[str]
) -> None:
    certificate = client_certificate(written[f"{file}.kubeconfig"])
    authority = x509.load_pem_x509_certificate(written["ca.crt"])
    certificate.verify_directly_issued_by(authority)
    subject = certificate.subject
    assert [part.value for part in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [user]
    assert [
        part.value for part in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    ] == groups
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)


def test_context_is_named_after_the_cluster(written: dict[str, bytes]) -> None:
    document = yaml.safe_load(written["admin.kubeconfig"])
    assert document["current-context"] == "tritonpipe-x"
    assert document["clusters"][0]["cluster"]["server"] == "https://10.99.2.2:6443"


def test_files_are_private(tmp_path: Path) -> None:
    control.write_files(replace(CONTROL, folder=tmp_path / "control"), NOW)
    files = list((tmp_path / "control").iterdir())
    assert len(files) > 10
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_every_file_named_in_a_flag_is_written(written: dict[str, bytes]) -> None:
    spec = replace(CONTROL, audit_log=Path("/log/audit"))
    names = control.files(spec, NOW).keys()
    folders = {"etcd", "apiserver", "controller-manager", "scheduler"}
    for command in (
        control.api_server_command,
        control.controller_manager_command,
        control.scheduler_command,
    ):
        for flag in command(spec):
            value = Path(flag.partition("=")[2])
            if value.is_relative_to(spec.folder) and value.name not in folders:
                assert value.name in names, flag


def test_bare_api_server_can_create_pods() -> None:
    off = "--disable-admission-plugins=ServiceAccount"
    assert off in control.api_server_command(replace(CONTROL, controllers=False))
    assert off not in control.api_server_command(CONTROL)


def test_options_of_the_api_server() -> None:
    assert not [
        flag
        for flag in control.api_server_command(CONTROL)
        if "audit" in flag or "inflight" in flag
    ]
    spec = replace(
        CONTROL, audit_log=Path("/log/audit"), flow_control=False, extra_api_server_flags=("--v=4",)
    )
    command = control.api_server_command(spec)
    assert {"--audit-log-path=/log/audit", "--max-mutating-requests-inflight=0"} <= set(command)
    assert command[-1] == "--v=4"


def test_containerd_configuration() -> None:
    document = tomllib.loads(node.containerd_config(NODE))
    images, cri = (
        document["plugins"][f"io.containerd.cri.v1.{name}"] for name in ("images", "runtime")
    )
    assert document["version"] == 3
    assert document["grpc"]["address"] == "/state/run/containerd.sock"
    assert images["pinned_images"] == {"sandbox": PAUSE_IMAGE}
    assert cri["restrict_oom_score_adj"] is True
    runc = cri["containerd"]["runtimes"]["runc"]
    assert runc["options"] == {"SystemdCgroup": False}
    assert cri["cni"]["conf_dir"] == "/state/etc/cni"
    # Neither comes from a package of the machine.
    assert node.containerd_command(NODE)[0] == "/bin/containerd"
    assert runc["runtime_path"] == "/bin/containerd-shim-runc-v2"


def test_pod_network() -> None:
    document = json.loads(node.files(NODE)["etc/cni/10-pods.conflist"])
    assert [plugin["type"] for plugin in document["plugins"]] == ["ptp", "portmap"]
    assert document["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.244.2.0/24"}]]


def test_kubelets_of_two_clusters_do_not_share_control_groups() -> None:
    other = replace(NODE, cluster="y")
    assert node.kubelet_config(NODE)["cgroupRoot"] != node.kubelet_config(other)["cgroupRoot"]


def test_taint_is_an_option() -> None:
    assert "registerWithTaints" not in node.kubelet_config(NODE)
    tainted: dict[str, Any] = node.kubelet_config(replace(NODE, gpu_taint=True))
    assert tainted["registerWithTaints"] == [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    ]


def test_node_is_labelled_as_one_with_gpus() -> None:
    labels = next(flag for flag in node.kubelet_command(NODE) if flag.startswith("--node-labels="))
    assert labels == "--node-labels=nvidia.com/gpu.present=true,nvidia.com/gpu.product=Fake-GPU"


def test_pip_secret_takes_what_reaches_the_index_and_nothing_else() -> None:
    listing = """:env:.index-url='https://mirror.example/simple'
:env:.find-links='/opt/wheels'
:env:.cert='/etc/ssl/ca.crt'
global.index-url='https://other.example/simple'
global.timeout='60'
freeze.timeout='10'
install.trusted-host='mirror.example'
"""
    lines = buildah.pip_secret(listing).splitlines()
    assert lines[0] == "[global]"
    assert sorted(lines[1:]) == [
        "index-url = https://mirror.example/simple",
        "timeout = 60",
        "trusted-host = mirror.example",
    ]


def test_operator_image_depends_on_its_sources(tmp_path: Path) -> None:
    names = (
        "operator/pkg/a.py",
        "operator/pkg/__pycache__/a.pyc",
        "operator/x.egg-info/PKG-INFO",
        "docs/index.md",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    inputs = {str(path.relative_to(tmp_path)) for path in build.operator_inputs(tmp_path)}
    assert {name for name in names if name in inputs} == {"operator/pkg/a.py"}
    assert {"Dockerfile", "pyproject.toml", "requirements/operator.txt"} <= inputs
