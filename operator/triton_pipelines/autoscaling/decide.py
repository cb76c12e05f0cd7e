"""The scaling decision: what limits a pipeline, and how many instances its CPU steps should have.

Pure; the clock is passed in. A decision takes these steps:

1. select the pods whose samples can be trusted (:mod:`.signals`),
2. compute the demand of each step (:mod:`.control_law`),
3. compute what bounds growth (:mod:`.caps`),
4. decide count and verdict of each step (:mod:`.step_decision`, :mod:`.verdicts`).

Without trustworthy metrics :mod:`.metrics_outage` applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from triton_pipelines.autoscaling import control_law, metrics_outage, verdicts
from triton_pipelines.autoscaling.caps import StepLoad, cpu_budget, growth_caps
from triton_pipelines.autoscaling.control_law import StepDemand
from triton_pipelines.autoscaling.decision_state import (
    Counts,
    Situation,
    current_step,
    next_state,
    without_future,
    without_other_revision,
)
from triton_pipelines.autoscaling.memory_pressure import without_ended_holds
from triton_pipelines.autoscaling.metrics.samples import (
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
)
from triton_pipelines.autoscaling.signals import (
    CpuSignal,
    PodSignals,
    TrustedPods,
    cpu_signal,
    gpu_signal,
    step_signal,
    trusted_pods,
)
from triton_pipelines.autoscaling.step_decision import (
    DecisionContext,
    StepObservation,
    StepOutcome,
    decide_step,
    demand_of,
)
from triton_pipelines.autoscaling.types import (
    PipelineLimits,
    ScalingDecision,
    ScalingState,
    StepDecision,
    StepFigures,
    StepLimits,
    StepState,
    Verdict,
)


def decide(
    limits: PipelineLimits,
    state: ScalingState,
    sample: PipelineSample | MetricsFailure,
    counts: Counts,
    ready_pods: Sequence[str],
    now: float,
) -> ScalingDecision:
    """Return the counts, the verdicts and the next state.

    The same arguments give the same decision, whatever the order of pods and scrapes. The caller
    stores the state and applies the counts (mode Active) or shows them (``limits.active`` False).

    Args:
        limits: What bounds the pipeline.
        state: The state after the last decision.
        sample: What the last collection of metrics brought.
        counts: Instances as each pod's Triton reports them.
        ready_pods: Names of the ready pods.
        now: Unix seconds.
    """
    state = without_other_revision(without_future(state, now), limits.revision)
    state = without_ended_holds(state, limits, now)
    steps = {
        step.name: current_step(step, state, counts, ready_pods, limits.active, now)
        for step in limits.steps
    }
    situation = Situation(limits, state, steps, counts, now)
    if not ready_pods:
        return _hold_all(situation, "no pod is ready")
    if isinstance(sample, MetricsFailure):
        return _decide_in_outage(situation, sample, 0.0)
    models = [*(step.model_name for step in limits.steps), *limits.gpu_steps]
    trusted = trusted_pods(sample, models, ready_pods, now)
    if not trusted.pods:
        failure = (
            metrics_outage.stale_samples(trusted.problem)
            if trusted.stale
            else metrics_outage.missing_samples(trusted.problem, sample.source)
        )
        return _decide_in_outage(situation, failure, sample.interval)
    return _decide_from_samples(situation, trusted, sample)


# --- with metrics ---------------------------------------------------------------------------------


def _decide_from_samples(
    situation: Situation, trusted: TrustedPods, sample: PipelineSample
) -> ScalingDecision:
    limits = situation.limits
    steps = [_observe_step(step, situation, trusted.pods, sample) for step in limits.steps]
    loads = [
        StepLoad(
            item.limits,
            item.count,
            item.count,
            item.count,
            item.busy,
            0.0,
            item.state.service,
            item.signal.cpu_share,
        )
        for item in steps
    ]
    context = _context(situation, trusted, sample, loads)
    outcomes = _decide_steps(steps, loads, context)
    decisions = tuple(item.decision for item in outcomes)
    found = verdicts.pipeline_verdict(item.verdict for item in decisions)
    notes = (
        trusted.problem
        and f"MetricsPartial: {trusted.problem}, so instance counts are not reduced",
        verdicts.gpu_note(context.gpu, limits),
        *sample.notes,
    )
    return ScalingDecision(
        steps=decisions,
        verdict=found,
        state=next_state(
            situation,
            {item.decision.step: item.state for item in outcomes},
            decisions,
            fresh=not trusted.problem,
        ),
        limitations=tuple(item.limitation for item in outcomes if item.limitation is not None),
        gpu_busy=context.gpu.gpu_busy,
        problem=MetricsProblem.PARTIAL if trusted.problem else None,
        reasons=tuple(item.reason for item in decisions if item.verdict is found),
        notes=tuple(note for note in notes if note),
    )


def _context(
    situation: Situation,
    trusted: TrustedPods,
    sample: PipelineSample,
    loads: Sequence[StepLoad],
) -> DecisionContext:
    limits, pods = situation.limits, trusted.pods
    cpu = cpu_signal(pods, sum(load.limits.cores * load.busy for load in loads))
    return DecisionContext(
        limits=limits,
        gpu=gpu_signal(pods, limits, sample.interval),
        cpu=cpu,
        budget=cpu_budget(limits, loads, cpu),
        actuation=_actuation(situation),
        interval=sample.interval,
        age=max(0.0, *(pod.age for pod in pods.values())),
        partial=bool(trusted.problem),
        now=situation.now,
    )


def _actuation(situation: Situation) -> float | None:
    """Return the seconds that a change takes: measured, or else what the limits assume."""
    measured = situation.state.actuation
    return situation.limits.actuation if measured is None else measured


def _decide_steps(
    steps: Sequence[StepObservation], loads: Sequence[StepLoad], context: DecisionContext
) -> list[StepOutcome]:
    """Decide all steps; what one step lets through is demand of the next."""
    demands: list[StepDemand] = []
    for number, item in enumerate(steps):
        before = (steps[number - 1], demands[-1]) if number else None
        demands.append(demand_of(item, context, before))
    requested = [
        replace(
            load,
            instances=demand.instances,
            steady_instances=demand.steady_instances,
            wait=demand.wait,
            service=demand.service,
            grows_at_once=_grows_at_once(item, demand),
            added=_added_since_reading(item, context.cpu),
            memory_held=None if item.state.memory_held is None else item.state.memory_held[1],
        )
        for item, load, demand in zip(steps, loads, demands, strict=True)
    ]
    caps = growth_caps(context.limits, requested, context.budget, context.cpu)
    return [
        decide_step(item, demand, caps[item.limits.name], context)
        for item, demand in zip(steps, demands, strict=True)
    ]


def _added_since_reading(item: StepObservation, cpu: CpuSignal) -> int:
    """Return the instances that may not have been running when memory was read."""
    at = cpu.memory_at
    if at is None:
        return 0
    least = control_law.instances_between(item.state, item.count)(at, at).least
    return max(0, item.count - min(least, item.counts.get(cpu.memory_pod, item.count)))


def _grows_at_once(item: StepObservation, demand: StepDemand) -> bool:
    """Return whether the step is to grow as far as it can.

    No further growth may be possible during the overload, which may have only begun.
    """
    is_last = demand.overloaded and not item.limits.grows_under_load
    return is_last and demand.instances > item.count


def _observe_step(
    step: StepLimits,
    situation: Situation,
    pods: Mapping[str, PodSignals],
    sample: PipelineSample,
) -> StepObservation:
    present, limits = situation.steps[step.name], situation.limits
    reported = situation.counts.get(step.name, {})
    ran = {
        pod: control_law.instances_between(present.state, max(present.count, reported.get(pod, 0)))
        for pod in pods
    }
    return StepObservation(
        limits=step,
        state=present.state,
        count=present.count,
        in_flight=present.in_flight,
        signal=step_signal(pods, step.model_name, limits.law, sample.interval, ran),
        counts={pod: max(1, reported.get(pod, present.count)) for pod in pods},
        probe_rate=limits.probe_rate,
    )


# --- without metrics ------------------------------------------------------------------------------


def _hold_all(situation: Situation, message: str) -> ScalingDecision:
    """Hold every count within the user's bounds."""
    decisions: list[StepDecision] = []
    states: dict[str, StepState] = {}
    for step in situation.limits.steps:
        present = situation.steps[step.name]
        own, count = present.state, present.count
        bounded = min(max(count, step.low), step.high)
        figures = StepFigures(service=own.service)
        decisions.append(StepDecision(step.name, bounded, Verdict.UNKNOWN, message, figures))
        states[step.name] = control_law.after_change(
            replace(own, desired=count), count, bounded, situation.now
        )
    return ScalingDecision(
        steps=tuple(decisions),
        verdict=Verdict.UNKNOWN,
        state=next_state(situation, states, decisions, fresh=False),
        problem=MetricsProblem.MISSING,
        notes=(message,),
    )


def _decide_in_outage(
    situation: Situation, failure: MetricsFailure, interval: float
) -> ScalingDecision:
    """Hold counts during a metrics outage, or raise them by the fallback."""
    state, now = situation.state, situation.now
    known = state.outage_since is not None and state.outage_since <= now
    since = state.outage_since if known and state.outage_since is not None else now
    decisions: list[StepDecision] = []
    states: dict[str, StepState] = {}
    for step in situation.limits.steps:
        count = _outage_count(situation, step, now - since, interval)
        decision, own = _outage_step(situation, step, count, failure, now - since)
        decisions.append(decision)
        states[step.name] = own
    return ScalingDecision(
        steps=tuple(decisions),
        verdict=Verdict.UNKNOWN,
        state=next_state(
            replace(situation, state=replace(state, outage_since=since)),
            states,
            decisions,
            fresh=False,
        ),
        problem=failure.problem,
        notes=(failure.message,),
    )


def _outage_count(
    situation: Situation, step: StepLimits, outage_seconds: float, interval: float
) -> int:
    """Return the next count of a step during a metrics outage."""
    present, law = situation.steps[step.name], situation.limits.law
    aim = metrics_outage.fallback_count(
        present.state, step, law, count=present.count, outage_seconds=outage_seconds
    )
    return control_law.next_count(
        replace(present.state, demands=()),
        step,
        law,
        count=present.count,
        demand=aim,
        now=situation.now,
        wait_up=control_law.cooldown(law, _actuation(situation), interval, interval),
        in_flight=present.in_flight,
        interval=interval,
    ).count


def _outage_step(
    situation: Situation,
    step: StepLimits,
    count: int,
    failure: MetricsFailure,
    outage_seconds: float,
) -> tuple[StepDecision, StepState]:
    """Return decision and state of a step that gets ``count`` during a metrics outage."""
    present, now = situation.steps[step.name], situation.now
    reason = f"{failure.problem}: {failure.message}"
    if count > present.count:
        reason = (
            f"{failure.problem} for {outage_seconds:.0f} s: the count was increased to "
            f"{count} ({situation.limits.law.fallback}); {failure.message}"
        )
    figures = StepFigures(service=present.state.service, cap=present.state.cap or 0)
    decision = StepDecision(step.name, count, Verdict.UNKNOWN, reason, figures)
    own = control_law.record_count(
        replace(present.state, desired=present.count), present.count, now
    )
    return decision, control_law.after_change(own, present.count, count, now)


# --- the next state -------------------------------------------------------------------------------
