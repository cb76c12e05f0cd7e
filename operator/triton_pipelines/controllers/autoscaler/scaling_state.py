"""The control law's state after a decision that is not, or not entirely, carried out. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from triton_pipelines.api.wording import truncate
from triton_pipelines.autoscaling.types import (
    HISTORY_MAX,
    REASON_MAX,
    CountChange,
    ScalingDecision,
    ScalingState,
    StepState,
)


def with_recorded_counts(scaling_state: ScalingState, recorded: Mapping[str, int]) -> ScalingState:
    """Return the recorded state of an earlier process with the recorded counts as desired ones.

    The counts hold even if the rest of the state is lost.
    """
    steps = {
        step: replace(scaling_state.steps.get(step) or StepState(desired=count), desired=count)
        for step, count in recorded.items()
    }
    return replace(scaling_state, steps={**scaling_state.steps, **steps})


def with_observations(before: ScalingState, after: ScalingState) -> ScalingState:
    """Return the state after a decision that is not carried out.

    What the decision observed is kept; desired counts and past changes stay as they were.
    """
    steps = {}
    for name, mine in before.steps.items():
        new = after.steps.get(name)
        steps[name] = (
            mine
            if new is None
            else replace(
                mine,
                service=new.service,
                demands=new.demands,
                stalled_since=new.stalled_since,
                cap=new.cap,
            )
        )
    return replace(
        before,
        steps={**after.steps, **steps},
        last_fresh=after.last_fresh,
        outage_since=after.outage_since,
    )


def with_blocked_steps(
    before: ScalingState, after: ScalingState, blocked: Collection[str]
) -> ScalingState:
    """Return the state after a decision that is not carried out for some steps.

    As :func:`with_observations`, but for these steps only.
    """
    kept = with_observations(before, after).steps
    made = (item for item in after.history if item not in before.history)
    news = tuple(item for item in made if item.step not in blocked)
    return replace(
        after,
        steps={name: kept[name] if name in blocked else new for name, new in after.steps.items()},
        history=(*news, *before.history)[:HISTORY_MAX],
    )


def with_reverted_growth(
    scaling_state: ScalingState, step: str, count: int, now: float, reason: str
) -> ScalingState:
    """Return the state after a growth that failed to reach any pod.

    The desired count is the previous one again, and the history has the reason.
    """
    mine = scaling_state.steps.get(step)
    if mine is None or mine.desired == count:
        return scaling_state
    action = CountChange(
        now, step, mine.desired, count, truncate(f"reverted: {reason}", REASON_MAX)
    )
    # A growth that reached no pod is no evidence of diminishing returns.
    growth = mine.growth if mine.growth is not None and mine.growth.after <= count else None
    reverted = replace(mine, desired=count, growth=growth)
    return replace(
        scaling_state,
        steps={**scaling_state.steps, step: reverted},
        history=(action, *scaling_state.history)[:HISTORY_MAX],
    )


def with_desired_counts(
    decision: ScalingDecision, scaling_state: ScalingState, *, active: bool
) -> ScalingDecision:
    """Return the decision with the counts and the history in force.

    They differ from the decided ones if the decision could not be carried out.
    """
    if not active:
        return decision
    steps = tuple(
        replace(item, count=scaling_state.steps[item.step].desired)
        if item.step in scaling_state.steps
        else item
        for item in decision.steps
    )
    return replace(decision, steps=steps, state=scaling_state)
