"""The scaling state as JSON, stored in the live ConfigMap so that it survives a restart.

The document takes at most 8 KiB: the ConfigMap also holds the counts and the resolved sources and
is written with every change. Reading never fails: a part that cannot be read, such as one from
another release, is left out, and scaling starts afresh with that part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from triton_pipelines.api.wording import truncate
from triton_pipelines.autoscaling.types import (
    HISTORY_MAX,
    CountChange,
    CpuLimitState,
    InfeasibleResize,
    InstanceGrowth,
    PodCountState,
    ScalingState,
    StepState,
)

LIMIT_BYTES: Final = 8192
_VERSION: Final = 1
_REASON_MAX: Final = 200
"""Characters of a reason that are stored."""
_TIME_LIMIT: Final = 253402300800.0
"""The year 10000: later times cannot be written as RFC 3339."""
_ACTUATION_LIMIT: Final = 600.0
"""Seconds: the actuator waits no longer for a change."""
_SERVICE_LIMIT: Final = 86400.0
"""Seconds: no request occupies an instance for longer than a day."""
_INFEASIBLE_MAX: Final = 16
"""Pods with an infeasible resize that are stored; one is enough to bound the CPU of all."""


def dumps(state: ScalingState) -> str:
    """Return the state as JSON of at most 8 KiB.

    With very many steps the oldest details are dropped first; desired counts are never dropped.
    """
    for reduced in (
        lambda full: full,
        _with_short_reasons,
        _thinned(20),
        _thinned(5),
        _counts_only,
    ):
        text = json.dumps(_document(reduced(state)), separators=(",", ":"), sort_keys=True)
        if len(text.encode()) <= LIMIT_BYTES:
            return text
    return text


def loads(text: str | None) -> ScalingState:
    """Return the state in ``text``; parts that cannot be read are left out."""
    try:
        document = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return ScalingState()
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        return ScalingState()
    revision = document.get("revision")
    return ScalingState(
        steps=_steps(document.get("steps")),
        history=_history(document.get("history")),
        actuation=_within(document.get("actuation"), _ACTUATION_LIMIT),
        last_fresh=_point_in_time(document.get("last_fresh")),
        outage_since=_point_in_time(document.get("outage_since")),
        revision=revision if isinstance(revision, str) else "",
        pods=_pods(document.get("pods")),
        cpu=_cpu(document.get("cpu")),
    )


# --- writing --------------------------------------------------------------------------------------


def _document(state: ScalingState) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "revision": state.revision,
        "steps": {name: _step_document(step) for name, step in state.steps.items()},
        "history": [
            [_time(item.at), item.step, item.before, item.after, item.reason]
            for item in state.history[:HISTORY_MAX]
        ],
        **_present(
            {
                "actuation": state.actuation,
                "last_fresh": _time(state.last_fresh),
                "outage_since": _time(state.outage_since),
                "pods": _pods_document(state.pods),
                "cpu": _cpu_document(state.cpu),
            }
        ),
    }


def _pods_document(pods: PodCountState | None) -> dict[str, Any] | None:
    if pods is None:
        return None
    own = {"demand": pods.demand, "pressed_since": _time(pods.pressed_since)}
    return {**_step_document(pods.scale), **_present(own)}


def _cpu_document(cpu: CpuLimitState | None) -> dict[str, Any] | None:
    if cpu is None:
        return None
    pods = [
        [item.pod, item.node, item.requested, item.given]
        for item in cpu.infeasible[-_INFEASIBLE_MAX:]
    ]
    return {**_step_document(cpu.scale), **_present({"infeasible": pods})}


def _step_document(step: StepState) -> dict[str, Any]:
    held = step.growth_held
    return _present(
        {
            "desired": step.desired,
            "service": None if step.service is None else float(f"{step.service:.6g}"),
            "demands": _pairs_document(step.demands),
            "counts": _pairs_document(step.counts),
            "last_up": _time(step.last_up),
            "last_change": _time(step.last_change),
            "reversals": [_time(at) for at in step.reversals],
            "direction": step.direction,
            "growth": _growth_document(step.growth),
            "growth_held": None if held is None else [_time(held[0]), _growth_document(held[1])],
            "stalled_since": _time(step.stalled_since),
            "cap": step.cap,
            "memory_held": _memory_held_document(step.memory_held),
        }
    )


def _pairs_document(pairs: tuple[tuple[float, int], ...]) -> list[float | int]:
    """Return times and counts in turn, each time in tenths of a second after the one before.

    60 pairs stay below 500 bytes.
    """
    result: list[float | int] = []
    last = 0
    for at, count in pairs:
        tenths = round(at * 10)
        result += [tenths - last, count]
        last = tenths
    return result


def _growth_document(growth: InstanceGrowth | None) -> list[Any] | None:
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


def _memory_held_document(held: tuple[float, int, float] | None) -> list[Any] | None:
    return None if held is None else [_time(held[0]), held[1], held[2]]


def _time(at: float | None) -> float | None:
    return None if at is None else round(at, 1)


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that hold a value."""
    return {name: value for name, value in values.items() if value is not None and value != []}


# --- reading --------------------------------------------------------------------------------------


def _steps(item: Any) -> dict[str, StepState]:
    if not isinstance(item, dict):
        return {}
    read = {name: _step(document) for name, document in item.items()}
    return {name: step for name, step in read.items() if step is not None}


def _history(item: Any) -> tuple[CountChange, ...]:
    if not isinstance(item, list):
        return ()
    return tuple(one for one in map(_change, item) if one is not None)[:HISTORY_MAX]


def _step(item: Any) -> StepState | None:
    if not isinstance(item, dict) or (desired := _count(item.get("desired"))) is None:
        return None
    direction = item.get("direction")
    return StepState(
        desired=desired,
        service=_within(item.get("service"), _SERVICE_LIMIT),
        demands=_pairs(item.get("demands")),
        counts=_pairs(item.get("counts")),
        last_up=_point_in_time(item.get("last_up")),
        last_change=_point_in_time(item.get("last_change")),
        reversals=_times(item.get("reversals")),
        direction=direction if direction in (-1, 0, 1) else 0,
        growth=_growth(item.get("growth")),
        growth_held=_held(item.get("growth_held")),
        stalled_since=_point_in_time(item.get("stalled_since")),
        cap=_count(item.get("cap")),
        memory_held=_memory_held(item.get("memory_held")),
    )


def _times(item: Any) -> tuple[float, ...]:
    if not isinstance(item, list):
        return ()
    return tuple(at for at in map(_point_in_time, item) if at is not None)


def _held(item: Any) -> tuple[float, InstanceGrowth] | None:
    if not isinstance(item, list) or len(item) != 2:
        return None
    since, growth = _point_in_time(item[0]), _growth(item[1])
    return None if since is None or growth is None else (since, growth)


def _memory_held(item: Any) -> tuple[float, int, float] | None:
    if not isinstance(item, list) or len(item) != 3:
        return None
    since, count, limit = _point_in_time(item[0]), _count(item[1]), _number(item[2])
    return None if since is None or count is None or limit is None else (since, count, limit)


def _pods(item: Any) -> PodCountState | None:
    if (scale := _step(item)) is None:
        return None
    return PodCountState(
        scale, _count(item.get("demand")) or 0, _point_in_time(item.get("pressed_since"))
    )


def _cpu(item: Any) -> CpuLimitState | None:
    if (scale := _step(item)) is None:
        return None
    pods = item.get("infeasible")
    read = map(_infeasible, pods) if isinstance(pods, list) else ()
    return CpuLimitState(scale, tuple(one for one in read if one is not None))


def _infeasible(item: Any) -> InfeasibleResize | None:
    if (
        not isinstance(item, list)
        or len(item) != 4
        or not isinstance(item[0], str)
        or not isinstance(item[1], str)
    ):
        return None
    requested, given = _count(item[2]), _count(item[3])
    if requested is None or given is None:
        return None
    return InfeasibleResize(item[0], item[1], requested, given)


def _pairs(item: Any) -> tuple[tuple[float, int], ...]:
    if not isinstance(item, list) or len(item) % 2:
        return ()
    result: list[tuple[float, int]] = []
    last = 0.0
    for tenths, number in zip(item[::2], item[1::2], strict=True):
        read, count = _number(tenths), _count(number)
        if read is None or count is None or read < 0:
            return ()
        last += read
        if (at := _point_in_time(last / 10)) is None:
            return ()
        result.append((at, count))
    return tuple(result)


def _growth(item: Any) -> InstanceGrowth | None:
    if not isinstance(item, list) or len(item) != 6:
        return None
    at, throughput = _point_in_time(item[0]), _number(item[3])
    service = _within(item[4], _SERVICE_LIMIT)
    before, after = _count(item[1]), _count(item[2])
    if at is None or throughput is None or service is None:
        return None
    if before is None or after is None or after <= before:
        return None
    return InstanceGrowth(at, before, after, throughput, service, _number(item[5]))


def _change(item: Any) -> CountChange | None:
    if (
        not isinstance(item, list)
        or len(item) != 5
        or not isinstance(item[1], str)
        or not isinstance(item[4], str)
    ):
        return None
    at, before, after = _point_in_time(item[0]), _count(item[2]), _count(item[3])
    if at is None or before is None or after is None:
        return None
    return CountChange(at, item[1], before, after, item[4])


def _number(item: Any) -> float | None:
    if isinstance(item, bool) or not isinstance(item, int | float):
        return None
    try:
        value = float(item)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def _point_in_time(item: Any) -> float | None:
    """Return Unix seconds."""
    value = _number(item)
    return value if value is not None and 0 <= value < _TIME_LIMIT else None


def _within(item: Any, limit: float) -> float | None:
    """Return a number above 0 and of at most ``limit``."""
    value = _number(item)
    return value if value is not None and 0 < value <= limit else None


def _count(item: Any) -> int | None:
    """Return a count of instances; Triton's own is an int32."""
    if not isinstance(item, int) or isinstance(item, bool):
        return None
    return item if 1 <= item < 2**31 else None


# --- reducing -------------------------------------------------------------------------------------


def _each(state: ScalingState, change: Callable[[StepState], StepState]) -> ScalingState:
    """Return the state with every step changed and every reason shortened."""
    pods = None if state.pods is None else replace(state.pods, scale=change(state.pods.scale))
    cpu = None if state.cpu is None else replace(state.cpu, scale=change(state.cpu.scale))
    return replace(
        state,
        steps={name: change(step) for name, step in state.steps.items()},
        pods=pods,
        cpu=cpu,
        history=tuple(
            replace(item, reason=truncate(item.reason, _REASON_MAX)) for item in state.history
        ),
    )


def _with_short_reasons(state: ScalingState) -> ScalingState:
    return _each(state, lambda step: step)


def _thinned(slots: int) -> Callable[[ScalingState], ScalingState]:
    """Return a function that keeps at most ``slots`` slots of each window.

    Each keeps the highest count of those it replaces, at the time of the newest: this never causes
    a decrease.
    """

    def thin(pairs: tuple[tuple[float, int], ...]) -> tuple[tuple[float, int], ...]:
        size = max(1, math.ceil(len(pairs) / slots))
        groups = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        return tuple((group[-1][0], max(count for _, count in group)) for group in groups)

    return lambda state: _each(
        state,
        lambda step: replace(
            step,
            demands=thin(step.demands),
            counts=thin(step.counts),
            reversals=step.reversals[-slots:],
        ),
    )


def _counts_only(state: ScalingState) -> ScalingState:
    counts = _each(state, lambda step: StepState(desired=step.desired, service=step.service))
    return replace(counts, history=())
