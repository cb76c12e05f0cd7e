"""Inputs of a tuning run: the pipeline as this iteration observes it and has decided. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.base import Switch
from triton_pipelines.api.conditions import Condition
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Graph, Options
from triton_pipelines.compile.graph.effective_padding import PaddingChoice

from .actions import Deletion
from .deployment_progress import serves_whole
from .latency_figures import latency_budget_of
from .owner_references import owned
from .policies.rollout import Rollout
from .policies.slo_guard import watched_until
from .snapshot import Object, Snapshot
from .state import SloGuardState


@dataclass(frozen=True, slots=True)
class Stage:
    """Inputs of a tuning run."""

    pipeline: InferencePipeline
    snapshot: Snapshot
    desired: str
    """The revision that the spec requests."""
    target: str
    """The revision to run: another one after a rollback."""
    is_settled: bool
    """Whether ``desired`` alone serves the whole pipeline."""
    watched_until: str
    """Until when (RFC 3339) a watch compares its latency; empty without such a watch."""
    replicas: int
    """Desired number of pods."""
    ready: Callable[[], Condition]
    """Returns the Ready condition of the pipeline."""
    template: Mapping[str, Any]
    """Pod template, as the revision's ConfigMap recorded it."""
    server_image: str
    """Server image, as the revision's ConfigMap recorded it."""
    options: Options
    graph: Graph
    """The graph, with the effective padding."""
    recommended: Callable[[Mapping[str, Any]], str]
    """Returns the revision that a patch would create; empty for none."""

    @property
    def is_suspended(self) -> bool:
        """Whether nothing is to serve."""
        return self.pipeline.spec.suspend is Switch.ENABLED

    @property
    def padding(self) -> PaddingChoice | None:
        """The effective padding."""
        return self.graph.padding

    def pinned_tokenizer(self) -> dict[str, Any]:
        """Return fields of ``spec.tokenizer`` that pin its effective padding for a Job.

        The Job knows neither what the loader rejected nor what was measured. Fields that follow
        from the resource alone are left out.
        """
        fields: dict[str, Any] = {}
        choice = self.padding
        if choice is not None and (choice.refused or choice.measured):
            fields["padding"] = choice.chosen.value
            if choice.measured and choice.buckets:
                fields["buckets"] = list(choice.buckets)
        return fields


def stage_of(
    pipeline: InferencePipeline,
    graph: Graph,
    snapshot: Snapshot,
    options: Options,
    rollout: Rollout,
    watch: SloGuardState,
    desired: str,
    replicas: int,
    ready: Callable[[], Condition],
    recommended: Callable[[Mapping[str, Any]], str],
) -> Stage:
    """Return the inputs in this iteration."""
    record = snapshot.revision_record(desired)
    serves_alone = serves_whole(snapshot, desired, replicas) and all(
        pod.serving for pod in snapshot.pods if not pod.deleting
    )
    # A source that is missing would be missing for a canary, too.
    is_settled = (
        serves_alone
        and snapshot.deployed_revision() == rollout.target == desired
        and record is not None
        and not snapshot.missing_sources
    )
    return Stage(
        pipeline=pipeline,
        snapshot=snapshot,
        desired=desired,
        target=rollout.target,
        is_settled=is_settled,
        watched_until=watched_until(watch, latency_budget_of(pipeline)),
        replicas=replicas,
        ready=ready,
        template=(record or {}).get("template") or {},
        server_image=str((record or {}).get("serverImage") or ""),
        options=options,
        graph=graph,
        recommended=recommended,
    )


def leftover_objects(snapshot: Snapshot, current: Sequence[Object]) -> list[Object]:
    """Return leftover objects of runs, except those of the present run (``current``)."""
    desired, uid = (
        {(item["kind"], item["metadata"]["name"]) for item in current},
        str(snapshot.pipeline["metadata"].get("uid", "")),
    )
    result = []
    for key, item in sorted(snapshot.children.items()):
        metadata = item["metadata"]
        ours = names.LABEL_RUN in (metadata.get("labels") or {}) and owned(item, uid)
        if ours and key not in desired and not metadata.get("deletionTimestamp"):
            result.append(item)
    return result


def cleared(snapshot: Snapshot, current: Sequence[Object]) -> tuple[Deletion, ...]:
    """Return deletions of what runs have left, except for the present run (``current``)."""
    return tuple(
        Deletion(item["kind"], item["metadata"]["name"], item["metadata"].get("uid", ""))
        for item in leftover_objects(snapshot, current)
    )
