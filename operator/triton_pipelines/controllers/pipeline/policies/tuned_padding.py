"""Record the padding that tuning runs have measured, and reject it if its revision fails. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from triton_pipelines.compile.graph import Graph
from triton_pipelines.compile.graph.fingerprint import cost_fingerprint
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.padding_choices import (
    VerifiedPaddings,
    events_of,
    newly_rejected,
    recorded,
    updated,
    with_reverted_paddings,
)
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.state import TuningRunState
from triton_pipelines.controllers.pipeline.tuning_run_state import Run

from .revision import DesiredRevision
from .rollout import Rollout
from .tuning_run import TuningProgress


@dataclass(frozen=True, slots=True)
class TunedPadding:
    """Measured paddings for ``spec.tokenizer.padding: Auto``."""

    choices: VerifiedPaddings
    """By fingerprint."""
    fingerprint: str
    """Fingerprint of the reconciled spec."""
    run: Run
    """The tuning run, whose message says if its padding was rejected since."""


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Add what a tuning run has measured; reject a choice whose revision failed.

    A rejection changes what the spec compiles to, so the next iteration follows at once.
    """
    spec, run = draft.of(ReconciledSpec), draft.of(TuningProgress).after
    fingerprint = cost_fingerprint(spec.pipeline, draft.context.options, snapshot.digests)
    failure = failure_of(
        spec.graph, spec.revision.name, draft.of(DesiredRevision).name, draft.of(Rollout)
    )
    known = recorded(snapshot)
    choices = updated(known, run.choices, fingerprint, failure)
    rejected = newly_rejected(known, choices)
    run_after = with_reverted_paddings(run.run, rejected)
    return Outcome(
        TunedPadding(choices, fingerprint, run_after),
        (TuningRunState(run_after.to_document()),),
        events=events_of(rejected),
        requeue_after=0.0 if rejected else None,
    )


def failure_of(graph: Graph, revision: str, desired: str, rollout: Rollout) -> str:
    """Return why the revision of a measured padding was rolled back, or cannot come to serve.

    Empty if neither holds, or if the padding comes from Auto's rule.
    """
    if graph.padding is None or not graph.padding.measured:
        return ""
    if rollout.state.failed_revision == revision:
        return rollout.state.failed_message
    return rollout.failure_message if desired == revision else ""
