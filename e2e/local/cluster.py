"""A single-node cluster as an object: brought up, asked, changed and removed without a trace.

The state of cluster NAME lies in `<state root>/NAME`; nothing else is needed to find or remove it.
"""

import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from e2e.local import api, binaries, cache, cgroups, control, network, node, packages, pki
from e2e.local.images import OPERATOR_IMAGE, PAUSE_IMAGE, TRITON_IMAGE
from e2e.local.images import build as images
from e2e.local.processes import replace_file, wait_gone
from e2e.local.progress import step
from e2e.local.supervision import END_SECONDS, ClusterError, Supervisor

DEFAULT_NAME = "local"
NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,30}")
DEFAULT_GPUS = 2
MAX_GPUS = 1024
PRODUCT_IMAGES = (OPERATOR_IMAGE, TRITON_IMAGE)
API_PORT = 6443
API_SECONDS = 60.0
NODE_SECONDS = 90.0
GPU_SECONDS = 60.0
KUBELET_API_ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "kube-apiserver-kubelet-api-admin"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "system:kubelet-api-admin",
    },
    "subjects": [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "kube-apiserver"}
    ],
}


@dataclass(frozen=True)
class Status:
    """Known state of a cluster.

    `components` maps a component's name to how often it ended and was restarted.
    """

    name: str
    running: bool
    node_ready: bool
    server: str
    kubeconfig: str
    context: str
    logs: str
    gpus: int
    components: dict[str, int]


def state_root() -> Path:
    """Folder of all clusters' state: `$TRITONPIPE_CLUSTERS`, else `/var/lib/triton-pipelines`."""
    return Path(os.environ.get("TRITONPIPE_CLUSTERS") or "/var/lib/triton-pipelines")


def names() -> list[str]:
    """Names of all clusters that have state, running or not."""
    root = state_root()
    return sorted(path.parent.name for path in root.glob("*/cluster.json")) if root.exists() else []


class Cluster:
    """The local cluster of this name; making the object changes nothing.

    Raises:
        ClusterError: `name` is not a short lowercase name.
    """

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        if not NAME_PATTERN.fullmatch(name):
            raise ClusterError(
                f"bad cluster name {name!r}: use up to 31 lowercase letters, digits and "
                f"dashes, a letter first"
            )
        self.name = name
        self.state = state_root() / name

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "control" / "admin.kubeconfig"

    @property
    def context(self) -> str:
        """The context's name in the kubeconfig."""
        return f"tritonpipe-{self.name}"

    @property
    def node_name(self) -> str:
        """Name of the one node."""
        return f"{self.name}-node"

    @property
    def namespace(self) -> str:
        """Name of the network namespace."""
        return f"tritonpipe-{self.name}"

    @property
    def logs(self) -> Path:
        """Folder of the components' logs, `<component>.log`."""
        return self.state / "log"

    @property
    def supervisor(self) -> Supervisor:
        """What starts, stops and kills the cluster's components, and runs commands inside."""
        return Supervisor(self.name, self.state, self.namespace, self.logs)

    @property
    def subnets(self) -> network.Subnets:
        """The cluster's addresses.

        Raises:
            ClusterError: there is no such cluster.
        """
        try:
            return network.Subnets(json.loads((self.state / "cluster.json").read_text())["index"])
        except FileNotFoundError:
            raise ClusterError(
                f"no cluster {self.name}: bring it up with `python -m e2e.local up --name "
                f"{self.name}`"
            ) from None

    @property
    def node(self) -> node.NodeSpec:
        """The node's specification."""
        subnets = self.subnets
        document = json.loads((self.state / "cluster.json").read_text())
        return node.NodeSpec(
            name=self.node_name,
            cluster=self.name,
            state=self.state,
            control=self.state / "control",
            binaries=Path(document["binaries"]),
            subnets=subnets,
            gpu_taint=document["gpu_taint"],
        )

    def up(
        self,
        *,
        gpus: int = DEFAULT_GPUS,
        gpu_taint: bool = False,
        images: Sequence[str] = PRODUCT_IMAGES,
    ) -> None:
        """Start the cluster, or update a running one to match `gpus` and `images`.

        Builds what the cache does not have.

        Returns when the node is Ready and offers its GPUs and the images are loaded. A failed start
        is removed. `gpu_taint` counts at the first start only.

        Raises:
            ClusterError, MachineError, BinaryError, ImageError, NetworkError, NotReadyError: with
                what to do.
        """
        packages.require_root()
        packages.install()
        with ThreadPoolExecutor() as pool:
            # Half of an image build is waiting for downloads: a good companion for a compiler.
            building = pool.submit(self._archives, [PAUSE_IMAGE, *images])
            folder = binaries.folder((*binaries.CONTROL_PLANE, *binaries.NODE))
            archives = building.result()
        with self._locked():
            if self.supervisor.init_pid() is not None:
                self._load(archives)
                self.set_gpus(gpus)
                return
            self._remove()
            try:
                with step(f"starting cluster {self.name}"):
                    self._start(folder, gpus, gpu_taint, archives)
                    self.set_gpus(gpus)
            except BaseException as error:
                report = self.supervisor.failure_report()
                self._remove()
                if isinstance(error, api.NotReadyError | subprocess.CalledProcessError):
                    raise ClusterError(
                        f"cluster {self.name} did not start: {error}\n{report}"
                    ) from error
                raise

    def down(self) -> None:
        """Remove the cluster: every process, mount, address, route and file of it.

        Does nothing if the cluster does not exist.
        """
        packages.require_root()
        with self._locked():
            self._remove()

    def status(self) -> Status:
        """What the cluster looks like now; never fails for a cluster that is down."""
        running = self.supervisor.init_pid() is not None
        item: dict[str, Any] = {}
        if running:
            with (
                contextlib.suppress(Exception),
                api.client(self.kubeconfig, timeout=3) as connection,
            ):
                item = self._get_node(connection)
        ended = (
            {name: entry["ended"] for name, entry in self.supervisor.components().items()}
            if running
            else {}
        )
        return Status(
            name=self.name,
            running=running,
            node_ready=_node_ready(item),
            server=f"https://{self.subnets.node_address}:{API_PORT}" if running else "",
            kubeconfig=str(self.kubeconfig) if running else "",
            context=self.context,
            logs=str(self.logs) if running else "",
            gpus=_allocatable_gpus(item),
            components=ended,
        )

    def set_gpus(self, count: int, unhealthy: Sequence[int] = ()) -> None:
        """Change how many GPUs the node has, and wait until it offers the healthy ones.

        Args:
            count: number of GPUs.
            unhealthy: numbers of the GPUs that the device plugin reports as unhealthy, from 0.

        Raises:
            ClusterError: a count out of range, or the cluster is not running.
            NotReadyError: the node did not follow within `GPU_SECONDS`.
        """
        if not 0 <= count <= MAX_GPUS:
            raise ClusterError(f"bad number of GPUs {count}: want 0 to {MAX_GPUS}")
        self.supervisor.require_running()
        numbers = " ".join(map(str, (count, *unhealthy)))
        replace_file(self.node.gpu_count_file, f"{numbers}\n")
        offered = count - len(unhealthy)
        with api.client(self.kubeconfig) as connection:
            api.wait_for(
                f"{offered} GPUs on node {self.node_name}",
                lambda: _offers_gpus(self._get_node(connection), offered),
                GPU_SECONDS,
            )

    def load_image(self, image: str, tag: str = "") -> None:
        """Load an image into the node.

        Args:
            image: an archive file, or the name of one of this project's images, which is built if
                its inputs changed.
            tag: another tag that the node also gives to an image of this project.

        Raises:
            ClusterError: the file does not exist, containerd refused it, a tag is set for an
                archive, or the cluster is not running.
        """
        self.supervisor.require_running()
        archive = Path(image)
        if archive.is_file() and tag:
            raise ClusterError(f"--tag {tag}: not possible for an archive, which contains its tags")
        self._load([archive] if archive.is_file() else self._archives([image]))
        if tag:
            name = f"{image.rpartition(':')[0]}:{tag}"
            done = self._ctr("images", "tag", "--force", image, name)
            if done.returncode != 0:
                raise ClusterError(f"containerd refused the tag {name}: {done.stderr.strip()}")

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """Keep other processes that reserve this cluster off it; wait for the one that has it.

        Two runs of the suite on one machine would otherwise replace each other's cluster.
        """
        with cache.locked(cache.cache_root() / "locks" / f"reserved-{self.name}"):
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with cache.locked(cache.cache_root() / "locks" / f"cluster-{self.name}"):
            yield

    def _archives(self, references: Sequence[str]) -> list[Path]:
        return [images.ensure(reference) for reference in dict.fromkeys(references)]

    def _start(self, folder: Path, gpus: int, gpu_taint: bool, archives: Sequence[Path]) -> None:
        self._allocate({"binaries": str(folder), "gpu_taint": gpu_taint})
        subnets, spec, supervisor = self.subnets, self.node, self.supervisor
        control_spec = self._control_spec(folder)
        control.write_files(control_spec, datetime.datetime.now(datetime.UTC))
        for path, text in node.files(spec).items():
            pki.write_private(self.state / path, text)
        for made in (self.state / "images", spec.containerd_socket.parent):
            made.mkdir(parents=True, exist_ok=True)
        replace_file(spec.gpu_count_file, f"{gpus}\n")
        cgroups.create(spec.cgroup)
        network.create(self.namespace, subnets)
        supervisor.add("etcd", control.etcd_command(control_spec))
        supervisor.add("kube-apiserver", control.api_server_command(control_spec))
        supervisor.add("containerd", node.containerd_command(spec))
        supervisor.launch()
        with ThreadPoolExecutor() as pool:
            loading = pool.submit(self._load, archives)
            with api.client(self.kubeconfig) as connection:
                api.wait_for(
                    "API server",
                    lambda: api.ready(connection),
                    API_SECONDS,
                    self.supervisor.require_running,
                )
                role = KUBELET_API_ROLE["metadata"]["name"]  # type: ignore[index]
                api.apply(
                    connection,
                    f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{role}",
                    KUBELET_API_ROLE,
                )
                supervisor.add(
                    "kube-controller-manager", control.controller_manager_command(control_spec)
                )
                supervisor.add("kube-scheduler", control.scheduler_command(control_spec))
                supervisor.add("kube-proxy", node.kube_proxy_command(spec))
                supervisor.add("policy-agent", node.policy_agent_command(spec))
                api.wait_for(
                    "containerd",
                    self._containerd_ready,
                    API_SECONDS,
                    self.supervisor.require_running,
                )
                supervisor.add("kubelet", node.kubelet_command(spec))
                supervisor.add("gpu-device-plugin", node.device_plugin_command(spec))
                supervisor.rescan()
                ready = partial(self._get_node, connection)
                api.wait_for(
                    f"node {self.node_name}",
                    lambda: _node_ready(ready()),
                    NODE_SECONDS,
                    self.supervisor.require_running,
                )
                account = "/api/v1/namespaces/default/serviceaccounts/default"
                api.wait_for(
                    "default service account",
                    lambda: connection.get(account).is_success,
                    API_SECONDS,
                    self.supervisor.require_running,
                )
            loading.result()

    def _control_spec(self, folder: Path) -> control.ControlSpec:
        return control.ControlSpec(
            name=self.context,
            folder=self.state / "control",
            binaries=folder,
            advertise_address=self.subnets.node_address,
            api_port=API_PORT,
            etcd_port=2379,
            etcd_peer_port=2380,
            service_range=str(self.subnets.services),
            bind_address="0.0.0.0",
            node_name=self.node_name,
        )

    def _allocate(self, settings: dict[str, Any]) -> None:
        """Choose free addresses and write them down, as one step for all clusters."""
        with cache.locked(cache.cache_root() / "locks" / "addresses"):
            taken = []
            for name in names():
                with contextlib.suppress(ClusterError):  # removed in this moment
                    taken.append(Cluster(name).subnets.index)
            chosen = network.allocate(network.host_routes(), taken)
            self.state.mkdir(parents=True)
            replace_file(
                self.state / "cluster.json", json.dumps({"index": chosen.index, **settings})
            )

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            str(self.node.binaries / "ctr"),
            "--address",
            str(self.node.containerd_socket),
            "--namespace",
            "k8s.io",
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def _containerd_ready(self) -> bool:
        return self.node.containerd_socket.exists() and self._ctr("version").returncode == 0

    def _load(self, archives: Sequence[Path]) -> None:
        """Import archives that this node has not got yet; a marker per archive remembers them."""
        api.wait_for(
            "containerd", self._containerd_ready, API_SECONDS, self.supervisor.require_running
        )
        for archive in archives:
            marker = (
                self.state
                / "images"
                / cache.digest([str(archive), str(archive.stat().st_mtime_ns)])
            )
            if not marker.exists():
                done = self._ctr("images", "import", str(archive))
                if done.returncode != 0:
                    raise ClusterError(f"containerd refused {archive}: {done.stderr.strip()}")
                marker.touch()

    def _get_node(self, connection: Any) -> dict[str, Any]:
        answer = connection.get(f"/api/v1/nodes/{self.node_name}")
        document: dict[str, Any] = answer.json() if answer.is_success else {}
        return document

    def _remove(self) -> None:
        """Undo everything; each step also works when an earlier `up` or `down` stopped half-way."""
        pid = self.supervisor.init_pid()
        if pid is not None:
            # Process 1 takes its whole process namespace with it, and the last process the mounts.
            os.kill(pid, signal.SIGKILL)
        left = wait_gone([pid] if pid else [], END_SECONDS)
        for stray in network.processes(self.namespace):
            with contextlib.suppress(ProcessLookupError):
                os.kill(stray, signal.SIGKILL)
        left += wait_gone(network.processes(self.namespace), END_SECONDS)
        if left:
            raise ClusterError(f"processes of cluster {self.name} do not end: {left}")
        with contextlib.suppress(
            ClusterError
        ):  # nothing written down: no addresses were given out either
            network.delete_link(self.subnets)
        network.delete_namespace(self.namespace)
        cgroups.remove(node.cgroup_of(self.name))
        if not self.state.exists():
            return
        shutil.rmtree(self.state)
        with contextlib.suppress(OSError):
            state_root().rmdir()


def _node_ready(item: dict[str, Any]) -> bool:
    """Whether the node is Ready and open for pods."""
    conditions = {
        condition["type"]: condition["status"]
        for condition in item.get("status", {}).get("conditions", [])
    }
    taints = {taint["key"] for taint in item.get("spec", {}).get("taints", [])}
    return conditions.get("Ready") == "True" and "node.kubernetes.io/not-ready" not in taints


def _allocatable_gpus(item: dict[str, Any]) -> int:
    return int(item.get("status", {}).get("allocatable", {}).get(node.GPU_RESOURCE, 0))


def _offers_gpus(item: dict[str, Any], count: int) -> bool:
    """Return whether the device plugin has reported exactly `count` GPUs.

    A missing entry does not count as 0.
    """
    return bool(item.get("status", {}).get("allocatable", {}).get(node.GPU_RESOURCE) == str(count))


def as_json(status: Status) -> str:
    """The status as a JSON document."""
    return json.dumps(asdict(status), indent=2)
