"""Leader election on a real API server, with faults between candidates and the server.

The candidates of the first part run in this process; the operators of the second part are
processes of their own, which are stopped, killed and suspended.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import signal
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import builders
from tests.support.controlplane import ControlPlane
from tests.support.faultproxy import Fault, FaultProxy
from tests.support.operatorprocess import OperatorProcess, start_operator
from tests.support.operators import eventually, make_namespace, operator, patch
from triton_pipelines.app.services import Services
from triton_pipelines.cluster.client import Client, ClientOptions, Object
from triton_pipelines.cluster.leader_election import (
    LeaderElector,
    LeadershipLostError,
)
from triton_pipelines.cluster.lease_timing import LeaseTiming
from triton_pipelines.cluster.login import load_configuration
from triton_pipelines.cluster.resources import DEPLOYMENTS, LEASES

pytestmark = pytest.mark.integration
TIMING = LeaseTiming(duration=3, renew_deadline=2.0, retry_period=0.2)
"""Where a Lease has to expire."""
STEADY = LeaseTiming(duration=60, renew_deadline=40.0, retry_period=0.2)
"""Where it must not, however busy the machine is."""


# --- candidates -----------------------------------------------------------------------------------


@pytest.fixture
async def admin(api_server: ControlPlane) -> AsyncIterator[Client]:
    async with Client(lambda: load_configuration(str(api_server.kubeconfig))) as client:
        yield client


@pytest.fixture
async def namespace(admin: Client, request: pytest.FixtureRequest) -> str:
    return await make_namespace(admin, f"le-{zlib.crc32(request.node.name.encode()):08x}")


@pytest.fixture
async def proxy(api_server: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(api_server.kubeconfig) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def candidate(
    kubeconfig: Path, namespace: str, name: str = "a", timing: LeaseTiming = TIMING
) -> AsyncIterator[LeaderElector]:
    options = ClientOptions(timeout_seconds=timing.renew_deadline / 2, max_in_flight=1, attempts=1)
    async with Client(lambda: load_configuration(str(kubeconfig)), options=options) as client:
        yield LeaderElector(client, namespace, "operator", name, timing)


async def spec_of(admin: Client, namespace: str) -> Object:
    return dict((await admin.get(LEASES, namespace, "operator"))["spec"])


async def test_an_absent_lease_is_created(
    admin: Client, api_server: ControlPlane, namespace: str
) -> None:
    async with candidate(api_server.kubeconfig, namespace, timing=STEADY) as elector:
        assert not elector.is_valid()
        await elector.acquire()
        assert elector.is_valid()
        spec = await spec_of(admin, namespace)
    assert spec["holderIdentity"] == elector.identity
    assert spec["leaseDurationSeconds"] == STEADY.duration
    assert spec["leaseTransitions"] == 0


async def test_one_of_two_leads_and_the_other_takes_over_after_the_duration(
    admin: Client, api_server: ControlPlane, namespace: str
) -> None:
    async with (
        candidate(api_server.kubeconfig, namespace, "a") as a,
        candidate(api_server.kubeconfig, namespace, "b") as b,
    ):
        began = time.monotonic()
        waits = [asyncio.create_task(a.acquire()), asyncio.create_task(b.acquire())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        leader, other = (a, b) if waits[0].done() else (b, a)
        assert (leader.is_valid(), other.is_valid()) == (True, False)
        # The leader never renews, as if it were killed.
        await asyncio.wait_for(asyncio.gather(*waits), 30)
        assert other.is_valid()
        assert not leader.is_valid()
        assert time.monotonic() - began >= TIMING.duration
        assert (await spec_of(admin, namespace))["leaseTransitions"] == 1


async def test_a_renewing_leader_keeps_the_lease(
    api_server: ControlPlane, namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
    timing = LeaseTiming(duration=12, renew_deadline=10.0, retry_period=0.2)
    async with (
        candidate(kubeconfig, namespace, "a", timing) as a,
        candidate(api_server.kubeconfig, namespace, "b", timing) as b,
    ):
        began = time.monotonic()
        await a.acquire()
        renewing = asyncio.create_task(a.renew())
        waiting = asyncio.create_task(b.acquire())
        # A conflict, a server error and a broken connection are failed attempts, not the end.
        for fault in (
            Fault("PUT", status=409, reason="Conflict"),
            Fault("PUT", status=503),
            Fault("GET", drop=True),
            Fault("PUT", drop_after_effect=True),
        ):
            proxy.inject(fault)
            await eventually("hit", lambda fault=fault: fault.hits)
        writes = proxy.count("PUT", "leases")
        await eventually(
            "renewals beyond the duration of the first Lease",
            lambda: (
                proxy.count("PUT", "leases") >= writes + 5
                and time.monotonic() - began > timing.duration + 1.0
            ),
        )
        assert a.is_valid()
        assert not waiting.done()
        for task in (renewing, waiting):
            task.cancel()
        await asyncio.wait({renewing, waiting})


async def test_a_released_lease_is_acquired_at_once(
    admin: Client, api_server: ControlPlane, namespace: str
) -> None:
    forever = LeaseTiming(duration=3600, renew_deadline=3000.0, retry_period=0.2)
    async with (
        candidate(api_server.kubeconfig, namespace, "a", forever) as a,
        candidate(api_server.kubeconfig, namespace, "b", forever) as b,
    ):
        await a.acquire()
        await a.release()
        assert not a.is_valid()
        assert "holderIdentity" not in await spec_of(admin, namespace)
        await asyncio.wait_for(b.acquire(), 60)
        assert (await spec_of(admin, namespace))["holderIdentity"] == b.identity


async def test_a_hanging_api_server_ends_the_leadership_within_the_deadline(
    namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    timing = LeaseTiming(duration=30, renew_deadline=5.0, retry_period=0.2)
    kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
    async with candidate(kubeconfig, namespace, timing=timing) as elector:
        await elector.acquire()
        renewing = asyncio.create_task(elector.renew())
        await eventually("a renewal", lambda: proxy.count("PUT", "leases") >= 2)
        began = time.monotonic()
        proxy.inject(Fault(path="leases", times=None, release=threading.Event()))
        with pytest.raises(LeadershipLostError):
            await asyncio.wait_for(renewing, 30)
        assert time.monotonic() - began < timing.duration, "before another may take over"
        assert not elector.is_valid()


async def test_refused_connections_end_the_leadership_and_a_candidate_keeps_trying(
    namespace: str, api_server: ControlPlane, tmp_path: Path
) -> None:
    async with FaultProxy(api_server.kubeconfig) as proxy:
        kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
        async with candidate(kubeconfig, namespace) as elector:
            await elector.acquire()
            await proxy.refuse_connections()
            with pytest.raises(LeadershipLostError):
                await elector.renew()
            waiting = asyncio.create_task(elector.acquire())
            done, _ = await asyncio.wait({waiting}, timeout=2)
            assert not done
            await proxy.accept_connections()
            proxy.write_kubeconfig(tmp_path / "kubeconfig")
            waiting.cancel()
        async with candidate(kubeconfig, namespace) as elector:
            await asyncio.wait_for(elector.acquire(), 30)


async def test_a_deleted_lease_is_created_again(
    admin: Client, api_server: ControlPlane, namespace: str
) -> None:
    async with candidate(api_server.kubeconfig, namespace, timing=STEADY) as elector:
        await elector.acquire()
        renewing = asyncio.create_task(elector.renew())
        await admin.delete(LEASES, namespace, "operator")
        spec = await eventually("a new Lease", lambda: spec_of(admin, namespace))
        assert spec["holderIdentity"] == elector.identity
        assert elector.is_valid()
        assert not renewing.done()
        renewing.cancel()


async def test_a_deleted_lease_is_not_taken_while_its_holder_may_still_write(
    admin: Client, api_server: ControlPlane, namespace: str
) -> None:
    async with (
        candidate(api_server.kubeconfig, namespace, "a") as a,
        candidate(api_server.kubeconfig, namespace, "b") as b,
    ):
        await a.acquire()
        waiting = asyncio.create_task(b.acquire())
        await eventually("b has seen the holder", lambda: b._observed[0])
        await admin.delete(LEASES, namespace, "operator")
        while not waiting.done():
            assert not (a.is_valid() and b.is_valid())
            await asyncio.sleep(0.01)
        assert not a.is_valid()
    assert (await spec_of(admin, namespace))["holderIdentity"] == b.identity


async def test_other_changes_of_a_lease_do_not_prolong_a_dead_leader(
    admin: Client, api_server: ControlPlane, namespace: str
) -> None:
    async def annotate() -> None:
        number = 0
        while True:
            number += 1
            patched = {"metadata": {"annotations": {"number": str(number)}}}
            await patch(admin, LEASES, namespace, "operator", patched)
            await asyncio.sleep(0.1)

    async with (
        candidate(api_server.kubeconfig, namespace, "a") as a,
        candidate(api_server.kubeconfig, namespace, "b") as b,
    ):
        await a.acquire()  # and dies
        annotating = asyncio.create_task(annotate())
        try:
            await asyncio.wait_for(b.acquire(), 30)
        finally:
            annotating.cancel()
    assert (await spec_of(admin, namespace))["holderIdentity"] == b.identity


async def test_a_lease_that_another_holds_ends_the_leadership_at_once(
    admin: Client, api_server: ControlPlane, namespace: str
) -> None:
    async with candidate(api_server.kubeconfig, namespace, timing=STEADY) as elector:
        await elector.acquire()
        lease = await admin.get(LEASES, namespace, "operator")
        await admin.replace({**lease, "spec": {**lease["spec"], "holderIdentity": "thief"}})
        with pytest.raises(LeadershipLostError, match="thief"):
            await elector.renew()
        assert not elector.is_valid()
        # Not released: it is no longer ours.
        await elector.release()
        assert (await spec_of(admin, namespace))["holderIdentity"] == "thief"


async def test_times_are_utc_in_any_time_zone(
    admin: Client,
    api_server: ControlPlane,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        async with candidate(api_server.kubeconfig, namespace) as elector:
            await elector.acquire()
        renewed = dt.datetime.fromisoformat((await spec_of(admin, namespace))["renewTime"])
        assert abs(dt.datetime.now(dt.UTC) - renewed) < dt.timedelta(minutes=1)
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_an_operator_whose_work_fails_releases_and_fails(
    admin: Client, namespace: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    async def fails() -> None:
        raise ArithmeticError("a part failed")

    def build(services: Services) -> Any:
        services.run_in_background("part", fails)
        return None

    with pytest.raises(ExceptionGroup) as failure:
        async with operator(
            proxy,
            tmp_path,
            namespace,
            operator_namespace=namespace,
            leader_elect=True,
            leader_elect_lease="operator",
            build=build,
        ) as running:
            await running.stop.wait()
    assert failure.group_contains(ArithmeticError, match="a part failed")
    assert "holderIdentity" not in await spec_of(admin, namespace)


# --- operators ------------------------------------------------------------------------------------


START_SECONDS = 120.0
"""For processes that start or take over, on a machine that is busy with other things."""


@dataclass
class Replicas:
    """Starts operators, and ends them."""

    api_server: ControlPlane
    namespace: str
    folder: Path
    stack: contextlib.AsyncExitStack
    started: list[OperatorProcess] = field(default_factory=list)

    async def start(self, **settings: str) -> OperatorProcess:
        number = len(self.started)
        proxy = await self.stack.enter_async_context(FaultProxy(self.api_server.kubeconfig))
        started = await start_operator(
            f"replica-{number}", proxy, self.folder / str(number), self.namespace, **settings
        )
        self.started.append(started)
        self.stack.push_async_callback(started.end)
        return started

    async def pair(self) -> tuple[OperatorProcess, OperatorProcess]:
        """A leader whose Lease expires soon after a fault, and a standby."""
        leader = await self.start(
            LEADER_ELECT_LEASE_DURATION_SECONDS="12", LEADER_ELECT_RENEW_DEADLINE_SECONDS="8"
        )
        await eventually("a leader", leader.leads, START_SECONDS)
        standby = await self.start()
        await eventually("a standby", standby.stands_by, START_SECONDS)
        return leader, standby


@pytest.fixture
async def replicas(
    api_server: ControlPlane, namespace: str, tmp_path: Path
) -> AsyncIterator[Replicas]:
    async with contextlib.AsyncExitStack() as stack:
        replicas = Replicas(api_server, namespace, tmp_path, stack)
        yield replicas
        for each in replicas.started:
            print(f"{each.name} (exit status {each.process.returncode}):\n{each.log.read_text()}")


async def add_pipeline(admin: Client, namespace: str, name: str) -> None:
    item = builders.document(name=name, namespace=namespace)
    item["metadata"].pop("uid")
    await admin.apply(item, manager="kubectl")


async def has_deployment(admin: Client, namespace: str, name: str) -> bool:
    found = (await admin.list(DEPLOYMENTS, namespace)).items
    return any(item["metadata"]["name"].startswith(name) for item in found)


async def settled(process: OperatorProcess, name: str) -> list[str]:
    """The writes of a process, once it has reported a pipeline's status and has nothing to do."""

    async def idle() -> bool:
        reported = any(f"/{name}/status" in write for write in process.writes())
        async with httpx.AsyncClient(timeout=START_SECONDS, trust_env=False) as client:
            health = (await client.get(process.health_url)).json()["operator"]
        return reported and health["inWork"] == health["queued"] == 0

    await eventually("an idle operator", idle)
    return process.writes()


def kill(process: OperatorProcess) -> None:
    process.process.kill()


def terminate(process: OperatorProcess) -> None:
    process.process.terminate()


def hang(process: OperatorProcess) -> None:
    process.proxy.inject(Fault(times=None, release=threading.Event()))


def suspend(process: OperatorProcess) -> None:
    process.process.send_signal(signal.SIGSTOP)


@pytest.mark.timeout(480)
@pytest.mark.parametrize(("fault", "code"), [(kill, -9), (terminate, 0), (hang, 3), (suspend, 3)])
async def test_another_replica_takes_over_and_the_former_writes_nothing_more(
    admin: Client,
    namespace: str,
    replicas: Replicas,
    fault: Callable[[OperatorProcess], None],
    code: int,
) -> None:
    leader, standby = await replicas.pair()
    await add_pipeline(admin, namespace, "first")
    await eventually("objects", lambda: has_deployment(admin, namespace, "first"))
    await settled(leader, "first")
    assert standby.writes() == []

    fault(leader)
    await eventually("takeover", standby.leads, START_SECONDS)
    written = leader.writes()
    if fault is suspend:
        leader.process.send_signal(signal.SIGCONT)
    assert await asyncio.wait_for(leader.process.wait(), START_SECONDS) == code, (
        leader.log.read_text()[-2000:]
    )
    assert ('"released"' in leader.log.read_text()) is (fault is terminate)

    await add_pipeline(admin, namespace, "second")
    await eventually("objects", lambda: has_deployment(admin, namespace, "second"))
    writes = await settled(standby, "second")
    assert not [write for write in writes if "/first" in write], "no write storm at the takeover"
    assert leader.writes() == written
