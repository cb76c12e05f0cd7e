"""The policy chain: policies decide one after the other, and their outcomes are merged.

A policy is a pure function ``decide(snapshot, draft, now) -> Outcome``. The rules of the merge:

- Each kind of decision is made once; a later policy reads it with :meth:`Draft.of`.
- Each state has one owner. A policy changes another one's state only where its entry in the list
  names it (``amends``).
- Objects are applied in the order of :class:`~.actions.ApplyStage`, whatever policy wants them.
- There is one status and at most one resize.
- Deletions, warnings and events follow each other in the order of the policies.
- The next iteration comes after the least of the times that policies request.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from triton_pipelines.api.base import Finding
from triton_pipelines.compile.graph import Options

from .actions import Apply, Deletion, Resize, soonest
from .compiled_pipeline import CompiledPipeline, resolve
from .pod_problems import Problem
from .policy_state import PolicyState
from .snapshot import Object, Snapshot
from .state import STATE_NAMES, PipelineState
from .status_events import Event

Resolve = Callable[[Snapshot], CompiledPipeline | list[Finding]]
D = TypeVar("D")


class PolicyConflict(Exception):  # noqa: N818 - a defect of the list of policies
    """Two policies decide the same thing, or a policy needs what no earlier one has decided."""


@dataclass(frozen=True, slots=True)
class Context:
    """Inputs of an iteration in addition to the cluster."""

    options: Options
    """The operator's options."""
    control_key: Callable[[str, str], str] = field(repr=False)
    """Derives the control key of a pipeline's uid and a revision."""
    may_roll: bool = True
    """Whether a rollout that no change of the spec requested may start now: a new operator
    release rolls a few pipelines at a time."""
    cached_resolve: Resolve | None = field(default=None, repr=False)
    """Returns the same as :func:`~.compiled_pipeline.resolve`, from a cache."""

    def resolve(self, snapshot: Snapshot) -> CompiledPipeline | list[Finding]:
        """Return the compiled pipeline, or everything that is wrong with the spec."""
        return (
            resolve(snapshot, self.options)
            if self.cached_resolve is None
            else self.cached_resolve(snapshot)
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one policy, or of all of them once merged."""

    decision: object = None
    """What later policies read, as a type of its own."""
    states: tuple[PolicyState, ...] = ()
    """State to keep: the policy's own, and those that it amends."""
    apply: tuple[Apply, ...] = ()
    kept: tuple[Object, ...] = ()
    """Objects that stay, but are not applied."""
    clear: tuple[Deletion, ...] = ()
    """Objects that are deleted even if the API server rejects others."""
    delete: tuple[Deletion, ...] = ()
    resize: Resize | None = None
    warnings: tuple[Finding, ...] = ()
    events: tuple[Event, ...] = ()
    status: Mapping[str, Any] | None = None
    requeue_after: float | None = None
    """Seconds."""

    def merged(self, later: Outcome) -> Outcome:
        """Return this outcome followed by ``later``.

        Raises:
            PolicyConflict: Both set the status, or both resize a pod.
        """
        if self.status is not None and later.status is not None:
            raise PolicyConflict("two policies set the status")
        if self.resize is not None and later.resize is not None:
            raise PolicyConflict("two policies resize a pod")
        return Outcome(
            apply=(*self.apply, *later.apply),
            kept=(*self.kept, *later.kept),
            clear=(*self.clear, *later.clear),
            delete=(*self.delete, *later.delete),
            resize=self.resize or later.resize,
            warnings=(*self.warnings, *later.warnings),
            events=(*self.events, *later.events),
            status=self.status if self.status is not None else later.status,
            requeue_after=soonest(self.requeue_after, later.requeue_after),
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """The typed result so far. Immutable; each policy extends it."""

    context: Context
    state: PipelineState
    """State of all policies, with what has been decided so far."""
    problems: Sequence[Problem] = ()
    """Why pods do not serve."""
    decisions: Mapping[type, object] = field(default_factory=dict)
    outcome: Outcome = Outcome()
    """Outcomes of the policies so far, merged."""

    def of(self, kind: type[D]) -> D:
        """Return the decision of this kind.

        Raises:
            PolicyConflict: No earlier policy makes it.
        """
        if kind not in self.decisions:
            raise PolicyConflict(f"no earlier policy has decided {kind.__name__}")
        return cast(D, self.decisions[kind])

    def extended(self, policy: Policy, outcome: Outcome) -> Draft:
        """Return the draft with the outcome of one more policy.

        Raises:
            PolicyConflict: A rule of the merge is violated.
        """
        kind = type(outcome.decision)
        if outcome.decision is not None and kind in self.decisions:
            raise PolicyConflict(
                f"policy {policy.name} decides {kind.__name__}, which an earlier policy has decided"
            )
        for state in outcome.states:
            if STATE_NAMES[type(state)] not in (policy.name, *policy.amends):
                raise PolicyConflict(
                    f"policy {policy.name} changes {type(state).__name__}, which another policy "
                    "owns"
                )
        decisions = self.decisions
        if outcome.decision is not None:
            decisions = {**decisions, kind: outcome.decision}
        return replace(
            self,
            state=self.state.with_states(*outcome.states) if outcome.states else self.state,
            decisions=decisions,
            outcome=self.outcome.merged(outcome),
        )


Decide = Callable[[Snapshot, Draft, dt.datetime], Outcome]


@dataclass(frozen=True, slots=True)
class Policy:
    """One entry of the list of policies."""

    name: str
    """Also the key of its state."""
    decide: Decide
    amends: tuple[str, ...] = ()
    """Earlier policies whose state it may change."""


def run(policies: Sequence[Policy], snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Draft:
    """Let the policies decide one after the other."""
    for policy in policies:
        draft = draft.extended(policy, policy.decide(snapshot, draft, now))
    return draft
