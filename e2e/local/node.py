"""Configuration files and command lines of the node's components. Pure.

The components are containerd, CNI, kubelet, kube-proxy, the policy agent and the device plugin.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.local.images import PAUSE_IMAGE
from e2e.local.network import Subnets
from e2e.local.packages import CNI_PLUGINS

GPU_RESOURCE = "nvidia.com/gpu"
GPU_TAINT = {"key": GPU_RESOURCE, "value": "present", "effect": "NoSchedule"}
GPU_LABELS = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "Fake-GPU"}
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class NodeSpec:
    """Everything that decides the node's files.

    `state` is the cluster's folder. `control` holds certificates and kubeconfigs.
    """

    name: str
    cluster: str
    state: Path
    control: Path
    binaries: Path
    subnets: Subnets
    gpu_taint: bool = False

    @property
    def containerd_socket(self) -> Path:
        """Where containerd listens."""
        return self.state / "run" / "containerd.sock"

    @property
    def cgroup(self) -> str:
        """Parent of all pods' control groups."""
        return cgroup_of(self.cluster)

    @property
    def gpu_count_file(self) -> Path:
        """The device plugin offers as many GPUs as this file says."""
        return self.state / "gpus" / "count"


def cgroup_of(cluster: str) -> str:
    """Return the parent of the control groups of a cluster's pods.

    Each cluster has its own, because a kubelet kills processes below its root that it does not
    know.
    """
    return f"/triton-pipelines-{cluster}"


def files(spec: NodeSpec) -> Mapping[str, str]:
    """The node's configuration files by their path below `spec.state`."""
    return {
        "etc/containerd.toml": containerd_config(spec),
        "etc/cni/10-pods.conflist": json.dumps(cni_config(spec), indent=2),
        "etc/cni/99-loopback.conf": json.dumps(
            {"cniVersion": "0.4.0", "name": "lo", "type": "loopback"}
        ),
        "etc/kubelet.yaml": yaml.safe_dump(kubelet_config(spec)),
        "etc/kube-proxy.yaml": yaml.safe_dump(kube_proxy_config(spec)),
        # No name server: nothing outside is needed, and a look-up fails at once instead of hanging.
        "etc/resolv.conf": "options timeout:1 attempts:1\n",
    }


def containerd_config(spec: NodeSpec) -> str:
    """Return the configuration of containerd, version 3."""
    images = '[plugins."io.containerd.cri.v1.images"'
    cri = '[plugins."io.containerd.cri.v1.runtime"'
    runtime = f"{cri}.containerd.runtimes.runc"
    return f"""version = 3
root = "{spec.state / "containerd"}"
state = "/run/containerd"

[grpc]
address = "{spec.containerd_socket}"

# The default folder belongs to the machine.
[plugins."io.containerd.internal.v1.opt"]
path = "{spec.state / "containerd" / "opt"}"

{images}]
snapshotter = "overlayfs"

{images}.pinned_images]
sandbox = "{PAUSE_IMAGE}"

{cri}]
# Without CAP_SYS_RESOURCE runc cannot lower the score and dies.
restrict_oom_score_adj = true
disable_apparmor = true

{runtime}]
runtime_type = "io.containerd.runc.v2"
# A package of the machine may have another version of the shim on PATH.
runtime_path = "{spec.binaries / "containerd-shim-runc-v2"}"

{runtime}.options]
SystemdCgroup = false

{cri}.cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "{spec.state / "etc" / "cni"}"
"""


def cni_config(spec: NodeSpec) -> dict[str, Any]:
    """Return the pod network: routed point-to-point links.

    Unlike a bridge, they need no netfilter hooks for Services on one node.
    """
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": str(spec.subnets.pods)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/var/lib/cni/networks",
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def kubelet_config(spec: NodeSpec) -> dict[str, Any]:
    """The KubeletConfiguration."""
    document: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{spec.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": spec.cgroup,
        "cgroupsPerQOS": True,
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        # With cgroup v2, the default would kill all processes of a container. With v1, which the
        # kubelet cannot change, the kernel kills one of them: tests see the same on both.
        "singleProcessOOMKill": True,
        # Without CAP_SYS_RESOURCE it cannot be lowered.
        "oomScoreAdj": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(spec.control / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "resolvConf": str(spec.state / "etc" / "resolv.conf"),
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        # The disk belongs to the machine, not to the node: how full it is must not evict pods.
        "evictionHard": {
            "imagefs.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "serializeImagePulls": False,
        "podLogsDir": "/var/log/pods",
        # A change of the number of GPUs is visible within seconds. The status is still sent only
        # when it has changed.
        "nodeStatusUpdateFrequency": "2s",
    }
    if spec.gpu_taint:
        document["registerWithTaints"] = [GPU_TAINT]
    return document


def kube_proxy_config(spec: NodeSpec) -> dict[str, Any]:
    """The KubeProxyConfiguration; it leaves the machine's connection-tracking limits alone."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        # How soon a failed update of the rules is repeated (default: 30 s). On a busy machine, the
        # lock of iptables is taken for longer than an update waits for it.
        "iptables": {"syncPeriod": "5s"},
        "clientConnection": {"kubeconfig": str(spec.control / "proxy.kubeconfig")},
        "hostnameOverride": spec.name,
        "clusterCIDR": str(spec.subnets.pods),
        "oomScoreAdj": 0,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def containerd_command(spec: NodeSpec) -> list[str]:
    """Command line of containerd."""
    return [
        str(spec.binaries / "containerd"),
        f"--config={spec.state / 'etc' / 'containerd.toml'}",
    ]


def kubelet_command(spec: NodeSpec) -> list[str]:
    """Command line of the kubelet."""
    return [
        str(spec.binaries / "kubelet"),
        f"--config={spec.state / 'etc' / 'kubelet.yaml'}",
        f"--kubeconfig={spec.control / 'kubelet.kubeconfig'}",
        f"--hostname-override={spec.name}",
        f"--node-ip={spec.subnets.node_address}",
        f"--node-labels={','.join(f'{key}={value}' for key, value in GPU_LABELS.items())}",
        "--root-dir=/var/lib/kubelet",
        "--cert-dir=/var/lib/kubelet/pki",
        # cAdvisor finds containers' names through it; without it their CPU series have no container
        # label.
        f"--containerd={spec.containerd_socket}",
    ]


def kube_proxy_command(spec: NodeSpec) -> list[str]:
    """Command line of kube-proxy."""
    return [str(spec.binaries / "kube-proxy"), f"--config={spec.state / 'etc' / 'kube-proxy.yaml'}"]


def policy_agent_command(spec: NodeSpec) -> list[str]:
    """Command line of what enforces NetworkPolicies; the host may reach every pod."""
    return [
        "env",
        f"PYTHONPATH={CHECKOUT}",
        sys.executable,
        "-m",
        "e2e.local.policy_agent",
        str(spec.control / "admin.kubeconfig"),
        spec.subnets.host_address,
    ]


def device_plugin_command(spec: NodeSpec) -> list[str]:
    """Command line of the stand-in for NVIDIA's device plugin."""
    return [
        str(spec.binaries / "gpu-device-plugin"),
        f"--folder={DEVICE_PLUGINS}",
        f"--count-file={spec.gpu_count_file}",
        f"--resource={GPU_RESOURCE}",
    ]
