"""Command lines, certificates and files of a Kubernetes control plane.

The bare control plane and the node cluster share them.

Pure but for `write_files`: where the processes run, and how they are watched, is decided by the
callers.
"""

import datetime
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from e2e.local import pki

SYSTEM_MASTERS = "system:masters"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Metadata"},
    ],
}
"""One line per write request, with user, object and response code but without bodies.

That is enough to count mutations.
"""


@dataclass(frozen=True)
class ControlSpec:
    """Everything that decides the files and flags of a control plane.

    Addresses are IP literals; `advertise_address` is what the `kubernetes` Service points at.
    `folder` holds keys, configs and data. `api_server` is the name of its binary.
    `extra_api_server_flags` come last and so win over the defaults.
    """

    name: str
    folder: Path
    binaries: Path
    advertise_address: str
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    service_range: str = "10.96.0.0/16"
    bind_address: str = "127.0.0.1"
    controllers: bool = True
    scheduler: bool = True
    node_name: str | None = None
    controller_manager_port: int = 10257
    scheduler_port: int = 10259
    audit_log: Path | None = None
    flow_control: bool = True
    api_server: str = "kube-apiserver"
    extra_api_server_flags: tuple[str, ...] = field(default=())
    extra_controller_manager_flags: tuple[str, ...] = field(default=())

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://{self.advertise_address}:{self.api_port}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "admin.kubeconfig"


def service_address(service_range: str) -> str:
    """First address of the service range: that of the `kubernetes` Service."""
    return str(ipaddress.ip_network(service_range)[1])


def write_files(spec: ControlSpec, now: datetime.datetime) -> None:
    """Write keys, certificates, kubeconfigs and configuration files below `spec.folder`.

    All of them are readable by the owner only.
    """
    for path, data in files(spec, now).items():
        pki.write_private(spec.folder / path, data)


def files(spec: ControlSpec, now: datetime.datetime) -> Mapping[str, bytes]:
    """The files of a control plane by their path below `spec.folder`."""
    authority = pki.Authority(now)
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1"]
    names += [service_address(spec.service_range), spec.advertise_address]
    private, public = pki.service_account_pair()
    identities = {
        "ca": authority.identity,
        "apiserver": authority.server("kube-apiserver", list(dict.fromkeys(names))),
        "kubelet-client": authority.client("kube-apiserver"),
    }
    clients = {
        "admin": authority.client("admin", [SYSTEM_MASTERS]),
        "controller-manager": authority.client("system:kube-controller-manager"),
        "scheduler": authority.client("system:kube-scheduler"),
        "proxy": authority.client("system:kube-proxy"),
    }
    if spec.node_name:
        clients["kubelet"] = authority.client(f"system:node:{spec.node_name}", ["system:nodes"])
    result = {"sa.key": private, "sa.pub": public}
    for name, identity in identities.items():
        result |= {f"{name}.key": identity.key, f"{name}.crt": identity.certificate}
    for name, identity in clients.items():
        context = spec.name if name == "admin" else name
        result[f"{name}.kubeconfig"] = pki.kubeconfig(
            context, spec.server, authority.identity.certificate, identity
        ).encode()
    result["scheduler.yaml"] = yaml.safe_dump(
        {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(spec.folder / "scheduler.kubeconfig")},
            "leaderElection": {"leaderElect": False},
        }
    ).encode()
    if spec.audit_log:
        result["audit-policy.json"] = json.dumps(AUDIT_POLICY).encode()
    return result


def etcd_command(spec: ControlSpec) -> list[str]:
    """Command line of etcd; it does not wait for the disk, which is for tests alone."""
    client, peer = f"http://127.0.0.1:{spec.etcd_port}", f"http://127.0.0.1:{spec.etcd_peer_port}"
    return [
        str(spec.binaries / "etcd"),
        "--name=n0",
        f"--data-dir={spec.folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=n0={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server_command(spec: ControlSpec) -> list[str]:
    """Command line of kube-apiserver."""
    folder = spec.folder
    command = [
        str(spec.binaries / spec.api_server),
        f"--etcd-servers=http://127.0.0.1:{spec.etcd_port}",
        f"--bind-address={spec.bind_address}",
        f"--advertise-address={spec.advertise_address}",
        f"--secure-port={spec.api_port}",
        f"--service-cluster-ip-range={spec.service_range}",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={folder / 'ca.crt'}",
        f"--tls-cert-file={folder / 'apiserver.crt'}",
        f"--tls-private-key-file={folder / 'apiserver.key'}",
        f"--kubelet-client-certificate={folder / 'kubelet-client.crt'}",
        f"--kubelet-client-key={folder / 'kubelet-client.key'}",
        # Node names do not resolve here; without this `kubectl logs` and `exec` fail.
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'sa.pub'}",
        f"--service-account-signing-key-file={folder / 'sa.key'}",
        f"--cert-dir={folder / 'apiserver'}",
        # No delay: a test that restarts the API server should not wait for a drain that it did not
        # request.
        "--shutdown-delay-duration=0s",
    ]
    if not spec.controllers:
        # No controller makes the default ServiceAccount, without which this plugin refuses every
        # pod.
        command.append("--disable-admission-plugins=ServiceAccount")
    if spec.audit_log:
        command += [
            f"--audit-policy-file={folder / 'audit-policy.json'}",
            f"--audit-log-path={spec.audit_log}",
            "--audit-log-mode=blocking",
        ]
    if not spec.flow_control:
        command += [
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=0",
            "--max-mutating-requests-inflight=0",
        ]
    return [*command, *spec.extra_api_server_flags]


def controller_manager_command(spec: ControlSpec) -> list[str]:
    """Command line of kube-controller-manager."""
    folder = spec.folder
    return [
        str(spec.binaries / "kube-controller-manager"),
        *_kubeconfig_flags(folder / "controller-manager.kubeconfig", "--kubeconfig"),
        f"--service-account-private-key-file={folder / 'sa.key'}",
        f"--root-ca-file={folder / 'ca.crt'}",
        f"--cluster-signing-cert-file={folder / 'ca.crt'}",
        f"--cluster-signing-key-file={folder / 'ca.key'}",
        f"--service-cluster-ip-range={spec.service_range}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--bind-address=127.0.0.1",
        f"--secure-port={spec.controller_manager_port}",
        f"--cert-dir={folder / 'controller-manager'}",
        *spec.extra_controller_manager_flags,
    ]


def scheduler_command(spec: ControlSpec) -> list[str]:
    """Command line of kube-scheduler."""
    return [
        str(spec.binaries / "kube-scheduler"),
        f"--config={spec.folder / 'scheduler.yaml'}",
        *_kubeconfig_flags(spec.folder / "scheduler.kubeconfig"),
        "--bind-address=127.0.0.1",
        f"--secure-port={spec.scheduler_port}",
        f"--cert-dir={spec.folder / 'scheduler'}",
    ]


def _kubeconfig_flags(path: Path, *more: str) -> list[str]:
    return [
        f"{flag}={path}"
        for flag in ("--authentication-kubeconfig", "--authorization-kubeconfig", *more)
    ]
