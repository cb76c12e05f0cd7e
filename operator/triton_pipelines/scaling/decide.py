"""The decision: what limits a pipeline and how many instances its CPU steps should have. Pure; the clock is passed in.

Order of a decision: which pods can be believed; what each step needs (law.py); what bounds growth (caps.py, knee.py, the GPU step);
when a count moves; what it is called and in which words (verdicts.py). Without believable metrics see blind.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.metrics.samples import Failure, PodHistory, Sample
from triton_pipelines.metrics.windows import newest
from triton_pipelines.scaling import blind, knee, law, verdicts
from triton_pipelines.scaling.caps import Cap, Cpu, Load, caps, cpu_budget, too_much_memory
from triton_pipelines.scaling.signals import (
    CpuSignal,
    GpuSignal,
    StepSignal,
    cpu_signal,
    fast_window,
    gpu_signal,
    pick,
    slow_window,
    step_signal,
)
from triton_pipelines.scaling.types import (
    Action,
    Decision,
    Figures,
    Memory,
    PipelineLimits,
    StepDecision,
    StepLimits,
    StepMemory,
    Verdict,
)

Counts = Mapping[str, Mapping[str, int]]
_HISTORY = 5


@dataclass(frozen=True, slots=True)
class _Step:
    """One step on its way through a decision: its limits, memory, present count and what the pods say."""

    limits: StepLimits
    memory: StepMemory
    count: int
    in_flight: bool
    signal: StepSignal
    counts: Mapping[str, int]  # of the pods that speak


def decide(limits: PipelineLimits, memory: Memory, sample: Sample | Failure, counts: Counts, ready_pods: Sequence[str], now: float) -> Decision:
    """Wanted counts, verdicts and the next memory.

    ``counts``: step → pod → instances as that pod's Triton reports them; ``ready_pods``: by name; ``now``: Unix seconds. The same
    arguments give the same decision, in whatever order pods and scrapes come. The caller stores ``memory`` and carries counts out
    (mode Active), or shows them (``limits.active`` False).
    """
    memory = _of_revision(memory, limits.revision)
    present = {step.name: _present(step, memory, counts, ready_pods, limits.active, now) for step in limits.steps}
    if not ready_pods:
        return _held(limits, memory, present, "no pod is ready", now)
    if isinstance(sample, Failure):
        return _blind(limits, memory, present, sample, now, 0.0)
    models = [*(step.model_name for step in limits.steps), *limits.gpu_steps]
    picked = pick(sample, models, ready_pods, now)
    if not picked.pods:
        failure = blind.stale(picked.trouble) if picked.stale else blind.missing(picked.trouble, sample.source)
        return _blind(limits, memory, present, failure, now, sample.interval)
    return _seen(limits, memory, present, picked.pods, picked.trouble, counts, sample, now)


def _of_revision(memory: Memory, revision: str) -> Memory:
    """What was measured of another revision says nothing of this one; counts stay."""
    if memory.revision == revision:
        return memory
    steps = {name: replace(step, service=None, growth=None, frozen=None, stalled=None, cap=None) for name, step in memory.steps.items()}
    return replace(memory, steps=steps, revision=revision)


def _present(step: StepLimits, memory: Memory, counts: Counts, ready: Sequence[str], active: bool, now: float) -> tuple[StepMemory, int, bool]:
    """Memory of the step, its present count, and whether a change is still on its way."""
    reported = [counts.get(step.name, {}).get(pod) for pod in ready]
    known = [count for count in reported if count is not None]
    seen = max(known, default=None)
    mine = memory.steps.get(step.name) or StepMemory(desired=seen if seen is not None else step.initial)
    if not active:
        return mine, seen if seen is not None else mine.desired, False
    waiting = any(count != mine.desired for count in known)
    recent = mine.last_change is not None and 0 <= now - mine.last_change < law.IN_FLIGHT_SECONDS
    return mine, mine.desired, waiting and recent


def _seen(
    limits: PipelineLimits,
    memory: Memory,
    present: Mapping[str, tuple[StepMemory, int, bool]],
    pods: Mapping[str, PodHistory],
    trouble: str,
    counts: Counts,
    sample: Sample,
    now: float,
) -> Decision:
    gpu = gpu_signal(pods, limits, sample.interval)
    steps: list[_Step] = []
    for step in limits.steps:
        mine, count, in_flight = present[step.name]
        signal = step_signal(pods, step.model_name, limits.law, sample.interval)
        each = {pod: max(1, counts.get(step.name, {}).get(pod, count)) for pod in pods}
        steps.append(_Step(step, mine, count, in_flight, signal, each))
    cpu = cpu_signal(pods, sum(item.limits.cores * _busy(item, len(pods)) for item in steps))
    rough = [Load(item.limits, item.count, item.count, _busy(item, len(pods)), 0.0, item.memory.service) for item in steps]
    budget = cpu_budget(limits, rough, cpu)
    age = max((now - (newest(history, item.signal.model) or now) for history in pods.values() for item in steps), default=0.0)
    lead = max(0.0, age) + (memory.actuation if memory.actuation is not None else sample.interval)
    needs = [_need(item, limits, budget, lead) for item in steps]
    wanted = [
        replace(load, wanted=max(item.count, need.wanted), wait=need.wait, service=need.service)
        for load, item, need in zip(rough, steps, needs, strict=True)
    ]
    bounds = caps(limits, wanted, budget, cpu)
    decided: list[StepDecision] = []
    remembered: dict[str, StepMemory] = {}
    said: list[str] = []
    for item, need in zip(steps, needs, strict=True):
        decision, next_memory, limited = _one(
            item, need, bounds[item.limits.name], gpu, budget, cpu, limits, memory.actuation, sample.interval, bool(trouble), now
        )
        decided.append(decision)
        remembered[item.limits.name] = next_memory
        if limited:
            said.append(limited)
    found = verdicts.overall(decision.verdict for decision in decided)
    notes = [trouble and f"MetricsPartial: {trouble}; counts do not fall", verdicts.gpu_notes(gpu, limits), *sample.notes]
    reasons = [decision.reason for decision in decided if decision.verdict is found]
    return Decision(
        steps=tuple(decided),
        verdict=found,
        memory=_next(memory, remembered, decided, present, limits, now, fresh=True),
        limited="; ".join(said),
        gpu_busy=gpu.busy,
        fresh=not trouble,
        message="; ".join(part for part in (*reasons, *notes) if part),
    )


def _busy(item: _Step, pods: int) -> float:
    """Busy instances of the step in the mean pod, over the slow window: the one that CPU usage is measured over."""
    return item.signal.slow.busy / max(1, pods) if item.signal.slow is not None else 0.0


def _need(item: _Step, limits: PipelineLimits, budget: Cpu, lead: float) -> law.Need:
    service = law.service_time(item.memory.service, item.signal, contended=budget.short(item.limits.name))
    return law.need(item.signal, service, item.counts, limits.law, lead)


def _one(
    item: _Step,
    need: law.Need,
    cap: Cap,
    gpu: GpuSignal,
    budget: Cpu,
    cpu: CpuSignal,
    limits: PipelineLimits,
    actuation: float | None,
    interval: float,
    partial: bool,
    now: float,
) -> tuple[StepDecision, StepMemory, str]:
    """One step: decision, memory, and what limits it in words."""
    mine = replace(item.memory, service=need.service, cap=cap.count)
    pending = item.signal.waiting
    mine = replace(mine, stalled=(mine.stalled if mine.stalled is not None else now) if need.stalled else None)
    slow, fast = slow_window(limits.law, interval), fast_window(limits.law, interval)
    throughput = gpu.fast_throughput if limits.gpu_steps else (item.signal.fast.throughput if item.signal.fast else None)
    if item.count == (item.memory.desired if limits.active else item.count):
        mine = _knee(mine, need, throughput, limits.cpu_limit, fast + (actuation or interval), now)
    held = (
        verdicts.gpu_bound(gpu, pending)
        or verdicts.defeated(gpu, pending)
        or budget.throttled
        or mine.frozen is not None
        or (mine.stalled is not None and mine.last_up is not None and mine.last_up >= mine.stalled)
        or (mine.stalled is not None and now - mine.stalled >= 2 * slow)
        or need.service is None
    )
    want = need.wanted if need.service is not None or pending > 0 or not _idle(item) else 1
    want = max(1, want) if need.service is not None or _idle(item) else item.count
    if want > item.count and (held or (need.busy < limits.law.up_threshold and need.wait <= (need.service or 0.0))):
        want = item.count
    want = max(item.count, min(want, cap.count)) if want > item.count else want
    if partial or not item.signal.covered or (mine.frozen is None and mine.stalled is not None):
        want = max(want, item.count)
    if not partial:
        mine = law.remember_want(mine, want, limits.law, now)
    mine = law.remember_count(mine, item.count, now)
    wait_up = law.cooldown(limits.law, actuation, interval)
    step = item.limits
    turn = law.move(mine, step, limits.law, count=item.count, want=want, now=now, wait_up=wait_up, in_flight=item.in_flight, interval=interval)
    count, memory_short = turn.count, False
    if count >= item.count > step.low and too_much_memory(limits, cpu) and not item.in_flight and not partial:
        memory_short = mine.last_change is None or now - mine.last_change >= slow
        count = item.count - 1 if memory_short else item.count
    state = verdicts.State(
        step=step,
        need=need,
        count=item.count,
        pods=len(item.counts),
        pending=pending,
        most=max((wanted for _, wanted in mine.wants), default=item.count),
        cap=cap,
        idle=_idle(item),
        stalled_seconds=now - mine.stalled if mine.stalled is not None else 0.0,
        frozen=mine.frozen is not None,
    )
    found = verdicts.verdict(state, gpu, budget, slow)
    reason = verdicts.words(state, found, gpu, budget, limits.law)
    if memory_short:
        reason = f"memory: {(cpu.memory or 0) / 2**20:.0f} MiB of {(limits.memory_limit or 0) / 2**20:.0f} MiB are used, one instance goes; {reason}"
    limited = verdicts.limitation(state, found)
    if turn.flapping:
        limited = (
            f"{step.name}: {len(mine.turns)} changes of direction in an hour, no shrinking until there are fewer than {limits.law.flaps_per_hour}"
        )
    slow_rates = item.signal.slow
    figures = Figures(
        arrivals=need.arrivals,
        throughput=slow_rates.throughput if slow_rates is not None else 0.0,
        busy=need.busy,
        wait=need.worst_wait,
        service=need.service,
        offered=need.offered,
        pending=pending,
        batch=slow_rates.batch if slow_rates is not None else None,
        cap=cap.count,
        cap_by=cap.by,
    )
    if count > item.count:
        mine = replace(mine, wants=(*mine.wants[:-1], (mine.wants[-1][0], max(count, mine.wants[-1][1]))) if mine.wants else ((now, count),))
    after = law.moved(replace(mine, desired=item.count), item.count, count, now)
    after = law.grown(after, item.count, throughput, need.service, limits.cpu_limit, now)
    return StepDecision(step.name, count, found, reason, figures), after, limited


def _idle(item: _Step) -> bool:
    """No request in the whole slow window, and none waiting. Idle is not missing: the counters are there and stand."""
    slow = item.signal.slow
    return slow is not None and slow.throughput == 0 and item.signal.waiting == 0


def _knee(memory: StepMemory, need: law.Need, throughput: float | None, cores: float | None, settle: float, now: float) -> StepMemory:
    """Judge the last growth, or end a freeze."""
    if memory.frozen is not None:
        if knee.thawed(memory.frozen, now=now, saturated=need.saturated, service=need.service, cores=cores):
            return replace(memory, frozen=None, growth=None)
        return memory
    growth = memory.growth
    if growth is None:
        return memory
    if not need.saturated and now - growth.at >= settle:
        return replace(memory, growth=None)
    settled = now - growth.at >= settle
    if knee.judged(growth, saturated=need.saturated, throughput=throughput, arrivals=need.arrivals, settled=settled):
        return replace(memory, frozen=(now, growth), growth=None)
    return memory


def _held(limits: PipelineLimits, memory: Memory, present: Mapping[str, tuple[StepMemory, int, bool]], message: str, now: float) -> Decision:
    """Nothing can be said: every count stays (but for the user's bounds)."""
    decided: list[StepDecision] = []
    remembered: dict[str, StepMemory] = {}
    for step in limits.steps:
        mine, count, _ = present[step.name]
        bounded = min(max(count, step.low), step.high)
        decided.append(StepDecision(step.name, bounded, Verdict.UNKNOWN, message, Figures(service=mine.service)))
        remembered[step.name] = law.moved(replace(mine, desired=count), count, bounded, now)
    return Decision(
        steps=tuple(decided),
        verdict=Verdict.UNKNOWN,
        memory=_next(memory, remembered, decided, present, limits, now, fresh=False),
        fresh=False,
        message=message,
    )


def _blind(
    limits: PipelineLimits,
    memory: Memory,
    present: Mapping[str, tuple[StepMemory, int, bool]],
    failure: Failure,
    now: float,
    interval: float,
) -> Decision:
    since = memory.blind if memory.blind is not None and memory.blind <= now else now
    wait_up = law.cooldown(limits.law, memory.actuation, interval)
    decided: list[StepDecision] = []
    remembered: dict[str, StepMemory] = {}
    for step in limits.steps:
        mine, count, in_flight = present[step.name]
        aim = blind.fallback_count(mine, step, limits.law, count=count, blind_seconds=now - since)
        turn = law.move(
            replace(mine, wants=()), step, limits.law, count=count, want=aim, now=now, wait_up=wait_up, in_flight=in_flight, interval=interval
        )
        reason = f"{failure.trouble}: {failure.message}"
        if turn.count > count:
            reason = f"{failure.trouble} for {now - since:.0f} s: up to {turn.count} ({limits.law.fallback}); {failure.message}"
        decided.append(StepDecision(step.name, turn.count, Verdict.UNKNOWN, reason, Figures(service=mine.service, cap=mine.cap or 0)))
        noted = law.remember_count(replace(mine, desired=count), count, now)
        remembered[step.name] = law.moved(noted, count, turn.count, now)
    return Decision(
        steps=tuple(decided),
        verdict=Verdict.UNKNOWN,
        memory=_next(replace(memory, blind=since), remembered, decided, present, limits, now, fresh=False),
        fresh=False,
        message=f"{failure.trouble}: {failure.message}",
    )


def _next(
    memory: Memory,
    steps: Mapping[str, StepMemory],
    decided: Sequence[StepDecision],
    present: Mapping[str, tuple[StepMemory, int, bool]],
    limits: PipelineLimits,
    now: float,
    *,
    fresh: bool,
) -> Memory:
    """Memory after the decision; steps that the pipeline no longer has are forgotten."""
    actions = [Action(now, item.step, present[item.step][1], item.count, f"{item.verdict}: {item.reason}") for item in decided]
    new = [action for action in actions if action.before != action.after and (limits.active or not _told(memory, action))]
    if not limits.active:
        steps = {name: replace(step, desired=present[name][1]) for name, step in steps.items()}
    return Memory(
        steps=steps,
        history=(*new, *memory.history)[:_HISTORY],
        actuation=memory.actuation,
        last_fresh=now if fresh else memory.last_fresh,
        blind=None if fresh else memory.blind,
        revision=memory.revision,
    )


def _told(memory: Memory, action: Action) -> bool:
    """Whether the same recommendation is the newest of its step: it stands, once, until another comes."""
    last = next((item for item in memory.history if item.step == action.step), None)
    return last is not None and (last.before, last.after) == (action.before, action.after)
