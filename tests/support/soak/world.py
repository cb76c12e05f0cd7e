"""The world of a run of faults: a real control plane, two operator processes, simulated nodes.

API server, etcd, controllers and operators are real. A loop plays the kubelet: it makes pods ready
and gives each an endpoint that answers probes and requests. Another loop sends requests to pods
that are ready, as clients of the Service do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import builders
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import Fault, FaultProxy
from tests.support.operatorprocess import LEASE, OperatorProcess, start_operator
from tests.support.operators import NAMESPACES, apply_any, make_namespace, patch
from tests.support.simulated_nodes import is_ready, ready_status
from tests.support.soak.clock import MovableClock, build_library
from tests.support.soak.invariants import CONVERGENCE, violations
from tests.support.soak.observation import (
    Observation,
    PodSample,
    PodState,
    ProcessUse,
    Request,
    Write,
    writes_of,
)
from tests.support.soak.pods import MODEL, TOKENIZER, Addresses, Answers, Health, SimulatedPod
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import ClusterError, NotFound
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import (
    INFERENCE_PIPELINES,
    LEASES,
    PODS,
    REPLICA_SETS,
    SECRETS,
    Resource,
)
from triton_pipelines.controllers.pipeline.child_writer import CHILD_RESOURCES
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import TritonError

NAMESPACE = "soak"
PIPELINES = ("ask", "rank", "tag")
CONVERGED_SECONDS = 60.0
"""Goal: everything is as desired so long after the end of a fault."""
QUIET_SECONDS = 6.0
"""After so long without a write the operator counts as settled, and has to stay so for as long.

A new leader reads metrics, decides after 2 s and reports the result after 4 s at the earliest.
"""
_KUBELET_SECONDS = 0.3
_POLL_SECONDS = 0.7
_SILENT_SECONDS = 10.0
_REQUEST_SECONDS = 0.2
_ANSWER_SECONDS = 3.0
_DRAIN_SECONDS = 3.0
"""How long the endpoint of a deleted pod still answers, as one that drains."""
_SCALING = {
    "staleAfterSeconds": 10,
    "windows": {"fastSeconds": 4, "slowSeconds": 10},
    # Counts rise with the spec's minimum and never fall: nothing is due while the run settles.
    "scaleDown": {"stabilizationSeconds": 86_400},
}
_TEXT = np.array([[b"a text"]], dtype=object)
_SETTINGS = {
    "RELIST_SECONDS": "10",
    "RESYNC_SECONDS": "30",
    "API_TIMEOUT_SECONDS": "5",
    # Long enough for a busy machine, on which a process may get no CPU for seconds.
    "LEADER_ELECT_LEASE_DURATION_SECONDS": "10",
    "LEADER_ELECT_RENEW_DEADLINE_SECONDS": "8",
    "LEADER_ELECT_RETRY_SECONDS": "1",
}
# The client asks for the metadata alone of what equals REPLICA_SETS, and only single ones of it.
_REPLICA_SETS = replace(REPLICA_SETS, kind="ReplicaSets")
_CHILDREN: dict[str, Resource] = {
    **{resource.kind: resource for resource in (*CHILD_RESOURCES, SECRETS, PODS)},
    REPLICA_SETS.kind: _REPLICA_SETS,
}


@dataclass(slots=True)
class Endpoint:
    """The endpoint of a pod, and a client of it."""

    pod: SimulatedPod
    client: TritonClient


@dataclass(slots=True)
class Replica:
    """An operator process with its own proxy and clock."""

    operator: OperatorProcess
    proxy: FaultProxy
    clock: MovableClock

    @property
    def pid(self) -> int:
        """Process id."""
        return self.operator.process.pid


@dataclass
class World:
    """The world; an async context manager, around a control plane that runs already."""

    plane: ControlPlane
    folder: Path
    specs: dict[str, Object] = field(default_factory=dict)
    """Specs by name, as last written."""
    replicas: list[Replica] = field(default_factory=list)
    """Running operators."""
    faulty: set[str] = field(default_factory=set)
    """Names of pods in which the run has caused a fault."""
    serving: set[str] = field(default_factory=set)
    """Pipelines that get load."""
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    """Endpoints by pod."""
    samples: list[PodSample] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    outstanding: set[tuple[str, float]] = field(default_factory=set)
    """Requests that have not ended: the pod and when they were sent (monotonic seconds)."""
    repaired: dict[str, float] = field(default_factory=dict)
    """When the operator last replaced a pod of a pipeline (monotonic seconds)."""
    _ended: list[tuple[str, FaultProxy]] = field(default_factory=list)
    _old_ports: list[int] = field(default_factory=list)
    _first_namespaces: dict[str, str] = field(default_factory=dict)
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _drains: set[asyncio.Task[None]] = field(default_factory=set)
    _serial: int = 0
    _answers: Answers = field(default_factory=Answers)
    _addresses: Addresses = field(
        default_factory=lambda: Addresses(random.SystemRandom().randint(64, 250))
    )

    async def __aenter__(self) -> World:
        self.admin = await self._stack.enter_async_context(
            Client(lambda: load_configuration(str(self.plane.kubeconfig)))
        )
        self._library = build_library(self.folder)
        await make_namespace(self.admin, NAMESPACE)
        for name in PIPELINES:
            await self.write_spec(name, replicas=2)
        for _ in range(2):
            await self.add_replica()
        for loop in (self._play_kubelet, self._send_requests, self._restart_operators):
            self._tasks.append(asyncio.create_task(self._repeat(loop)))
        self._first_namespaces = await self._namespaces()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._tasks, *self._drains):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._drains, return_exceptions=True)
        for replica in tuple(self.replicas):
            await self.end_replica(replica)
        for endpoint in self.endpoints.values():
            await endpoint.client.close()
            await endpoint.pod.stop()
        await self._stack.aclose()

    async def _repeat(self, loop: Callable[[], Coroutine[Any, Any, float]]) -> None:
        while True:
            pause = 1.0
            # The API server may be away: the loops of the cluster try again, as the real ones do.
            with contextlib.suppress(ClusterError):
                pause = await loop()
            await asyncio.sleep(pause)

    # --- what users do ----------------------------------------------------------------------------

    async def write_spec(self, name: str, **changes: Any) -> None:
        """Create or change a pipeline; changes are merged into what was written last."""
        spec = builders.merge(self.specs.get(name, {}), changes)
        document = builders.document(
            name=name,
            namespace=NAMESPACE,
            ensemble={"modelName": MODEL},
            health={"periodSeconds": 5},
            scaling=_SCALING,
            **spec,
        )
        document["metadata"].pop("uid")
        await apply_any(self.admin, INFERENCE_PIPELINES, document)
        self.specs[name] = spec

    async def delete_pipeline(self, name: str) -> None:
        """Delete a pipeline; it gets no load until it is ready again."""
        self.serving.discard(name)
        self.specs.pop(name)
        with contextlib.suppress(NotFound):
            await self.admin.delete(INFERENCE_PIPELINES, NAMESPACE, name)

    # --- operators --------------------------------------------------------------------------------

    async def add_replica(self) -> Replica:
        """Start an operator."""
        self._serial += 1
        name = f"replica-{self._serial}"
        proxy = FaultProxy(self.plane.kubeconfig)
        await proxy.__aenter__()
        clock = MovableClock(self._library, self.folder / f"{name}.clock")
        operator = await start_operator(
            name,
            proxy,
            self.folder / name,
            NAMESPACE,
            environment=clock.environment(),
            **_SETTINGS,
        )
        self.replicas.append(replica := Replica(operator, proxy, clock))
        return replica

    async def end_replica(self, replica: Replica) -> None:
        """Kill an operator if it runs, and keep what its proxy has seen."""
        self.replicas.remove(replica)
        await replica.operator.end()
        await replica.proxy.__aexit__()
        self._ended.append((replica.operator.name, replica.proxy))
        self._old_ports += replica.operator.ports

    async def leader(self) -> Replica | None:
        """Return the operator that holds the Lease."""
        try:
            lease = await self.admin.get(LEASES, NAMESPACE, LEASE)
        except NotFound:
            return None
        holder = (lease["spec"].get("holderIdentity") or "").rpartition("_")[0]
        return next((item for item in self.replicas if item.operator.name == holder), None)

    def inject(self, **fault: Any) -> list[Fault]:
        """Inject the same fault between every operator and the API server."""
        return [replica.proxy.inject(Fault(**fault)) for replica in self.replicas]

    def clear(self) -> None:
        """End all faults between operators and API server."""
        for replica in self.replicas:
            for fault in replica.proxy.faults:
                if fault.release is not None:
                    fault.release.set()
            replica.proxy.clear()
            replica.proxy.frozen = False

    async def _restart_operators(self) -> float:
        """The kubelet's part for the operators: a container that has ended starts again."""
        for replica in tuple(self.replicas):
            if not replica.operator.is_running():
                await self.end_replica(replica)
                await self.add_replica()
        return _KUBELET_SECONDS

    # --- nodes and clients ------------------------------------------------------------------------

    async def _play_kubelet(self) -> float:
        listed = await self.admin.list(PODS, NAMESPACE, label_selector=names.MANAGED_SELECTOR)
        present = {pod["metadata"]["name"]: pod for pod in listed.items}
        for name in set(self.endpoints) - set(present):
            self._drain(self.endpoints.pop(name))
        for name, pod in present.items():
            if name not in self.endpoints and not pod["metadata"].get("deletionTimestamp"):
                simulated = await SimulatedPod(self._addresses.next(), self._answers).start()
                client = TritonClient(f"{simulated.address}:{names.PORT_GRPC}")
                self.endpoints[name] = Endpoint(simulated, client)
            await self._report(pod)
        states = tuple(
            PodState(
                name,
                pod["metadata"]["labels"][names.LABEL_PIPELINE],
                is_ready(pod) and not pod["metadata"].get("deletionTimestamp"),
                name in self.faulty,
                self._instances(name),
            )
            for name, pod in present.items()
        )
        self.samples.append(PodSample(time.monotonic(), states))
        return _KUBELET_SECONDS

    def _instances(self, pod: str) -> int:
        endpoint = self.endpoints.get(pod)
        return 1 if endpoint is None else endpoint.pod.counts.get(TOKENIZER, 1)

    async def _report(self, pod: Object) -> None:
        """Write the status of a pod whose readiness has changed."""
        name = pod["metadata"]["name"]
        endpoint = self.endpoints.get(name)
        if endpoint is None:
            return
        serves = endpoint.pod.health is not Health.HUNG
        if serves == is_ready(pod):
            return
        status = ready_status(pod)
        status |= {"podIP": endpoint.pod.address, "podIPs": [{"ip": endpoint.pod.address}]}
        if not serves:
            for condition in status["conditions"]:
                if condition["type"] in ("Ready", "ContainersReady"):
                    condition["status"] = "False"
            status["containerStatuses"][0]["ready"] = False
        with contextlib.suppress(NotFound):
            await patch(self.admin, PODS, NAMESPACE, name, {"status": status}, "status")

    def _drain(self, endpoint: Endpoint) -> None:
        async def drain() -> None:
            try:
                await asyncio.sleep(_DRAIN_SECONDS)
            finally:  # also at the end of the run
                await endpoint.client.close()
                await endpoint.pod.stop()

        self._drains.add(task := asyncio.create_task(drain()))
        task.add_done_callback(self._drains.discard)

    async def kill_pod(self, name: str) -> None:
        """Kill a pod at once, its endpoint first."""
        self.faulty.add(name)
        endpoint = self.endpoints.pop(name)
        await endpoint.pod.stop()
        await endpoint.client.close()
        with contextlib.suppress(NotFound):
            await self.admin.delete(PODS, NAMESPACE, name, grace_seconds=0)

    def ready_pods(self, pipeline: str) -> list[str]:
        """Return the pods that clients use, by the last sample."""
        states = self.samples[-1].pods if self.samples else ()
        return [state.name for state in states if state.pipeline == pipeline and state.ready]

    async def _send_requests(self) -> float:
        for pipeline in tuple(self.serving):
            self._drains.add(task := asyncio.create_task(self._send(pipeline)))
            task.add_done_callback(self._drains.discard)
        return _REQUEST_SECONDS

    async def _send(self, pipeline: str) -> None:
        begin, candidates = time.monotonic(), self.ready_pods(pipeline)
        pod = random.choice(candidates) if candidates else ""
        excused = pod in self.faulty
        endpoint = self.endpoints.get(pod)
        error = ""
        if endpoint is None:
            # A pod that was deleted since the last sample drains, and its endpoint still answers.
            if pod:
                return
            error = "no pod is ready"
        else:
            self.outstanding.add((pod, begin))
            try:
                await endpoint.client.infer(MODEL, {"TEXT": _TEXT}, deadline_s=_ANSWER_SECONDS)
            except TritonError as failed:
                error = str(failed)
            finally:
                self.outstanding.discard((pod, begin))
        excused |= pod in self.faulty
        if pipeline in self.serving:
            self.requests.append(Request(begin, pipeline, pod, error, excused))

    # --- observation ------------------------------------------------------------------------------

    def writes(self) -> list[Write]:
        """Return all writes of all operators so far, by time."""
        logs = [*self._ended, *((item.operator.name, item.proxy) for item in self.replicas)]
        found = [write for name, proxy in logs for write in writes_of(name, proxy.requests)]
        return sorted(found, key=lambda write: write.at)

    async def _namespaces(self) -> dict[str, str]:
        found = (await self.admin.list(NAMESPACES)).items
        return {item["metadata"]["uid"]: item["metadata"]["name"] for item in found}

    async def observe(self, settled_since: float = float("inf")) -> Observation:
        """Return everything that is known now."""
        leader = await self.leader()
        pids, ports = await self.left_over()
        children = [
            {**item, "kind": kind}
            for kind, resource in _CHILDREN.items()
            for item in (
                await self.admin.list(resource, NAMESPACE, label_selector=names.MANAGED_SELECTOR)
            ).items
        ]
        return Observation(
            namespaces=await self._namespaces(),
            first_namespaces=self._first_namespaces,
            desired=dict(self.specs),
            pipelines=(await self.admin.list(INFERENCE_PIPELINES, NAMESPACE)).items,
            children=children,
            writes=self.writes(),
            settled_since=settled_since,
            samples=tuple(self.samples),
            requests=tuple(self.requests),
            leaders=[leader.operator.name] if leader is not None else [],
            processes=[
                use
                for item in self.replicas
                if (use := _use(item.operator.name, item.pid)) is not None
            ],
            expected_pids=frozenset(item.pid for item in self.replicas),
            pids=frozenset(pids),
            open_ports=ports,
        )

    async def left_over(self) -> tuple[list[int], list[int]]:
        """Return processes and open ports of the run; after its end, both are empty."""
        ports = [port for port in self._old_ports if await _listens(port)]
        return _processes_that_name(str(self.folder)), ports

    async def converge(
        self, say: Callable[[str], None], seconds: float = CONVERGED_SECONDS
    ) -> tuple[float, list[str]]:
        """Wait until everything is as desired and settled.

        Args:
            say: gets what does not hold yet, whenever that changes after some seconds.
            seconds: longest time allowed.

        Returns:
            How long it took in seconds, and what does not hold after the longest time.
        """
        begin, left, said = time.monotonic(), ["nothing was observed"], ""
        while (now := time.monotonic()) < begin + seconds:
            for task in self._tasks:
                if task.done():
                    task.result()
            try:
                left = violations(await self.observe(), *CONVERGENCE)
            except ClusterError as error:
                left = [f"the API server cannot be read: {error}"]
            last = max((item.at for item in self.writes() if not item.is_lease), default=0.0)
            if not left and time.monotonic() - max(last, begin) >= QUIET_SECONDS:
                self.serving |= set(self.specs)
                return max(last, begin) - begin, []
            left = left or ["the operator does not stop writing"]
            if left[0] != said and now - begin > _SILENT_SECONDS:
                said = left[0]
                say(f"          waiting: {said}")
            await asyncio.sleep(_POLL_SECONDS)
        return now - begin, left


def _use(name: str, pid: int) -> ProcessUse | None:
    """Return what a process uses; None if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        lines = (folder / "status").read_text().splitlines()
        fields: Mapping[str, str] = dict(line.split(":", 1) for line in lines)
        memory = int(fields["VmRSS"].split()[0]) / 1024
        files = len(list((folder / "fd").iterdir()))
    except (OSError, KeyError):
        return None
    return ProcessUse(name, files, memory, int(fields["Threads"]))


def _processes_that_name(text: str) -> list[int]:
    """Return the processes, but this one, whose environment contains a text."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if text.encode() in file.read_bytes() and int(file.parent.name) != os.getpid():
                found.append(int(file.parent.name))
    return found


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
