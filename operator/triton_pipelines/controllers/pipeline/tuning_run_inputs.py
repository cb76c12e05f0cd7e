"""What a tuning run goes by: the pipeline as this pass sees it and has decided. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.base import Switch
from triton_pipelines.api.conditions import Condition
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Graph, Options
from triton_pipelines.compile.graph.graph import PaddingChoice

from .actions import Deletion
from .deployment_progress import serves_whole
from .latency_figures import limit_of
from .owner_references import owned
from .policies.rollout import Rollout
from .policies.slo_guard import judged_until
from .snapshot import Object, Snapshot
from .state import SloGuardState


@dataclass(frozen=True, slots=True)
class Stage:
    """What a run goes by. ``wanted``: the revision that the spec asks for; ``target``: the one that is to run, another where that was taken
    back; ``settled``: whether ``wanted`` alone serves the whole pipeline, and ``watched``, until when (RFC 3339) its latency is under a watch that can
    judge it ("": it is not);
    ``replicas``: how many pods are wanted; ``ready``: what is said of the pipeline; ``template`` and ``server_image``: as the revision's
    ConfigMap recorded them; ``padding``: the one in force; ``recommended``: the revision that a patch would make ("": none)."""

    pipeline: InferencePipeline
    snapshot: Snapshot
    wanted: str
    target: str
    settled: bool
    watched: str
    replicas: int
    ready: Callable[[], Condition]
    template: Mapping[str, Any]
    server_image: str
    options: Options
    padding: PaddingChoice | None
    recommended: Callable[[Mapping[str, Any]], str]

    @property
    def suspended(self) -> bool:
        """Whether nothing is to serve."""
        return self.pipeline.spec.suspend is Switch.ENABLED

    def pinned_padding(self) -> dict[str, Any]:
        """Fields of ``spec.tokenizer`` that say the padding in force to a Job which knows neither what the loader refused nor what was
        measured; empty where the resource alone makes it."""
        choice = self.padding
        if choice is None or not (choice.refused or choice.measured):
            return {}
        return {"padding": choice.chosen.value} | (
            {"buckets": list(choice.buckets)} if choice.measured and choice.buckets else {}
        )


def stage_of(
    pipeline: InferencePipeline,
    graph: Graph,
    snapshot: Snapshot,
    options: Options,
    rollout: Rollout,
    watch: SloGuardState,
    wanted: str,
    replicas: int,
    ready: Callable[[], Condition],
    recommended: Callable[[Mapping[str, Any]], str],
) -> Stage:
    """The stage of this pass."""
    record = snapshot.revision_record(wanted)
    alone = serves_whole(snapshot, wanted, replicas) and all(
        pod.serving for pod in snapshot.pods if not pod.deleting
    )
    # A canary would miss a source that is not there, too.
    settled = (
        alone
        and snapshot.deployed_revision() == rollout.target == wanted
        and record is not None
        and not snapshot.missing_sources
    )
    return Stage(
        pipeline=pipeline,
        snapshot=snapshot,
        wanted=wanted,
        target=rollout.target,
        settled=settled,
        watched=judged_until(watch, limit_of(pipeline)),
        replicas=replicas,
        ready=ready,
        template=(record or {}).get("template") or {},
        server_image=str((record or {}).get("serverImage") or ""),
        options=options,
        padding=graph.padding,
        recommended=recommended,
    )


def left_over(snapshot: Snapshot, staying: Sequence[Object]) -> list[Object]:
    """What runs have left, but for what the present one has (``staying``)."""
    wanted, uid = (
        {(item["kind"], item["metadata"]["name"]) for item in staying},
        str(snapshot.pipeline["metadata"].get("uid", "")),
    )
    result = []
    for key, item in sorted(snapshot.children.items()):
        metadata = item["metadata"]
        ours = names.LABEL_RUN in (metadata.get("labels") or {}) and owned(item, uid)
        if ours and key not in wanted and not metadata.get("deletionTimestamp"):
            result.append(item)
    return result


def cleared(snapshot: Snapshot, staying: Sequence[Object]) -> tuple[Deletion, ...]:
    """What tuning runs have left, but for what the present one has."""
    return tuple(
        Deletion(item["kind"], item["metadata"]["name"], item["metadata"].get("uid", ""))
        for item in left_over(snapshot, staying)
    )
