"""Simulate a run: pods under a load trace, with scrapes, a control law and incidents.

Pure: the seed determines every result. Time advances from event to event (scrapes, ticks, count
changes, whole seconds). Between two events each station runs on its own. This is exact except for
CPU shared between stations, which is divided by what was busy at the beginning of the step.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bench.simulator import traces
from bench.simulator.station import NOISE, Request, Station, StationSpec, noise
from triton_pipelines.autoscaling.metrics.samples import (
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
    PodHistory,
    PodUsage,
    Scrape,
)

LOOK_BACK = 75.0  # seconds of samples that a law sees, as the collector keeps them
_USAGE = 60.0  # seconds over which CPU usage is averaged
EPOCH = 1.7e9  # laws see Unix seconds


@dataclass(frozen=True, slots=True)
class Incident:
    """A change at a given time."""

    at: float
    """Time of the change in seconds."""
    what: str
    """Kind of change: service, cores, outage or restart."""
    value: float
    """Value by kind.

    - service: factor of the time of ``step``
    - cores: the CPU limit
    - outage: seconds without metrics
    - restart: seconds until ``pod`` is ready again
    """
    step: str = ""
    """The step that changes, for service."""
    pod: int = 0
    """The pod that restarts, for restart."""


@dataclass(frozen=True, slots=True)
class World:
    """Pods, their steps, and how they are scraped and scaled. Times are seconds, CPU is in cores.

    ``gpu_reports`` is the ratio of the GPU utilization that the GPU reports to the share of time
    that its step computes (1: equal; ``None``: not reported).
    """

    stations: tuple[StationSpec, ...]
    pods: int = 1
    cores: float = 10.0
    other_cores: float = 0.5
    scrape: float = 5.0
    tick_after: float = 0.37
    growth: float = 4.0
    removal_first: float = 0.5
    removal_each: float = 1.2
    slo: float = 0.100
    low: int = 1
    high: int = 12
    gpu_reports: float | None = 1.0
    happenings: tuple[Incident, ...] = ()


@dataclass(frozen=True, slots=True)
class LawInput:
    """Input of a control law at a tick."""

    now: float
    """Time in Unix seconds."""
    sample: PipelineSample | MetricsFailure
    """The sample, or why there is none."""
    counts: Mapping[str, Mapping[str, int]]
    """Instances by step and pod."""
    ready: Sequence[str]
    """Names of the ready pods."""
    cores: float
    """CPU limit of a pod."""


class Controller(Protocol):
    """A control law. ``period`` is the seconds between decisions; ``None``: after every scrape."""

    name: str
    period: float | None

    def wanted(self, view: LawInput) -> tuple[Mapping[str, int], str]:
        """Return the instances per pod of each scaled step, and a verdict or ""."""


@dataclass(slots=True)
class Record:
    """Result of a run. Lists have one entry per second, except for ``actions``."""

    seconds: int
    """Length of the run."""
    arrived: list[int]
    """Requests that arrived."""
    late: list[int]
    """Of these, requests beyond the SLO, including lost ones."""
    latencies: list[list[float]]
    """Latencies of the requests that arrived."""
    instances: list[float] = field(default_factory=list)
    """Running instances of the first scaled step in all pods."""
    starved: list[float] = field(default_factory=list)
    """Share of GPU steps that were starved."""
    verdicts: list[str] = field(default_factory=list)
    """Verdicts of the control law."""
    actions: list[tuple[float, int, int]] = field(default_factory=list)
    """Changes of a count: time, count before and count after."""
    lost: int = 0
    """Lost requests in total."""


GPU_IDLE = 0.01  # Idle share of a second from which the GPU step counts as idle in it.


class _Pod:
    def __init__(self, number: int, world: World, seed: int) -> None:
        self.name = f"pod-{number}"
        rng = np.random.default_rng((seed, 13, number))
        shapes = rng.random(NOISE).tolist()
        self.stations = [
            Station(spec, noise(rng.standard_normal(NOISE).tolist(), spec), shapes)
            for spec in world.stations
        ]
        self.history: deque[Scrape] = deque()
        self.cpu: deque[tuple[float, float, float, float]] = deque([(0.0, 0.0, 0.0, 0.0)])
        self.ready_at = 0.0
        self.base = 0.0
        self.gpu_busy = 0.0  # of the current second
        self.gpu_total = 0.0
        self.queued, self.passed = 0.0, 0  # of the scaled step, at the last whole second
        for station in self.stations:
            if not station.spec.cpu:
                station.on_busy = self._gpu

    def _gpu(self, start: float, finish: float) -> None:
        self.gpu_busy += finish - start
        self.gpu_total += finish - start

    def cpu_seconds(self) -> tuple[float, float]:
        used = sum(station.totals.cpu for station in self.stations if station.spec.cpu)
        return used, sum(station.totals.throttled for station in self.stations if station.spec.cpu)


@dataclass(frozen=True, slots=True)
class _Change:
    pod: _Pod
    station: int
    count: int


class Run:
    """One run; ``result`` plays it to its end."""

    def __init__(
        self, world: World, rates: traces.Rates, controller: Controller, seed: int, initial: int = 2
    ) -> None:
        self._world, self._controller = world, controller
        self._rates = rates
        self._arrivals = traces.arrivals(rates, seed)
        self._route = np.random.default_rng((seed, 11))
        self._pods = [_Pod(number, world, seed) for number in range(world.pods)]
        self._scaled = [index for index, spec in enumerate(world.stations) if spec.scaled]
        self._desired = {world.stations[index].name: initial for index in self._scaled}
        for pod in self._pods:
            for index in self._scaled:
                pod.stations[index].grow(max(0, initial - pod.stations[index].instances), 0.0)
        self._cores, self._dark_until = world.cores, 0.0
        self._events: list[tuple[float, int, str, object]] = []
        self._sequence = 0
        self._busy_until = dict.fromkeys(self._desired, 0.0)
        self._clock = 0.0
        length = len(rates)
        self._record = Record(
            length,
            [len(second) for second in self._arrivals],
            [0] * length,
            [[] for _ in range(length)],
        )
        self._verdict = ""

    def result(self) -> Record:
        """Play and measure; requests that are not answered 30 s after the end count as late."""
        world, length = self._world, len(self._rates)
        self._push(0.0, "scrape", None)
        for happening in world.happenings:
            self._push(happening.at, "happening", happening)
        for second in range(length + 30):
            if second < length:
                self._deliver(self._arrivals[second], second)
            while self._events and self._events[0][0] < second + 1 and second < length:
                at, _, kind, what = heapq.heappop(self._events)
                self._advance(at)
                self._handle(at, kind, what)
            self._advance(float(second + 1))
            if second < length:
                self._second(float(second + 1))
        answered = [len(each) for each in self._record.latencies]
        for second, (came, back) in enumerate(zip(self._record.arrived, answered, strict=True)):
            self._record.late[second] += came - back
        return self._record

    def _push(self, at: float, kind: str, what: object) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at, self._sequence, kind, what))

    def _ready(self, now: float) -> list[_Pod]:
        return [pod for pod in self._pods if pod.ready_at <= now]

    def _deliver(self, times: list[float], second: int) -> None:
        ready = self._ready(float(second))
        if not ready:
            self._record.lost += len(times)
        elif len(ready) == 1:
            ready[0].stations[0].offer([(at, at) for at in times])
        else:
            chosen = self._route.integers(0, len(ready), len(times))
            for number, pod in enumerate(ready):
                pod.stations[0].offer(
                    [(at, at) for at, which in zip(times, chosen, strict=True) if which == number]
                )

    def _advance(self, until: float) -> None:
        for pod in self._pods:
            passed: list[Request] = []
            for number, station in enumerate(pod.stations):
                if number:
                    station.offer(passed)
                cores = self._cores - self._world.other_cores
                if len(pod.stations) > 1 and station.spec.cpu:
                    cores -= sum(
                        other.busy(self._clock)
                        for other in pod.stations
                        if other is not station and other.spec.cpu
                    )
                passed = station.advance(until, cores)
            slo, late, latencies = self._world.slo, self._record.late, self._record.latencies
            for finish, born in passed:
                second = int(born)
                latency = finish - born
                latencies[second].append(latency)
                if latency > slo:
                    late[second] += 1
        self._clock = until

    def _handle(self, at: float, kind: str, what: object) -> None:
        if kind == "scrape":
            self._scrape(at)
        elif kind == "tick":
            self._tick(at)
        elif isinstance(what, _Change) and what.pod.ready_at <= at:
            station = what.pod.stations[what.station]
            if what.count > 0:
                station.grow(what.count, at)
            else:
                station.shrink(-what.count)
        elif isinstance(what, Incident):
            self._happen(at, what)

    def _scrape(self, at: float) -> None:
        world = self._world
        if at >= self._dark_until:
            for pod in self._ready(at):
                models = {station.spec.name: station.counters(at) for station in pod.stations}
                pod.history.append(Scrape(EPOCH + at, models))
        for pod in self._pods:
            used, throttled = pod.cpu_seconds()
            pod.cpu.append((at, pod.base + used, throttled, pod.gpu_total))
            while len(pod.cpu) > 2 and pod.cpu[1][0] <= at - _USAGE:
                pod.cpu.popleft()
            while pod.history and pod.history[0].at < EPOCH + at - LOOK_BACK:
                pod.history.popleft()
        self._push(at + world.scrape, "scrape", None)
        every = self._controller.period
        if every is None or round(at / world.scrape) % max(1, round(every / world.scrape)) == 0:
            self._push(at + world.tick_after, "tick", None)

    def _tick(self, at: float) -> None:
        ready = self._ready(at)
        counts = {
            self._world.stations[index].name: {
                pod.name: pod.stations[index].instances for pod in ready
            }
            for index in self._scaled
        }
        sample: PipelineSample | MetricsFailure
        if at < self._dark_until:
            sample = MetricsFailure(MetricsProblem.ERROR, "Prometheus does not answer")
        else:
            sample = PipelineSample(
                {pod.name: PodHistory(tuple(pod.history), self._usage(pod, at)) for pod in ready},
                self._world.scrape,
                "simulated",
            )
        wanted, self._verdict = self._controller.wanted(
            LawInput(EPOCH + at, sample, counts, [pod.name for pod in ready], self._cores)
        )
        for index in self._scaled:
            name = self._world.stations[index].name
            count = min(
                max(wanted.get(name, self._desired[name]), self._world.low), self._world.high
            )
            if count != self._desired[name] and at >= self._busy_until[name]:
                self._act(at, index, name, count)

    def _usage(self, pod: _Pod, at: float) -> PodUsage:
        (begin, cpu0, thr0, gpu0), (end, cpu1, thr1, gpu1) = pod.cpu[0], pod.cpu[-1]
        seconds = max(1e-9, end - begin)
        used = max(0.0, cpu1 - cpu0)
        lost = max(0.0, thr1 - thr0)
        gpu = (
            None
            if self._world.gpu_reports is None
            else min(1.0, max(0.0, (gpu1 - gpu0) / seconds) * self._world.gpu_reports)
        )
        return PodUsage(
            at=EPOCH + at,
            cpu_cores=min(self._cores, used / seconds + self._world.other_cores),
            throttled=lost / (used + lost) if lost > 0 else 0.0,
            gpu=gpu,
        )

    def _act(self, at: float, index: int, name: str, count: int) -> None:
        """Change counts as the operator does.

        Growth starts with a canary pod and continues in all others together. Removal proceeds pod
        by pod and instance by instance.
        """
        world, before = self._world, self._desired[name]
        self._desired[name] = count
        if index == self._scaled[0]:
            self._record.actions.append((at, before, count))
        end = at
        for number, pod in enumerate(self._ready(at)):
            differs = count - pod.stations[index].instances
            if differs > 0:
                done = at + world.growth * (1 if number == 0 else 2)
                self._push(done, "change", _Change(pod, index, differs))
                end = max(end, done)
            for _ in range(-differs):
                end = max(end, at + world.removal_first) if end == at else end + world.removal_each
                self._push(end, "change", _Change(pod, index, -1))
        self._busy_until[name] = end

    def _happen(self, at: float, what: Incident) -> None:
        if what.what == "service":
            for pod in self._pods:
                for station in pod.stations:
                    if station.spec.name == what.step:
                        station.factor = what.value
        elif what.what == "cores":
            self._cores = what.value
        elif what.what == "outage":
            self._dark_until = at + what.value
            for pod in self._pods:
                pod.history.clear()
        elif what.what == "restart":
            pod = self._pods[what.pod]
            pod.ready_at = at + what.value
            pod.base += pod.cpu_seconds()[0]
            pod.history.clear()
            pod.queued, pod.passed = 0.0, 0
            for station in pod.stations:
                count = self._desired.get(station.spec.name, station.spec.instances)
                self._record.lost += station.clear(at + what.value, count)
        else:
            raise ValueError(f"no happening {what.what}")

    def _second(self, now: float) -> None:
        record = self._record
        scaled = self._scaled[0] if self._scaled else 0
        ready = self._ready(now)
        record.instances.append(float(sum(pod.stations[scaled].instances for pod in ready)))
        hungry = 0
        for pod in ready:
            gpu = [station for station in pod.stations if not station.spec.cpu]
            idle = 1.0 - pod.gpu_busy / max(1, sum(station.instances for station in gpu))
            station = pod.stations[scaled]
            waited, passed = station.totals.queue - pod.queued, station.totals.success - pod.passed
            pod.queued, pod.passed = station.totals.queue, station.totals.success
            behind = (
                waited > passed * station.seconds
                if passed > 0
                else station.pending(now) > station.instances
            )
            hungry += idle > GPU_IDLE and behind
        record.starved.append(hungry / max(1, len(ready)))
        record.verdicts.append(self._verdict)
        for pod in self._pods:
            pod.gpu_busy = 0.0
