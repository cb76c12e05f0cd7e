"""What is decided beside counts, and in which order: counts, then each pod's CPU, then pods; one of them at a time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from triton_pipelines.autoscaling import cpu_limit
from triton_pipelines.autoscaling import pod_count as pods
from triton_pipelines.autoscaling.control_law import IN_FLIGHT_SECONDS
from triton_pipelines.autoscaling.cpu_limit import CpuBounds
from triton_pipelines.autoscaling.decide import HISTORY
from triton_pipelines.autoscaling.pod_count import PRESSED_SECONDS
from triton_pipelines.autoscaling.types import (
    Action,
    Decision,
    Infeasible,
    Memory,
    PipelineLimits,
    StepLimits,
)

# Names in the history beside those of steps.
PODS = "pods"
CPU = "millicores"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What scaling may change beside counts; ``None``: not that."""

    pods: StepLimits | None = None
    cpu: CpuBounds | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The pods as they are. ``uids``: of all that are there; ``there``, ``ready``: how many are to stay, and how many of these serve;
    ``rolling``: a rollout runs; ``counting``: counts are on their way; ``uneven``: pods, by name, whose CPU is not yet what was asked
    for, and what they wait for; ``infeasible``: pods (by uid) whose node says that it never can be; ``cpu_taken``: who else writes the
    pods' CPU, so that it is not scaling's for now, "" nobody."""

    uids: frozenset[str] = frozenset()
    there: int = 0
    ready: int = 0
    rolling: bool = False
    counting: bool = False
    uneven: Mapping[str, str] = field(default_factory=dict)
    infeasible: Mapping[str, Infeasible] = field(default_factory=dict)
    cpu_taken: str = ""


def moving(memory: Memory, seen: Seen, now: float) -> str:
    """What keeps counts as they are for now: pods or their CPU on their way; "" nothing. Bounded in time: a pod that finds no place for
    hours must not keep those that serve from being scaled."""
    scale = memory.cpu.scale if memory.cpu is not None else None
    if scale is not None and seen.uneven and _recent(scale.last_change, PRESSED_SECONDS, now):
        return "pods are getting another CPU limit"
    scale = memory.pods.scale if memory.pods is not None else None
    if (
        scale is not None
        and not seen.there == seen.ready == scale.desired
        and _recent(scale.last_change, IN_FLIGHT_SECONDS, now)
    ):
        return "the number of pods is changing"
    return ""


def decide_fleet(
    bounds: Bounds,
    limits: PipelineLimits,
    decision: Decision,
    seen: Seen,
    *,
    interval: float,
    now: float,
) -> Decision:
    """The decision with CPU and pods in it. ``decision.memory`` has ``cpu`` and ``pods`` where they are in force (:func:`adopt`)."""
    memory = decision.memory
    busy = (
        "counts are changing" if seen.counting else "a rollout is running" if seen.rolling else ""
    )
    notes = [decision.limited]
    actions: list[Action] = []
    if bounds.cpu is not None and memory.cpu is not None and not seen.cpu_taken:
        known = cpu_limit.noted(memory.cpu, seen.infeasible, seen.uids)
        turn = cpu_limit.decide_cpu(
            bounds.cpu,
            limits,
            known,
            decision,
            settled=not seen.uneven,
            blocked=busy or (moving(memory, seen, now) if not seen.uneven else ""),
            interval=interval,
            now=now,
        )
        actions += _action(CPU, known.scale.desired, turn.millis, turn.reason, now)
        notes += [
            turn.limited,
            *(f"cpu: pod {name} {why}" for name, why in sorted(seen.uneven.items())),
        ]
        memory = replace(memory, cpu=turn.memory)
        busy = busy or ("pods are getting another CPU limit" if actions else "")
    if bounds.pods is not None and memory.pods is not None:
        resizing = moving(replace(memory, pods=None), seen, now)
        turned = pods.decide_pods(
            bounds.pods,
            limits,
            memory.pods,
            decision,
            ready=seen.ready,
            # Where a node makes pods wait for theirs, others are the way.
            cpu_may_grow=bool(resizing)
            or (cpu_limit.room(bounds.cpu, memory.cpu) and not seen.uneven and not seen.cpu_taken),
            blocked=busy or resizing,
            interval=interval,
            now=now,
        )
        actions += _action(PODS, memory.pods.scale.desired, turned.count, turned.reason, now)
        notes.append(turned.limited)
        memory = replace(memory, pods=turned.memory)
    if not limits.active:
        memory, actions = _advised(decision.memory, memory, actions)
    memory = replace(memory, history=(*actions, *memory.history)[:HISTORY])
    return replace(decision, memory=memory, limited="; ".join(note for note in notes if note))


def adopt(memory: Memory, bounds: Bounds, replicas: int | None, millis: int | None) -> Memory:
    """Memory for what is owned now, ``replicas`` and ``millis`` being in force; what is no longer owned is forgotten."""
    owned = replace(
        memory, pods=memory.pods if bounds.pods else None, cpu=memory.cpu if bounds.cpu else None
    )
    if bounds.pods is not None and replicas is not None:
        owned = replace(owned, pods=pods.adopted(memory.pods, replicas))
    if bounds.cpu is not None and millis is not None:
        owned = replace(owned, cpu=cpu_limit.adopted(memory.cpu, millis))
    return owned


def _advised(before: Memory, after: Memory, actions: list[Action]) -> tuple[Memory, list[Action]]:
    """Mode Advisory: what was seen is remembered, nothing is changed, and the same advice is given once."""
    if before.pods is not None and after.pods is not None:
        after = replace(
            after,
            pods=replace(
                after.pods, scale=replace(after.pods.scale, desired=before.pods.scale.desired)
            ),
        )
    if before.cpu is not None and after.cpu is not None:
        after = replace(
            after,
            cpu=replace(
                after.cpu, scale=replace(after.cpu.scale, desired=before.cpu.scale.desired)
            ),
        )
    told = {(item.step, item.before, item.after) for item in before.history}
    return after, [item for item in actions if (item.step, item.before, item.after) not in told]


def _action(what: str, before: int, after: int, reason: str, now: float) -> list[Action]:
    return [Action(now, what, before, after, reason)] if before != after else []


def _recent(at: float | None, seconds: float, now: float) -> bool:
    return at is not None and 0 <= now - at < seconds
