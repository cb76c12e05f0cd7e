"""The local cluster on this machine. Needs root.

The tests cover real pods, Services, GPUs by count, crashes, and that no trace remains afterwards.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.local import api, network, node, packages, processes
from e2e.local import cluster as clusters
from e2e.local.cluster import Cluster
from e2e.local.images import OPERATOR_IMAGE, PAUSE_IMAGE, TRITON_IMAGE
from e2e.local.node import GPU_RESOURCE, cgroup_of
from e2e.local.packages import MachineError
from e2e.local.supervision import ClusterError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

MODEL = """
import numpy, onnxruntime
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "A").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("B", 2 * values)]) for values in inputs]
"""  # noqa: E501
CONFIG = """
name: "double" backend: "python"
input [{ name: "A" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "B" data_type: TYPE_FP32 dims: [2] }]
instance_group [{ kind: KIND_CPU }]
"""
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@pytest.fixture(scope="module")
def machine_before() -> dict[str, str]:
    """The machine's settings before this module's first cluster; skips where there can be none."""
    try:
        packages.require_root()
    except MachineError as error:
        pytest.skip(str(error))
    return machine()


@pytest.fixture(scope="module")
def cluster(machine_before: dict[str, str]) -> Iterator[Cluster]:
    """A running cluster with both product images, and two GPUs."""
    made = Cluster(f"test-{os.getpid()}")
    try:
        made.up(gpus=2, images=(OPERATOR_IMAGE, TRITON_IMAGE))
        yield made
    finally:
        made.down()


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[httpx.Client]:
    with api.client(cluster.kubeconfig) as client:
        yield client


def pod(name: str, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    fixed = {
        "securityContext": security,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
    }
    body = {"name": name, "securityContext": RESTRICTED, **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {**fixed, **spec, "containers": [body]},
    }


def create(connection: httpx.Client, kind: str, item: dict[str, Any]) -> str:
    path = f"/api/v1/namespaces/default/{kind}/{item['metadata']['name']}"
    api.apply(connection, path, item)
    return path


def status_of(connection: httpx.Client, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = connection.get(path).raise_for_status().json()["status"]
    return answer


def is_ready(connection: httpx.Client, path: str) -> bool:
    conditions = status_of(connection, path).get("conditions", [])
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def test_triton_on_a_gpu_answers_through_its_service(
    cluster: Cluster, connection: httpx.Client
) -> None:
    create(
        connection,
        "configmaps",
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "double"},
            "data": {"model.py": MODEL, "config.pbtxt": CONFIG},
        },
    )
    ports = {"selector": {"app": "triton"}, "ports": [{"port": 80, "targetPort": 8000}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "triton"}, "spec": ports}
    path = create(connection, "services", service)
    mounts = [
        {"name": "model", "mountPath": f"/models/double/{target}", "subPath": key}
        for key, target in (("model.py", "1/model.py"), ("config.pbtxt", "config.pbtxt"))
    ]
    container = {
        "image": TRITON_IMAGE,
        "command": ["tritonserver", "--model-repository=/models", "--disable-auto-complete-config"],
        "resources": {"limits": {GPU_RESOURCE: "1"}},
        "readinessProbe": {
            "httpGet": {"path": "/v2/models/double/ready", "port": 8000},
            "periodSeconds": 1,
        },
        "volumeMounts": [
            *mounts,
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        {"name": "model", "configMap": {"name": "double"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    triton = create(connection, "pods", pod("triton", container, volumes=volumes))
    api.wait_for("Triton", lambda: is_ready(connection, triton), 60)

    address = connection.get(path).json()["spec"]["clusterIP"]
    request = {"inputs": [{"name": "A", "shape": [2], "datatype": "FP32", "data": [1.5, -2.0]}]}

    def answered() -> bool:
        answer = httpx.post(
            f"http://{address}/v2/models/double/infer", json=request, timeout=5, trust_env=False
        )
        return bool(answer.raise_for_status().json()["outputs"][0]["data"] == [3.0, -4.0])

    api.wait_for("answer through the Service", answered, 60)
    visible = subprocess.run(
        [
            cluster.node.binaries / "kubectl",
            "--kubeconfig",
            cluster.kubeconfig,
            "exec",
            "triton",
            "--",
            "printenv",
            "NVIDIA_VISIBLE_DEVICES",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert visible.stdout.strip() in {"fake-gpu-0", "fake-gpu-1"}


def test_pod_waits_for_gpus_and_gets_them_when_the_node_has_more(
    cluster: Cluster, connection: httpx.Client
) -> None:
    path = create(
        connection,
        "pods",
        pod("greedy", {"image": PAUSE_IMAGE, "resources": {"limits": {GPU_RESOURCE: "4"}}}),
    )

    def refused() -> bool:
        messages = [
            condition.get("message", "")
            for condition in status_of(connection, path).get("conditions", [])
        ]
        return any(f"Insufficient {GPU_RESOURCE}" in message for message in messages)

    api.wait_for("a scheduler that finds too few GPUs", refused, 60)
    cluster.set_gpus(8)
    try:
        api.wait_for("the pod on the larger node", lambda: is_ready(connection, path), 60)
    finally:
        connection.delete(path).raise_for_status()
        cluster.set_gpus(2)


def test_operator_image_runs_without_root_and_without_a_writable_disk(
    connection: httpx.Client,
) -> None:
    program = (
        "import os, triton_pipelines; assert os.getuid() == 65532; open('/dev/termination-log', "
        "'w').write('fine')"
    )
    path = create(
        connection,
        "pods",
        pod(
            "operator-image",
            {"image": OPERATOR_IMAGE, "command": ["python3", "-c", program]},
            restartPolicy="Never",
        ),
    )
    api.wait_for(
        "its end", lambda: status_of(connection, path)["phase"] in {"Succeeded", "Failed"}, 60
    )
    terminated = status_of(connection, path)["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated.get("message")) == (0, "fine")


def test_crashed_components_come_back(cluster: Cluster, connection: httpx.Client) -> None:
    registrations = (cluster.logs / "gpu-device-plugin.log").read_text().count("registered")
    cluster.supervisor.kill("kube-apiserver")
    cluster.supervisor.kill("kubelet")
    api.wait_for(
        "restarts",
        lambda: all(
            cluster.supervisor.components()[name]["ended"] for name in ("kube-apiserver", "kubelet")
        ),
        60,
    )
    api.wait_for("API server", lambda: api.ready(connection), 60)
    # A new kubelet forgets its device plugins: they have to find its new socket.
    log = cluster.logs / "gpu-device-plugin.log"
    api.wait_for(
        "registration of the GPUs", lambda: log.read_text().count("registered") > registrations, 60
    )
    api.wait_for(
        "ready node with GPUs",
        lambda: cluster.status().node_ready and cluster.status().gpus == 2,
        60,
    )


def test_second_cluster_leaves_nothing_behind(
    cluster: Cluster, machine_before: dict[str, str]
) -> None:
    second = Cluster(f"test-{os.getpid()}-b")
    try:
        second.up(gpus=1, images=())
        assert second.subnets != cluster.subnets
        with api.client(second.kubeconfig) as connection:
            volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
            mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
            container = {
                "image": PAUSE_IMAGE,
                "resources": {"limits": {GPU_RESOURCE: "1"}},
                "volumeMounts": mounts,
            }
            path = create(connection, "pods", pod("left-running", container, volumes=volumes))
            api.wait_for("pod", lambda: is_ready(connection, path), 60)
        assert traces(second) != []
        subnets, init = second.subnets, second.supervisor.init_pid()
    finally:
        second.down()
    assert processes.wait_gone([init] if init else [], 0.1) == []
    assert traces(second) == []
    assert not any(
        route.overlaps(own)
        for route in network.host_routes()
        if route.prefixlen > 8
        for own in subnets.all
    )
    assert machine() == machine_before
    assert cluster.status().node_ready


def test_failed_start_leaves_nothing_behind_and_tells_why(
    machine_before: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        node, "kubelet_command", lambda spec: [str(spec.binaries / "kubelet"), "--no-such-flag"]
    )
    monkeypatch.setattr(clusters, "NODE_SECONDS", 3.0)
    broken = Cluster(f"test-{os.getpid()}-c")
    with pytest.raises(ClusterError, match="no-such-flag"):
        broken.up(images=())
    assert traces(broken) == []
    assert machine() == machine_before


def machine() -> dict[str, str]:
    """Return machine-wide settings that a node tends to change.

    They are kernel parameters and packet filter rules.
    """
    names = (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "net/ipv4/ip_forward",
    )
    settings = {name: (Path("/proc/sys") / name).read_text() for name in names}
    rules = subprocess.run(
        ["/usr/sbin/iptables-save"], capture_output=True, text=True, check=False
    ).stdout
    # Comments carry the time.
    return {
        **settings,
        "rules": "\n".join(line for line in rules.splitlines() if not line.startswith("#")),
    }


def traces(cluster: Cluster) -> list[str]:
    """What the machine has of a cluster: processes, mounts, namespaces, control groups, files."""
    found = [
        str(path)
        for path in (cluster.state, network.namespace_path(cluster.namespace))
        if path.exists()
    ]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**{cgroup_of(cluster.name)}")]
    found += [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if cluster.name in line
    ]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            texts = [(entry / "cmdline").read_bytes(), (entry / "cgroup").read_bytes()]
        except OSError:
            continue
        if any(
            name.encode() in text
            for text in texts
            for name in (f"{cluster.state}/", f"{cgroup_of(cluster.name)}/")
        ):
            found.append(json.dumps([entry.name, texts[0].decode(errors="replace")]))
    return found
