"""Pipelines that come and go leave nothing behind in the operator's process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import resource
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import builders
from tests.support.faultproxy import FaultProxy
from tests.support.operators import Running, apply_any, eventually, operator, patch, repeated
from tests.support.simulated_nodes import is_ready, ready_status
from tests.support.soak.pods import MODEL, Answers, SimulatedPod
from triton_pipelines.api import names
from triton_pipelines.app import composition
from triton_pipelines.app.services import Reconcile, Services
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.resources import INFERENCE_PIPELINES, PODS
from triton_pipelines.cluster.shared_values import SharedValues
from triton_pipelines.cluster.store import Store
from triton_pipelines.cluster.watches import WATCHED
from triton_pipelines.controllers.pipeline import snapshot
from triton_pipelines.controllers.pipeline.policies import last_good_spec

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(600),
]
PIPELINES = 20
ROUNDS = 5
BASELINE = 2
"""The round after which nothing may grow: caches of the libraries are filled by then."""
ADDRESS = f"127.{64 + uuid.uuid4().int % 180}.7.1"
"""Of every pod: a connection is kept for each, by its uid."""
NAME = re.compile(r"p-\d+-\d\d")
"""Names of the pipelines; other series depend on what has happened, not on how often."""
_PACKAGE = "triton_pipelines."
TEXT_CACHES = (
    last_good_spec._is_valid,
    snapshot._record_of,
    snapshot.parse_state,
)
"""Their total size has a limit, which this test does not reach."""


class Inspected:
    """The product's own wiring, of which the test keeps the parts."""

    def __init__(self) -> None:
        self.roots: list[object] = []
        self.store = Store()
        self.client: Client | None = None

    def build(self, services: Services) -> Reconcile:
        parts = composition.build_parts(services)
        queue = getattr(services.enqueue, "__self__", None)
        self.roots, self.store = [parts, services, queue], services.store
        self.client = services.client
        return composition.start(parts, services)

    def figures(self, running: Running) -> Counter[str]:
        """Return what the operator holds: files, tasks, series, objects and entries."""
        gc.collect()
        found: Counter[str] = Counter(
            f"{type(item).__module__}.{type(item).__qualname__}"
            for item in gc.get_objects()
            if type(item).__module__.startswith((_PACKAGE, "grpc.aio", "kopf."))
        )
        found["files"] = len(list(Path("/proc/self/fd").iterdir()))
        found["tasks"] = len(asyncio.all_tasks())
        found["series"] = sum(
            any(map(NAME.fullmatch, sample.labels.values()))
            for family in running.metrics.registry.collect()
            for sample in family.samples
        )
        found["entries"] = entries(self.roots)
        return found


def entries(roots: list[object]) -> int:
    """Return the number of entries in all collections that the operator's objects hold.

    Those of the store's shared strings are left out: their number has a limit of its own.
    """
    pending, seen, number = deque(roots), set[int](), 0
    while pending:
        item = pending.popleft()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, SharedValues):
            continue
        if isinstance(item, dict | list | set | frozenset | tuple | deque):
            number += len(item)
        elif not type(item).__module__.startswith(_PACKAGE):
            continue
        pending += [found for found in gc.get_referents(item) if not isinstance(found, type)]
    return number


class Kubelet:
    """Makes every pod ready, at the address of the simulated one."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    async def work(self) -> None:
        found = await self.client.list(PODS, self.namespace, label_selector=names.MANAGED_SELECTOR)
        for pod in found.items:
            if not is_ready(pod) and not pod["metadata"].get("deletionTimestamp"):
                status = ready_status(pod) | {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]}
                body = {"status": status}
                name = pod["metadata"]["name"]
                await patch(self.client, PODS, self.namespace, name, body, "status")


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[None]:
    """Run the simulated Triton."""
    pod = await SimulatedPod(ADDRESS, Answers()).start()
    try:
        yield
    finally:
        await pod.stop()


async def create(client: Client, namespace: str, name: str) -> None:
    document = builders.document(
        name=name,
        namespace=namespace,
        ensemble={"modelName": MODEL},
        tokenizer={"instances": {"initial": 1, "min": 1, "max": 4}},
        rollout={"preflight": "Disabled"},
        slo={"p99Milliseconds": 500},
    )
    document["metadata"].pop("uid")
    await apply_any(client, INFERENCE_PIPELINES, document)


def is_served(item: Any) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


async def come_and_go(client: Client, namespace: str, store: Store, number: int) -> None:
    """Create pipelines, wait until their pods serve, and delete them with all their objects."""
    created = [f"p-{number}-{index:02d}" for index in range(PIPELINES)]
    await asyncio.gather(*(create(client, namespace, name) for name in created))

    async def are_served() -> bool:
        found = (await client.list(INFERENCE_PIPELINES, namespace)).items
        return len(found) == PIPELINES and all(map(is_served, found))

    await eventually("all pipelines are served", are_served, 180, every=0.5)
    await asyncio.gather(*(client.delete(INFERENCE_PIPELINES, namespace, name) for name in created))
    await eventually(
        "no object is left", lambda: not any(map(store.count, WATCHED)), 180, every=0.5
    )


async def settled_figures(inspected: Inspected, running: Running) -> Counter[str]:
    """Return the figures once the operator has forgotten all pipelines, and they fall no more."""
    found = inspected.figures(running)

    def have_settled() -> bool:
        nonlocal found
        before, found = found, inspected.figures(running)
        return not found["series"] and found["entries"] >= before["entries"]

    await eventually("the figures settle", have_settled, every=3.0)
    return found


async def test_pipelines_that_come_and_go_leave_nothing_behind(
    admin: Client,
    proxy: FaultProxy,
    namespace: str,
    tmp_path: Path,
    record_property: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is left of each pipeline grows by three times as many as there are at a time."""
    for cache in TEXT_CACHES:
        monkeypatch.setattr(cache, "characters_max", 0)
    inspected, kubelet, memory = Inspected(), Kubelet(admin, namespace), list[int]()
    async with (
        operator(proxy, tmp_path, namespace, build=inspected.build, relist_seconds=2) as running,
        serving(),
        repeated(kubelet.work, every=0.3),
    ):
        baseline: Counter[str] = Counter()

        def grown() -> dict[str, int]:
            found = inspected.figures(running)
            return {
                what: found[what] - baseline[what]
                for what in found
                if found[what] - baseline[what] >= PIPELINES
            }

        for number in range(1, ROUNDS + 1):
            await come_and_go(admin, namespace, inspected.store, number)
            if number == BASELINE:
                baseline = await settled_figures(inspected, running)
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        with contextlib.suppress(AssertionError):
            await eventually("no more than before", lambda: not grown(), every=0.5)
        assert grown() == {}
        found = inspected.figures(running)
        kinds = ("files", "tasks", "series", "entries")
        figures = ", ".join(f"{found[kind]} {kind} ({baseline[kind]})" for kind in kinds)
        record_property("figures", f"{figures}; MiB: {memory}")
