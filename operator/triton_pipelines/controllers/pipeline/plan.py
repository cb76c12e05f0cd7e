"""The policies of a reconcile iteration, in order. Pure.

Each policy sees the same snapshot and what the policies before it have decided, and owns its part
of the state (``state.py``). ``planner.py`` runs the list; rules of the merge: ``chain.py``; order
of applied objects: ``actions.py``. Reasons for this cut: docs/decisions/0026-policy-chain.md.
"""

from __future__ import annotations

from typing import Final

from .chain import Policy
from .policies import (
    certificate,
    children,
    control_secrets,
    cpu_resize,
    instance_counts,
    kept_revisions,
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

POLICIES: Final = (
    # What should run: which revision, with how much CPU.
    Policy("revision", revision.decide),
    Policy("cpu_resize", cpu_resize.decide),
    # How a new revision gets there: failures, a check in a Job, the number of pods, the SLO.
    Policy("stalled_rollout", stalled_rollout.decide),
    Policy("preflight", preflight.decide),
    Policy("replicas", replicas.decide),
    Policy("rollout_target", rollout_target.decide),
    Policy("slo_guard", slo_guard.decide),
    Policy("rollout", rollout.decide, amends=("slo_guard",)),  # a rollback ends the watch
    Policy("kept_revisions", kept_revisions.decide),
    # What happens to pods that run.
    Policy("pod_repair", pod_repair.decide),
    Policy("certificate", certificate.decide),
    Policy("instance_counts", instance_counts.decide),
    Policy("control_secrets", control_secrets.decide),
    # Tuning runs and what they measured.
    Policy("tuning_run", tuning_run.decide),
    Policy("tuned_padding", tuned_padding.decide, amends=("tuning_run",)),  # its message
    # What is applied, deleted and reported in the end.
    Policy("warnings", warnings.decide),
    Policy("scaling_report", scaling_report.decide),
    Policy("children", children.decide),
    Policy("retention", retention.decide),
    Policy("status_report", status_report.decide),
)
# While nothing can be compiled and no revision is known that could be kept.
STALLED_POLICIES: Final = (Policy("stalled_spec", stalled_spec.decide, amends=("tuning_run",)),)
