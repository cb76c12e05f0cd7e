"""Apply the pipeline's objects: what its pods run from, and what leads requests to them. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.compile.render import Revision
from triton_pipelines.compile.render.network_policies import network_policy
from triton_pipelines.compile.render.objects import (
    deployment,
    disruption_budget,
    headless_service,
    live_config_map,
    revision_config_map,
    service,
)
from triton_pipelines.controllers.pipeline import padding_choices, ragged_fallback
from triton_pipelines.controllers.pipeline.actions import Apply, ApplyStage
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.compiled_pipeline import LazyRevision
from triton_pipelines.controllers.pipeline.live_config_map import live_data
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Object, Snapshot

from .certificate import with_certificate, with_deployed_tls
from .cpu_resize import CpuResizeDecision
from .instance_counts import InstanceCounts
from .kept_revisions import KeptRevisions
from .last_good_spec import last_good_data
from .replicas import Replicas, owned_data
from .revision import DesiredRevision
from .rollout import Rollout
from .tuned_padding import TunedPadding


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Apply the ConfigMaps, the Services, the optional objects and the Deployment."""
    pipeline, number = draft.of(ReconciledSpec).pipeline, draft.of(Replicas)
    rollout, options = draft.of(Rollout), draft.context.options
    reachable = with_deployed_tls(snapshot, draft)
    optional = (
        (ApplyStage.SERVICE, headless_service(reachable)),
        (ApplyStage.NETWORK_POLICY, network_policy(reachable, options)),
        (ApplyStage.DISRUPTION_BUDGET, disruption_budget(pipeline, number.number)),
    )
    deployment_object = deployment(
        pipeline,
        with_certificate(
            _template(draft.of(ReconciledSpec).revision, rollout, snapshot),
            draft.state.certificate,
        ),
        rollout.mode,
        number.applied,
        _predecessor(rollout, snapshot),
    )
    return Outcome(
        apply=(
            *_revision_record(snapshot, draft),
            Apply(ApplyStage.LIVE_CONFIG_MAP, _live_config_map(snapshot, draft)),
            Apply(ApplyStage.SERVICE, service(reachable)),
            *(Apply(stage, item) for stage, item in optional if item is not None),
            # A shared number changes nothing but its owner.
            Apply(ApplyStage.DEPLOYMENT, deployment_object, always=number.is_shared),
        )
    )


def _revision_record(snapshot: Snapshot, draft: Draft) -> list[Apply]:
    """Return the ConfigMap of the desired revision, if that is the compiled one."""
    spec, padding = draft.of(ReconciledSpec), draft.of(TunedPadding)
    revision = draft.of(DesiredRevision).name
    if revision != spec.revision.name:
        return []
    record = snapshot.child("ConfigMap", names.revision_name(spec.pipeline.name, revision))
    # An immutable revision is written once; the default images that it recorded stay.
    data = (record or {}).get("data") or {
        **spec.revision.data,
        **padding_choices.revision_data(padding.choices, padding.fingerprint, spec.graph),
    }
    return [Apply(ApplyStage.REVISION, revision_config_map(spec.pipeline, revision, data))]


def _live_config_map(snapshot: Snapshot, draft: Draft) -> Object:
    spec, number, cpu = draft.of(ReconciledSpec), draft.of(Replicas), draft.of(CpuResizeDecision)
    counts, sources = draft.of(InstanceCounts).by_step, draft.of(KeptRevisions).sources
    rejections = spec.graph.padding.refused if spec.graph.padding else {}
    return live_config_map(
        spec.pipeline,
        live_data(draft.state, counts, sources, snapshot)
        | ragged_fallback.data(rejections)
        | padding_choices.data(draft.of(TunedPadding).choices)
        | owned_data(spec.pipeline, snapshot, number.live_scaling, cpu.limit)
        | last_good_data(spec.pipeline, snapshot, is_blocked=spec.blocked is not None),
    )


def _predecessor(rollout: Rollout, snapshot: Snapshot) -> str:
    """Return the revision that served before this one, for the Deployment to record.

    The state may be lost in mid-rollout.
    """
    if rollout.preflight.kept_revision:
        return snapshot.previous_revision()
    verified = rollout.state.verified
    return verified if verified not in ("", rollout.target) else snapshot.previous_revision()


def _template(
    revision: Revision | LazyRevision, rollout: Rollout, snapshot: Snapshot
) -> Mapping[str, Any]:
    record = snapshot.revision_record(rollout.preflight.kept_revision or rollout.target)
    if record is not None:
        template: Mapping[str, Any] = record["template"]
        return template
    return revision.template
