"""Change the instance count of a step in a pipeline's pods: canary first, each change verified.

Growth runs in several pods at a time, removal in one after the other. Why a change is done this way
(measured on Triton 24.10, and read in model_lifecycle.cc):

- The whole config is sent with only ``instance_group[0].count`` changed: a partial config would
  replace the whole, and any other change would reload the model completely.
- A successful load proves nothing about the ensemble. A change is verified by the count that the
  pod reports, by the index (a READY model may have the reason why its last change failed), by the
  readiness of step and ensemble, and by a test inference, which alone detects a dead process.
- A load whose deadline passed continues in the server; it is watched and never sent again: of two
  loads the last one wins.
- A growth takes effect at once, but its load ends only when no request waits for the step: a new
  instance of a Python model executes what waits before Triton initializes it (rate_limiter.cc,
  DequeuePayload; measured). So a growth is not given up while requests wait.
- A rejected growth leaves the old instances serving. A step is never unloaded, since that would
  unload the ensemble.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from triton_pipelines.api.wording import counted

# Removing an instance takes 1.1 to 1.2 s, one after the other (measured). Growth waits for the
# slowest `initialize`, which has no bound.
LOAD_BASE_S: Final = 60.0
LOAD_PER_REMOVAL_S: Final = 1.5
# How long a load whose deadline passed is watched, and how often.
SETTLE_S: Final = 60.0
SETTLE_POLL_S: Final = 0.5
# The longest time, if requests wait for the step; SETTLE_S then begins when none waits any more.
OVERLOAD_S: Final = 540.0
# The ensemble is validated again after each change of a step; it is back within milliseconds
# (measured: clients saw no gap).
VERIFY_S: Final = 10.0
VERIFY_POLL_S: Final = 0.1
# Share of the pods that grow at a time once the first one has been verified.
PARALLEL_SHARE: Final = 0.25


class PodRejectedError(Exception):
    """The pod rejected the change; the message is Triton's reason. The old count still serves."""


class PodUnresponsiveError(Exception):
    """No answer in time; the change may still happen."""


class PodGoneError(Exception):
    """Nothing answers at the pod's address."""


class PodControl(Protocol):
    """What the actuator needs of one pod. Each method raises the three errors above."""

    async def count(self, model: str) -> int:
        """Return the model's instances as the pod reports them."""
        ...

    async def load(self, model: str, config_json: str, deadline: float) -> None:
        """Load the model with this complete config within ``deadline`` seconds."""
        ...

    async def fault(self, model: str, public: str) -> str:
        """Return why the model or the public model is not ready; empty if both are."""
        ...

    async def inference_error(self) -> str:
        """Return why a test inference through the public model fails; empty if it succeeds."""
        ...


class PodResult(StrEnum):
    """How a change ended in one pod."""

    VERIFIED = "Verified"
    """The pod serves with the new count."""
    REJECTED = "Rejected"
    """Triton rejected the change; the old count serves."""
    BROKEN = "Broken"
    """The pod does not report the count or does not answer correctly."""
    UNKNOWN = "Unknown"
    """The pod did not answer; the change may still happen."""
    GONE = "Gone"
    """The pod no longer exists."""
    SKIPPED = "Skipped"
    """Not changed, or no longer watched: an earlier pod failed, or the change is not desired any
    more."""


_FAILED: Final = (PodResult.REJECTED, PodResult.BROKEN, PodResult.UNKNOWN)


@dataclass(frozen=True, slots=True)
class PodTarget:
    """One pod to change."""

    pod: str
    """Its name."""
    control: PodControl
    """Access to its Triton."""
    config: Callable[[int], str]
    """Returns the config that it runs (JSON) with the given count."""
    count: int
    """The count that it has."""
    is_waited_for: Callable[[], bool] = lambda: False
    """Returns whether requests wait for the step."""
    is_serving: Callable[[], bool] = lambda: False
    """Returns whether Kubernetes still reports this pod, with the same start of its server, as
    serving."""


@dataclass(frozen=True, slots=True)
class PodChange:
    """The change in one pod."""

    result: PodResult
    """How it ended."""
    count: int
    """The count that the pod has now, as far as known."""
    reason: str = ""
    """Why it failed, for people; empty if it did not."""
    seconds: float = 0.0
    """How long it took."""


@dataclass(frozen=True, slots=True)
class CountChangeResult:
    """The change in all pods of a pipeline."""

    pods: Mapping[str, PodChange] = field(default_factory=dict)
    """The change in each pod, by name."""

    @property
    def is_verified(self) -> bool:
        """Return whether every pod that still exists serves with the new count."""
        return all(
            change.result in (PodResult.VERIFIED, PodResult.GONE) for change in self.pods.values()
        )

    @property
    def reached_a_pod(self) -> bool:
        """Return whether at least one pod serves with the new count."""
        return any(change.result is PodResult.VERIFIED for change in self.pods.values())

    @property
    def reason(self) -> str:
        """Return the first failure with its pod; empty if there is none."""
        for pod, change in self.pods.items():
            if change.result in _FAILED:
                return f"{pod}: {change.reason}"
        return ""

    @property
    def seconds(self) -> float | None:
        """Return the duration of the longest verified change; ``None`` if none was verified."""
        return max(
            (
                change.seconds
                for change in self.pods.values()
                if change.result is PodResult.VERIFIED
            ),
            default=None,
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of the actuator in seconds; tests shorten them."""

    load: float = LOAD_BASE_S
    """Deadline of a load."""
    per_removal: float = LOAD_PER_REMOVAL_S
    """Added to it for each removed instance."""
    settle: float = SETTLE_S
    """How long a load whose deadline passed is watched."""
    overload: float = OVERLOAD_S
    """The longest time, if requests wait for the step; `settle` then begins when none does."""
    settle_poll: float = SETTLE_POLL_S
    """Time between two queries of the count meanwhile."""
    verify: float = VERIFY_S
    """How long a pod may take to be ready after a change, or Kubernetes to report its end."""
    verify_poll: float = VERIFY_POLL_S
    """Time between two probes meanwhile."""


async def change_count(
    model: str,
    public: str,
    count: int,
    targets: Sequence[PodTarget],
    *,
    pace: Pace = Pace(),
    started: Callable[[PodTarget], None] = lambda _: None,
    is_desired: Callable[[], bool] = lambda: True,
) -> CountChangeResult:
    """Bring every pod to ``count`` instances of a model.

    Growth: the first pod alone, then a quarter of the rest at a time. Removal: one pod after the
    other, and no further one while requests wait for the step. After the first pod whose change is
    not verified, or when the change is not desired any more, the rest stays as it is. Never raises
    for what pods do.

    Args:
        model: The step's model.
        public: The model that clients call.
        count: The desired count.
        targets: The pods.
        pace: times.
        started: Called with each pod before it is changed.
        is_desired: Returns whether the pods should still get this count.
    """
    growing = [target for target in targets if target.count < count]
    shrinking = [target for target in targets if target.count > count]
    changes = {
        target.pod: PodChange(PodResult.VERIFIED, count)
        for target in targets
        if target.count == count
    }
    is_stopped = False
    for number, group in enumerate([*_groups(growing), *([target] for target in shrinking)]):
        is_stopped = (
            is_stopped
            or not is_desired()
            or (number > 0 and group[0].count > count and group[0].is_waited_for())
        )
        if is_stopped:
            changes |= {target.pod: PodChange(PodResult.SKIPPED, target.count) for target in group}
            continue
        for target in group:
            started(target)
        done = await asyncio.gather(
            *(_change_pod(model, public, count, target, pace, is_desired) for target in group)
        )
        changes |= {target.pod: change for target, change in zip(group, done, strict=True)}
        is_stopped = any(
            change.result not in (PodResult.VERIFIED, PodResult.GONE) for change in done
        )
    return CountChangeResult({target.pod: changes[target.pod] for target in targets})


def _groups(targets: Sequence[PodTarget]) -> list[Sequence[PodTarget]]:
    """Return the canary, then groups of a quarter of all pods, at least one each."""
    if not targets:
        return []
    size = max(1, int(len(targets) * PARALLEL_SHARE))
    rest = targets[1:]
    return [targets[:1], *(rest[start : start + size] for start in range(0, len(rest), size))]


async def _change_pod(
    model: str,
    public: str,
    count: int,
    target: PodTarget,
    pace: Pace,
    is_desired: Callable[[], bool],
) -> PodChange:
    begin = time.monotonic()

    def ended(result: PodResult, now: int, reason: str = "") -> PodChange:
        return PodChange(result, now, reason, time.monotonic() - begin)

    try:
        failure = await _load(model, count, target, pace, is_desired)
        if failure is not None:
            return ended(*failure)
        now = await target.control.count(model)
        if now != count:
            reason = (
                f"reports {now} instances after a change to {count}, so another client is "
                "changing this pod; find that client and stop it"
            )
            return ended(PodResult.BROKEN, now, reason)
        fault = await _fault(model, public, target, pace)
        return ended(PodResult.BROKEN if fault else PodResult.VERIFIED, now, fault)
    except PodGoneError as error:
        if await _stays_serving(target, pace):
            reason = (
                "the operator cannot connect to Triton, although the pod is ready; check whether "
                f"a NetworkPolicy prevents it: {error}"
            )
            return ended(PodResult.UNKNOWN, target.count, reason)
        return ended(PodResult.GONE, 0, str(error))
    except (PodUnresponsiveError, PodRejectedError) as error:
        return ended(
            PodResult.UNKNOWN,
            target.count,
            f"Triton does not report the state of its models: {error}",
        )


async def _load(
    model: str, count: int, target: PodTarget, pace: Pace, is_desired: Callable[[], bool]
) -> tuple[PodResult, int, str] | None:
    """Load the model with the count; return result, present count and reason if that failed."""
    deadline = pace.load + pace.per_removal * max(0, target.count - count)
    try:
        await target.control.load(model, target.config(count), deadline)
    except PodUnresponsiveError as error:
        if await _is_count_reached(model, count, target, pace, is_desired):
            return None
        if not is_desired():
            return PodResult.SKIPPED, target.count, ""
        reason = (
            f"Triton did not respond to the change to {counted(count, 'instance')}, and "
            f"the count did not change: {error}"
        )
        return PodResult.UNKNOWN, target.count, reason
    except PodRejectedError as error:
        reason = f"Triton rejected the change to {counted(count, 'instance')}: {error}"
        return PodResult.REJECTED, await _reported_count(model, target), reason
    return None


async def _stays_serving(target: PodTarget, pace: Pace) -> bool:
    """Return whether a pod at whose address nothing answers is still there after a while.

    Kubernetes reports the end of a pod, or of its server, a few seconds later.
    """
    end = time.monotonic() + pace.verify
    while True:
        is_serving = target.is_serving()
        if not is_serving or time.monotonic() >= end:
            return is_serving
        await asyncio.sleep(pace.verify_poll)


async def _reported_count(model: str, target: PodTarget) -> int:
    """Return the count that the pod reports, or the one it had if it does not answer."""
    try:
        return await target.control.count(model)
    except (PodUnresponsiveError, PodRejectedError):
        return target.count


async def _is_count_reached(
    model: str, count: int, target: PodTarget, pace: Pace, is_desired: Callable[[], bool]
) -> bool:
    """Return whether a change whose call was not answered takes effect after all."""
    begin = waited = time.monotonic()
    while (now := time.monotonic()) - begin < max(pace.overload, pace.settle) and is_desired():
        if count > target.count and target.is_waited_for():
            # Triton completes the growth only afterwards. A removal is not waited for: it keeps the
            # step from growing, which is what would end the wait.
            waited = now
        elif now - waited >= pace.settle:
            break
        try:
            if await target.control.count(model) == count:
                return True
        except (PodUnresponsiveError, PodRejectedError):
            pass
        await asyncio.sleep(pace.settle_poll)
    return False


async def _fault(model: str, public: str, target: PodTarget, pace: Pace) -> str:
    """Return what is wrong in the pod once it had time to recover; empty if nothing is."""
    end = time.monotonic() + pace.verify
    while True:
        fault = await target.control.fault(model, public)
        if not fault:
            fault = await target.control.inference_error()
        if not fault or time.monotonic() >= end:
            return fault
        await asyncio.sleep(pace.verify_poll)
