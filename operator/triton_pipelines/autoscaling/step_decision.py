"""One step of a decision: from its need and its bounds to a count, a verdict and the next memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from triton_pipelines.autoscaling import control_law, diminishing_returns, verdicts
from triton_pipelines.autoscaling.caps import Cap, Cpu, too_much_memory
from triton_pipelines.autoscaling.signals import (
    CpuSignal,
    GpuSignal,
    StepSignal,
    fast_window,
    slow_window,
)
from triton_pipelines.autoscaling.types import (
    Figures,
    PipelineLimits,
    StepDecision,
    StepLimits,
    StepMemory,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One step and what the pods say of it. ``counts``: instances of the pods that speak; ``in_flight``: a change is on its way;
    ``own_requests``: requests/s with which the operator itself asks each pod."""

    limits: StepLimits
    memory: StepMemory
    count: int
    in_flight: bool
    signal: StepSignal
    counts: Mapping[str, int]
    own_requests: float = 0.0

    @property
    def busy(self) -> float:
        """Busy instances in the mean pod over the slow window, the one that CPU usage is measured over."""
        return (
            self.signal.slow.busy / max(1, len(self.counts))
            if self.signal.slow is not None
            else 0.0
        )

    @property
    def idle(self) -> bool:
        """No request but the operator's own in the whole slow window, and none waiting. Idle is not missing: the counters are there."""
        slow = self.signal.slow
        if slow is None or not slow.covered or self.signal.waiting > 0:
            return False
        # As many of its questions as can fall into the window, which has two ends; half a request is for rounding.
        own = (
            len(self.counts) * (self.own_requests * slow.seconds + 1) if self.own_requests else 0.0
        )
        return slow.throughput * slow.seconds < own + 0.5


@dataclass(frozen=True, slots=True)
class Around:
    """What all steps of one decision share. ``age``: of the oldest newest scrape, seconds; ``partial``: some pods do not speak."""

    limits: PipelineLimits
    gpu: GpuSignal
    cpu: CpuSignal
    budget: Cpu
    actuation: float | None
    interval: float
    age: float
    partial: bool
    now: float

    @property
    def slow(self) -> float:
        """Slow window, seconds."""
        return slow_window(self.limits.law, self.interval)

    @property
    def lead(self) -> float:
        """Seconds from a scrape until a growth that follows from it serves."""
        return self.actuation if self.actuation is not None else self.interval


@dataclass(frozen=True, slots=True)
class Settled:
    """The step's decision, its next memory, and what limits it in words ("" nothing)."""

    decision: StepDecision
    memory: StepMemory
    limited: str


def need_of(
    item: Seen, around: Around, before: tuple[Seen, control_law.Need] | None = None
) -> control_law.Need:
    """What the step needs, whatever bounds it. ``before``: the scaled step whose requests it gets: a queue there comes here next."""
    contended = around.budget.short(item.limits.name)
    service = control_law.service_time(item.memory.service, item.signal, contended=contended)
    lead = around.age + around.lead
    return control_law.need(
        item.signal,
        service,
        item.counts,
        around.limits.law,
        lead,
        _expected(item, before),
        grew=_grew(item, lead, around.now),
    )


def _grew(item: Seen, lead: float, now: float) -> bool:
    """Whether a growth came in force after the last interval began."""
    last, up = item.signal.last, item.memory.last_up
    return last is not None and up is not None and now - up < last.seconds + lead


def _expected(item: Seen, before: tuple[Seen, control_law.Need] | None) -> float:
    """Arrivals/s once the step before keeps up: its own, in the proportion in which requests passed both."""
    if before is None:
        return 0.0
    here, there = item.signal.slow, before[0].signal.slow
    if here is None or there is None or there.throughput <= 0:
        return 0.0
    return before[1].arrivals * min(1.0, here.throughput / there.throughput)


def settle(item: Seen, need: control_law.Need, cap: Cap, around: Around) -> Settled:
    """Decide one step."""
    limits, now = around.limits, around.now
    rates = item.signal.fast
    throughput = (
        around.gpu.throughput
        if limits.gpu_steps
        else (rates.throughput if rates is not None else None)
    )
    memory = _noted(item, need, cap, throughput, around)
    want = _want(item, memory, need, cap, around)
    if not around.partial:
        memory = control_law.remember_want(memory, want, limits.law, now)
    memory = control_law.remember_count(memory, item.count, now)
    turn = control_law.move(
        # Without evidence nothing shrinks, nor before pods go.
        replace(memory, wants=()) if around.partial or limits.pods_first else memory,
        item.limits,
        limits.law,
        count=item.count,
        want=want,
        now=now,
        wait_up=control_law.cooldown(limits.law, around.actuation, around.interval, around.age),
        in_flight=item.in_flight,
        interval=around.interval,
    )
    count, forced = turn.count, _memory_forces(item, memory, turn.count, around)
    if forced:
        count = item.count - 1
    state = verdicts.State(
        step=item.limits,
        need=need,
        count=item.count,
        pods=len(item.counts),
        pending=item.signal.waiting,
        most=max((wanted for _, wanted in memory.wants), default=item.count),
        cap=cap,
        idle=item.idle,
        stalled_seconds=now - memory.stalled if memory.stalled is not None else 0.0,
        frozen=memory.frozen is not None,
    )
    found = verdicts.verdict(state, around.gpu, around.budget, around.slow)
    reason = verdicts.words(state, found, around.gpu, around.budget, limits.law)
    if forced:
        reason = f"{_memory_words(around)}; {reason}"
    limited = verdicts.limitation(state, found, around.gpu)
    if turn.flapping:
        limited = f"{item.limits.name}: {len(memory.turns)} changes of direction within an hour: no shrinking until they are fewer"
    after = control_law.moved(replace(memory, desired=item.count), item.count, count, now)
    after = control_law.grown(after, item.count, throughput, need.service, limits.cpu_limit, now)
    return Settled(
        StepDecision(item.limits.name, count, found, reason, _figures(item, need, cap)),
        after,
        limited,
    )


def _noted(
    item: Seen, need: control_law.Need, cap: Cap, throughput: float | None, around: Around
) -> StepMemory:
    """Memory with what this sample tells: E, the bound, a stall, the knee."""
    memory, now = item.memory, around.now
    since = memory.stalled if memory.stalled is not None else now
    memory = replace(
        memory, service=need.service, cap=cap.count, stalled=since if need.stalled else None
    )
    if memory.frozen is not None:
        over = diminishing_returns.thawed(
            memory.frozen,
            now=now,
            saturated=need.saturated,
            service=need.service,
            cores=around.limits.cpu_limit,
        )
        return replace(memory, frozen=None, growth=None) if over else memory
    growth = memory.growth
    if growth is None:
        return memory
    settled = now - growth.at >= fast_window(around.limits.law, around.interval) + around.lead
    if settled and not need.saturated:
        return replace(memory, growth=None)
    if diminishing_returns.judged(
        growth,
        saturated=need.saturated,
        throughput=throughput,
        arrivals=need.arrivals,
        settled=settled,
    ):
        # E of now: contention that the growth itself caused is no reason to think again.
        return replace(
            memory,
            frozen=(now, replace(growth, service=need.service or growth.service)),
            growth=None,
        )
    return memory


def _want(item: Seen, memory: StepMemory, need: control_law.Need, cap: Cap, around: Around) -> int:
    """What is wanted within hysteresis, holds and caps; never below the present count where the sample cannot speak for less."""
    unknown = 1 if item.idle else item.count
    want = need.wanted if need.service is not None else unknown
    if want > item.count:
        calm = need.busy < around.limits.law.up_threshold and need.wait <= (need.service or 0.0)
        want = (
            item.count
            if calm or _held(item, memory, around)
            else max(item.count, min(want, cap.count))
        )
    want = max(want, min(need.kept, item.count))
    if around.partial or not item.signal.covered or memory.stalled is not None:
        want = max(want, item.count)
    return want


def _held(item: Seen, memory: StepMemory, around: Around) -> bool:
    """Whether more instances cannot help, or nobody can tell."""
    pending = item.signal.waiting
    if (
        verdicts.gpu_bound(around.gpu, pending)
        or verdicts.defeated(around.gpu, pending)
        or around.budget.throttled
    ):
        return True
    if memory.frozen is not None:
        return True
    if memory.stalled is None:
        return False
    grew = memory.last_up is not None and memory.last_up >= memory.stalled
    return grew or verdicts.no_progress(around.now - memory.stalled, around.slow)


def _memory_forces(item: Seen, memory: StepMemory, count: int, around: Around) -> bool:
    """Whether an instance has to go before the kernel ends the container: at most one in a slow window, so that its effect shows."""
    if (
        around.partial
        or item.in_flight
        or not (count >= item.count > item.limits.low)
        or not too_much_memory(around.limits, around.cpu)
    ):
        return False
    return memory.last_change is None or around.now - memory.last_change >= around.slow


def _memory_words(around: Around) -> str:
    used, most = (around.cpu.memory or 0.0) / 2**20, (around.limits.memory_limit or 0.0) / 2**20
    return f"memory: {used:.0f} MiB of {most:.0f} MiB are used, one instance goes"


def _figures(item: Seen, need: control_law.Need, cap: Cap) -> Figures:
    slow = item.signal.slow
    return Figures(
        arrivals=need.arrivals,
        throughput=slow.throughput if slow is not None else 0.0,
        busy=need.busy,
        wait=need.worst_wait,
        service=need.service,
        offered=need.offered,
        pending=item.signal.waiting,
        batch=slow.batch if slow is not None else None,
        wanted=need.wanted,
        cap=cap.count,
        cap_by=cap.by,
    )
