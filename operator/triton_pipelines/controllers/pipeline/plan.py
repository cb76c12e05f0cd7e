"""One reconcile iteration as an ordered list of policies. Pure: no I/O, the clock is passed in.

Each policy sees the same snapshot and what the policies before it have decided, and owns its part of the
state (``state.py``). Rules of the merge: ``chain.py``. The order of applied objects: ``actions.py``.
Reasons for this cut: docs/decisions/0026-policy-chain.md.

Planning again on the result of a plan does nothing; a property test verifies it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.crd import stored
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.cluster.diff import needs_apply
from triton_pipelines.compile.graph import Graph, Options
from triton_pipelines.compile.render import Revision

from .actions import ApplyStage, Plan, soonest
from .chain import Context, Draft, Policy, run
from .compiled_pipeline import Wanted
from .output_mismatch import judged
from .pod_problems import of_pod
from .policies import (
    children,
    control_secrets,
    cpu_resize,
    instance_counts,
    kept_revisions,
    last_good_spec,
    pod_repair,
    replicas,
    retention,
    revision,
    rollout,
    rollout_target,
    slo_guard,
    stalled_rollout,
    stalled_spec,
    status_report,
    tuned_padding,
    tuning_run,
    warnings,
)
from .reconciled_spec import ReconciledSpec
from .snapshot import Object, Observed
from .status import differs
from .status_events import transitions

POLICIES: Final = (
    Policy("revision", revision.decide),
    Policy("cpu_resize", cpu_resize.decide),
    Policy("stalled_rollout", stalled_rollout.decide),
    Policy("replicas", replicas.decide),
    Policy("rollout_target", rollout_target.decide),
    Policy("slo_guard", slo_guard.decide),
    Policy("rollout", rollout.decide, amends=("slo_guard",)),  # a rollback ends the watch
    Policy("kept_revisions", kept_revisions.decide),
    Policy("pod_repair", pod_repair.decide),
    Policy("instance_counts", instance_counts.decide),
    Policy("control_secrets", control_secrets.decide),
    Policy("tuning_run", tuning_run.decide),
    Policy("tuned_padding", tuned_padding.decide, amends=("tuning_run",)),  # its message
    Policy("children", children.decide),
    Policy("retention", retention.decide),
    Policy("warnings", warnings.decide),
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
    snapshot: Observed,
    context: Context,
    now: dt.datetime,
    compiled: Wanted | list[Finding] | None = None,
) -> Plan:
    """Decide one iteration for one pipeline.

    Args:
        snapshot: the pipeline and its objects.
        context: the operator's options and the like.
        now: UTC.
        compiled: what the spec compiles to, where that is known already.
    """
    if is_unmanaged(snapshot.pipeline):
        return Plan()
    if compiled is None:
        compiled = context.resolve(snapshot)
    snapshot, spec = last_good_spec.decide(snapshot, context, now, compiled)
    if isinstance(spec, ReconciledSpec):
        return _decided(spec, snapshot, context, now)
    draft = Draft(context, snapshot.state(), decisions={type(spec): spec})
    return _plan(snapshot, run(STALLED_POLICIES, snapshot, draft, now))


def _decided(spec: ReconciledSpec, snapshot: Observed, context: Context, now: dt.datetime) -> Plan:
    state = snapshot.state()
    snapshot, mismatches = judged(snapshot, state.rollout.verified)
    spec = ReconciledSpec(spec.compiled, spec.blocked, mismatches)
    gpu = spec.pipeline.spec.server.gpu.resource_name
    found = (
        of_pod(pod, snapshot.probes.get(pod.uid), gpu, snapshot.nodes) for pod in snapshot.pods
    )
    problems = [problem for problem in found if problem is not None]
    draft = Draft(context, state, problems, {ReconciledSpec: spec})
    return _plan(snapshot, run(POLICIES, snapshot, draft, now))


def _plan(snapshot: Observed, draft: Draft) -> Plan:
    """Return what of the outcome is to be written: objects and a status that differ."""
    outcome, stages = draft.outcome, ApplyStage
    due = [
        entry
        for entry in sorted(outcome.apply, key=lambda entry: entry.stage)
        if entry.always
        or needs_apply(
            snapshot.child(entry.item["kind"], entry.item["metadata"]["name"]),
            entry.item,
            names.MANAGER_CHILDREN,
        )
    ]
    children_due = [entry for entry in due if entry.stage is not stages.TUNING_RUN]
    recorded = any(entry.stage is stages.LIVE_CONFIG_MAP for entry in due) and outcome.clear
    status = dict(outcome.status or {})
    changed = differs(snapshot.pipeline, status)
    return Plan(
        apply=tuple(entry.item for entry in children_due),
        delete=outcome.delete,
        status=status if changed else None,
        events=tuple(transitions(snapshot.status, status)) if changed else (),
        requeue_after=outcome.requeue_after,
        notes=outcome.events,
        resize=outcome.resize,
        beside=tuple(entry.item for entry in due if entry.stage is stages.TUNING_RUN),
        clear=outcome.clear,
        first=sum(entry.stage <= stages.LIVE_CONFIG_MAP for entry in due) if recorded else 0,
    )


def first_objects(
    pipeline: InferencePipeline,
    graph: Graph,
    revision: Revision,
    options: Options,
    control_key: str,
) -> list[Object]:
    """Return what the first iteration applies for a new pipeline, in its order.

    ``tritonpipe render --manifests`` prints it.
    """
    # The state's hash of the spec is that of the spec as the API server stores it.
    document = stored(
        pipeline.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    )
    generation = pipeline.metadata.generation or 1
    snapshot = Observed(
        {**document, "metadata": {**document["metadata"], "generation": generation}}
    )
    context = Context(options, lambda _uid, _revision: control_key)
    spec = ReconciledSpec(Wanted(pipeline, graph, revision))
    return list(_decided(spec, snapshot, context, dt.datetime.fromtimestamp(0, dt.UTC)).apply)


__all__ = ["POLICIES", "Context", "Plan", "first_objects", "is_unmanaged", "plan", "soonest"]
