"""Memory as JSON, in the live ConfigMap beside the counts: what the law knows survives a restart.

At most 8 KiB: one ConfigMap holds it with the counts and the resolved sources, and it is written with each change. Reading never
fails: what another release wrote, or nobody could have, is left out, and the law starts afresh with that part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from triton_pipelines.autoscaling.types import (
    Action,
    CpuMemory,
    Growth,
    Infeasible,
    Memory,
    PodsMemory,
    StepMemory,
    cut,
)

LIMIT_BYTES = 8192
_VERSION = 1
_REASON = 200  # characters of a reason that are kept
_LATEST = 253402300800.0  # the year 10000: no later time can be written
_PODS = 16  # of those whose node cannot give them more CPU; one is enough to bound all


def dumps(memory: Memory) -> str:
    """JSON of ``memory`` in at most 8 KiB. With very many steps the oldest details go first, desired counts never."""
    for slimmer in (lambda m: m, _without_reasons, _thinned(20), _thinned(5), _bare):
        text = json.dumps(_document(slimmer(memory)), separators=(",", ":"), sort_keys=True)
        if len(text.encode()) <= LIMIT_BYTES:
            return text
    return text


def loads(text: str | None) -> Memory:
    """Memory of ``text``; what cannot be read is left out, all of it where nothing can."""
    try:
        document = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return Memory()
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        return Memory()
    steps = document.get("steps")
    history = document.get("history")
    read = {name: _step(item) for name, item in steps.items()} if isinstance(steps, dict) else {}
    return Memory(
        steps={name: step for name, step in read.items() if step is not None},
        history=tuple(item for item in map(_action, history) if item is not None)[:5]
        if isinstance(history, list)
        else (),
        actuation=_number(document.get("actuation")),
        last_fresh=_number(document.get("lastFresh")),
        blind=_number(document.get("blind")),
        revision=document["revision"] if isinstance(document.get("revision"), str) else "",
        pods=_pods(document.get("pods")),
        cpu=_cpu(document.get("cpu")),
    )


def _document(memory: Memory) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "revision": memory.revision,
        "steps": {name: _step_document(step) for name, step in memory.steps.items()},
        "history": [
            [_time(item.at), item.step, item.before, item.after, item.reason]
            for item in memory.history[:5]
        ],
        **_given(
            actuation=memory.actuation,
            lastFresh=_time(memory.last_fresh),
            blind=_time(memory.blind),
        ),
        **_given(pods=_pods_document(memory.pods), cpu=_cpu_document(memory.cpu)),
    }


def _pods_document(pods: PodsMemory | None) -> dict[str, Any] | None:
    return (
        None
        if pods is None
        else {
            **_step_document(pods.scale),
            **_given(wanted=pods.wanted, pressed=_time(pods.pressed)),
        }
    )


def _cpu_document(cpu: CpuMemory | None) -> dict[str, Any] | None:
    if cpu is None:
        return None
    pods = [[item.pod, item.node, item.asked, item.given] for item in cpu.infeasible[-_PODS:]]
    return {**_step_document(cpu.scale), **_given(infeasible=pods)}


def _step_document(step: StepMemory) -> dict[str, Any]:
    return _given(
        desired=step.desired,
        service=None if step.service is None else float(f"{step.service:.6g}"),
        wants=_pairs_document(step.wants),
        counts=_pairs_document(step.counts),
        lastUp=_time(step.last_up),
        lastChange=_time(step.last_change),
        turns=[_time(at) for at in step.turns],
        direction=step.direction,
        growth=_growth_document(step.growth),
        frozen=None
        if step.frozen is None
        else [_time(step.frozen[0]), _growth_document(step.frozen[1])],
        stalled=_time(step.stalled),
        cap=step.cap,
    )


def _pairs_document(pairs: tuple[tuple[float, int], ...]) -> list[float | int]:
    """Times as steps from the one before, in tenths of a second, beside counts: 60 of them stay below 500 bytes."""
    result: list[float | int] = []
    last = 0
    for at, count in pairs:
        tenths = round(at * 10)
        result += [tenths - last, count]
        last = tenths
    return result


def _growth_document(growth: Growth | None) -> list[Any] | None:
    if growth is None:
        return None
    return [
        _time(growth.at),
        growth.before,
        growth.after,
        round(growth.throughput, 3),
        float(f"{growth.service:.6g}"),
        growth.cores,
    ]


def _time(at: float | None) -> float | None:
    return None if at is None else round(at, 1)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != []}


def _step(item: Any) -> StepMemory | None:
    if not isinstance(item, dict) or (desired := _count(item.get("desired"))) is None:
        return None
    frozen = item.get("frozen")
    since, stopped = (
        (_number(frozen[0]), _growth(frozen[1]))
        if isinstance(frozen, list) and len(frozen) == 2
        else (None, None)
    )
    turns = item.get("turns")
    direction = item.get("direction")
    return StepMemory(
        desired=desired,
        service=_above_zero(item.get("service")),
        wants=_pairs(item.get("wants")),
        counts=_pairs(item.get("counts")),
        last_up=_number(item.get("lastUp")),
        last_change=_number(item.get("lastChange")),
        turns=tuple(at for at in map(_number, turns) if at is not None)
        if isinstance(turns, list)
        else (),
        direction=direction if direction in (-1, 0, 1) else 0,
        growth=_growth(item.get("growth")),
        frozen=(since, stopped) if since is not None and stopped is not None else None,
        stalled=_number(item.get("stalled")),
        cap=_count(item.get("cap")),
    )


def _pods(item: Any) -> PodsMemory | None:
    if (scale := _step(item)) is None:
        return None
    return PodsMemory(scale, _count(item.get("wanted")) or 0, _number(item.get("pressed")))


def _cpu(item: Any) -> CpuMemory | None:
    if (scale := _step(item)) is None:
        return None
    pods = item.get("infeasible")
    return CpuMemory(
        scale,
        tuple(one for one in map(_infeasible, pods) if one is not None)
        if isinstance(pods, list)
        else (),
    )


def _infeasible(item: Any) -> Infeasible | None:
    if (
        not isinstance(item, list)
        or len(item) != 4
        or not isinstance(item[0], str)
        or not isinstance(item[1], str)
    ):
        return None
    asked, given = _count(item[2]), _count(item[3])
    return None if asked is None or given is None else Infeasible(item[0], item[1], asked, given)


def _pairs(item: Any) -> tuple[tuple[float, int], ...]:
    if not isinstance(item, list) or len(item) % 2:
        return ()
    result: list[tuple[float, int]] = []
    last = 0.0
    for step, count in zip(item[::2], item[1::2], strict=True):
        read, wanted = _number(step), _count(count)
        if read is None or wanted is None or read < 0:
            return ()
        last += read
        result.append((last / 10, wanted))
    return tuple(result)


def _growth(item: Any) -> Growth | None:
    if not isinstance(item, list) or len(item) != 6:
        return None
    at, before, after, throughput, service = (
        _number(item[0]),
        _count(item[1]),
        _count(item[2]),
        _number(item[3]),
        _above_zero(item[4]),
    )
    if (
        at is None
        or before is None
        or after is None
        or throughput is None
        or service is None
        or after <= before
    ):
        return None
    return Growth(at, before, after, throughput, service, _number(item[5]))


def _action(item: Any) -> Action | None:
    if (
        not isinstance(item, list)
        or len(item) != 5
        or not isinstance(item[1], str)
        or not isinstance(item[4], str)
    ):
        return None
    at, before, after = _number(item[0]), _count(item[2]), _count(item[3])
    if at is None or not 0 <= at < _LATEST or before is None or after is None:
        return None
    return Action(at, item[1], before, after, item[4])


def _number(item: Any) -> float | None:
    if isinstance(item, bool) or not isinstance(item, int | float):
        return None
    try:
        value = float(item)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def _above_zero(item: Any) -> float | None:
    value = _number(item)
    return value if value is not None and value > 0 else None


def _count(item: Any) -> int | None:
    """A count of instances: Triton's own is an int32."""
    return (
        item if isinstance(item, int) and not isinstance(item, bool) and 1 <= item < 2**31 else None
    )


def _each(memory: Memory, change: Callable[[StepMemory], StepMemory]) -> Memory:
    steps: Mapping[str, StepMemory] = {name: change(step) for name, step in memory.steps.items()}
    pods = None if memory.pods is None else replace(memory.pods, scale=change(memory.pods.scale))
    cpu = None if memory.cpu is None else replace(memory.cpu, scale=change(memory.cpu.scale))
    return replace(
        memory,
        steps=steps,
        pods=pods,
        cpu=cpu,
        history=tuple(replace(item, reason=cut(item.reason, _REASON)) for item in memory.history),
    )


def _without_reasons(memory: Memory) -> Memory:
    return _each(memory, lambda step: step)


def _thinned(slots: int) -> Callable[[Memory], Memory]:
    """Fewer slots of each window: each keeps the highest of those it stands for, at the newest's time (never a cause to shrink)."""

    def thin(pairs: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
        size = max(1, math.ceil(len(pairs) / slots))
        groups = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        return tuple((group[-1][0], max(count for _, count in group)) for group in groups)

    return lambda memory: _each(
        memory,
        lambda step: replace(
            step, wants=thin(step.wants), counts=thin(step.counts), turns=step.turns[-slots:]
        ),
    )


def _bare(memory: Memory) -> Memory:
    return replace(
        _each(memory, lambda step: StepMemory(desired=step.desired, service=step.service)),
        history=(),
    )
