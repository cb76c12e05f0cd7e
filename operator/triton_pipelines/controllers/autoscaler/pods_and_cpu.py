"""What the scaling loop knows and wants of a pipeline's pods beside their counts: how many, and with how much CPU. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.autoscaling.metrics.samples import Failure, Sample
from triton_pipelines.autoscaling.pod_count import shrinking
from triton_pipelines.autoscaling.pods_and_cpu import CPU, PODS, Bounds, Seen, adopt, decide_fleet
from triton_pipelines.autoscaling.state_json import dumps
from triton_pipelines.autoscaling.types import Action, Decision, Memory, PipelineLimits
from triton_pipelines.controllers.autoscaler.pipeline_state import Watched
from triton_pipelines.controllers.handover import Intent, limits_of
from triton_pipelines.controllers.pipeline.live_config_map import KEY_MILLIS, KEY_REPLICAS, recorded
from triton_pipelines.controllers.pipeline.pod_resize import actual_limit
from triton_pipelines.controllers.pipeline.pods_and_cpu import bounds_of, seen_of, smallest_limit
from triton_pipelines.controllers.pipeline.resize_rejections import Refusal
from triton_pipelines.controllers.pipeline.state import PipelineState


def limits(watched: Watched, memory: Memory, *, direct: bool) -> PipelineLimits:
    """What bounds the pods: of those that serve the one with the least CPU, and counts behind pods that are to go.
    ``direct``: pods are read directly."""
    # Without a pod nothing is known of another revision, and what is known of the last one stays.
    found = limits_of(
        watched.pipeline,
        watched.graph,
        watched.revision or memory.revision,
        smallest_limit(watched.pods),
        direct=direct,
    )
    return replace(found, pods_first=shrinking(memory.pods))


def bounds(watched: Watched) -> Bounds:
    """What scaling may change beside counts."""
    return bounds_of(watched.pipeline, watched.graph)


def taken_over(
    watched: Watched,
    memory: Memory,
    live: Mapping[str, str],
    deployment: Mapping[str, Any] | None,
    *,
    first: bool,
) -> Memory:
    """Memory with what is owned now. What is recorded holds at ``first``, and from then on what is remembered; in mode Advisory, what is."""
    found = recorded(live)
    replicas, millis = found.get(KEY_REPLICAS), found.get(KEY_MILLIS)
    if not watched.active:
        replicas = int(((deployment or {}).get("spec") or {}).get("replicas") or 0) or None
    elif first:
        # Without a record the next reconcile pass takes over what runs; what an earlier ownership remembered is nobody's wish.
        kept = replace(
            memory, pods=memory.pods if replicas else None, cpu=memory.cpu if millis else None
        )
        return adopt(kept, bounds(watched), replicas, millis)
    else:
        replicas, millis = (
            replicas if memory.pods is None else None,
            millis if memory.cpu is None else None,
        )
    return adopt(memory, bounds(watched), replicas, millis)


def seen(
    watched: Watched,
    memory: Memory,
    deployment: Mapping[str, Any] | None,
    refused: Mapping[str, Refusal],
    live: Mapping[str, str],
) -> Seen:
    """The pods as they are. ``refused``: CPU limits that the API server does not give, by pod uid; ``live``: content of the live ConfigMap."""
    wanted = memory.cpu.scale.desired if memory.cpu is not None else None
    return seen_of(
        watched.everyone,
        deployment,
        wanted,
        refused,
        PipelineState.parse(live.get(names.KEY_MEMORY)),
    )


def sizes(
    watched: Watched, deployment: Mapping[str, Any] | None
) -> tuple[Mapping[str, int | None], int | None, int | None]:
    """For the metrics: the CPU limit in force in each pod that is to stay, by name; how many pods are wanted, and which limit of each."""
    there = {pod.name: actual_limit(pod) for pod in watched.everyone if not pod.deleting}
    memory, wanted = watched.memory, (deployment or {}).get("spec", {}).get("replicas")
    if memory is not None and memory.pods is not None:
        wanted = memory.pods.scale.desired
    return (
        there,
        wanted,
        memory.cpu.scale.desired if memory is not None and memory.cpu is not None else None,
    )


def turn(
    watched: Watched,
    found: PipelineLimits,
    decision: Decision,
    pods: Seen,
    sample: Sample | Failure,
    now: float,
) -> Decision:
    """The decision with CPU and pods in it."""
    interval = sample.interval if isinstance(sample, Sample) else 0.0
    return decide_fleet(bounds(watched), found, decision, pods, interval=interval, now=now)


def intent_of(memory: Memory, counts: Mapping[str, int] | None = None) -> Intent:
    """What is to be recorded. ``counts``: where they are not yet those of the memory."""
    wanted = (
        counts
        if counts is not None
        else {name: mine.desired for name, mine in memory.steps.items()}
    )
    return Intent(
        wanted,
        dumps(memory),
        pods=memory.pods.scale.desired if memory.pods is not None else None,
        cpu=memory.cpu.scale.desired if memory.cpu is not None else None,
    )


def unrecorded(memory: Memory, live: Mapping[str, str], asked: Intent | None) -> bool:
    """Whether the number of pods or their CPU is not recorded as it is wanted, and nobody was asked to yet. ``asked``: the intent that passes
    see: one that they cannot record, as with an invalid spec, is there for the pass that can, and asking again helps nobody."""
    found, wanted = recorded(live), intent_of(memory)
    if asked is not None and (asked.pods, asked.cpu) == (wanted.pods, wanted.cpu):
        return False
    return any(
        want is not None and found.get(key) != want
        for key, want in ((KEY_REPLICAS, wanted.pods), (KEY_MILLIS, wanted.cpu))
    )


def news(before: Sequence[Action], after: Sequence[Action]) -> list[Action]:
    """Changes of pods and CPU that came with this decision."""
    return [item for item in after if item.step in (PODS, CPU) and item not in before]
