"""The control law of one scaled step: its demand, and when its count changes. Pure.

Times are Unix seconds, counts are per pod. The offered load a = arrivals x service time (Erlang) is
measured and not inferred from a saturating ratio, so growth of any size takes one change. Counts
grow at once; they shrink only to the highest demand of the whole stabilization window.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from triton_pipelines.autoscaling.metrics.rates import InstanceRange, Rates
from triton_pipelines.autoscaling.signals import StepSignal
from triton_pipelines.autoscaling.types import ControlLaw, InstanceGrowth, StepLimits, StepState

RECENT_SECONDS: Final = 900.0
"""Time that the fallback RecentMax looks back (KEDA's currentReplicasIfHigher never forgets)."""
FLAP_SECONDS: Final = 3600.0
"""Time over which reversals are counted."""
IN_FLIGHT_SECONDS: Final = 120.0
"""A change that pods do not show by then has failed: that is the actuator's business, not a reason
to wait."""
_ROUND: Final = 0.02
"""Instances: a demand of 5.02 is 5."""
_SLOTS: Final = 60
"""Slots of the stabilization window; bounds what is remembered of it."""
_COVERAGE: Final = 0.9
"""Share of the stabilization window that samples must cover before a count shrinks."""
_DENSITY: Final = 0.8
"""Share of that time in which samples came without a gap."""
_JUMP: Final = 1.2
"""Times the arrivals before: a smaller rise is drift, which the windows follow."""
_DEVIATIONS: Final = 3.0
_SPARE: Final = 0.1
"""Share of capacity that must have been unused before a jump; else the time of the jump within the
interval cannot be inferred."""
_LEAST_SHARE: Final = 0.3
"""Share of an interval: bounds the extrapolation of a jump right before a scrape."""
_IN_FORCE: Final = 30.0
"""Seconds after which a growth has certainly taken effect: several times as long as it takes."""
_LEAST_SERVICE: Final = 1e-9
"""Least service time, seconds: Triton counts microseconds, and less is no measurement."""
_COOLDOWN: Final = 8.0
"""Seconds between growths while no change has been measured."""


@dataclass(frozen=True, slots=True)
class StepDemand:
    """What one step needs now, over all trusted pods."""

    arrivals: float
    """Requests/s."""
    service: float | None
    """Service time, seconds."""
    offered: float = 0.0
    """Offered load, Erlang."""
    steady_instances: int = 0
    """Instances per pod to grow to for what arrives, before hysteresis and caps."""
    instances: int = 0
    """The same, and what works off the backlog."""
    keep_instances: int = 0
    """Instances per pod to shrink to."""
    wait: float = 0.0
    """Current wait over all pods, seconds."""
    worst_wait: float = 0.0
    """Current wait in the worst pod, seconds."""
    busy: float = 0.0
    """Offered load per instance."""
    saturated: bool = False
    """Busy or waiting beyond the threshold (T of the decision table)."""
    stalled: bool = False
    """Requests wait or are rejected, and none completes."""
    overloaded: bool = False
    """Requests wait, and more arrive than the instances process, or suddenly more than before."""


def instances_between(state: StepState, count: int) -> Callable[[float, float], InstanceRange]:
    """Return a function that says how many instances ran in a pod between two Unix times.

    A change is recorded when it is decided. From then on more instances may be busy, but only those
    that existed a while earlier ran all the time. Changes that were not recorded are covered by the
    extremes known.

    Args:
        state: Holds the counts recorded.
        count: Instances that run now.
    """
    times = [at for at, _ in state.counts]

    def recorded(begin: float, end: float) -> list[int]:
        first, last = bisect_right(times, begin), bisect_right(times, end)
        return [each for _, each in (state.counts[first - 1 : last] if first else state.counts)]

    def instances(begin: float, end: float) -> InstanceRange:
        last = bisect_right(times, end)
        # The present count has run since the last record, whatever that says: another manager may
        # have changed it.
        now = [count] if last == len(times) or not bisect_right(times, begin) else []
        most = max(1, *now, *recorded(begin, end))
        least = max(1, min(most, *now, *recorded(begin - _IN_FORCE, end)))
        return InstanceRange(least=least, most=most)

    return instances


def service_time(known: float | None, signal: StepSignal, *, contended: bool) -> float | None:
    """Return the service time: the slow window's busy time per request.

    CPU contention stretches busy time, and instances added for it would make contention worse. So
    where CPU is contended, the smaller of the measured and the known time counts. Without
    completions the known time stays.
    """
    measured = signal.possible.service if signal.possible is not None else None
    if measured is None or measured < _LEAST_SERVICE:
        return known
    return min(known, measured) if contended and known is not None else measured


def _is_beyond_noise(last: Rates, arrivals: float) -> bool:
    """Return whether the last interval's arrivals exceed ``arrivals`` by more than chance.

    The limit is three standard deviations of a Poisson count.
    """
    return last.arrivals > arrivals + _DEVIATIONS * math.sqrt(arrivals / last.seconds)


def _arrivals_after_jump(signal: StepSignal, capacity: float) -> float:
    """Return the arrivals after a jump within the last interval; 0 where there was none.

    The interval's mean still holds arrivals from before the jump. Since the jump all instances were
    busy, so completions beyond the old rate say for which share of the interval:
    (x_last - before) / (capacity - before).

    Args:
        signal: Signals of the step.
        capacity: Requests/s that the instances sustain.
    """
    last, before = signal.last, signal.before
    if (
        last is None
        or before is None
        or last.arrivals < _JUMP * before.arrivals
        or last.growth + last.rejected <= 0
    ):
        return 0.0
    spare = capacity - before.arrivals
    if spare < _SPARE * capacity:
        return 0.0
    share = min(1.0, max(_LEAST_SHARE, (last.throughput - before.arrivals) / spare))
    return before.arrivals + (last.arrivals - before.arrivals) / share


def step_demand(
    signal: StepSignal,
    service: float | None,
    counts: Mapping[str, int],
    law: ControlLaw,
    lead: float,
    expected: float = 0.0,
    *,
    grew: bool = False,
) -> StepDemand:
    """Return what the step needs.

    Args:
        signal: Signals of the step.
        service: Service time, seconds; ``None`` while unknown.
        counts: Instances of the trusted pods.
        law: Constants of the control law.
        lead: Seconds until a growth decided now takes effect, including the age of the sample. The
            backlog to work off is the one at that time.
        expected: Arrivals/s that the step before will pass on once it has grown.
        grew: Whether a growth took effect within the last interval, whose completions are then not
            those of ``counts``.
    """
    arrivals = _windowed_arrivals(signal, expected)
    stalled = _is_stalled(signal)
    if service is None:
        return StepDemand(arrivals, None, stalled=stalled)
    capacity, pods = max(1, sum(counts.values())), max(1, len(counts))
    wait = signal.waiting * service / capacity
    behind = wait > service
    jumped = behind and signal.last is not None and _is_beyond_noise(signal.last, arrivals)
    if jumped and signal.last is not None:
        jump = 0.0 if grew else _arrivals_after_jump(signal, capacity / service)
        arrivals = max(arrivals, signal.last.arrivals, jump)
    offered = arrivals * service
    # Counts are whole numbers: growing exactly to the target would stay below it on average, and
    # shrinking beyond it would soon cause growth again.
    steady = instances = offered / ((law.target + law.up_threshold) / 2)
    if behind:
        backlog = signal.waiting + max(0.0, arrivals - capacity / service) * lead
        instances += backlog * service / law.drain
    worst_wait, worst_busy = _worst_pod(signal, service, counts)
    busiest = max(offered / capacity, min(worst_busy, 1.0))
    return StepDemand(
        arrivals=arrivals,
        service=service,
        offered=offered,
        steady_instances=_whole(steady / pods),
        instances=_whole(instances / pods),
        keep_instances=_whole((instances - steady + offered / law.target) / pods),
        wait=wait,
        worst_wait=worst_wait,
        busy=offered / capacity,
        saturated=busiest >= law.up_threshold or worst_wait > service,
        stalled=stalled,
        overloaded=jumped or (behind and offered >= capacity),
    )


def _windowed_arrivals(signal: StepSignal, expected: float) -> float:
    """Return the highest arrivals/s of both windows and of what is expected."""
    return max(
        0.0,
        expected,
        signal.fast.arrivals if signal.fast else 0.0,
        signal.slow.arrivals if signal.slow else 0.0,
    )


def _is_stalled(signal: StepSignal) -> bool:
    """Return whether requests wait or are rejected and none completed in the fast window."""
    fast = signal.fast
    if fast is None or fast.throughput > 0:
        return False
    return signal.waiting > 0 or fast.rejected > 0


def _worst_pod(
    signal: StepSignal, service: float, counts: Mapping[str, int]
) -> tuple[float, float]:
    """Return the longest wait (seconds) and the highest busy share of any pod."""
    waits = (signal.pending[pod] * service / max(1, count) for pod, count in counts.items())
    busy = (signal.busy.get(pod, 0.0) / max(1, count) for pod, count in counts.items())
    return max(waits, default=0.0), max(busy, default=0.0)


def _whole(instances: float) -> int:
    """Return the number of instances per pod, at least 1."""
    return max(1, math.ceil(instances - _ROUND))


def cooldown(law: ControlLaw, actuation: float | None, interval: float, age: float) -> float:
    """Return the seconds from one growth to the next: until the first scrape after it took effect.

    Args:
        law: Constants of the control law.
        actuation: Seconds that a change takes; ``None`` while not measured.
        interval: Seconds between scrapes.
        age: Age of the newest scrape, seconds.
    """
    if law.cooldown_up is not None:
        return law.cooldown_up
    return actuation + age if actuation is not None else max(_COOLDOWN, interval)


def record_demand(state: StepState, demand: int, law: ControlLaw, now: float) -> StepState:
    """Record the demand: the highest of each slot of the stabilization window."""
    width = law.stabilization / _SLOTS
    demands = [item for item in state.demands if now - law.stabilization - width < item[0] <= now]
    if demands and now - demands[-1][0] < width:
        demands[-1] = (demands[-1][0], max(demands[-1][1], demand))
    else:
        demands.append((now, demand))
    return replace(state, demands=tuple(demands))


def record_count(state: StepState, count: int, now: float) -> StepState:
    """Record the present count; counts are kept for a quarter of an hour, where they changed."""
    counts = list(state.counts)
    if not counts or counts[-1][1] != count:
        counts.append((now, count))
    while len(counts) > 1 and counts[1][0] <= now - RECENT_SECONDS:
        del counts[0]
    return replace(state, counts=tuple(counts[-_SLOTS:]))


def covers_stabilization(state: StepState, law: ControlLaw, interval: float, now: float) -> bool:
    """Return whether the recorded demands are evidence for the whole stabilization window.

    They must reach back over 90 % of it, and at least 80 % of it must be without a gap.
    """
    times = [at for at, _ in state.demands]
    if not times or now - times[0] < _COVERAGE * law.stabilization:
        return False
    usual = max(2.5 * interval, 1.5 * law.stabilization / _SLOTS)
    gaps = zip(times, [*times[1:], now], strict=True)
    filled = sum(after - before for before, after in gaps if after - before <= usual)
    return filled >= _DENSITY * law.stabilization


def next_count(
    state: StepState,
    step: StepLimits,
    law: ControlLaw,
    *,
    count: int,
    demand: int,
    now: float,
    wait_up: float,
    in_flight: bool,
    interval: float,
) -> NextCount:
    """Return the next count.

    Args:
        state: State of the step.
        step: Bounds of the step.
        law: Constants of the control law.
        count: The present count.
        demand: Instances that are needed, within caps.
        now: Unix seconds.
        wait_up: Cool-down between growths, seconds.
        in_flight: Whether some pods do not show ``count`` yet.
        interval: Seconds between scrapes.
    """
    if not step.low <= count <= step.high:
        return NextCount(min(max(count, step.low), step.high))
    demand = min(max(demand, step.low), step.high)
    if in_flight:
        return NextCount(count)
    if demand > count:
        cooled = state.last_up is None or now - state.last_up >= wait_up or now < state.last_up
        return NextCount(demand if cooled else count)
    most = max((each for _, each in state.demands), default=count)
    most = min(max(most, step.low), step.high)
    rested = state.last_up is None or not 0 <= now - state.last_up < law.stabilization
    if most >= count or not rested or not covers_stabilization(state, law, interval, now):
        return NextCount(count)
    if state.direction > 0 and len(_recent(state.reversals, now)) >= law.flaps_per_hour:
        return NextCount(count, flapping=True)
    return NextCount(max(most, count - max(1, math.floor(count * law.down_step))))


@dataclass(frozen=True, slots=True)
class NextCount:
    """The result of :func:`next_count`."""

    count: int
    """The next count."""
    flapping: bool = False
    """Whether a decrease is withheld because of too many reversals."""


def after_change(state: StepState, before: int, after: int, now: float) -> StepState:
    """Return the state after a change of the count."""
    if after == before:
        return state
    direction = 1 if after > before else -1
    reversals = _recent(state.reversals, now)
    if state.direction and direction != state.direction:
        reversals = (*reversals, now)
    return replace(
        state,
        desired=after,
        last_up=now if direction > 0 else state.last_up,
        last_change=now,
        reversals=reversals[-_SLOTS:],
        direction=direction,
    )


def record_growth(
    state: StepState,
    before: int,
    throughput: float | None,
    service: float | None,
    cores: float | None,
    now: float,
) -> StepState:
    """Record a growth and what it has to raise (:mod:`.diminishing_returns`)."""
    if state.desired <= before or throughput is None or service is None:
        return state
    growth = InstanceGrowth(now, before, state.desired, throughput, service, cores)
    return replace(state, growth=growth)


def _recent(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(at for at in times if now - FLAP_SECONDS < at <= now)
