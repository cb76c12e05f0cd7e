"""Select settings to measure: as many requests/s as possible within the latency budget. Pure.

Among all settings within 3 % of the most requests/s: the highest batch size, then the shortest
delay (0 if that is among them), then the fewest instances (autoscaling.md §8.4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.compile.graph.resource_patch import PaddingSetting

from .prediction import (
    MAX_UTILIZATION,
    PipelineModel,
    capacity,
    max_rate,
    poisson,
    simulate,
)
from .report import LatencyCurve, ReportPoint
from .settings import BatchingSetting

RATE_TOLERANCE = 0.03
# The ends of the scale, in microseconds of delay: for the fastest answers, and for the fullest
# batches.
LATENCY_DELAYS = (1000, 2000)
THROUGHPUT_DELAYS = (50_000, 100_000)
# Share of the latency budget that a request may wait to be batched.
DELAY_SHARE = 0.25
# Settings, best first, for which delays are tried.
DELAY_CANDIDATES = 3
# Rates of a curve, as shares of what the setting can carry at most.
SHARES = (0.1, 0.25, 0.4, 0.55, 0.65, 0.75, 0.8, 0.85, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class PredictedSetting:
    """A setting and its predicted throughput."""

    setting: BatchingSetting
    """The setting."""
    rate: float
    """Maximum requests/s within the latency budget; 0: none."""
    capacity: float
    """Maximum requests/s at any latency."""


def preference(planned: PredictedSetting) -> tuple[bool, int, int, int, int]:
    """Return a sort key for settings of equal throughput; greater is better.

    The padding of the resource is preferred.
    """
    setting = planned.setting
    return (
        setting.padding == PaddingSetting(),
        setting.max_batch_size,
        -setting.queue_delay,
        -setting.model_instances,
        -setting.tokenizer_instances,
    )


def predict_settings(
    pipe: PipelineModel,
    settings: Iterable[BatchingSetting],
    current: BatchingSetting,
    latency_budget: float,
) -> list[PredictedSetting]:
    """Return the predicted throughput of settings within the latency budget (seconds), best first.

    Settings that cannot be among the best are left out, except the current one. Delays are only
    tried if the same setting without one is close to the best: a delay never raises the capacity of
    a step, and seldom the throughput within a latency budget (autoscaling.md §7).
    """
    given = list(dict.fromkeys((*settings, current)))
    delays = sorted(
        {
            setting.queue_delay
            for setting in given
            if 0 < setting.queue_delay / 1e6 <= DELAY_SHARE * latency_budget
        }
    )
    bare = list(dict.fromkeys(replace(setting, queue_delay=0) for setting in given))
    capacities = {setting: capacity(pipe.with_setting(setting)) for setting in bare}
    found = [
        predict_setting(pipe, current, latency_budget, capacities[replace(current, queue_delay=0)])
    ]
    most = found[0].rate
    for setting in sorted(bare, key=lambda setting: (-capacities[setting], setting)):
        if (
            setting != current
            and MAX_UTILIZATION * capacities[setting] >= (1 - RATE_TOLERANCE) * most
        ):
            one = predict_setting(
                pipe,
                setting,
                latency_budget,
                capacities[setting],
                least=(1 - RATE_TOLERANCE) * most,
            )
            most = max(most, one.rate)
            found.append(one)
    allowed = set(given)
    for one in rank(found)[:DELAY_CANDIDATES]:
        variants = [replace(one.setting, queue_delay=delay) for delay in delays]
        least = (1 - RATE_TOLERANCE) * most
        found += [
            predict_setting(pipe, setting, latency_budget, one.capacity, least)
            for setting in variants
            if setting in allowed and setting != current
        ]
    return rank([one for one in found if one.setting in allowed])


def predict_setting(
    pipe: PipelineModel,
    setting: BatchingSetting,
    latency_budget: float,
    carried: float | None = None,
    least: float = 0.0,
) -> PredictedSetting:
    """Return the predicted throughput of one setting.

    Args:
        pipe: The pipeline.
        setting: The setting.
        latency_budget: Seconds.
        carried: Its capacity, if known.
        least: Lower rates are of no use and returned as 0.
    """
    turned = pipe.with_setting(setting)
    most = capacity(turned) if carried is None else carried
    rate = max_rate(turned, latency_budget, most=MAX_UTILIZATION * most, least=least)
    return PredictedSetting(setting, rate, most)


def rank(found: Sequence[PredictedSetting]) -> list[PredictedSetting]:
    """Return best first: those within 3 % of the most by :func:`preference`, then by throughput."""
    most = max((one.rate for one in found), default=0.0)
    close = [one for one in found if one.rate > 0 and one.rate >= (1 - RATE_TOLERANCE) * most]
    rest = [one for one in found if one not in close]
    return sorted(close, key=preference, reverse=True) + sorted(
        rest, key=lambda one: (-one.rate, one.setting)
    )


def candidates(
    found: Sequence[PredictedSetting], current: BatchingSetting, count: int = 3
) -> list[PredictedSetting]:
    """Return the settings to measure.

    The first is the best; the next differ from it in the batch size, the instances, or the delay.
    """
    able = [one for one in found if one.rate > 0 and one.setting != current]
    if not able:
        return []
    chosen = [able[0]]
    best = able[0].setting
    tests = (
        lambda setting: setting.max_batch_size != best.max_batch_size,
        lambda setting: (
            (setting.model_instances, setting.tokenizer_instances)
            != (best.model_instances, best.tokenizer_instances)
        ),
        lambda setting: setting.queue_delay != best.queue_delay,
    )
    for differs in tests:
        other = next((one for one in able if one not in chosen and differs(one.setting)), None)
        if other is not None:
            chosen.append(other)
    return chosen[:count]


def challenger(
    found: Sequence[PredictedSetting], winner: BatchingSetting, without: Collection[BatchingSetting]
) -> PredictedSetting | None:
    """Return the best setting with other instances than the winner.

    Args:
        found: Predicted settings.
        winner: The setting to compare with.
        without: Settings that are excluded.
    """
    own = (winner.model_instances, winner.tokenizer_instances)
    able = [
        one
        for one in found
        if one.rate > 0
        and one.setting not in without
        and (one.setting.model_instances, one.setting.tokenizer_instances) != own
    ]
    return max(able, key=lambda one: (one.rate, one.setting), default=None)


def extreme_points(
    pipe: PipelineModel,
    settings: Sequence[BatchingSetting],
    rate: float,
) -> tuple[ReportPoint, ...]:
    """Return predictions for the latency-first and the throughput-first setting.

    Latency first: the lowest p99 at ``rate`` with a delay of 1 to 2 ms. Throughput first: the
    highest sustainable rate with a delay of 50 to 100 ms, whatever the latency.
    """
    bare = {
        setting: capacity(pipe.with_setting(setting))
        for setting in dict.fromkeys(replace(setting, queue_delay=0) for setting in settings)
    }
    copies = max(
        ((setting.model_instances, setting.tokenizer_instances) for setting in bare), default=(1, 0)
    )
    able = [
        setting
        for setting in bare
        if rate <= 0.95 * bare[setting]
        and (setting.model_instances, setting.tokenizer_instances) == copies
    ]
    quick = [replace(setting, queue_delay=delay) for setting in able for delay in LATENCY_DELAYS]
    result = []
    if quick and rate > 0:
        arrivals = poisson(rate, 3_000)
        times = {setting: simulate(pipe.with_setting(setting), arrivals).p99 for setting in quick}
        least = min(times, key=lambda setting: (times[setting], setting.max_batch_size, setting))
        result.append(ReportPoint("latency first", least, rate, predicted_p99=times[least]))
    full = {
        replace(setting, queue_delay=THROUGHPUT_DELAYS[0]): carried
        for setting, carried in bare.items()
    }
    if full:
        most = max(full.values())
        widest = max(
            (setting for setting in full if full[setting] >= (1 - RATE_TOLERANCE) * most),
            key=lambda setting: (setting.max_batch_size, -setting.model_instances),
        )
        carried = MAX_UTILIZATION * full[widest]
        p99 = simulate(pipe.with_setting(widest), poisson(carried, 6_000)).p99
        result.append(ReportPoint("throughput first", widest, carried, predicted_p99=p99))
    return tuple(result)


def curve(name: str, pipe: PipelineModel, planned: PredictedSetting) -> LatencyCurve:
    """Return the predicted p99 over the rates that a setting can sustain."""
    turned = pipe.with_setting(planned.setting)
    rates = [share * planned.capacity for share in SHARES]
    return LatencyCurve(
        name,
        planned.setting,
        tuple((rate, simulate(turned, poisson(rate, 8_000)).p99) for rate in rates),
    )
