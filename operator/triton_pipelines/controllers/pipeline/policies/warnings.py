"""Collect what the user should know although nothing fails. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace

from triton_pipelines.api.base import Finding
from triton_pipelines.compile.graph import lint
from triton_pipelines.compile.graph.advisories import lint_server
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.latency_figures import latency_budget_of
from triton_pipelines.controllers.pipeline.loader_warnings import loader_warnings
from triton_pipelines.controllers.pipeline.output_mismatch import mismatch_warnings
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.report_state import WarningsState
from triton_pipelines.controllers.pipeline.snapshot import Snapshot

from .revision import DesiredRevision
from .rollout import Rollout
from .slo_guard import unknown_latency, unknown_latency_warnings
from .tuned_padding import TunedPadding
from .tuning_run import stale_result_warnings


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Collect all warnings.

    They are of the spec, the server, the SLO, the tuning run, the certificate, other managers,
    monitoring, the loader and outputs, in this order. What is only observed from time to time is
    recorded: ``status.warnings`` may lack some.
    """
    spec, desired = draft.of(ReconciledSpec), draft.of(DesiredRevision).name
    before = draft.state.warnings
    state = WarningsState(
        mismatches=spec.mismatches,
        loader_revision=desired,
        loader=tuple(loader_warnings(snapshot, desired, before)),
        unknown_latency=unknown_latency(
            latency_budget_of(spec.pipeline),
            snapshot.latencies,
            draft.of(Rollout).target,
            before.unknown_latency,
        ),
        monitoring=before.monitoring if snapshot.monitoring is None else tuple(snapshot.monitoring),
    )
    return Outcome(
        states=(state if state.loader else replace(state, loader_revision=""),),
        warnings=(
            *lint(spec.pipeline, spec.graph),
            *lint_server(spec.pipeline, spec.graph, spec.compiled.server_image),
            *unknown_latency_warnings(state.unknown_latency),
            *stale_result_warnings(draft.of(TunedPadding).run, desired),
            *_certificate_warnings(snapshot, now),
            *snapshot.conflicts,
            *state.monitoring,
            *state.loader,
            *mismatch_warnings(state.mismatches),
        ),
    )


def _certificate_warnings(snapshot: Snapshot, now: dt.datetime) -> Sequence[Finding]:
    """Return the warnings about the Secret of the spec, and of pods that mount another one."""
    found = (snapshot.certificate, snapshot.deployed_certificate)
    warnings = (warning for one in found if one is not None for warning in one.warnings(now))
    return tuple(dict.fromkeys(warnings))
