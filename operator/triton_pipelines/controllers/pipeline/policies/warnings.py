"""Collect what the user should know although nothing fails. Pure."""

from __future__ import annotations

import datetime as dt

from triton_pipelines.compile.graph import lint
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.latency_figures import limit_of
from triton_pipelines.controllers.pipeline.loader_warnings import loader_warnings
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

from .revision import DesiredRevision
from .rollout import Rollout
from .slo_guard import doubts as slo_warnings
from .tuned_padding import TunedPadding
from .tuning_run import doubts as tuning_warnings


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Collect all warnings.

    They are of the spec, the SLO, the tuning run, monitoring, the loader and outputs, in this
    order.
    """
    spec, desired = draft.of(ReconciledSpec), draft.of(DesiredRevision).name
    return Outcome(
        warnings=(
            *lint(spec.pipeline, spec.graph),
            *slo_warnings(
                limit_of(spec.pipeline),
                snapshot.latencies,
                draft.of(Rollout).target,
                snapshot.status.get("warnings") or (),
            ),
            *tuning_warnings(draft.of(TunedPadding).run, desired),
            *snapshot.monitoring_warnings(),
            *loader_warnings(snapshot, desired),
            *spec.mismatches,
        )
    )
