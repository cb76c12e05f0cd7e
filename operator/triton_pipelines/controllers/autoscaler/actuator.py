"""Carries a count change to the pods of a pipeline: canary first, growth side by side, removal one by one, each proven.

What a change is, and why it is done so (facts: measured on Triton 24.10, and read in model_lifecycle.cc):

- The whole config goes over, with only ``instance_group[0].count`` changed: a part of one would replace the whole, and anything else
  changed would be a full reload.
- Success of the load says nothing about the ensemble: a change is proven by the count that the pod reports, the index (a READY model
  may carry the reason why its last change failed), readiness of step and ensemble, and a real inference, which alone sees a dead process.
- A load whose deadline passed goes on in the server; it is watched, never sent again: of two loads the last wins.
- A refused growth leaves the old instances serving. A step is never unloaded: that would take the ensemble down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

# A removed instance takes 1.1 to 1.2 s, one after the other (measured); growth waits for the slowest `initialize`, which nobody bounds.
LOAD_BASE_S: Final = 60.0
LOAD_PER_REMOVAL_S: Final = 1.5
# How long a load whose deadline passed is watched, and how often.
SETTLE_S: Final = 60.0
SETTLE_POLL_S: Final = 0.5
# The ensemble is validated again after each change of a step; it is back within milliseconds (measured: no gap seen by clients).
VERIFY_S: Final = 10.0
VERIFY_POLL_S: Final = 0.1
# Growth goes to this share of the pods at a time, after the first has proven it.
PARALLEL_SHARE: Final = 0.25


class PodRefusedError(Exception):
    """The pod refused the change, with Triton's own reason; what ran before goes on."""


class PodSilentError(Exception):
    """No answer in time: what was asked may still happen."""


class PodGoneError(Exception):
    """Nothing answers at the pod's address."""


class PodControl(Protocol):
    """What the actuator needs of one pod; errors are the three above."""

    async def count(self, model: str) -> int:
        """Instances of the model as the pod reports them."""
        ...

    async def load(self, model: str, config_json: str, deadline: float) -> None:
        """Load the model with this whole config."""
        ...

    async def fault(self, model: str, public: str) -> str:
        """Why model or public model is not as it should be ("": both are ready, the index carries no reason)."""
        ...

    async def answers(self) -> str:
        """Why a real inference through the public model fails ("": it was answered)."""
        ...


class Ended(StrEnum):
    """How a change ended in one pod."""

    PROVEN = "Proven"
    REFUSED = "Refused"  # Triton's reason; the old count serves
    BROKEN = "Broken"  # the count is there and the pod does not answer as it should
    SILENT = "Silent"  # not known: it may still happen
    GONE = "Gone"
    SKIPPED = "Skipped"  # an earlier pod failed


@dataclass(frozen=True, slots=True)
class Target:
    """One pod to change: its name, how it is reached, the config that it runs (JSON, by wanted count) and the count it has."""

    pod: str
    control: PodControl
    config: Callable[[int], str]
    count: int


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one pod: the count it has now (as far as known), in words why it failed, and how long it took (seconds)."""

    ended: Ended
    count: int
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a change, by pod."""

    results: Mapping[str, Result] = field(default_factory=dict)

    @property
    def proven(self) -> bool:
        """Whether every pod that is still there serves with the new count."""
        return all(result.ended in (Ended.PROVEN, Ended.GONE) for result in self.results.values())

    @property
    def reason(self) -> str:
        """The first failure, with its pod; "" where there is none."""
        failed = (
            (pod, result)
            for pod, result in self.results.items()
            if result.ended in (Ended.REFUSED, Ended.BROKEN, Ended.SILENT)
        )
        return next((f"{pod}: {result.reason}" for pod, result in failed), "")

    @property
    def seconds(self) -> float | None:
        """The longest change that was proven; ``None`` where none was."""
        return max(
            (result.seconds for result in self.results.values() if result.ended is Ended.PROVEN),
            default=None,
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of the actuator, in seconds; tests make them short."""

    load: float = LOAD_BASE_S
    per_removal: float = LOAD_PER_REMOVAL_S
    settle: float = SETTLE_S
    settle_poll: float = SETTLE_POLL_S
    verify: float = VERIFY_S
    verify_poll: float = VERIFY_POLL_S


async def actuate(
    model: str,
    public: str,
    count: int,
    targets: Sequence[Target],
    *,
    pace: Pace = Pace(),
    started: Callable[[Target], None] = lambda _: None,
) -> Outcome:
    """Bring every pod to ``count`` instances of ``model``; ``public`` is the model that clients call.

    Growth: the first pod alone, then a quarter of the rest at a time; removal: one pod after the other. After the first pod that
    does not prove it the rest stays as it is. ``started`` is told of each pod before it is changed. Never raises for what pods do.
    """
    growing = [target for target in targets if target.count < count]
    shrinking = [target for target in targets if target.count > count]
    results = {
        target.pod: Result(Ended.PROVEN, count) for target in targets if target.count == count
    }
    failed = False
    for group in [*_groups(growing), *([target] for target in shrinking)]:
        if failed:
            results |= {target.pod: Result(Ended.SKIPPED, target.count) for target in group}
            continue
        for target in group:
            started(target)
        ended = await asyncio.gather(
            *(_change(model, public, count, target, pace) for target in group)
        )
        results |= {target.pod: result for target, result in zip(group, ended, strict=True)}
        failed = any(result.ended not in (Ended.PROVEN, Ended.GONE) for result in ended)
    return Outcome({target.pod: results[target.pod] for target in targets})


def _groups(targets: Sequence[Target]) -> list[Sequence[Target]]:
    """The canary, then groups of a quarter of all pods, one at least."""
    size = max(1, int(len(targets) * PARALLEL_SHARE))
    rest = targets[1:]
    return (
        [targets[:1], *(rest[start : start + size] for start in range(0, len(rest), size))]
        if targets
        else []
    )


async def _change(model: str, public: str, count: int, target: Target, pace: Pace) -> Result:
    begin = time.monotonic()

    def result(ended: Ended, now: int, reason: str = "") -> Result:
        return Result(ended, now, reason, time.monotonic() - begin)

    deadline = pace.load + pace.per_removal * max(0, target.count - count)
    try:
        try:
            await target.control.load(model, target.config(count), deadline)
        except PodSilentError as error:
            if not await _settled(model, count, target, pace):
                return result(
                    Ended.SILENT,
                    target.count,
                    f"no answer to the change to {count} instances, and the count did not follow: {error}",
                )
        except PodRefusedError as error:
            return result(
                Ended.REFUSED, await _reported(model, target), f"refused {count} instances: {error}"
            )
        now = await target.control.count(model)
        if now != count:
            return result(
                Ended.BROKEN,
                now,
                f"reports {now} instances after a change to {count}; somebody else changes this pod",
            )
        fault = await _fault(model, public, target, pace)
        return result(Ended.BROKEN if fault else Ended.PROVEN, now, fault)
    except PodGoneError as error:
        return result(Ended.GONE, 0, str(error))
    except (PodSilentError, PodRefusedError) as error:
        return result(Ended.SILENT, target.count, f"does not say how it is: {error}")


async def _reported(model: str, target: Target) -> int:
    """The count that the pod reports, or the one it had where it does not say."""
    try:
        return await target.control.count(model)
    except (PodSilentError, PodRefusedError):
        return target.count


async def _settled(model: str, count: int, target: Target, pace: Pace) -> bool:
    """Whether a change whose call has no answer came into force all the same."""
    end = time.monotonic() + pace.settle
    while time.monotonic() < end:
        try:
            if await target.control.count(model) == count:
                return True
        except (PodSilentError, PodRefusedError):
            pass
        await asyncio.sleep(pace.settle_poll)
    return False


async def _fault(model: str, public: str, target: Target, pace: Pace) -> str:
    """What is wrong after a change, once it had time to come in order; "" for nothing."""
    end = time.monotonic() + pace.verify
    while True:
        fault = await target.control.fault(model, public)
        if not fault:
            fault = await target.control.answers()
        if not fault or time.monotonic() >= end:
            return fault
        await asyncio.sleep(pace.verify_poll)
