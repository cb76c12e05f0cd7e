"""Run one reconcile iteration as an ordered list of policies. Pure; the clock is passed in.

Each policy sees the same snapshot and what the policies before it have decided, and owns its part
of the state (``state.py``). Rules of the merge: ``chain.py``. The order of applied objects:
``actions.py``. Reasons for this cut: docs/decisions/0026-policy-chain.md.

Planning again on the result of a plan does nothing; a property test verifies it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.compile.graph.acting_account import acting_account

from .actions import Plan
from .chain import Context, Draft, Policy, run
from .changes import changes
from .compiled_pipeline import CompiledPipeline
from .output_mismatch import count_new_mismatches
from .pod_problems import problem_of
from .policies import (
    certificate,
    children,
    control_secrets,
    cpu_resize,
    instance_counts,
    kept_revisions,
    last_good_spec,
    pod_repair,
    preflight,
    replicas,
    retention,
    revision,
    rollout,
    rollout_target,
    scaling_report,
    slo_guard,
    stalled_rollout,
    stalled_spec,
    status_report,
    tuned_padding,
    tuning_run,
    warnings,
)
from .reconciled_spec import ReconciledSpec
from .snapshot import Snapshot

POLICIES: Final = (
    Policy("revision", revision.decide),
    Policy("cpu_resize", cpu_resize.decide),
    Policy("stalled_rollout", stalled_rollout.decide),
    Policy("preflight", preflight.decide),
    Policy("replicas", replicas.decide),
    Policy("rollout_target", rollout_target.decide),
    Policy("slo_guard", slo_guard.decide),
    Policy("rollout", rollout.decide, amends=("slo_guard",)),  # a rollback ends the watch
    Policy("kept_revisions", kept_revisions.decide),
    Policy("pod_repair", pod_repair.decide),
    Policy("certificate", certificate.decide),
    Policy("instance_counts", instance_counts.decide),
    Policy("control_secrets", control_secrets.decide),
    Policy("tuning_run", tuning_run.decide),
    Policy("tuned_padding", tuned_padding.decide, amends=("tuning_run",)),  # its message
    Policy("warnings", warnings.decide),
    Policy("scaling_report", scaling_report.decide),
    Policy("children", children.decide),
    Policy("retention", retention.decide),
    Policy("status_report", status_report.decide),
)
# While nothing can be compiled and no revision is known that could be kept.
STALLED_POLICIES: Final = (Policy("stalled_spec", stalled_spec.decide, amends=("tuning_run",)),)


def is_unmanaged(pipeline: Mapping[str, Any]) -> bool:
    """Return whether the operator leaves a pipeline alone: it is being deleted, or paused."""
    metadata = pipeline["metadata"]
    return (
        bool(metadata.get("deletionTimestamp"))
        or (metadata.get("annotations") or {}).get(names.ANNOTATION_PAUSED) == "true"
    )


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


__all__ = ["POLICIES", "Context", "Plan", "is_unmanaged", "plan", "plan_for"]
