"""The operator's start-up on a real API server, with faults in between.

Kopf's watches, store, queue, probes and metrics are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.local.processes import free_port
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import Fault, FaultProxy
from tests.support.operators import (
    DEADLINE_SECONDS,
    NAMESPACES,
    eventually,
    make_namespace,
)
from triton_pipelines.api import names
from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.app.main import run_operator
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.app.services import Services
from triton_pipelines.cluster import watches
from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import Conflict
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import CONFIG_MAPS, SECRETS
from triton_pipelines.cluster.work_queue import Key, Result

pytestmark = pytest.mark.integration


@pytest.fixture
async def client(api_server: ControlPlane) -> AsyncIterator[Client]:
    async with Client(lambda: load_configuration(str(api_server.kubeconfig))) as client:
        yield client


@pytest.fixture
async def namespace(client: Client, request: pytest.FixtureRequest) -> str:
    name = "t-" + "".join(char if char.isalnum() else "-" for char in request.node.name.lower())[
        :50
    ].strip("-")
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    with contextlib.suppress(Conflict):
        await client._transport.send(
            "create", "POST", NAMESPACES, NAMESPACES.path(), body=body, repeatable=False
        )
    return name


@pytest.fixture
async def proxy(api_server: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(api_server.kubeconfig) as proxy:
        yield proxy


@dataclass
class Running:
    """A running operator whose passes only record what the store shows."""

    config: OperatorConfig
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    services: Services | None = None
    passes: list[Key] = field(default_factory=list)
    work: Callable[[Key], Any] | None = None

    def build(self, services: Services) -> Any:
        self.services = services

        async def reconcile(key: Key) -> Result:
            self.passes.append(key)
            if self.work is not None:
                await self.work(key)
            return Result()

        return reconcile

    def children(self, key: Key) -> list[str]:
        assert self.services is not None
        return [
            child["metadata"]["name"] for child in self.services.store.children(CONFIG_MAPS, key)
        ]

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"tritonpipe_{name}", labels) or 0.0


@contextlib.asynccontextmanager
async def running(
    proxy: FaultProxy, tmp_path: Path, namespace: str, **options: Any
) -> AsyncIterator[Running]:
    key_file = tmp_path / "key"
    key_file.write_text("k" * 64)
    defaults = {
        "kubeconfig": str(proxy.write_kubeconfig(tmp_path / "kubeconfig")),
        "namespaces": (namespace,),
        "metrics_host": "127.0.0.1",
        "metrics_port": 0,
        "liveness_host": "127.0.0.1",
        "liveness_port": free_port(),
        "operator_key_file": key_file,
        "operator_namespace": namespace,
        "shutdown_seconds": 5,
    }
    operator = Running(OperatorConfig(**(defaults | options)))
    task = asyncio.create_task(
        run_operator(
            operator.config,
            operator.build,
            stop=operator.stop,
            ready=operator.ready,
            metrics=operator.metrics,
        )
    )
    waiting = asyncio.create_task(operator.ready.wait())
    try:
        await asyncio.wait(
            {task, waiting}, timeout=DEADLINE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        assert operator.ready.is_set(), "the operator did not get ready"
        yield operator
    finally:
        waiting.cancel()
        operator.stop.set()
        await asyncio.wait_for(task, DEADLINE_SECONDS)


def pipeline(name: str, namespace: str) -> Object:
    spec = {
        "tokenizer": {"source": {"uri": "hf://org/name"}},
        "model": {
            "platform": "onnxruntime_onnx",
            "source": {"uri": "s3://bucket/model.onnx"},
            "outputs": [{"name": "logits", "dataType": "FP32", "dims": [2]}],
        },
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def child(name: str, owner: str, namespace: str, **data: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": names.labels(owner)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def watched(proxy: FaultProxy) -> None:
    """Waits until Kopf's watch of ConfigMaps runs."""
    await eventually("Kopf watches", lambda: proxy.count("GET", r"configmaps\?.*watch=true"))


async def test_events_make_the_owner_due_and_nothing_is_written(
    client: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    key = (namespace, "a")
    await client.apply(pipeline("a", namespace))
    await client.apply(child("early", "a", namespace))
    async with running(proxy, tmp_path, namespace) as operator:
        await eventually("first pass", lambda: operator.passes == [key])
        assert operator.children(key) == ["early"]
        await watched(proxy)
        await client.apply(child("late", "a", namespace))
        await eventually(
            "pass on a new child",
            lambda: operator.children(key) == ["early", "late"] and len(operator.passes) >= 2,
        )
        before = len(operator.passes)
        await client.delete(CONFIG_MAPS, namespace, "early")
        await eventually(
            "pass on a deleted child",
            lambda: operator.children(key) == ["late"] and len(operator.passes) > before,
        )
        await client.apply(pipeline("b", namespace))
        await eventually("pass on a new pipeline", lambda: (namespace, "b") in operator.passes)
        # Foreign objects are not even reported: the server filters the watch.
        foreign = child("foreign", "a", namespace)
        foreign["metadata"]["labels"][names.LABEL_MANAGED_BY] = "someone"
        await client.apply(foreign)
        await client.apply(child("last", "b", namespace))
        await eventually("pass after it", lambda: operator.children((namespace, "b")) == ["last"])
        assert operator.children(key) == ["late"]
        assert proxy.mutating == []
        assert proxy.count(".*", "secrets") == 0


async def test_our_own_writes_make_no_pass(
    client: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    key = (namespace, "a")
    await client.apply(pipeline("a", namespace))
    # The echo comes after the answer: which of them is first is a race otherwise.
    watch = proxy.inject(
        Fault(method="GET", path=r"configmaps\?.*watch=true", release=threading.Event())
    )
    async with running(proxy, tmp_path, namespace) as operator:
        await watched(proxy)
        await eventually("first pass", lambda: operator.passes == [key])
        assert operator.services is not None
        written = await operator.services.client.apply(child("own", "a", namespace))
        assert operator.services.store.put(CONFIG_MAPS, written)
        assert watch.release is not None
        watch.release.set()
        await eventually(
            "its echo", lambda: operator.value("watch_events_total", resource="configmaps") >= 1
        )
        await client.apply(child("marker", "b", namespace))
        await eventually("a later pass", lambda: (namespace, "b") in operator.passes)
        assert operator.passes.count(key) == 1


async def test_deletions_lost_over_a_410_are_found_by_the_list(
    client: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    key = (namespace, "a")
    await client.apply(pipeline("a", namespace))
    await client.apply(child("doomed", "a", namespace))
    # A watch is cut. Its successor has to wait until the object is gone, and then learns that its
    # version is too old.
    async with running(proxy, tmp_path, namespace, relist_seconds=1.0) as operator:
        await eventually("first pass", lambda: operator.passes == [key])
        await eventually("a watch", lambda: proxy.is_streaming(r"configmaps\?.*watch=true"))
        held = threading.Event()
        expired = proxy.inject(
            Fault(path=r"configmaps\?.*watch=true", release=held, expire_watch=True)
        )
        # Our own lists wait as well, so that it is surely the 410 that loses the deletion.
        lists = proxy.inject(
            Fault(
                method="GET",
                path=r"configmaps\?.*limit=\d+(?!.*watch)",
                release=threading.Event(),
                times=None,
            )
        )
        proxy.cut_streams()
        await eventually("the new watch", lambda: expired.hits)
        await client.delete(CONFIG_MAPS, namespace, "doomed")
        held.set()
        assert operator.children(key) == ["doomed"]
        before = len(operator.passes)
        assert lists.release is not None
        lists.times = 0
        lists.release.set()
        await eventually(
            "the list", lambda: operator.children(key) == [] and len(operator.passes) > before
        )
        assert operator.value("watch_missed_total", resource="configmaps") >= 1


async def test_a_deletion_before_the_watch_begins_is_found_soon(
    client: Client,
    proxy: FaultProxy,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("triton_pipelines.app.relisting.WATCHING_SECONDS", 2.0)
    key = (namespace, "a")
    await client.apply(pipeline("a", namespace))
    await client.apply(child("doomed", "a", namespace))
    held = threading.Event()
    watch = proxy.inject(Fault(path=r"configmaps\?.*watch=true", release=held, expire_watch=True))
    async with running(proxy, tmp_path, namespace) as operator:
        await eventually("the first watch", lambda: watch.hits)
        await client.delete(CONFIG_MAPS, namespace, "doomed")
        # The watch then learns that its version is too old, so it never reports the deletion.
        held.set()
        await eventually("a list", lambda: operator.children(key) == [])


async def test_dropped_watches_come_back(
    client: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    key = (namespace, "a")
    await client.apply(pipeline("a", namespace))
    async with running(proxy, tmp_path, namespace) as operator:
        await watched(proxy)
        for number in range(3):
            proxy.cut_streams()
            await client.apply(child(f"c{number}", "a", namespace))
            await eventually(
                "the change", lambda number=number: f"c{number}" in operator.children(key)
            )
        assert operator.value("watch_missed_total", resource="configmaps") == 0


async def test_start_up_waits_for_the_server_and_never_works_on_a_cold_cache(
    client: Client,
    proxy: FaultProxy,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "_RETRY_SECONDS", (0.2,) * 8)
    await client.apply(pipeline("a", namespace))
    await client.apply(child("known", "a", namespace))
    seen: list[list[str]] = []
    proxy.inject(Fault(path=r"/pods\?.*limit", status=503, times=6))
    async with running(proxy, tmp_path, namespace) as operator:
        operator.work = lambda key: _record(seen, operator.children(key))
        await eventually("first pass", lambda: operator.passes)
        assert operator.children((namespace, "a")) == ["known"]
        assert all(children == ["known"] for children in seen)
        assert proxy.count("GET", r"/pods\?.*limit") > 6


@pytest.mark.parametrize("leader_elect", [False, True])
async def test_a_namespace_that_cannot_be_read_does_not_affect_others(
    client: Client,
    proxy: FaultProxy,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    leader_elect: bool,
) -> None:
    """At start-up and beyond Kopf's own retries, which would end the operator."""
    monkeypatch.setattr(watches, "_RETRY_SECONDS", (0.2,) * 3)
    monkeypatch.setattr(watches, "_RETRY_SECONDS_MAX", 0.2)
    blocked = f"{namespace[:50]}-blocked"
    await make_namespace(client, blocked)
    for name in (namespace, blocked):
        await client.apply(pipeline("a", name))
        await client.apply(child("known", "a", name))
    path = rf"namespaces/{blocked}/configmaps\?.*limit"
    forbidden = proxy.inject(Fault(path=path, status=403, reason="Forbidden", times=None))
    names_of = {"namespaces": (blocked, namespace), "leader_elect": leader_elect}
    async with running(proxy, tmp_path, namespace, **names_of) as operator:
        seen: list[tuple[Key, list[str]]] = []
        operator.work = lambda key: _record(seen, (key, operator.children(key)))
        await eventually("first pass", lambda: operator.passes)
        await eventually("more attempts than Kopf's own", lambda: forbidden.hits > 12)
        assert {key[0] for key in operator.passes} == {namespace}
        assert operator.value("watch_failing", namespace=blocked) == 1
        assert operator.value("watch_failing", namespace=namespace) == 0
        assert operator.value("synced") == 0
        late = f"late-{leader_elect}".lower()
        await client.apply(pipeline(late, namespace))
        await eventually("its watches", lambda: (namespace, late) in operator.passes)
        forbidden.times = 0
        await eventually("the other one", lambda: (blocked, "a") in operator.passes)
        assert operator.children((blocked, "a")) == ["known"]
        assert ((blocked, "a"), []) not in seen
        await eventually("all lists", lambda: operator.value("synced") == 1)
        assert operator.value("watch_failing", namespace=blocked) == 0


async def _record(into: list[Any], value: Any) -> None:
    into.append(value)


async def test_probe_and_metrics_answer(
    client: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    await client.apply(pipeline("a", namespace))
    port = free_port()
    async with (
        running(proxy, tmp_path, namespace, metrics_port=port, relist_seconds=1.0) as operator,
        httpx.AsyncClient(timeout=DEADLINE_SECONDS) as http,
    ):
        await eventually("first pass", lambda: operator.value("reconciles_total", result="ok") >= 1)
        url = f"http://127.0.0.1:{operator.config.liveness_port}/healthz"

        async def healthy() -> bool:
            return (await http.get(url)).status_code == 200

        await eventually("liveness", healthy)
        labels = {"code": "200", "resource": "inferencepipelines", "verb": "list"}
        await eventually("a list", lambda: operator.value("api_requests_total", **labels))
        text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
        assert (
            'tritonpipe_api_requests_total{code="200",resource="inferencepipelines",verb="list"}'
            in text
        )
        for name in (
            "reconcile_duration_seconds",
            "queue_depth",
            "loop_lag_seconds",
            "watch_objects",
            "synced 1.0",
        ):
            assert f"tritonpipe_{name}" in text, name
        with pytest.raises(httpx.ConnectError):
            await http.get(f"http://127.0.0.1:{free_port()}/")


async def test_a_graceful_stop_lets_a_pass_finish(
    client: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    await client.apply(pipeline("a", namespace))
    finished: list[str] = []
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(_: Key) -> None:
        begun.set()
        await may_end.wait()
        finished.append("yes")

    async with running(proxy, tmp_path, namespace) as operator:
        operator.work = slow
        await client.apply(pipeline("b", namespace))
        await eventually("a pass", begun.is_set)
        await eventually(
            "the age of the pass as a metric",
            lambda: operator.value("queue_longest_work_seconds") > 0,
        )
        operator.stop.set()
        asyncio.get_running_loop().call_later(0.3, may_end.set)
    assert finished


async def test_the_operator_key_is_created_once_and_no_secret_is_read(
    client: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    missing = tmp_path / "mounted"
    async with running(proxy, tmp_path, namespace, operator_key_file=missing) as operator:
        assert operator.services is not None
        first = operator.services.control_key
    stored = await client.get(SECRETS, namespace, "triton-pipelines-operator-key")
    assert set(stored["data"]) == {"mounted"}
    assert [(seen.method, seen.target) for seen in proxy.requests if "secrets" in seen.target] == [
        ("POST", SECRETS.path(namespace))
    ]
    # A restart before the kubelet has mounted it waits for the file.
    asyncio.get_running_loop().call_later(0.2, missing.write_bytes, first)
    async with running(proxy, tmp_path, namespace, operator_key_file=missing) as operator:
        assert operator.services is not None
        assert operator.services.control_key == first


async def test_the_operator_ends_when_a_part_of_it_dies(
    client: Client, proxy: FaultProxy, tmp_path: Path, namespace: str
) -> None:
    (tmp_path / "key").write_text("short")
    config = OperatorConfig(
        kubeconfig=str(proxy.write_kubeconfig(tmp_path / "kubeconfig")),
        namespaces=(namespace,),
        metrics_host="127.0.0.1",
        metrics_port=0,
        liveness_host="127.0.0.1",
        liveness_port=free_port(),
        operator_key_file=tmp_path / "key",
    )
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(run_operator(config, Running(config).build), DEADLINE_SECONDS)
    assert "contains 5 bytes" in str(caught.value.exceptions[0])


async def test_the_operator_ends_when_discovery_did_not_know_the_crd_in_time(
    client: Client,
    proxy: FaultProxy,
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches.wait_until_watched, "__defaults__", (3.0,))
    # What the API server does in the moment between serving a new kind and telling of it.
    proxy.inject(
        Fault(method="GET", path=f"/apis/{names.API_VERSION}$", status=404, reason="NotFound")
    )
    with pytest.raises(ExceptionGroup) as caught:
        async with running(proxy, tmp_path, namespace) as operator:
            await asyncio.wait_for(operator.stop.wait(), DEADLINE_SECONDS)
    # On a busy machine, discovery may not have reported other kinds in time either.
    kinds, _, problem = str(caught.value.exceptions[0]).partition(": ")
    assert f"{names.PLURAL}.{names.GROUP}" in kinds.split(", ")
    assert problem.startswith("listed by the API server")
