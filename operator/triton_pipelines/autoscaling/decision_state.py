"""Derive the situation that a decision starts from, and the state that follows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.autoscaling import control_law
from triton_pipelines.autoscaling.types import (
    HISTORY_MAX,
    CountChange,
    PipelineLimits,
    ScalingState,
    StepDecision,
    StepLimits,
    StepState,
)

Counts = Mapping[str, Mapping[str, int]]
"""Step → pod → instances."""


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """A step before the decision."""

    state: StepState
    """What is remembered of it."""
    count: int
    """Present count per pod."""
    in_flight: bool
    """Whether a change has not reached all pods yet."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision starts from."""

    limits: PipelineLimits
    state: ScalingState
    steps: Mapping[str, CurrentStep]
    counts: Counts
    now: float


def without_other_revision(state: ScalingState, revision: str) -> ScalingState:
    """Discard what was measured of another revision; counts stay."""
    if state.revision == revision:
        return state
    steps = {
        name: replace(
            step,
            service=None,
            growth=None,
            growth_held=None,
            stalled_since=None,
            cap=None,
            memory_held=None,
        )
        for name, step in state.steps.items()
    }
    return replace(state, steps=steps, revision=revision)


def without_future(state: ScalingState, now: float) -> ScalingState:
    """Discard what is remembered of times after ``now``, as before the clock was set back."""
    return replace(
        state, steps={name: _step_without_future(step, now) for name, step in state.steps.items()}
    )


def _step_without_future(step: StepState, now: float) -> StepState:
    """Return the state of a step without times after ``now``."""
    return replace(
        step,
        demands=tuple(item for item in step.demands if item[0] <= now),
        counts=tuple(item for item in step.counts if item[0] <= now),
        last_up=_past(step.last_up, now),
        last_change=_past(step.last_change, now),
        reversals=tuple(at for at in step.reversals if at <= now),
        growth=step.growth if step.growth and step.growth.at <= now else None,
        growth_held=step.growth_held if step.growth_held and step.growth_held[0] <= now else None,
        stalled_since=_past(step.stalled_since, now),
        memory_held=step.memory_held if step.memory_held and step.memory_held[0] <= now else None,
    )


def _past(at: float | None, now: float) -> float | None:
    return at if at is not None and at <= now else None


def current_step(
    step: StepLimits,
    state: ScalingState,
    counts: Counts,
    ready: Sequence[str],
    active: bool,
    now: float,
) -> CurrentStep:
    """Return the step's state and count, and whether a change has not reached all pods yet."""
    reported = [counts.get(step.name, {}).get(pod) for pod in ready]
    known = [count for count in reported if count is not None]
    highest = max(known, default=None)
    own = state.steps.get(step.name) or StepState(
        desired=highest if highest is not None else step.initial
    )
    if not active:
        return CurrentStep(own, highest if highest is not None else own.desired, in_flight=False)
    differs = any(count != own.desired for count in known)
    since = None if own.last_change is None else now - own.last_change
    recent = since is not None and 0 <= since < control_law.IN_FLIGHT_SECONDS
    return CurrentStep(own, own.desired, in_flight=differs and recent)


def next_state(
    situation: Situation,
    states: Mapping[str, StepState],
    decisions: Sequence[StepDecision],
    *,
    fresh: bool,
) -> ScalingState:
    """Return the state after the decision; steps that no longer exist are dropped."""
    state, now, active = situation.state, situation.now, situation.limits.active
    before = {name: present.count for name, present in situation.steps.items()}
    changes = [
        CountChange(now, item.step, before[item.step], item.count, f"{item.verdict}: {item.reason}")
        for item in decisions
        if item.count != before[item.step]
    ]
    news = [change for change in changes if active or not _is_repeated(state, change)]
    if not active:
        states = {
            name: without_change(step, situation.steps[name].state, before[name])
            for name, step in states.items()
        }
    # A change is recorded when it is decided: from then on more instances may have been busy.
    states = {
        name: control_law.record_count(step, step.desired, now) for name, step in states.items()
    }
    return replace(
        state,
        steps=states,
        history=(*news, *state.history)[:HISTORY_MAX],
        last_fresh=now if fresh else state.last_fresh,
        outage_since=None if fresh else state.outage_since,
    )


def without_change(after: StepState, before: StepState, count: int) -> StepState:
    """Return the state after a decision that changes nothing, because it is only recommended.

    It starts no cooldown, and is neither a growth to assess nor a reversal.

    Args:
        after: The state after the decision.
        before: The state before it.
        count: The present count.
    """
    return replace(
        after,
        desired=count,
        last_up=before.last_up,
        last_change=before.last_change,
        reversals=before.reversals,
        direction=before.direction,
        growth=before.growth if after.growth is not None else None,
        memory_held=before.memory_held,
    )


def _is_repeated(state: ScalingState, change: CountChange) -> bool:
    """Return whether the same recommendation is the newest of its step."""
    last = next((item for item in state.history if item.step == change.step), None)
    return last is not None and (last.before, last.after) == (change.before, change.after)
