"""Notes on a decision are reported when new; no status is written if only digits changed."""

from __future__ import annotations

import pytest

from tests.support import builders
from tests.support.flows import Flow, history
from tests.support.loops import Loop, loop_of
from tests.support.worlds import World
from triton_pipelines.autoscaling.metrics.samples import ExpectedPods, PipelineSample, PodUsage

FLOWS = {"tokenizer": Flow(50.0), "model": Flow(50.0, service=0.0005)}


def says(loop: Loop, gpu: float) -> None:
    """The same load as ever, and what the GPU says of itself."""

    def found(one: ExpectedPods) -> PipelineSample:
        seen = history(FLOWS, now=loop.now, usage=PodUsage(loop.now, gpu=gpu))
        return PipelineSample(dict.fromkeys(one.pods, seen), 5.0, "test")

    loop.collector.says = found


async def message_after(loop: Loop, gpu: float, seconds: float = 150.0) -> str:
    """The condition's message after so long."""
    for _ in range(int(seconds / 2)):
        says(loop, gpu)
        await loop.tick(2.0)
        await loop.settle()
    return str(loop.world.condition("ScalingActive")["message"])


async def test_a_gpu_that_disagrees_is_news_and_its_digits_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(
        builders.document(tokenizer={"instances": {"initial": 1, "min": 1, "max": 8}}), rendered={}
    ).started()
    loop = loop_of(monkeypatch, world)
    calm = await message_after(loop, 0.5)
    assert "GPU" not in calm
    busy = await message_after(loop, 0.97)
    assert "the GPU is at least 90% utilized, but step 'model' is less than" in busy
    assert await message_after(loop, 0.95) == busy, "no status is written for two percent"
    assert "GPU" not in await message_after(loop, 0.5), "what is over is not told any longer"
