"""Delete the pipeline's objects that nothing needs any more. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.controllers.pipeline.actions import Deletion
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.owner_references import owned
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Object, Snapshot

from .kept_revisions import KeptRevisions

# Kinds that are pruned when a pipeline no longer wants one of them.
PRUNED_KINDS = ("Service", "NetworkPolicy", "PodDisruptionBudget", "ConfigMap", "Deployment", "Job")


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Prune what no policy applies or keeps."""
    outcome = draft.outcome
    desired = [*(entry.item for entry in outcome.apply), *outcome.kept]
    kept = draft.of(KeptRevisions).names
    unused = pruned(draft.of(ReconciledSpec).pipeline, snapshot, desired, kept)
    return Outcome(delete=tuple(item for item in unused if item not in outcome.clear))


def pruned(
    pipeline: InferencePipeline, snapshot: Snapshot, desired: Sequence[Object], kept: Sequence[str]
) -> tuple[Deletion, ...]:
    """Return the deletions of owned children that are neither desired nor of a kept revision."""
    needed = {(item["kind"], item["metadata"]["name"]) for item in desired}
    needed |= {("ConfigMap", names.revision_name(pipeline.name, revision)) for revision in kept}
    result: list[Deletion] = []
    for (kind, name), item in sorted(snapshot.children.items()):
        metadata = item["metadata"]
        if (
            kind not in PRUNED_KINDS
            or (kind, name) in needed
            or not owned(item, pipeline.metadata.uid)
            or metadata.get("deletionTimestamp")
        ):
            continue
        revision = str((metadata.get("labels") or {}).get(names.LABEL_REVISION, ""))
        if (
            kind == "ConfigMap"
            and names.is_revision(revision)
            and name == names.revision_name(pipeline.name, revision)
        ):
            # The Secret of a revision has the same name and is deleted before the ConfigMap, which
            # is the only trace of it. It is deleted without reading it: a ConfigMap that was
            # created by hand must not lead to another Secret.
            result.append(Deletion("Secret", name))
        result.append(Deletion(kind, name, metadata.get("uid", "")))
    return tuple(result)
