"""Which of a pipeline's objects go: those that nothing wants any more, and what tuning runs have left. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .owner_references import owned
from .rollout import Rollout
from .slo_guard import Watch
from .snapshot import Object, Observed
from .tuning_run_inputs import left_over

# Kinds that are pruned when a pipeline no longer wants one of them.
PRUNED_KINDS = ("Service", "NetworkPolicy", "PodDisruptionBudget", "ConfigMap", "Deployment", "Job")


@dataclass(frozen=True, slots=True)
class Deletion:
    """An object to delete; ``uid`` is the precondition (empty only for Secrets, which are never read)."""

    kind: str
    name: str
    uid: str = ""


def cleared(observed: Observed, staying: Sequence[Object]) -> tuple[Deletion, ...]:
    """What tuning runs have left, but for what the present one has."""
    return tuple(
        Deletion(item["kind"], item["metadata"]["name"], item["metadata"].get("uid", ""))
        for item in left_over(observed, staying)
    )


def kept_revisions(
    pipeline: InferencePipeline, observed: Observed, rollout: Rollout, wanted: str
) -> list[str]:
    """Revisions whose ConfigMap and Secret stay: those in use, then the newest up to the history limit."""
    before = Watch.parse(rollout.memory.watch).predecessor
    used = {
        wanted,
        rollout.target,
        observed.deployed_revision(),
        rollout.memory.proven,
        before,
        *(pod.revision for pod in observed.pods),
    } - {""}
    others = [
        (item["metadata"].get("creationTimestamp") or "", revision)
        for (kind, _), item in observed.children.items()
        if kind == "ConfigMap"
        and (revision := (item["metadata"].get("labels") or {}).get(names.LABEL_REVISION))
        and revision not in used
    ]
    history = [revision for _, revision in sorted(others, reverse=True)][
        : pipeline.spec.rollout.revision_history_limit
    ]
    return sorted(used | set(history))


def pruned(
    pipeline: InferencePipeline, observed: Observed, desired: Sequence[Object], kept: Sequence[str]
) -> tuple[Deletion, ...]:
    wanted = {(item["kind"], item["metadata"]["name"]) for item in desired}
    wanted |= {("ConfigMap", names.revision_name(pipeline.name, revision)) for revision in kept}
    result: list[Deletion] = []
    for (kind, name), item in sorted(observed.children.items()):
        metadata = item["metadata"]
        if (
            kind not in PRUNED_KINDS
            or (kind, name) in wanted
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
            # The Secret of a revision bears the same name and goes before the ConfigMap, which is the only trace of it. It is deleted
            # unseen: a ConfigMap that somebody made by hand must not lead to another Secret.
            result.append(Deletion("Secret", name))
        result.append(Deletion(kind, name, metadata.get("uid", "")))
    return tuple(result)
