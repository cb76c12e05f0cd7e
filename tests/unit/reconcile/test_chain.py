"""Rules of the merge of the policy chain."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.support.worlds import START
from triton_pipelines.controllers.pipeline.actions import Deletion, Resize
from triton_pipelines.controllers.pipeline.chain import (
    Context,
    Draft,
    Outcome,
    Policy,
    PolicyConflict,
    run,
)
from triton_pipelines.controllers.pipeline.plan import POLICIES, STALLED_POLICIES
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.state import (
    STATES,
    PipelineState,
    RolloutState,
    SloGuardState,
)
from triton_pipelines.controllers.pipeline.status_events import Event

CONTEXT = Context(builders.options(), lambda _uid, _revision: "")


@dataclass(frozen=True)
class Number:
    """A decision."""

    value: int


def decided(*outcomes: Outcome, names: tuple[str, ...] = (), **amends: tuple[str, ...]) -> Draft:
    named = names or tuple(f"policy{index}" for index in range(len(outcomes)))

    def policy(name: str, outcome: Outcome) -> Policy:
        def decide(_snapshot: Snapshot, _draft: Draft, _now: dt.datetime) -> Outcome:
            return outcome

        return Policy(name, decide, amends.get(name, ()))

    policies = [policy(name, outcome) for name, outcome in zip(named, outcomes, strict=True)]
    return run(policies, Snapshot(builders.document()), Draft(CONTEXT, PipelineState()), START)


def test_a_later_policy_reads_what_an_earlier_one_decided(messages: Messages) -> None:
    assert decided(Outcome(Number(7))).of(Number) == Number(7)
    with messages.raises(PolicyConflict):
        decided(Outcome()).of(Number)


def test_nothing_is_decided_twice(messages: Messages) -> None:
    with messages.raises(PolicyConflict, match="policy1"):
        decided(Outcome(Number(1)), Outcome(Number(1)))


def test_a_policy_changes_only_its_own_state_and_what_its_entry_names(messages: Messages) -> None:
    watch = Outcome(states=(SloGuardState("a"),))
    end = Outcome(states=(RolloutState(verified="b"), SloGuardState()))
    made = decided(watch, end, names=("slo_guard", "rollout"), rollout=("slo_guard",))
    assert made.state == PipelineState(rollout=RolloutState(verified="b"))
    with messages.raises(PolicyConflict, match="SloGuardState"):
        decided(watch, end, names=("slo_guard", "rollout"))


def test_there_is_one_status_and_one_resize() -> None:
    for outcome in (Outcome(status={}), Outcome(resize=Resize("a", "uid", 1, 1, (2, 2)))):
        with pytest.raises(PolicyConflict):
            decided(outcome, outcome)


def test_the_rest_is_merged_in_order_and_the_soonest_time_counts() -> None:
    first, second = (Event(False, reason, "Test", "") for reason in "ab")
    pods = (Deletion("Pod", "a"), Deletion("Pod", "b"))
    merged = decided(
        Outcome(events=(first,), delete=pods[:1], requeue_after=30.0),
        Outcome(events=(second,), delete=pods[1:], requeue_after=10.0),
        Outcome(),
    ).outcome
    assert (merged.events, merged.delete, merged.requeue_after) == ((first, second), pods, 10.0)


def test_every_state_has_a_policy_of_its_name_and_amends_name_earlier_ones() -> None:
    listed = [policy.name for policy in POLICIES]
    assert len(listed) == len(set(listed))
    assert set(STATES) <= set(listed)
    for index, policy in enumerate(POLICIES):
        assert set(policy.amends) <= set(listed[:index])
    assert {name for policy in STALLED_POLICIES for name in policy.amends} <= set(STATES)
