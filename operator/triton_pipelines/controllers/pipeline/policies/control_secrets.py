"""Apply the control keys of revisions that run, without ever reading a Secret. Pure."""

from __future__ import annotations

import datetime as dt
import hashlib

from triton_pipelines.api import names
from triton_pipelines.compile.render.objects import control_secret
from triton_pipelines.controllers.pipeline.actions import Apply, ApplyStage
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.pod_problems import config_missing
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.state import ControlSecretsState

from .kept_revisions import KeptRevisions
from .rollout import Rollout


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Apply the Secrets whose key was not applied yet, and those that a pod misses."""
    pipeline, kept = draft.of(ReconciledSpec).pipeline, draft.of(KeptRevisions).names
    known = draft.state.control_secrets.digests
    applied = {revision: digest for revision, digest in known.items() if revision in kept}
    missing = {
        pod.revision
        for pod in snapshot.pods
        if config_missing(pod, names.revision_name(pipeline.name, pod.revision))
    }
    secrets = []
    for revision in sorted({draft.of(Rollout).target} | missing):
        # Users with access to pods can write the label, and the Secret of that name is taken over.
        if revision not in kept or not names.is_revision(revision):
            continue
        key = draft.context.control_key(pipeline.metadata.uid, revision)
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        if applied.get(revision) != digest or revision in missing:
            secrets.append(Apply(ApplyStage.SECRET, control_secret(pipeline, revision, key)))
            applied[revision] = digest
    return Outcome(
        states=(ControlSecretsState(dict(sorted(applied.items()))),), apply=tuple(secrets)
    )
