"""Decide one reconcile iteration: run the policies over one snapshot. Pure; the clock is passed in.

Planning again on the result of a plan does nothing; a property test verifies it.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from triton_pipelines.api.base import Finding
from triton_pipelines.compile.graph.acting_account import acting_account
from triton_pipelines.controllers.unmanaged import is_unmanaged

from .actions import Plan
from .chain import Context, Draft, run
from .changes import changes
from .compiled_pipeline import CompiledPipeline
from .output_mismatch import count_new_mismatches
from .plan import POLICIES, STALLED_POLICIES
from .pod_problems import problem_of
from .policies import last_good_spec
from .reconciled_spec import ReconciledSpec
from .snapshot import Snapshot


def plan(
    snapshot: Snapshot,
    context: Context,
    now: dt.datetime,
    compiled: CompiledPipeline | list[Finding] | None = None,
) -> Plan:
    """Decide one iteration for one pipeline.

    Args:
        snapshot: The pipeline and its objects.
        context: The operator's options and the like.
        now: UTC.
        compiled: What the spec compiles to, where that is known already.
    """
    if is_unmanaged(snapshot.pipeline):
        return Plan()
    if compiled is None:
        compiled = context.resolve(snapshot)
    snapshot, spec = last_good_spec.decide(snapshot, context, now, compiled)
    if isinstance(spec, ReconciledSpec):
        return plan_for(spec, snapshot, context, now)
    draft = Draft(context, snapshot.state(), decisions={type(spec): spec})
    declared = (snapshot.pipeline.get("spec") or {}).get("serviceAccountName")
    return replace(
        changes(snapshot, run(STALLED_POLICIES, snapshot, draft, now)),
        account=acting_account(str(declared or ""), context.options),
    )


def plan_for(spec: ReconciledSpec, snapshot: Snapshot, context: Context, now: dt.datetime) -> Plan:
    """Decide one iteration for a spec that was compiled."""
    state = snapshot.state()
    snapshot, mismatches = count_new_mismatches(snapshot)
    spec = ReconciledSpec(spec.compiled, spec.blocked, mismatches)
    gpu = spec.pipeline.spec.server.gpu.resource_name
    found = (
        problem_of(pod, snapshot.probes.get(pod.uid), gpu, snapshot.nodes) for pod in snapshot.pods
    )
    problems = [problem for problem in found if problem is not None]
    draft = Draft(context, state, problems, {ReconciledSpec: spec})
    return replace(
        changes(snapshot, run(POLICIES, snapshot, draft, now)),
        account=acting_account(spec.pipeline.spec.service_account_name, context.options),
    )


__all__ = ["Context", "Plan", "plan", "plan_for"]
