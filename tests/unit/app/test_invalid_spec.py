"""A spec that nobody can act on makes passes due when something changes, and not at every tick."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import builders
from tests.support.flows import Flow, history
from tests.support.loops import Loop, loop_of
from tests.support.worlds import World
from triton_pipelines.autoscaling.metrics.samples import ExpectedPods, PipelineSample, PodUsage

SPEC: dict[str, Any] = {
    "scaling": {"pods": {"min": 1, "max": 4}, "scaleUp": {"cooldownSeconds": 2}}
}
TICKS = 36
TICK_SECONDS = 5.0


async def busy(loop: Loop, ticks: int) -> None:
    """So long under a load for whose GPU step more pods are wanted."""
    for _ in range(ticks):

        def says(one: ExpectedPods) -> PipelineSample:
            flows = {
                "tokenizer": Flow(50.0, service=0.001),
                "model": Flow(50.0, service=0.0195, pending=80.0),
            }
            usage = PodUsage(loop.now, cpu_cores=0.3, throttled=0.0)
            return PipelineSample(
                {pod: history(flows, now=loop.now, usage=usage) for pod in one.pods}, 5.0, "test"
            )

        loop.collector.says = says
        await loop.tick(TICK_SECONDS)


# The first is refused by the resource's own parser, the second by what checks the whole pipeline.
@pytest.mark.parametrize(
    "broken",
    [{"model": {"maxBatchSize": -1}}, {"postprocess": {"labels": ["a", "b", "c"]}}],
    ids=["field", "graph"],
)
async def test_an_invalid_spec_makes_no_passes_due_at_every_tick(
    monkeypatch: pytest.MonkeyPatch, broken: dict[str, Any]
) -> None:
    """Live scaling wants more pods, which no pass can record."""
    loop = loop_of(monkeypatch, World(builders.document(**SPEC), rendered={}).started())
    await busy(loop, 1)
    loop.world.change(**broken)
    loop.reconcile()
    assert loop.world.condition("Ready")["reason"] == "InvalidSpec"
    loop.dues.clear()
    await busy(loop, TICKS)
    assert wanted(loop) > 1, "or nothing was to be recorded"
    minutes = TICKS * TICK_SECONDS / 60
    assert len(loop.dues) <= wanted(loop) + minutes, (
        "one for each number that it came to want, and one a minute for what it says"
    )


def wanted(loop: Loop) -> int:
    intent = loop.scaler.handover.intent(loop.key)
    assert intent is not None
    assert intent.pods is not None
    return intent.pods
