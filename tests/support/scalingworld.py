"""The whole operator on a real API server, with a real Triton as each pod.

Stand-ins: a Deployment controller and a kubelet (a pod is a tritonserver on a loopback address of
its own, with Triton's usual ports), the loader (files of the revision's ConfigMap, counts of the
live one), and the code of the model. A custom tokenizer and the model cost what the test says: the
tokenizer sleeps (or uses CPU) per request, the model sleeps per execution as a GPU computes.
Everything else is the product's.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.openload import OpenLoad, open_load
from tests.support.operators import (
    DEADLINE_SECONDS,
    Running,
    apply_any,
    eventually,
    operator,
    patch,
    repeated,
)
from tests.support.simulated_nodes import control_deployments, ready_status, server_of
from tests.support.triton import runtime_source
from triton_pipelines.api import names
from triton_pipelines.api.loadplan import LoadPlan
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    INFERENCE_PIPELINES,
    PODS,
    SECRETS,
    Resource,
)
from triton_pipelines.compile.render.model_config import parse as parse_config
from triton_pipelines.compile.render.model_config import with_count
from triton_pipelines.controllers.pipeline.prober import probe_pod
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.local_server import LocalTriton

EVENTS = Resource("events.k8s.io", "v1", "Event", "events")
NAME = "sentiment"
TICK_SECONDS = 1.0
_addresses = itertools.count(1)

# Sleeps (or spins) instead of computing. Its costs are in a file next to the repository, so that
# changing them does not change the model.
STAND_IN = """
import json, os, time
import numpy as np
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        cost = self.cost()
        time.sleep(cost.get("initialize", 0.0))
        if int(args["model_instance_name"].rsplit("_", 1)[-1]) >= cost.get("most", 1000):
            raise pb.TritonModelException(cost.get("why", "No space left on device"))

    def cost(self):
        with open(os.environ["STAND_IN_COSTS"]) as file:
            return json.load(file).get(self.config["name"], {})

    def execute(self, requests):
        cost = self.cost()
        time.sleep(cost.get("execution", 0.0) + cost.get("request", 0.0) * len(requests))
        end = time.thread_time() + cost.get("cpu", 0.0) * len(requests)
        while time.thread_time() < end:
            pass
        return [pb.InferenceResponse([self.made(output, request) for output in self.config["output"]]) for request in requests]

    def made(self, output, request):
        rows = request.inputs()[0].shape()[0]
        shape = [rows, *(8 if int(size) < 0 else int(size) for size in output["dims"])]
        return pb.Tensor(output["name"], np.ones(shape, dtype=pb.triton_string_to_numpy(output["data_type"])))
"""  # noqa: E501


@dataclass
class Pod:
    """A pod of the world.

    It has its Triton, and the folder with its repository and the costs of its stubs.
    """

    name: str
    triton: LocalTriton
    costs: Path
    key: str

    def set_costs(self, **costs: dict[str, float | str]) -> None:
        """Set what models cost from now on.

        The costs are seconds per ``request``, ``execution`` and ``initialize``, and seconds of
        ``cpu`` per request. At most ``most`` instances start; others fail with ``why``.
        """
        made = self.costs.with_suffix(".new")
        made.write_text(json.dumps(costs))
        made.replace(self.costs)

    def stubs(self, model: str) -> set[int]:
        """Return the process ids of a model's python processes.

        Those of untouched instances stay the same.
        """
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (
                    os.getpgid(int(folder.name)) == self.triton.pid
                    and f"/{model}/1/model.py".encode() in (folder / "cmdline").read_bytes()
                ):
                    found.add(int(folder.name))
        return found

    def processes(self) -> list[str]:
        """Name, state and command line of each process of the server."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(folder.name)) == self.triton.pid:
                    name, state = (folder / "status").read_text().splitlines()[0:3:2]
                    command = (folder / "cmdline").read_bytes().decode(errors="replace")
                    waits = (folder / "wchan").read_text()
                    found.append(f"{folder.name} {name} {state} {waits} {command[-300:]}")
        return found

    async def count(self, model: str = "tokenizer") -> int:
        """Instances as Triton tells them."""
        async with TritonClient(self.triton.grpc_address) as client:
            return await client.instance_count(model)


@dataclass
class World:
    """One pipeline with its pods."""

    client: Client
    proxy: FaultProxy
    namespace: str
    folder: Path
    costs: dict[str, dict[str, float | str]]
    pods: dict[str, Pod] = field(default_factory=dict)

    # --- what is seen -----------------------------------------------------------------------------

    @property
    def pod(self) -> Pod:
        """The only pod."""
        (pod,) = self.pods.values()
        return pod

    async def status(self) -> Object:
        """The pipeline's status."""
        found = await self.client.get(INFERENCE_PIPELINES, self.namespace, NAME)
        return dict(found.get("status") or {})

    async def condition(self, kind: str) -> Object:
        """A condition, or an empty one."""
        return next(
            (
                item
                for item in (await self.status()).get("conditions") or ()
                if item["type"] == kind
            ),
            {},
        )

    async def bottleneck(self) -> str:
        """The verdict as the status has it."""
        return str(((await self.status()).get("scaling") or {}).get("bottleneck", ""))

    async def recorded(self) -> dict[str, int]:
        """Counts as the live ConfigMap has them."""
        found = await self.client.get(CONFIG_MAPS, self.namespace, names.live_name(NAME))
        return dict(json.loads(found["data"][names.KEY_COUNTS]))

    async def events(self, reason: str) -> list[str]:
        """Notes of the events with a reason."""
        found = (await self.client.list(EVENTS, self.namespace)).items
        return [item["note"] for item in found if item["reason"] == reason]

    # --- what people and clusters do --------------------------------------------------------------

    async def apply(self, **spec: Any) -> None:
        """Make or change the pipeline."""
        document = builders.document(
            namespace=self.namespace, name=NAME, **builders.merge(SPEC, spec)
        )
        document["metadata"].pop("uid")
        await apply_any(self.client, INFERENCE_PIPELINES, document)

    async def kubelet(self) -> None:
        """Start what is to run and end what is not."""
        listed = {
            item["metadata"]["name"]: item
            for item in (await self.client.list(PODS, self.namespace)).items
        }
        for name in set(self.pods) - set(listed):
            await asyncio.to_thread(self.pods.pop(name).triton.stop)
        for name, item in listed.items():
            if name not in self.pods:
                await self._start(name, item)

    async def _start(self, name: str, item: Object) -> None:
        revision = item["metadata"]["labels"][names.LABEL_REVISION]
        try:
            written = await self.client.get(
                CONFIG_MAPS, self.namespace, names.revision_name(NAME, revision)
            )
            live = await self.client.get(CONFIG_MAPS, self.namespace, names.live_name(NAME))
            secret = await self.client.get(
                SECRETS, self.namespace, names.revision_name(NAME, revision)
            )
        except NotFound:
            return  # as the kubelet: once more later
        number = next(_addresses)
        place = self.folder / name
        write_repository(
            place / "models", written["data"], json.loads(live["data"][names.KEY_COUNTS])
        )
        costs = place / "costs.json"
        costs.write_text(json.dumps(self.costs))
        key = base64.b64decode(secret["data"][names.KEY_CONTROL]).decode()
        triton = LocalTriton(
            place / "models",
            [NAME],
            control_key=key,
            address=f"127.77.{os.getpid() % 250 + 1}.{number}",
            http_port=names.PORT_HTTP,
            grpc_port=names.PORT_GRPC,
            metrics_port=names.PORT_METRICS,
            stop_s=1,
            extra_args=metrics_arguments(item),
            log_file=place / "triton.log",
            environment={"STAND_IN_COSTS": str(costs)},
        )
        await triton.__aenter__()
        self.pods[name] = Pod(name, triton, costs, key)
        status = ready_status(item)
        status |= {"podIP": triton.address, "podIPs": [{"ip": triton.address}]}
        await patch(self.client, PODS, self.namespace, name, {"status": status}, "status")

    async def kill(self) -> None:
        """Kill the only pod's Triton, and report that as the kubelet does."""
        os.kill(self.pod.triton.pid, signal.SIGKILL)
        found = await self.client.get(PODS, self.namespace, self.pod.name)
        status = found["status"]
        server_of(status["containerStatuses"]).update(
            ready=False, restartCount=1, state={"waiting": {"reason": "CrashLoopBackOff"}}
        )
        status["conditions"] = [
            {**item, "status": "False"} if item["type"] in ("Ready", "ContainersReady") else item
            for item in status["conditions"]
        ]
        await patch(self.client, PODS, self.namespace, self.pod.name, {"status": status}, "status")

    @contextlib.contextmanager
    def load(self, rate: float = 0.0) -> Iterator[OpenLoad]:
        """Open-loop load on the only pod."""
        with open_load(self.pod.triton.grpc_address, NAME, rate) as load:
            yield load

    @contextlib.asynccontextmanager
    async def operator(self, *beside: World, **changes: Any) -> AsyncIterator[Running]:
        """Run the operator with real probes and short pauses.

        It also handles the worlds in ``beside``, because there is one Kopf per process.
        """
        namespaces = [one.namespace for one in (self, *beside)]
        async with operator(
            self.proxy,
            self.folder,
            *namespaces,
            prober=probe_pod,
            substitute_runner=["onnxruntime_onnx"],
            **changes,
        ) as running:
            assert running.scaler is not None
            (
                running.scaler.tick_seconds,
                running.scaler.retry_seconds,
                running.scaler.intent_seconds,
            ) = TICK_SECONDS, 1.0, 4.0
            yield running


@contextlib.asynccontextmanager
async def world(
    client: Client, proxy: FaultProxy, namespace: str, folder: Path, **costs: dict[str, float | str]
) -> AsyncIterator[World]:
    """Provide a namespace whose pods are started; every Triton ends with it."""
    folder.mkdir(parents=True, exist_ok=True)
    made = World(client, proxy, namespace, folder, costs)
    try:
        async with repeated(lambda: control_deployments(client, namespace), made.kubelet):
            yield made
    finally:
        await asyncio.gather(*(asyncio.to_thread(pod.triton.stop) for pod in made.pods.values()))


SPEC: dict[str, Any] = {
    "tokenizer": {
        "type": "Python",
        "source": None,
        "python": {"code": {"inline": STAND_IN}},
        "outputs": [{"name": "input_ids"}, {"name": "attention_mask"}],
        "instances": {"initial": 1, "min": 1, "max": 6},
        "dynamicBatching": {"preferredBatchSizes": None},
    },
    "model": {"maxBatchSize": 8},
    "scaling": {
        "windows": {"fastSeconds": 3, "slowSeconds": 10},
        "scaleUp": {"cooldownSeconds": 2},
        "scaleDown": {"stabilizationSeconds": 4, "maxStepPercent": 100},
    },
}
"""The sentiment pipeline, with a loop that is fast enough for a test.

Its model is meant for a GPU; a stub replaces it. Its tokenizer is custom code whose costs can be
chosen.
"""


async def ready(place: World) -> None:
    """The pipeline serves."""

    async def is_ready() -> bool:
        return bool(place.pods) and (await place.condition("Ready")).get("status") == "True"

    await eventually("the pipeline is ready", is_ready, 60)


async def until_count(place: World, low: int, high: int, deadline: float = DEADLINE_SECONDS) -> int:
    """Triton reports a count between these."""

    async def reached() -> int:
        count = await place.pod.count()
        return count if low <= count <= high else 0

    try:
        return int(await eventually(f"{low} to {high} tokenizers", reached, deadline))
    except AssertionError as error:
        log = (place.pod.costs.parent / "triton.log").read_text(errors="replace")
        raise AssertionError(
            f"{error}; the status is {await place.status()}; the processes are "
            f"{place.pod.processes()}; Triton's log ends with {log[-2000:]}"
        ) from None


async def until_verdict(place: World, verdict: str, deadline: float = DEADLINE_SECONDS) -> None:
    """The status has the verdict."""

    async def said() -> bool:
        return await place.bottleneck() == verdict

    await eventually(f"the verdict {verdict}", said, deadline)


async def until_condition(
    place: World, kind: str, reason: str, words: str = "", deadline: float = DEADLINE_SECONDS
) -> str:
    """A condition has a reason, and these words in its message; the message."""

    async def there() -> str:
        found = await place.condition(kind)
        return (
            str(found["message"])
            if found.get("reason") == reason and words in found["message"]
            else ""
        )

    return str(await eventually(f"{kind} with {reason} {words}", there, deadline))


def metrics_arguments(pod: Object) -> list[str]:
    """Return the arguments of a pod's Triton about its metrics; others do not fit a loopback."""
    arguments: list[str] = server_of(pod["spec"]["containers"]).get("args") or []
    return [item for item in arguments if item.startswith("--metrics-config")]


def write_repository(folder: Path, data: dict[str, str], counts: dict[str, int]) -> None:
    """Act as the loader.

    Files come from the revision and counts from the live ConfigMap. Stubs replace what is
    expensive.
    """
    plan = LoadPlan.model_validate_json(data[names.KEY_PLAN])
    for item in plan.files:
        path = folder / item.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data[item.key])
    for empty in plan.empty_dirs:
        (folder / empty).mkdir(parents=True, exist_ok=True)
    for counted in plan.counts:
        path = folder / counted.path
        path.write_text(
            text_format.MessageToString(
                with_count(parse_config(path.read_text()), counts[counted.step])
            )
        )
    for model, code in (
        ("model", STAND_IN),
        ("postprocess", runtime_source("postprocess")),
    ):
        version = folder / model / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version / "model.py").write_text(code)
