"""Decide one step: from its demand and caps to a count, a verdict and its next state. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from triton_pipelines.autoscaling import (
    control_law,
    diminishing_returns,
    memory_pressure,
    verdicts,
)
from triton_pipelines.autoscaling.caps import CpuBudget, GrowthCap
from triton_pipelines.autoscaling.control_law import NextCount, StepDemand
from triton_pipelines.autoscaling.signals import (
    CpuSignal,
    GpuSignal,
    StepSignal,
    fast_window,
    slow_window,
)
from triton_pipelines.autoscaling.types import (
    InstanceGrowth,
    Limitation,
    PipelineLimits,
    StepDecision,
    StepFigures,
    StepLimits,
    StepState,
    VerdictCause,
)

_AT_ONCE: Final = "the maximum at once, because Triton makes no further change while requests wait"


@dataclass(frozen=True, slots=True)
class StepObservation:
    """One step and what the pods report of it."""

    limits: StepLimits
    """Bounds of the step."""
    state: StepState
    """What is remembered of it."""
    count: int
    """Present count per pod."""
    in_flight: bool
    """Whether a change has not reached all pods yet."""
    signal: StepSignal
    """Rates over the windows."""
    counts: Mapping[str, int]
    """Instances by trusted pod."""
    probe_rate: float = 0.0
    """Test inferences per second that the operator sends to each pod."""

    @property
    def busy(self) -> float:
        """Busy instances in the mean pod over the slow window, the window of CPU usage."""
        if self.signal.slow is None:
            return 0.0
        return self.signal.slow.busy / max(1, len(self.counts))

    @property
    def idle(self) -> bool:
        """Whether the slow window has only the operator's own requests, and none are queued.

        Idle differs from missing: the counters exist.
        """
        slow = self.signal.slow
        if slow is None or not slow.covered or self.signal.waiting > 0:
            return False
        # As many test inferences as fit into the window including both its ends; half a request
        # allows for rounding.
        own = len(self.counts) * (self.probe_rate * slow.seconds + 1) if self.probe_rate else 0.0
        return (slow.throughput + slow.rejected) * slow.seconds < own + 0.5


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """What all steps of one decision share."""

    limits: PipelineLimits
    """What bounds the pipeline."""
    gpu: GpuSignal
    """Signals of the GPU steps."""
    cpu: CpuSignal
    """CPU and memory of the pod that uses most."""
    budget: CpuBudget
    """The split of a pod's CPU."""
    actuation: float | None
    """Seconds that a change takes; ``None`` while not measured."""
    interval: float
    """Seconds between scrapes."""
    age: float
    """Age of the oldest pod's newest scrape, seconds."""
    partial: bool
    """Whether some ready pods have no usable samples."""
    now: float
    """Unix seconds."""

    @property
    def slow(self) -> float:
        """Slow window, seconds."""
        return slow_window(self.limits.law, self.interval)

    @property
    def lead(self) -> float:
        """Seconds from a scrape until a growth that follows from it takes effect."""
        return self.actuation if self.actuation is not None else self.interval


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What was decided for one step."""

    decision: StepDecision
    """Count and verdict."""
    state: StepState
    """The next state."""
    limitation: Limitation | None
    """What keeps the count from what the load asks for."""


def demand_of(
    item: StepObservation,
    context: DecisionContext,
    before: tuple[StepObservation, StepDemand] | None = None,
) -> StepDemand:
    """Return what the step needs, whatever bounds it.

    Args:
        item: The step.
        context: What all steps share.
        before: The scaled step whose requests come here next, so that its queue counts.
    """
    contended = context.budget.is_short(item.limits.name)
    service = control_law.service_time(item.state.service, item.signal, contended=contended)
    lead = context.age + context.lead
    return control_law.step_demand(
        item.signal,
        service,
        item.counts,
        context.limits.law,
        lead,
        _expected_arrivals(item, before),
        grew=_grew_recently(item, lead, context.now),
    )


def _grew_recently(item: StepObservation, lead: float, now: float) -> bool:
    """Return whether a growth took effect after the last interval began."""
    last, up = item.signal.last, item.state.last_up
    return last is not None and up is not None and now - up < last.seconds + lead


def _expected_arrivals(
    item: StepObservation, before: tuple[StepObservation, StepDemand] | None
) -> float:
    """Return the arrivals/s once the step before keeps up.

    They are its own arrivals, in the proportion in which requests passed both steps.
    """
    if before is None:
        return 0.0
    here, there = item.signal.slow, before[0].signal.slow
    if here is None or there is None or there.throughput <= 0:
        return 0.0
    return before[1].arrivals * min(1.0, here.throughput / there.throughput)


def decide_step(
    item: StepObservation, demand: StepDemand, cap: GrowthCap, context: DecisionContext
) -> StepOutcome:
    """Decide the count and the verdict of one step."""
    limits, now = context.limits, context.now
    throughput = _fed_throughput(item, context)
    state = _update_state(item, demand, cap, throughput, context)
    desired = _bounded_demand(item, state, demand, cap, context)
    if not context.partial:
        state = control_law.record_demand(state, desired, limits.law, now)
    state = control_law.record_count(state, item.count, now)
    at_once = cap.at_once > desired > item.count
    following = _next_count(item, state, cap.at_once if at_once else desired, context)
    frees_memory = _must_free_memory(item, state, following.count, context)
    count = item.count - 1 if frees_memory else following.count
    decision, limitation = _verdict(item, state, demand, cap, context, count)
    if frees_memory:
        decision = replace(
            decision,
            reason=f"{memory_pressure.removal_text(limits, context.cpu)}; {decision.reason}",
            cause=VerdictCause.FREEING_MEMORY,
        )
    elif at_once and count > item.count:
        decision = replace(decision, reason=f"{decision.reason}; {_AT_ONCE}")
    if following.flapping:
        limitation = _flapping(item, state)
    after = control_law.after_change(replace(state, desired=item.count), item.count, count, now)
    if frees_memory:
        after = memory_pressure.hold_growth(after, limits, now)
    after = control_law.record_growth(
        after, item.count, throughput, demand.service, limits.cpu_limit, now
    )
    return StepOutcome(decision, after, limitation)


def _fed_throughput(item: StepObservation, context: DecisionContext) -> float | None:
    """Return the requests/s of the GPU step, or of this step where there is none."""
    if context.limits.gpu_steps:
        return context.gpu.throughput
    return item.signal.fast.throughput if item.signal.fast is not None else None


def _next_count(
    item: StepObservation, state: StepState, desired: int, context: DecisionContext
) -> NextCount:
    """Return the next count; without evidence it does not fall, nor before pods are removed."""
    limits = context.limits
    holds = context.partial or limits.hold_counts_for_pods
    return control_law.next_count(
        replace(state, demands=()) if holds else state,
        item.limits,
        limits.law,
        count=item.count,
        demand=desired,
        now=context.now,
        wait_up=control_law.cooldown(limits.law, context.actuation, context.interval, context.age),
        in_flight=item.in_flight,
        interval=context.interval,
    )


def _verdict(
    item: StepObservation,
    state: StepState,
    demand: StepDemand,
    cap: GrowthCap,
    context: DecisionContext,
    count: int,
) -> tuple[StepDecision, Limitation | None]:
    """Return the decision with its verdict, and what limits the step."""
    since = state.stalled_since
    inputs = verdicts.VerdictInputs(
        step=item.limits,
        demand=demand,
        count=item.count,
        pods=len(item.counts),
        pending=item.signal.waiting,
        highest_demand=max((each for _, each in state.demands), default=item.count),
        cap=cap,
        idle=item.idle,
        stalled_seconds=context.now - since if since is not None else 0.0,
        growth_held=state.growth_held is not None,
    )
    gpu, budget = context.gpu, context.budget
    found = verdicts.step_verdict(inputs, gpu, budget, context.slow)
    cause = verdicts.verdict_cause(inputs, found, gpu, budget)
    reason = verdicts.reason_text(inputs, found, cause, gpu, budget, context.limits.law)
    figures = _figures(item, demand, cap)
    decision = StepDecision(item.limits.name, count, found, reason, figures, cause)
    return decision, verdicts.limitation(inputs, found, gpu)


def _flapping(item: StepObservation, state: StepState) -> Limitation:
    return Limitation(
        item.limits.name,
        f"the direction changed {len(state.reversals)} times within an hour, so the count does "
        "not decrease until the direction changes less often",
    )


def _update_state(
    item: StepObservation,
    demand: StepDemand,
    cap: GrowthCap,
    throughput: float | None,
    context: DecisionContext,
) -> StepState:
    """Return the state with this sample's service time, cap, stall and assessment of growth."""
    state, now = item.state, context.now
    since = state.stalled_since if state.stalled_since is not None else now
    state = replace(
        state,
        service=demand.service,
        cap=cap.count,
        stalled_since=since if demand.stalled else None,
    )
    if state.growth_held is not None:
        released = diminishing_returns.growth_released(
            state.growth_held,
            now=now,
            saturated=demand.saturated,
            service=demand.service,
            cores=context.limits.cpu_limit,
        )
        return replace(state, growth_held=None, growth=None) if released else state
    if state.growth is None:
        return state
    return _assess_growth(state, state.growth, demand, throughput, context)


def _assess_growth(
    state: StepState,
    growth: InstanceGrowth,
    demand: StepDemand,
    throughput: float | None,
    context: DecisionContext,
) -> StepState:
    """Return the state with growth held if the last growth did not raise throughput."""
    fast = fast_window(context.limits.law, context.interval)
    settled = context.now - growth.at >= fast + context.lead
    if settled and not demand.saturated:
        return replace(state, growth=None)
    useless = diminishing_returns.growth_was_useless(
        growth,
        saturated=demand.saturated,
        throughput=throughput,
        arrivals=demand.arrivals,
        settled=settled,
    )
    if not useless:
        return state
    # The service time of now: contention that the growth itself caused is no reason to try again.
    held = replace(growth, service=demand.service or growth.service)
    return replace(state, growth_held=(context.now, held), growth=None)


def _bounded_demand(
    item: StepObservation,
    state: StepState,
    demand: StepDemand,
    cap: GrowthCap,
    context: DecisionContext,
) -> int:
    """Return the demand within hysteresis, holds and caps.

    It is never below the present count where the sample is no evidence for less.
    """
    unknown = 1 if item.idle else item.count
    desired = demand.instances if demand.service is not None else unknown
    if desired > item.count:
        below_threshold = demand.busy < context.limits.law.up_threshold
        calm = below_threshold and demand.wait <= (demand.service or 0.0)
        if calm or _growth_cannot_help(item, state, context):
            desired = item.count
        else:
            desired = max(item.count, min(desired, cap.count))
    desired = max(desired, min(demand.keep_instances, item.count))
    if context.partial or not item.signal.covered or state.stalled_since is not None:
        desired = max(desired, item.count)
    return desired


def _growth_cannot_help(item: StepObservation, state: StepState, context: DecisionContext) -> bool:
    """Return whether more instances cannot help, or whether that cannot be known."""
    pending = item.signal.waiting
    if (
        verdicts.is_gpu_bound(context.gpu, pending)
        or verdicts.is_batching_ineffective(context.gpu, pending)
        or context.budget.throttled
        or state.growth_held is not None
    ):
        return True
    if state.stalled_since is None:
        return False
    grew = state.last_up is not None and state.last_up >= state.stalled_since
    return grew or verdicts.makes_no_progress(context.now - state.stalled_since, context.slow)


def _must_free_memory(
    item: StepObservation, state: StepState, count: int, context: DecisionContext
) -> bool:
    """Return whether an instance has to go before the kernel kills the container."""
    if context.partial or item.in_flight or not (count >= item.count > item.limits.low):
        return False
    return memory_pressure.must_free_memory(
        context.limits, context.cpu, state, slow=context.slow, now=context.now
    )


def _figures(item: StepObservation, demand: StepDemand, cap: GrowthCap) -> StepFigures:
    return StepFigures(
        arrivals=demand.arrivals,
        busy=demand.busy,
        wait=demand.worst_wait,
        service=demand.service,
        offered=demand.offered,
        demand=demand.instances,
        cap=cap.count,
        cap_reason=cap.text,
    )
