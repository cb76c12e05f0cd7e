"""The faults of a run. Each is injected, lasts a bounded time, and is ended by its own function.

What it draws from its random generator decides everything, so a seed replays it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

import httpx

from tests.support.faultproxy import Fault
from tests.support.operatorprocess import LEASE
from tests.support.operators import eventually, patch
from tests.support.soak.pods import PAGE, Health
from tests.support.soak.world import CONVERGED_SECONDS, NAMESPACE, Replica, World
from triton_pipelines.api import names
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    SERVICES,
)
from triton_pipelines.controllers.pipeline.policies.pod_repair import REPAIR_INTERVAL

Injection = Callable[[World, Random], Awaitable[None]]
WRITES = "POST|PUT|PATCH|DELETE"
_SIGNAL_SECONDS = 15.0
_REPAIR_SECONDS = REPAIR_INTERVAL.total_seconds()


@dataclass(frozen=True)
class Kind:
    """A kind of fault."""

    name: str
    """What the table calls it."""
    inject: Injection
    """Inject it, and end it."""


KINDS: list[Kind] = []


def fault(name: str) -> Callable[[Injection], Injection]:
    """Add a function to the kinds of faults."""

    def add(inject: Injection) -> Injection:
        KINDS.append(Kind(name, inject))
        return inject

    return add


async def edit(world: World, random: Random) -> None:
    """Change the spec of one pipeline, so that the operator has something to do.

    One change in three concerns instance counts alone: they change in the running pods.
    """
    name = random.choice(sorted(world.specs))
    least = {"instances": {"min": random.randint(1, 3), "max": 4}}
    if random.randrange(3) == 0:
        await world.write_spec(name, tokenizer=least)
        return
    await world.write_spec(
        name,
        replicas=random.randint(2, 3),
        tokenizer={"maxLength": random.randint(16, 512), **least},
    )


class Sometimes(Fault):
    """A fault that hits a share of the requests."""

    share = 0.5
    random = Random(0)

    def takes(self, method: str, target: str) -> bool:
        """Whether this request is hit."""
        return self.random.random() < self.share and Fault.takes(self, method, target)


def _some(world: World, random: Random, **what: object) -> None:
    for replica in world.replicas:
        made = Sometimes(times=None, **what)  # type: ignore[arg-type]
        made.random = Random(random.random())
        replica.proxy.inject(made)


async def _during(world: World, random: Random, seconds: float) -> None:
    """Let a fault of the connection last, with a spec edited meanwhile; then end it."""
    await edit(world, random)
    await asyncio.sleep(seconds)
    world.clear()


# --- between operator and API server --------------------------------------------------------------


@fault("API: 409 Conflict on writes")
async def _conflicts(world: World, random: Random) -> None:
    world.inject(method=WRITES, status=409, reason="Conflict", times=random.randint(2, 6))
    await _during(world, random, 2.0)


@fault("API: 410 Gone on watches")
async def _gone(world: World, random: Random) -> None:
    world.inject(path="watch=true", expire_watch=True, times=random.randint(3, 12))
    for replica in world.replicas:
        replica.proxy.cut_streams()
    await _during(world, random, 2.0)


@fault("API: 429 with Retry-After")
async def _throttled(world: World, random: Random) -> None:
    _some(world, random, status=429, reason="TooManyRequests", retry_after=1)
    await _during(world, random, random.uniform(2, 4))


@fault("API: 500, 502, 503, 504")
async def _errors(world: World, random: Random) -> None:
    for status in random.sample((500, 502, 503, 504), 2):
        _some(world, random, status=status)
    await _during(world, random, random.uniform(2, 4))


@fault("API: connections dropped before or after the effect")
async def _drops(world: World, random: Random) -> None:
    _some(world, random, method=WRITES, drop_after_effect=True)
    _some(world, random, drop=True)
    await _during(world, random, random.uniform(2, 4))


@fault("API: watches dropped")
async def _watches_dropped(world: World, random: Random) -> None:
    for _ in range(random.randint(2, 5)):
        for replica in world.replicas:
            replica.proxy.cut_streams()
        await edit(world, random)
        await asyncio.sleep(0.3)


@fault("API: watches stalled")
async def _watches_stalled(world: World, random: Random) -> None:
    for replica in world.replicas:
        replica.proxy.frozen = True
    await _during(world, random, random.uniform(3, 12))


@fault("API: requests hang")
async def _hangs(world: World, random: Random) -> None:
    world.inject(times=None, release=threading.Event())
    await _during(world, random, random.uniform(2, 9))


@fault("API: connections refused")
async def _refused(world: World, random: Random) -> None:
    cut = list(world.replicas)
    for replica in cut:
        await replica.proxy.refuse_connections()
    await edit(world, random)
    await asyncio.sleep(random.uniform(1, 8))
    for replica in cut:
        if replica in world.replicas:
            await replica.proxy.accept_connections()


@fault("API: slow")
async def _slow(world: World, random: Random) -> None:
    world.inject(times=None, delay=random.uniform(0.1, 0.5))
    await _during(world, random, 3.0)


@fault("leader cut off from the API server")
async def _partition(world: World, random: Random) -> None:
    leader = await _leader(world)
    leader.proxy.inject(Fault(times=None, release=threading.Event()))
    await edit(world, random)
    await _other_leads(world, leader)
    world.clear()


# --- control plane --------------------------------------------------------------------------------


@fault("API server killed and restarted")
async def _api_server(world: World, random: Random) -> None:
    await edit(world, random)
    await _restart(world, random, "kube-apiserver")


@fault("etcd killed and restarted")
async def _etcd(world: World, random: Random) -> None:
    await edit(world, random)
    await _restart(world, random, "etcd")


async def _restart(world: World, random: Random, component: str) -> None:
    world.plane.kill_component(component)
    await asyncio.sleep(random.uniform(0.5, 4))
    world.plane.start_component(component)
    await asyncio.to_thread(world.plane.wait_ready)


@fault("etcd full (NOSPACE alarm)")
async def _etcd_full(world: World, random: Random) -> None:
    await edit(world, random)
    url = f"http://127.0.0.1:{world.plane.spec.etcd_port}/v3/maintenance/alarm"
    alarm = {"alarm": "NOSPACE", "memberID": await _member(world)}
    async with httpx.AsyncClient(trust_env=False) as web:
        (await web.post(url, json={**alarm, "action": "ACTIVATE"})).raise_for_status()
        await asyncio.sleep(random.uniform(2, 9))
        (await web.post(url, json={**alarm, "action": "DEACTIVATE"})).raise_for_status()
    await edit(world, random)


async def _member(world: World) -> str:
    url = f"http://127.0.0.1:{world.plane.spec.etcd_port}/v3/cluster/member/list"
    async with httpx.AsyncClient(trust_env=False) as web:
        return str((await web.post(url, json={})).json()["members"][0]["ID"])


# --- operator processes ---------------------------------------------------------------------------


async def _leader(world: World) -> Replica:
    found: Replica = await eventually("a leader", world.leader)
    return found


async def _other_leads(world: World, former: Replica) -> None:
    async def changed() -> bool:
        leader = await world.leader()
        return leader is not None and leader is not former

    await eventually("another leader", changed)


@fault("leader killed (SIGKILL)")
async def _kill_leader(world: World, random: Random) -> None:
    leader = await _leader(world)
    await edit(world, random)
    await asyncio.sleep(random.uniform(0, 0.6))
    leader.operator.process.kill()
    await _other_leads(world, leader)


@fault("leader stopped (SIGTERM)")
async def _stop_leader(world: World, random: Random) -> None:
    leader = await _leader(world)
    await edit(world, random)
    leader.operator.process.terminate()
    await _other_leads(world, leader)


@fault("standby killed (SIGKILL)")
async def _kill_standby(world: World, random: Random) -> None:
    leader = await _leader(world)
    await edit(world, random)
    for replica in world.replicas:
        if replica is not leader:
            replica.operator.process.kill()


@fault("all operators killed (SIGKILL)")
async def _kill_all(world: World, random: Random) -> None:
    await edit(world, random)
    await asyncio.sleep(random.uniform(0, 0.6))
    for replica in world.replicas:
        replica.operator.process.kill()


@fault("leader suspended beyond its Lease (SIGSTOP)")
async def _suspend(world: World, random: Random) -> None:
    leader = await _leader(world)
    await edit(world, random)
    leader.operator.process.send_signal(signal.SIGSTOP)
    await _other_leads(world, leader)
    leader.operator.process.send_signal(signal.SIGCONT)
    await asyncio.wait_for(leader.operator.process.wait(), _SIGNAL_SECONDS)


@fault("Lease deleted")
async def _lease_deleted(world: World, random: Random) -> None:
    for _ in range(random.randint(1, 4)):
        with contextlib.suppress(NotFound):
            await world.admin.delete(LEASES, NAMESPACE, LEASE)
        await edit(world, random)
        await asyncio.sleep(random.uniform(0.2, 1.5))


@fault("wall clock of an operator jumps")
async def _clock(world: World, random: Random) -> None:
    for replica in world.replicas:
        replica.clock.move(random.choice((-86_400, -3_600, -30, 30, 3_600, 86_400)))
    await edit(world, random)
    await asyncio.sleep(random.uniform(1, 8))
    for replica in world.replicas:
        replica.clock.move(0)


# --- users ----------------------------------------------------------------------------------------


@fault("spec edited in quick succession")
async def _edits(world: World, random: Random) -> None:
    for _ in range(random.randint(5, 20)):
        await edit(world, random)
        await asyncio.sleep(random.uniform(0, 0.4))


@fault("invalid spec, then a valid one")
async def _invalid(world: World, random: Random) -> None:
    name = random.choice(sorted(world.specs))
    await world.write_spec(name, server={"args": ["--exit-on-error=true"]})
    await asyncio.sleep(random.uniform(0, 2))
    await world.write_spec(name, server=None, tokenizer={"maxLength": random.randint(16, 512)})


@fault("pipeline deleted and created again")
async def _recreate(world: World, random: Random) -> None:
    name = random.choice(sorted(world.specs))
    spec = world.specs[name]
    await world.delete_pipeline(name)
    await asyncio.sleep(random.choice((0.0, 0.1, 1.0)))
    await world.write_spec(name, **spec)
    await edit(world, random)


@fault("pipeline created and immediately deleted")
async def _short_lived(world: World, random: Random) -> None:
    name = f"short-{random.randrange(10**6)}"
    await world.write_spec(name, replicas=1)
    await asyncio.sleep(random.uniform(0, 3))
    await world.delete_pipeline(name)


@fault("child object edited manually")
async def _child_edited(world: World, random: Random) -> None:
    name = random.choice(sorted(world.specs))
    resource, body = random.choice(
        (
            (DEPLOYMENTS, {"spec": {"paused": True}}),
            (SERVICES, {"metadata": {"labels": {names.LABEL_NAME: "other"}}}),
            (DEPLOYMENTS, {"metadata": {"ownerReferences": None}}),
        )
    )
    await patch(world.admin, resource, NAMESPACE, name, body)


@fault("child object deleted manually")
async def _child_deleted(world: World, random: Random) -> None:
    name = random.choice(sorted(world.specs))
    resource, child = random.choice(((SERVICES, name), (CONFIG_MAPS, names.live_name(name))))
    with contextlib.suppress(NotFound):
        await world.admin.delete(resource, NAMESPACE, child)


# --- pods -----------------------------------------------------------------------------------------


def _victim(world: World, random: Random) -> str | None:
    """Return a pod of a pipeline in which another one serves."""
    for name in random.sample(sorted(world.specs), len(world.specs)):
        ready = [pod for pod in world.ready_pods(name) if pod in world.endpoints]
        if len(ready) > 1:
            return random.choice(sorted(ready))
    return None


@fault("pod killed")
async def _pod_killed(world: World, random: Random) -> None:
    if victim := _victim(world, random):
        await world.kill_pod(victim)


@fault("pod hangs")
async def _pod_hung(world: World, random: Random) -> None:
    if victim := _victim(world, random):
        world.faulty.add(victim)
        endpoint = world.endpoints[victim]
        endpoint.pod.health = Health.HUNG
        await edit(world, random)
        await asyncio.sleep(random.uniform(3, 8))
        endpoint.pod.health = Health.GOOD
        await _answers_again(world, victim)


@fault("process of a model died in a pod")
async def _process_died(world: World, random: Random) -> None:
    if victim := _victim(world, random):
        world.faulty.add(victim)
        endpoint = world.endpoints[victim]
        endpoint.pod.health = Health.DEAD_PROCESS
        pipeline = next(one for one in world.samples[-1].pods if one.name == victim).pipeline
        # The operator deletes such a pod, but not more often than every ten minutes.
        if time.monotonic() - world.repaired.get(pipeline, -math.inf) > _REPAIR_SECONDS:
            await eventually(
                "the pod is replaced", lambda: victim not in world.endpoints, CONVERGED_SECONDS
            )
            world.repaired[pipeline] = time.monotonic()
        endpoint.pod.health = Health.GOOD
        await _answers_again(world, victim)


@fault("metrics of all pods missing, hanging or unreadable")
async def _metrics(world: World, random: Random) -> None:
    pods = [endpoint.pod for endpoint in world.endpoints.values()]
    for pod in pods:
        pod.page = random.choice((None, b"", b"<html>not a metrics page</html>\n"))
    await edit(world, random)
    await asyncio.sleep(random.uniform(5, 15))
    for pod in pods:
        pod.page = PAGE


async def _answers_again(world: World, pod: str) -> None:
    """Wait until a healed pod is ready or gone; requests that it has begun are excused."""

    def healed() -> bool:
        known = [state for state in world.samples[-1].pods if state.name == pod]
        return not known or known[0].ready

    await eventually("the pod is ready or gone", healed)
    begun = {request for request in world.outstanding if request[0] == pod}
    await eventually("its requests have ended", lambda: not begun & world.outstanding)
    world.faulty.discard(pod)
