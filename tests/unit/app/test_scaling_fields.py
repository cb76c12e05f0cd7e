"""Effect of each field of spec.scaling: the same load, two values, two outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import builders
from tests.support.flows import Flow, history
from tests.support.loops import Loop, loop_of
from tests.support.worlds import World
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    MetricsProblem,
    ModelCounters,
    PipelineSample,
    PodHistory,
    Scrape,
)

E = 0.010
"""Seconds of one instance per request."""
FREE: dict[str, Any] = {"server": {"resources": {"limits": {"cpu": "64"}}}}
"""CPU that bounds nothing."""
RENDERED: dict[str, Any] = {}


async def made(
    monkeypatch: pytest.MonkeyPatch, count: int = 1, *, initial: int = 1, **scaling: Any
) -> Loop:
    """A pipeline whose pod runs ``count`` tokenizers, and has been looked at."""
    spec = builders.merge(
        FREE,
        {"tokenizer": {"instances": {"initial": initial, "min": 1, "max": 20}}, "scaling": scaling},
    )
    world = World(builders.document(**spec), rendered=RENDERED).started()
    live = world.children["ConfigMap", f"{world.name}-live"]["data"]
    live["counts.json"] = f'{{"tokenizer": {count}}}'
    loop = loop_of(monkeypatch, world)
    loop.tritons.counts = {pod.name: count for pod in world.pods}
    return loop


async def under(loop: Loop, rate: float, seconds: float = 6.0, **fields: float) -> int:
    """The count after so long under a load."""
    for _ in range(int(seconds / 2)):
        loop.flow(rate, service=E, **fields)
        await loop.tick(2.0)
        await loop.settle()
    return loop.counts["tokenizer"]


@pytest.mark.proves("spec.scaling.targetUtilizationPercent", "behaviour")
async def test_the_target_is_the_share_of_instances_that_is_aimed_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    low = await under(await made(monkeypatch, 8, targetUtilizationPercent=40), 780.0)
    high = await under(await made(monkeypatch, 8, targetUtilizationPercent=90), 780.0)
    assert low > high >= 8


@pytest.mark.proves("spec.scaling.scaleUpThresholdPercent", "behaviour")
@pytest.mark.parametrize(("threshold", "grows"), [(70, True), (95, False)])
async def test_below_the_threshold_nothing_grows(
    monkeypatch: pytest.MonkeyPatch, threshold: int, grows: bool
) -> None:
    loop = await made(
        monkeypatch, 4, targetUtilizationPercent=60, scaleUpThresholdPercent=threshold
    )
    assert (await under(loop, 330.0) > 4) == grows


@pytest.mark.proves("spec.scaling.backlogDrainSeconds", "behaviour")
async def test_a_backlog_that_may_last_needs_fewer_instances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soon = await under(
        await made(monkeypatch, 2, backlogDrainSeconds=1), 200.0, pending=300.0, growth=1.0
    )
    late = await under(
        await made(monkeypatch, 2, backlogDrainSeconds=600), 200.0, pending=300.0, growth=1.0
    )
    assert soon > late


@pytest.mark.proves("spec.scaling.scaleUp.cooldownSeconds", "behaviour")
@pytest.mark.parametrize(("cooldown", "again"), [(2, True), (600, False)])
async def test_a_growth_is_followed_by_a_pause(
    monkeypatch: pytest.MonkeyPatch, cooldown: int, again: bool
) -> None:
    loop = await made(monkeypatch, 2, scaleUp={"cooldownSeconds": cooldown})
    first = await under(loop, 195.0, pending=20.0, growth=2.0, seconds=2)
    assert first > 2
    assert (await under(loop, 98.0 * first, pending=50.0, growth=5.0, seconds=30) > first) == again


@pytest.mark.proves("spec.scaling.scaleDown.stabilizationSeconds", "behaviour")
@pytest.mark.parametrize(("seconds", "shrinks"), [(10, True), (3600, False)])
async def test_a_count_falls_to_what_sufficed_all_the_time(
    monkeypatch: pytest.MonkeyPatch, seconds: int, shrinks: bool
) -> None:
    loop = await made(monkeypatch, 8, scaleDown={"stabilizationSeconds": seconds})
    assert (await under(loop, 50.0, seconds=60) < 8) == shrinks


@pytest.mark.proves("spec.scaling.scaleDown.maxStepPercent", "behaviour")
@pytest.mark.parametrize(("percent", "fallen"), [(10, 9), (50, 5)])
async def test_one_step_down_takes_a_share_at_most(
    monkeypatch: pytest.MonkeyPatch, percent: int, fallen: int
) -> None:
    loop = await made(
        monkeypatch, 10, scaleDown={"stabilizationSeconds": 10, "maxStepPercent": percent}
    )
    for _ in range(60):
        if await under(loop, 50.0, seconds=2) < 10:
            break
    assert loop.counts["tokenizer"] == fallen


@pytest.mark.proves("spec.scaling.maxDirectionChangesPerHour", "behaviour")
@pytest.mark.parametrize(("most", "falls"), [(1, 1), (120, 3)])
async def test_after_so_many_turns_counts_only_grow(
    monkeypatch: pytest.MonkeyPatch, most: int, falls: int
) -> None:
    changes = {
        "scaleDown": {"stabilizationSeconds": 10, "maxStepPercent": 100},
        "scaleUp": {"cooldownSeconds": 2},
    }
    loop = await made(monkeypatch, 2, maxDirectionChangesPerHour=most, **changes)
    seen = 0
    for _ in range(4):
        high = await under(loop, 195.0, pending=20.0, growth=2.0, seconds=20)
        seen += await under(loop, 50.0, seconds=60) < high
    assert seen <= falls if most == 1 else seen >= falls


@pytest.mark.proves("spec.scaling.fallback", "behaviour")
@pytest.mark.proves("spec.scaling.staleAfterSeconds", "behaviour")
@pytest.mark.parametrize(
    ("fallback", "stale", "count"),
    [("Initial", 20, 6), ("Initial", 3600, 2), ("Hold", 20, 2), ("RecentMax", 20, 2)],
)
async def test_without_metrics_counts_rise_to_what_was_enough(
    monkeypatch: pytest.MonkeyPatch, fallback: str, stale: int, count: int
) -> None:
    loop = await made(monkeypatch, 2, initial=6, fallback=fallback, staleAfterSeconds=stale)
    assert await under(loop, 150.0) == 2
    loop.collector.says = MetricsFailure(MetricsProblem.ERROR, "no Prometheus")
    for _ in range(60):
        await loop.tick(2.0)
        await loop.settle()
    assert loop.counts["tokenizer"] == count


@pytest.mark.proves("spec.scaling.fallback", "behaviour")
async def test_the_highest_count_of_late_comes_back_without_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = {"scaleDown": {"stabilizationSeconds": 10, "maxStepPercent": 100}}
    loop = await made(monkeypatch, 5, fallback="RecentMax", staleAfterSeconds=20, **quick)
    await under(loop, 450.0)
    assert await under(loop, 50.0, seconds=90) < 5
    loop.collector.says = MetricsFailure(MetricsProblem.ERROR, "no Prometheus")
    for _ in range(60):
        await loop.tick(2.0)
        await loop.settle()
    assert loop.counts["tokenizer"] >= 5


@pytest.mark.proves("spec.scaling.windows.fastSeconds", "behaviour")
@pytest.mark.parametrize(("fast", "grows"), [(10, True), (60, False)])
async def test_growth_looks_at_the_fast_window(
    monkeypatch: pytest.MonkeyPatch, fast: int, grows: bool
) -> None:
    """Ten seconds of twice the load after a calm minute."""
    loop = await made(monkeypatch, 4, windows={"fastSeconds": fast, "slowSeconds": 60})
    await seen(loop, calm=100.0, now=390.0, since=10.0)
    assert (loop.counts["tokenizer"] > 4) == grows


@pytest.mark.proves("spec.scaling.windows.fastSeconds", "behaviour")
@pytest.mark.parametrize(
    ("connection", "windows", "grows"),
    [("", {}, True), ("default", {}, False), ("", {"fastSeconds": 12}, False)],
)
async def test_without_prometheus_growth_looks_at_fewer_seconds(
    monkeypatch: pytest.MonkeyPatch, connection: str, windows: dict[str, int], grows: bool
) -> None:
    """Six seconds of a higher load: the mean of 12 s has not seen enough of it yet."""
    loop = await made(monkeypatch, 4, windows=windows, prometheusRef="default")
    loop.scaler.collectors = {"": loop.collector, connection: loop.collector}
    await seen(loop, calm=250.0, now=360.0, since=6.0, interval=2.0)
    assert (loop.counts["tokenizer"] > 4) == grows


@pytest.mark.proves("spec.scaling.windows.slowSeconds", "behaviour")
async def test_the_slow_window_is_how_far_back_samples_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = await made(monkeypatch, 4, windows={"slowSeconds": 300})
    await under(loop, 100.0, seconds=2)
    (one,) = loop.collector.asked[-1].values()
    assert one.slow == 300


async def seen(loop: Loop, *, calm: float, now: float, since: float, interval: float = 5.0) -> None:
    """One tick: requests came at rate ``calm``, and for ``since`` seconds at rate ``now``."""

    def says(one: ExpectedPods) -> PipelineSample:
        before = history(
            {"tokenizer": Flow(calm, service=E), "model": Flow(calm, service=0.0005)},
            now=loop.now - since,
        )
        last, more = before.scrapes[-1], []
        for age in (since / 2, 0.0):
            added = now * (since - age)
            models = {
                name: grown(counters, added, E if name == "tokenizer" else 0.0005)
                for name, counters in last.models.items()
            }
            more.append(Scrape(loop.now - age, models))
        return PipelineSample(
            {pod: PodHistory((*before.scrapes, *more)) for pod in one.pods}, interval, "test"
        )

    loop.collector.says = says
    await loop.tick(2.0)
    await loop.settle()


def grown(counters: ModelCounters, done: float, service: float) -> ModelCounters:
    """Counters after so many more requests."""
    return ModelCounters(
        success=counters.success + done,
        execs=counters.execs + done,
        compute_infer_us=counters.compute_infer_us + done * service * 1e6,
    )
