"""Leader election with a Lease of ``coordination.k8s.io/v1``, with client-go's semantics.

At most one of several replicas works:

- The expiry of another holder's Lease is judged by the monotonic clock from the moment at which
  this process saw the record change, never by the timestamps in it: clocks of nodes differ.
- A leader that cannot renew stops within the renew deadline, which is shorter than the lease
  duration, so it stops before another may take over. The deadline counts from the moment at which
  the last successful renewal was *sent*.
- Every failure of a renewal (an error, a conflict, a hanging connection) is a failed attempt.
- :meth:`LeaderElector.is_valid` is the last check before each write. It covers what a timer cannot:
  a process that was suspended, or whose event loop was blocked, beyond the deadline.
- A leader that ends gracefully empties the holder, so another replica takes over at once.

The package kubernetes.aio has an elector, which is not used: version 37.0.2 keeps leading while the
API server hangs, exits on the first refused connection, and never releases.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, Never

import structlog

from triton_pipelines.cluster.client import Client, Object
from triton_pipelines.cluster.errors import NotFound
from triton_pipelines.cluster.lease_timing import JITTER, LeaseTiming
from triton_pipelines.cluster.resources import LEASES

# Format of a Kubernetes MicroTime.
_MICRO_TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
# Longest time (seconds) that the release at shutdown may take.
_RELEASE_SECONDS: Final = 2.0
# Longest lease duration (seconds) of another holder that is respected. A larger value in a Lease
# is not from an operator and would prevent any takeover.
_MAX_OTHER_DURATION: Final = 3600.0

_log = structlog.get_logger(__name__)


class LeadershipLostError(Exception):
    """Another replica leads or may lead from now on; all work of this process must end."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The fields of a Lease that the election reads."""

    holder: str
    """Identity of the holder; empty if the Lease was released."""
    duration: float
    """Seconds for which the holder's record is valid."""
    transitions: int
    """Number of changes of the holder."""
    times: tuple[str, str]
    """When the holder acquired and last renewed the Lease, as it wrote them; only compared."""

    @classmethod
    def of(cls, lease: Mapping[str, Any], default_duration: float) -> LeaseRecord:
        """Return the record of a Lease as the API server returns it; every field may be absent."""
        spec = lease.get("spec") or {}
        duration = float(spec.get("leaseDurationSeconds") or default_duration)
        return cls(
            holder=spec.get("holderIdentity") or "",
            duration=min(duration, _MAX_OTHER_DURATION),
            transitions=int(spec.get("leaseTransitions") or 0),
            times=(str(spec.get("acquireTime", "")), str(spec.get("renewTime", ""))),
        )


class LeaseAction(Enum):
    """The next step of a candidate or leader."""

    TAKE = auto()
    """Become the holder."""
    RENEW = auto()
    """Extend the own record."""
    WAIT = auto()
    """Another holder's record is valid."""


def next_action(
    record: LeaseRecord, *, identity: str, observed_at: float, now: float
) -> LeaseAction:
    """Return what to do with a Lease.

    Args:
        record: its content.
        identity: this process.
        observed_at: when this process first saw this record (monotonic seconds).
        now: the current time (monotonic seconds).
    """
    if record.holder == identity:
        return LeaseAction.RENEW
    if record.holder and now < observed_at + record.duration:
        return LeaseAction.WAIT
    return LeaseAction.TAKE


@dataclass(slots=True)
class LeaderElector:
    """One candidate. Create it inside a running event loop."""

    client: Client
    """Client of the API server, used by nothing else: slow requests must not delay a renewal. Its
    timeout should be at most half the renew deadline."""
    namespace: str
    """Namespace of the Lease."""
    name: str
    """Name of the Lease."""
    instance: str
    """Name of the process: the pod's name."""
    timing: LeaseTiming = field(default_factory=LeaseTiming)
    """Durations."""
    identity: str = field(init=False)
    """Holder identity. Unique per process: a container restarted in its pod is another one."""
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _valid_until: float = field(default=float("-inf"), init=False)
    """Monotonic time until which this process may work."""
    _observed: tuple[LeaseRecord | None, float] = field(default=(None, 0.0), init=False)
    """The record seen last, and when it was first seen. Other changes of the Lease do not count."""

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.identity = f"{self.instance}_{uuid.uuid4()}"

    def is_valid(self) -> bool:
        """Return whether this process leads and may write now. May be called from any thread."""
        return self._loop.time() < self._valid_until

    async def acquire(self) -> None:
        """Wait until this process leads; failed attempts are retried indefinitely."""
        holder = None
        while True:
            other = await self._attempt()
            if self.is_valid():
                await _log.ainfo("leading", lease=self._lease, identity=self.identity)
                return
            if other is not None and other != holder:
                holder = other
                await _log.ainfo("standing by", lease=self._lease, leader=holder)
            await asyncio.sleep(self._pause())

    async def renew(self) -> Never:
        """Renew the Lease until cancelled.

        Raises:
            LeadershipLostError: another replica leads, or no renewal succeeded in time.
        """
        while True:
            try:
                async with asyncio.timeout_at(self._valid_until):
                    await asyncio.sleep(self._pause())
                    other = await self._attempt()
            except TimeoutError:
                other = None
            if other is not None:
                self._valid_until = float("-inf")
                raise LeadershipLostError(f"Lease {self._lease} is held by {other}")
            if not self.is_valid():
                raise LeadershipLostError(
                    f"Lease {self._lease} was not renewed within {self.timing.renew_deadline:g} s"
                )

    async def release(self) -> None:
        """Empty the holder if it is this process. Call it after all work has ended.

        Never fails: a Lease that is not released expires.
        """
        self._valid_until = float("-inf")
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                lease = await self.client.get(LEASES, self.namespace, self.name)
                record = LeaseRecord.of(lease, self.timing.duration)
                if record.holder != self.identity:
                    return
                # The API server rejects an empty holderIdentity, so a released Lease omits it. Its
                # duration of one second is for clients that ignore this.
                spec = {**lease["spec"], "leaseDurationSeconds": 1}
                del spec["holderIdentity"]
                await self.client.replace({**lease, "spec": spec})
                await _log.ainfo("released", lease=self._lease)
        except Exception as error:
            await _log.awarning("Lease not released", lease=self._lease, error=str(error))

    async def _attempt(self) -> str | None:
        """Try once to take or renew the Lease.

        Returns:
            The holder if another process holds a valid record; else None, also after a failure.
        """
        sent = self._loop.time()
        try:
            lease = await self.client.get(LEASES, self.namespace, self.name)
            record = LeaseRecord.of(lease, self.timing.duration)
            if self._observed[0] != record:
                self._observed = (record, self._loop.time())
            action = next_action(
                record, identity=self.identity, observed_at=self._observed[1], now=self._loop.time()
            )
            if action is LeaseAction.WAIT:
                return record.holder
            sent = self._loop.time()
            await self.client.replace(self._updated(lease, record, action))
        except NotFound:
            # The holder of a deleted Lease still works until its next renewal.
            if (holder := self._last_holder()) is not None:
                return holder
            await self._create()
            return None
        except Exception as error:
            # Whatever it is: the deadline ends the leadership, and a candidate tries again.
            await _log.awarning("Lease not renewed", lease=self._lease, error=str(error))
            return None
        self._valid_until = sent + self.timing.renew_deadline
        return None

    def _last_holder(self) -> str | None:
        """Return another process whose record, as seen last, is still valid."""
        record, observed_at = self._observed
        if record is None:
            return None
        now = self._loop.time()
        action = next_action(record, identity=self.identity, observed_at=observed_at, now=now)
        return record.holder if action is LeaseAction.WAIT else None

    async def _create(self) -> None:
        now = dt.datetime.now(dt.UTC).strftime(_MICRO_TIME)
        lease: Object = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self.timing.duration,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }
        sent = self._loop.time()
        try:
            await self.client.create(lease)
        except Exception as error:
            await _log.awarning("Lease not created", lease=self._lease, error=str(error))
        else:
            self._valid_until = sent + self.timing.renew_deadline

    def _updated(self, lease: Object, record: LeaseRecord, action: LeaseAction) -> Object:
        now = dt.datetime.now(dt.UTC).strftime(_MICRO_TIME)
        spec = {
            **(lease.get("spec") or {}),
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.timing.duration,
            "renewTime": now,
        }
        if action is LeaseAction.TAKE:
            spec |= {"acquireTime": now, "leaseTransitions": record.transitions + 1}
        return {**lease, "spec": spec}

    def _pause(self) -> float:
        period = self.timing.retry_period
        return random.uniform(period, period * JITTER)  # noqa: S311 - jitter

    @property
    def _lease(self) -> str:
        return f"{self.namespace}/{self.name}"
