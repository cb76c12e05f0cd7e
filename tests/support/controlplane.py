"""A real Kubernetes control plane on loopback, without nodes.

It consists of etcd, API server and, on request, controllers and scheduler.
"""

import datetime
import json
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx

from e2e.local import api, binaries, control
from e2e.local.processes import Process, reserved_ports, stop_all
from tests.support import libyaml

READY_SECONDS = 60.0


class ControlPlane:
    """A control plane of its own for tests, as context manager.

    Every instance has its own free ports, keys and data, so several run side by side. Attributes
    while it runs: `kubeconfig` (path, administrator), `server` (URL), `folder` (logs as
    `<component>.log`), `context` (its name in the kubeconfig). `stop` ends every process it started
    and removes the folder, also after a failed start.

    Args:
        controllers: run kube-controller-manager (garbage collection, Deployments, service accounts,
            …). Without it the ServiceAccount admission plugin is off, so that pods can be created
            all the same.
        scheduler: run kube-scheduler.
        audit_log: write one JSON line per write request here (metadata level); see `audit_events`.
        flow_control: `False` for scale runs: no priority and fairness, no limit of requests in
            flight.
        context: name of cluster, user and context in the kubeconfig.
        extra_api_server_flags: appended to the API server's command line.
        extra_controller_manager_flags: appended to kube-controller-manager's command line.
        kubernetes: version of the API server, one of `binaries.OLDER_KUBERNETES` or the pinned one,
            which all other components have. Only the API server exists in older versions, so these
            have neither controllers nor a scheduler.
        crds: files of CustomResourceDefinitions that are served before any controller starts:
            garbage collector and autoscaler look for new kinds every 30 s only.
    """

    def __init__(
        self,
        *,
        controllers: bool = False,
        scheduler: bool = False,
        audit_log: Path | None = None,
        flow_control: bool = True,
        context: str = "tritonpipe-test",
        extra_api_server_flags: tuple[str, ...] = (),
        extra_controller_manager_flags: tuple[str, ...] = (),
        kubernetes: str = binaries.KUBERNETES_VERSION,
        crds: tuple[Path, ...] = (),
    ) -> None:
        self.controllers = controllers
        self.scheduler = scheduler
        self.audit_log = audit_log
        self.flow_control = flow_control
        self.context = context
        self.extra_api_server_flags = extra_api_server_flags
        self.extra_controller_manager_flags = extra_controller_manager_flags
        self.api_server = binaries.api_server(kubernetes)
        self.crds = crds
        self._processes: dict[str, Process] = {}
        self._spec: control.ControlSpec | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def spec(self) -> control.ControlSpec:
        """Ports, folders and options of the running control plane."""
        if self._spec is None:
            raise RuntimeError(
                "the control plane is not running: call start() or use it as a context manager"
            )
        return self._spec

    @property
    def kubeconfig(self) -> Path:
        """Path of the administrator's kubeconfig."""
        return self.spec.kubeconfig

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self.spec.server

    @property
    def folder(self) -> Path:
        """The folder with data and logs; gone after `stop`."""
        return self.spec.folder

    @property
    def kubectl(self) -> Path:
        """Path of a kubectl of the cluster's version."""
        return self.spec.binaries / "kubectl"

    def start(self) -> None:
        """Start everything.

        Returns when the API server reports ready and the default namespace exists.

        Raises:
            NotReadyError: not ready within `READY_SECONDS`.
            ProcessDiedError: a component ended early; the message has the end of its log.
        """
        names = (
            binaries.CONTROL_PLANE if self.controllers or self.scheduler else binaries.API_SERVER
        )
        folder = binaries.folder([*names, self.api_server])
        self._folder = Path(tempfile.mkdtemp(prefix="tritonpipe-control-"))
        try:
            self._spec = self._make_spec(folder, self._folder)
            control.write_files(self._spec, datetime.datetime.now(datetime.UTC))
            self.start_component("etcd")
            self.start_component("kube-apiserver")
            self._wait_ready()
            self._install_crds()
            if self.controllers:
                self.start_component("kube-controller-manager")
            if self.scheduler:
                self.start_component("kube-scheduler")
            self._wait_default_account()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process and remove the folder; does nothing when not running."""
        try:
            # The API server goes before its etcd, without which it does not end by itself.
            stop_all(list(reversed(self._processes.values())))
        finally:
            self._processes.clear()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._spec, self._folder = None, None

    def start_component(self, name: str) -> None:
        """Start one component that is not running.

        The components are `etcd`, `kube-apiserver`, `kube-controller-manager` and `kube-scheduler`.
        """
        commands = {
            "etcd": control.etcd_command,
            "kube-apiserver": control.api_server_command,
            "kube-controller-manager": control.controller_manager_command,
            "kube-scheduler": control.scheduler_command,
        }
        self._processes[name] = Process(
            name, commands[name](self.spec), self.folder / f"{name}.log"
        )

    def kill_component(self, name: str) -> None:
        """Kill one component at once (SIGKILL), as a crash would.

        `start_component` starts it again.
        """
        self._processes.pop(name).kill()

    def wait_ready(self) -> None:
        """Wait until the API server is ready.

        For example, call it after `start_component("kube-apiserver")`.
        """
        self._wait_ready()

    def audit_events(self) -> list[dict[str, Any]]:
        """Return the write requests so far (audit events, oldest first).

        Their fields include `verb`, `user.username`, `objectRef` and `responseStatus.code`.

        Raises:
            RuntimeError: the control plane was made without `audit_log`.
        """
        if self.audit_log is None:
            raise RuntimeError("made without audit_log=PATH")
        lines = self.audit_log.read_text().splitlines() if self.audit_log.exists() else []
        return [json.loads(line) for line in lines]

    def _make_spec(self, folder: Path, data: Path) -> control.ControlSpec:
        with reserved_ports(5) as ports:
            api_port, etcd_port, peer_port, manager_port, scheduler_port = ports
        return control.ControlSpec(
            name=self.context,
            folder=data,
            binaries=folder,
            advertise_address="127.0.0.1",
            api_port=api_port,
            etcd_port=etcd_port,
            etcd_peer_port=peer_port,
            controller_manager_port=manager_port,
            scheduler_port=scheduler_port,
            controllers=self.controllers,
            scheduler=self.scheduler,
            audit_log=self.audit_log,
            flow_control=self.flow_control,
            api_server=self.api_server,
            extra_api_server_flags=self.extra_api_server_flags,
            extra_controller_manager_flags=self.extra_controller_manager_flags,
        )

    def _check(self) -> None:
        for process in self._processes.values():
            process.check()

    def _wait_ready(self) -> None:
        with api.client(self.kubeconfig) as connection:
            api.wait_for("API server", lambda: api.ready(connection), READY_SECONDS, self._check)

    def _install_crds(self) -> None:
        documents = [libyaml.load(file.read_text()) for file in self.crds]
        with api.client(self.kubeconfig) as connection:
            for document in documents:
                api.apply(
                    connection,
                    f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{document['metadata']['name']}",
                    document,
                )
            for spec in (document["spec"] for document in documents):
                for version in (
                    version["name"] for version in spec["versions"] if version["served"]
                ):
                    kind = f"{spec['group']}/{version}/{spec['names']['plural']}"
                    api.wait_for(
                        kind,
                        partial(_discovered, connection, *kind.split("/")),
                        READY_SECONDS,
                        self._check,
                    )

    def _wait_default_account(self) -> None:
        path = "/api/v1/namespaces/default" + (
            "/serviceaccounts/default" if self.controllers else ""
        )
        with api.client(self.kubeconfig) as connection:
            api.wait_for(
                path,
                lambda: connection.get(path).status_code == httpx.codes.OK,
                READY_SECONDS,
                self._check,
            )


def _discovered(connection: httpx.Client, group: str, version: str, plural: str) -> bool:
    """Return whether a kind is served and listed by discovery.

    Discovery lists it a moment after it is served.
    """
    groups = connection.get("/apis").raise_for_status().json()["groups"]
    if group not in {item["name"] for item in groups} or not api.ready(
        connection, f"/apis/{group}/{version}/{plural}"
    ):
        return False
    return plural in {
        item["name"]
        for item in connection.get(f"/apis/{group}/{version}")
        .raise_for_status()
        .json()["resources"]
    }
