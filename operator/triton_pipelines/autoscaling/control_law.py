"""The control law of one scaled step: what it needs, and when a count moves. Pure. Times are Unix seconds, counts per pod.

Offered load a = arrivals x service time (Erlang) is measured, not inferred from a saturating ratio, so growth of any size is one
step. Counts grow at once and shrink only when the highest need of the whole stabilization window allows it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from triton_pipelines.autoscaling.metrics.rates import Ran, Rates
from triton_pipelines.autoscaling.signals import StepSignal
from triton_pipelines.autoscaling.types import Growth, Law, StepLimits, StepMemory

RECENT_SECONDS = 900.0  # over which the fallback RecentMax looks back (KEDA's currentReplicasIfHigher keeps it for ever)
FLAP_SECONDS = 3600.0
IN_FLIGHT_SECONDS = 120.0  # a change that pods do not show by then has failed: the actuator's business, not a reason to wait
_ROUND = 0.02  # instances: a need of 5.02 is 5
_SLOTS = 60  # of the stabilization window: what is remembered of it stays small
_COVERAGE = 0.9  # share of the stabilization window from which samples must have come before a count shrinks
_DENSITY = 0.8  # share of that time in which they came without a gap
_JUMP = 1.2  # times the arrivals before: less is drift, which the windows follow
_DEVIATIONS = 3.0
_SPARE = 0.1  # share of capacity that must have been unused before a jump, else the share of the interval cannot be told
_LEAST_SHARE = 0.3  # of an interval: a jump right before a scrape is not blown up by more
_IN_FORCE = (
    30.0  # seconds after which a growth is taken to be in force: several times as long as they take
)
_COOLDOWN = 8.0  # seconds between growths while no change has been measured


@dataclass(frozen=True, slots=True)
class Need:
    """What one step needs now, over all pods that speak.

    ``arrivals``: requests/s; ``service``: E, seconds; ``offered``: Erlang; ``steady``, ``wanted``: to grow to, per pod,
    before hysteresis and caps, without and with what drains the backlog; ``kept``: to shrink to; ``wait``: live, seconds, over all pods and of the worst; ``busy``: offered per instance; ``saturated``:
    T of the decision table; ``stalled``: requests wait, none completes.
    """

    arrivals: float
    service: float | None
    offered: float
    steady: int
    wanted: int
    kept: int
    wait: float
    worst_wait: float
    busy: float
    saturated: bool
    stalled: bool


def ran(memory: StepMemory, count: int) -> Callable[[float, float], Ran]:
    """Tells how many instances ran in a pod between two Unix times; ``count`` run now. What nobody noted is taken for the extremes known.

    A change is noted when it is decided. More may be busy from then on; all the time ran only those that were there a while before.
    """
    times = [at for at, _ in memory.counts]

    def noted(begin: float, end: float) -> list[int]:
        first, last = bisect_right(times, begin), bisect_right(times, end)
        return [each for _, each in (memory.counts[first - 1 : last] if first else memory.counts)]

    def instances(begin: float, end: float) -> Ran:
        last = bisect_right(times, end)
        # What runs now runs since the last note, whatever that says: somebody else may have changed it.
        now = [count] if last == len(times) or not bisect_right(times, begin) else []
        most = max(1, *now, *noted(begin, end))
        return Ran(least=max(1, min(most, *now, *noted(begin - _IN_FORCE, end))), most=most)

    return instances


def service_time(known: float | None, signal: StepSignal, *, contended: bool) -> float | None:
    """E: the slow window's busy time per request; where CPU is contended the smaller of it and the known one.

    Contention stretches busy time: taken as it is, it would ask for instances that make it worse. Without completions E stays.
    """
    measured = signal.possible.service if signal.possible is not None else None
    if measured is None or measured <= 0:
        return known
    return min(known, measured) if contended and known is not None else measured


def _beyond_noise(last: Rates, arrivals: float) -> bool:
    """Whether the last interval's arrivals are more than chance makes of ``arrivals``: three standard deviations of a Poisson count."""
    return last.arrivals > arrivals + _DEVIATIONS * math.sqrt(arrivals / last.seconds)


def _jump(signal: StepSignal, capacity: float) -> float:
    """Arrivals after a jump inside the last interval, whose mean still holds arrivals from before it.

    ``capacity``: requests/s that the instances carry. Since the jump they were busy to the brim, so the completions beyond the old rate
    tell for which share of the interval: (x_last - before) / (capacity - before).
    """
    last, before = signal.last, signal.before
    if (
        last is None
        or before is None
        or last.arrivals < _JUMP * before.arrivals
        or last.growth <= 0
    ):
        return 0.0
    spare = capacity - before.arrivals
    if spare < _SPARE * capacity:
        return 0.0
    share = min(1.0, max(_LEAST_SHARE, (last.throughput - before.arrivals) / spare))
    return before.arrivals + (last.arrivals - before.arrivals) / share


def need(
    signal: StepSignal,
    service: float | None,
    counts: Mapping[str, int],
    law: Law,
    lead: float,
    expected: float = 0.0,
    *,
    grew: bool = False,
) -> Need:
    """What the step needs. ``counts``: instances of the pods that speak; ``lead``: seconds until a growth decided now is in force,
    the age of the sample included: the backlog that is drained is the one that will stand then. ``expected``: arrivals/s that a step
    before this one will let through once it has grown itself; ``grew``: a growth came in force within the last interval, whose completions
    are not those of ``counts``."""
    capacity, pods = max(1, sum(counts.values())), max(1, len(counts))
    waiting = signal.waiting
    arrivals = max(
        0.0,
        expected,
        signal.fast.arrivals if signal.fast else 0.0,
        signal.slow.arrivals if signal.slow else 0.0,
    )
    moves = signal.fast is not None and signal.fast.throughput > 0
    stalled = signal.fast is not None and not moves and waiting > 0
    if service is None:
        return Need(arrivals, None, 0.0, 0, 0, 0, 0.0, 0.0, 0.0, saturated=False, stalled=stalled)
    wait = waiting * service / capacity
    behind = wait > service
    if behind and signal.last is not None and _beyond_noise(signal.last, arrivals):
        arrivals = max(
            arrivals, signal.last.arrivals, 0.0 if grew else _jump(signal, capacity / service)
        )
    offered = arrivals * service
    # Counts are whole: grown to the aim at most, they would stay below it on average; shrunk beyond it, they would soon grow again.
    steady = instances = offered / ((law.target + law.up_threshold) / 2)
    if behind:
        backlog = waiting + max(0.0, arrivals - capacity / service) * lead
        instances += backlog * service / law.drain
    worst = max(
        (signal.pending[pod] * service / max(1, count) for pod, count in counts.items()),
        default=0.0,
    )
    hottest = max(
        (signal.busy.get(pod, 0.0) / max(1, count) for pod, count in counts.items()), default=0.0
    )
    return Need(
        arrivals=arrivals,
        service=service,
        offered=offered,
        steady=max(1, math.ceil(steady / pods - _ROUND)),
        wanted=max(1, math.ceil(instances / pods - _ROUND)),
        kept=max(1, math.ceil((instances - steady + offered / law.target) / pods - _ROUND)),
        wait=wait,
        worst_wait=worst,
        busy=offered / capacity,
        saturated=max(offered / capacity, min(hottest, 1.0)) >= law.up_threshold or worst > service,
        stalled=stalled,
    )


def cooldown(law: Law, actuation: float | None, interval: float, age: float) -> float:
    """Seconds from one growth to the next: until the first scrape after it is in force. ``age``: of the newest scrape, seconds."""
    if law.cooldown_up is not None:
        return law.cooldown_up
    return actuation + age if actuation is not None else max(_COOLDOWN, interval)


def remember_want(memory: StepMemory, want: int, law: Law, now: float) -> StepMemory:
    """Note what was wanted now: the highest of each slot of the stabilization window."""
    width = law.stabilization / _SLOTS
    wants = [item for item in memory.wants if now - law.stabilization - width < item[0] <= now]
    if wants and now - wants[-1][0] < width:
        wants[-1] = (wants[-1][0], max(wants[-1][1], want))
    else:
        wants.append((now, want))
    return replace(memory, wants=tuple(wants))


def remember_count(memory: StepMemory, count: int, now: float) -> StepMemory:
    """Note the present count: those of the last quarter of an hour, where they changed."""
    counts = list(memory.counts)
    if not counts or counts[-1][1] != count:
        counts.append((now, count))
    while len(counts) > 1 and counts[1][0] <= now - RECENT_SECONDS:
        del counts[0]
    return replace(memory, counts=tuple(counts[-_SLOTS:]))


def covered(memory: StepMemory, law: Law, interval: float, now: float) -> bool:
    """Whether wants speak for the stabilization window: over 90 % of it, at least 80 % of that without a gap."""
    times = [at for at, _ in memory.wants]
    if not times or now - times[0] < _COVERAGE * law.stabilization:
        return False
    usual = max(2.5 * interval, 1.5 * law.stabilization / _SLOTS)
    gaps = zip(times, [*times[1:], now], strict=True)
    filled = sum(after - before for before, after in gaps if after - before <= usual)
    return filled >= _DENSITY * law.stabilization


@dataclass(frozen=True, slots=True)
class Move:
    """The next count, and whether flap budget keeps it up."""

    count: int
    flapping: bool = False


def move(
    memory: StepMemory,
    step: StepLimits,
    law: Law,
    *,
    count: int,
    want: int,
    now: float,
    wait_up: float,
    in_flight: bool,
    interval: float,
) -> Move:
    """The next count. ``want`` is within caps; ``wait_up``: cool-down; ``in_flight``: pods do not all show ``count`` yet."""
    if not step.low <= count <= step.high:
        return Move(min(max(count, step.low), step.high))
    want = min(max(want, step.low), step.high)
    if in_flight:
        return Move(count)
    if want > count:
        cooled = memory.last_up is None or now - memory.last_up >= wait_up or now < memory.last_up
        return Move(want if cooled else count)
    most = max((wanted for _, wanted in memory.wants), default=count)
    most = min(max(most, step.low), step.high)
    rested = memory.last_up is None or now - memory.last_up >= law.stabilization
    if most >= count or not rested or not covered(memory, law, interval, now):
        return Move(count)
    if memory.direction > 0 and len(_recent(memory.turns, now)) >= law.flaps_per_hour:
        return Move(count, flapping=True)
    return Move(max(most, count - max(1, math.floor(count * law.down_step))))


def moved(memory: StepMemory, before: int, after: int, now: float) -> StepMemory:
    """Memory after a change of count."""
    if after == before:
        return memory
    direction = 1 if after > before else -1
    turns = _recent(memory.turns, now)
    if memory.direction and direction != memory.direction:
        turns = (*turns, now)
    return replace(
        memory,
        desired=after,
        last_up=now if direction > 0 else memory.last_up,
        last_change=now,
        turns=turns[-_SLOTS:],
        direction=direction,
    )


def grown(
    memory: StepMemory,
    before: int,
    throughput: float | None,
    service: float | None,
    cores: float | None,
    now: float,
) -> StepMemory:
    """Note a growth for the knee: what it has to raise."""
    if memory.desired <= before or throughput is None or service is None:
        return memory
    return replace(memory, growth=Growth(now, before, memory.desired, throughput, service, cores))


def _recent(turns: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(at for at in turns if now - FLAP_SECONDS < at <= now)
