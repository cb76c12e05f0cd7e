"""The decision: what limits a pipeline and how many instances its CPU steps should have. Pure; the clock is passed in.

Order of a decision: which pods can be believed; what each step needs (law.py); what bounds growth (caps.py); what each
is given, held by the GPU step, the knee or a stall, and what that is called (settle.py, verdicts.py). Without believable metrics see blind.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.autoscaling import control_law, metrics_outage, verdicts
from triton_pipelines.autoscaling.caps import Load, caps, cpu_budget
from triton_pipelines.autoscaling.metrics.samples import Failure, Sample
from triton_pipelines.autoscaling.signals import Pod, cpu_signal, gpu_signal, pick, step_signal
from triton_pipelines.autoscaling.step_decision import Around, Seen, need_of, settle
from triton_pipelines.autoscaling.types import (
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
HISTORY = 5


@dataclass(frozen=True, slots=True)
class Present:
    """A step before the decision: its memory, its count, and whether a change of it is still on its way to the pods."""

    memory: StepMemory
    count: int
    in_flight: bool


def decide(
    limits: PipelineLimits,
    memory: Memory,
    sample: Sample | Failure,
    counts: Counts,
    ready_pods: Sequence[str],
    now: float,
) -> Decision:
    """Wanted counts, verdicts and the next memory.

    ``counts``: step → pod → instances as that pod's Triton reports them; ``ready_pods``: by name; ``now``: Unix seconds. The same
    arguments give the same decision, in whatever order pods and scrapes come. The caller stores ``memory`` and carries counts out
    (mode Active), or shows them (``limits.active`` False).
    """
    memory = _of_revision(memory, limits.revision)
    present = {
        step.name: _present(step, memory, counts, ready_pods, limits.active, now)
        for step in limits.steps
    }
    if not ready_pods:
        return _held(limits, memory, present, "no pod is ready", now)
    if isinstance(sample, Failure):
        return _blind(limits, memory, present, sample, now, 0.0)
    models = [*(step.model_name for step in limits.steps), *limits.gpu_steps]
    picked = pick(sample, models, ready_pods, now)
    if not picked.pods:
        failure = (
            metrics_outage.stale(picked.trouble)
            if picked.stale
            else metrics_outage.missing(picked.trouble, sample.source)
        )
        return _blind(limits, memory, present, failure, now, sample.interval)
    return _seen(limits, memory, present, picked.pods, picked.trouble, counts, sample, now)


def _of_revision(memory: Memory, revision: str) -> Memory:
    """What was measured of another revision says nothing of this one; counts stay."""
    if memory.revision == revision:
        return memory
    steps = {
        name: replace(step, service=None, growth=None, frozen=None, stalled=None, cap=None)
        for name, step in memory.steps.items()
    }
    return replace(memory, steps=steps, revision=revision)


def _present(
    step: StepLimits, memory: Memory, counts: Counts, ready: Sequence[str], active: bool, now: float
) -> Present:
    """Memory of the step, its present count, and whether a change is still on its way."""
    reported = [counts.get(step.name, {}).get(pod) for pod in ready]
    known = [count for count in reported if count is not None]
    seen = max(known, default=None)
    mine = memory.steps.get(step.name) or StepMemory(
        desired=seen if seen is not None else step.initial
    )
    if not active:
        return Present(mine, seen if seen is not None else mine.desired, in_flight=False)
    waiting = any(count != mine.desired for count in known)
    recent = (
        mine.last_change is not None and 0 <= now - mine.last_change < control_law.IN_FLIGHT_SECONDS
    )
    return Present(mine, mine.desired, in_flight=waiting and recent)


def _seen(
    limits: PipelineLimits,
    memory: Memory,
    present: Mapping[str, Present],
    pods: Mapping[str, Pod],
    trouble: str,
    counts: Counts,
    sample: Sample,
    now: float,
) -> Decision:
    steps = [
        _seen_step(step, present[step.name], pods, counts, limits, sample.interval)
        for step in limits.steps
    ]
    loads = [
        Load(item.limits, item.count, item.count, item.count, item.busy, 0.0, item.memory.service)
        for item in steps
    ]
    cpu = cpu_signal(pods, sum(load.limits.cores * load.busy for load in loads))
    around = Around(
        limits=limits,
        gpu=gpu_signal(pods, limits, sample.interval),
        cpu=cpu,
        budget=cpu_budget(limits, loads, cpu),
        actuation=memory.actuation,
        interval=sample.interval,
        age=max(0.0, *(pod.age for pod in pods.values())),
        partial=bool(trouble),
        now=now,
    )
    needs: list[control_law.Need] = []
    for number, item in enumerate(steps):
        needs.append(need_of(item, around, (steps[number - 1], needs[-1]) if number else None))
    wanted = [
        replace(load, wanted=need.wanted, steady=need.steady, wait=need.wait, service=need.service)
        for load, need in zip(loads, needs, strict=True)
    ]
    bounds = caps(limits, wanted, around.budget, cpu)
    settled = [
        settle(item, need, bounds[item.limits.name], around)
        for item, need in zip(steps, needs, strict=True)
    ]
    found = verdicts.overall(item.decision.verdict for item in settled)
    reasons = [item.decision.reason for item in settled if item.decision.verdict is found]
    notes = [
        trouble and f"MetricsPartial: {trouble}; counts do not fall",
        verdicts.gpu_notes(around.gpu, limits),
        *sample.notes,
    ]
    decided = tuple(item.decision for item in settled)
    return Decision(
        steps=decided,
        verdict=found,
        memory=_next(
            memory,
            {item.decision.step: item.memory for item in settled},
            decided,
            present,
            limits,
            now,
            fresh=not trouble,
        ),
        limited="; ".join(item.limited for item in settled if item.limited),
        gpu_busy=around.gpu.gpu_busy,
        fresh=not trouble,
        message="; ".join(part for part in dict.fromkeys((*reasons, *notes)) if part),
    )


def _seen_step(
    step: StepLimits,
    present: Present,
    pods: Mapping[str, Pod],
    counts: Counts,
    limits: PipelineLimits,
    interval: float,
) -> Seen:
    reported = counts.get(step.name, {})
    ran = {
        pod: control_law.ran(present.memory, max(present.count, reported.get(pod, 0)))
        for pod in pods
    }
    return Seen(
        limits=step,
        memory=present.memory,
        count=present.count,
        in_flight=present.in_flight,
        signal=step_signal(pods, step.model_name, limits.law, interval, ran),
        counts={pod: max(1, reported.get(pod, present.count)) for pod in pods},
        own_requests=limits.own_requests,
    )


def _held(
    limits: PipelineLimits, memory: Memory, present: Mapping[str, Present], message: str, now: float
) -> Decision:
    """Nothing can be said: every count stays (but for the user's bounds)."""
    decided: list[StepDecision] = []
    remembered: dict[str, StepMemory] = {}
    for step in limits.steps:
        mine, count = present[step.name].memory, present[step.name].count
        bounded = min(max(count, step.low), step.high)
        decided.append(
            StepDecision(
                step.name, bounded, Verdict.UNKNOWN, message, Figures(service=mine.service)
            )
        )
        remembered[step.name] = control_law.moved(replace(mine, desired=count), count, bounded, now)
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
    present: Mapping[str, Present],
    failure: Failure,
    now: float,
    interval: float,
) -> Decision:
    since = memory.blind if memory.blind is not None and memory.blind <= now else now
    wait_up = control_law.cooldown(limits.law, memory.actuation, interval, interval)
    decided: list[StepDecision] = []
    remembered: dict[str, StepMemory] = {}
    for step in limits.steps:
        mine, count, in_flight = (
            present[step.name].memory,
            present[step.name].count,
            present[step.name].in_flight,
        )
        aim = metrics_outage.fallback_count(
            mine, step, limits.law, count=count, blind_seconds=now - since
        )
        turn = control_law.move(
            replace(mine, wants=()),
            step,
            limits.law,
            count=count,
            want=aim,
            now=now,
            wait_up=wait_up,
            in_flight=in_flight,
            interval=interval,
        )
        reason = f"{failure.trouble}: {failure.message}"
        if turn.count > count:
            reason = f"{failure.trouble} for {now - since:.0f} s: up to {turn.count} ({limits.law.fallback}); {failure.message}"
        decided.append(
            StepDecision(
                step.name,
                turn.count,
                Verdict.UNKNOWN,
                reason,
                Figures(service=mine.service, cap=mine.cap or 0),
            )
        )
        noted = control_law.remember_count(replace(mine, desired=count), count, now)
        remembered[step.name] = control_law.moved(noted, count, turn.count, now)
    return Decision(
        steps=tuple(decided),
        verdict=Verdict.UNKNOWN,
        memory=_next(
            replace(memory, blind=since), remembered, decided, present, limits, now, fresh=False
        ),
        fresh=False,
        message=f"{failure.trouble}: {failure.message}",
    )


def _next(
    memory: Memory,
    steps: Mapping[str, StepMemory],
    decided: Sequence[StepDecision],
    present: Mapping[str, Present],
    limits: PipelineLimits,
    now: float,
    *,
    fresh: bool,
) -> Memory:
    """Memory after the decision; steps that the pipeline no longer has are forgotten."""
    actions = [
        Action(
            now, item.step, present[item.step].count, item.count, f"{item.verdict}: {item.reason}"
        )
        for item in decided
    ]
    new = [
        action
        for action in actions
        if action.before != action.after and (limits.active or not _told(memory, action))
    ]
    if not limits.active:
        steps = {name: replace(step, desired=present[name].count) for name, step in steps.items()}
    # A change is noted when it is decided: from then on more instances may have been busy.
    steps = {
        name: control_law.remember_count(step, step.desired, now) for name, step in steps.items()
    }
    return replace(
        memory,
        steps=steps,
        history=(*new, *memory.history)[:HISTORY],
        last_fresh=now if fresh else memory.last_fresh,
        blind=None if fresh else memory.blind,
    )


def _told(memory: Memory, action: Action) -> bool:
    """Whether the same recommendation is the newest of its step: it stands, once, until another comes."""
    last = next((item for item in memory.history if item.step == action.step), None)
    return last is not None and (last.before, last.after) == (action.before, action.after)
