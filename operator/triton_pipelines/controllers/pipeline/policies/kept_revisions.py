"""Keep the revisions in use, and the newest others up to the history limit. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triton_pipelines.api import names
from triton_pipelines.api.loadplan import ResolvedSource
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.live_config_map import resolved_sources
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

from .revision import DesiredRevision
from .rollout import Rollout


@dataclass(frozen=True, slots=True)
class KeptRevisions:
    """Revisions that stay, and what each of them was first loaded from."""

    names: Sequence[str]
    sources: Mapping[str, Mapping[str, ResolvedSource]]
    """By revision and source key."""


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Keep revisions that run, may be restored, or belong to the history."""
    kept = kept_revisions(
        draft.of(ReconciledSpec).pipeline,
        snapshot,
        draft.of(Rollout),
        draft.of(DesiredRevision).name,
        draft.state.slo_guard.predecessor,
    )
    return Outcome(KeptRevisions(kept, resolved_sources(snapshot, kept)))


def kept_revisions(
    pipeline: InferencePipeline,
    snapshot: Snapshot,
    rollout: Rollout,
    desired: str,
    predecessor: str,
) -> list[str]:
    """Return the revisions whose ConfigMap and Secret stay.

    These are the ones in use, then the newest up to the history limit.
    """
    used = {
        desired,
        rollout.target,
        snapshot.deployed_revision(),
        rollout.state.verified,
        predecessor,
        *(pod.revision for pod in snapshot.pods),
    } - {""}
    others = [
        (item["metadata"].get("creationTimestamp") or "", revision)
        for (kind, _), item in snapshot.children.items()
        if kind == "ConfigMap"
        and (revision := (item["metadata"].get("labels") or {}).get(names.LABEL_REVISION))
        and revision not in used
    ]
    history = [revision for _, revision in sorted(others, reverse=True)][
        : pipeline.spec.rollout.revision_history_limit
    ]
    return sorted(used | set(history))
