"""Samples of pipelines with different metrics connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support import builders
from triton_pipelines.autoscaling.metrics.samples import (
    ExpectedPods,
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
)
from triton_pipelines.cluster.store import Key
from triton_pipelines.controllers.autoscaler.pipeline_state import PipelineScalingState
from triton_pipelines.controllers.autoscaler.sample_collection import (
    PATIENCE_SECONDS,
    SampleCollection,
)

FAST, SLOW = ("nlp", "fast"), ("nlp", "slow")
Result = PipelineSample | MetricsFailure


class Connection:
    """A connection that returns a new sample for each pipeline, once it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def permits(self, namespace: str) -> bool:
        return True

    async def collect(self, expected: Mapping[Key, ExpectedPods]) -> Mapping[Key, Result]:
        self.asked += 1
        await self.may_answer.wait()
        return {
            key: MetricsFailure(MetricsProblem.ERROR, f"response {self.asked}") for key in expected
        }


def state(connection: str) -> PipelineScalingState:
    made = builders.built(
        scaling={"prometheusRef": connection},
        tokenizer={"instances": {"initial": 1, "min": 1, "max": 2}},
    )
    return PipelineScalingState(made.pipeline, made.graph, 0.0)


async def report(key: Key, error: BaseException) -> None:
    raise AssertionError(key) from error


@pytest.mark.looptime(start=0)
async def test_a_connection_that_hangs_delays_no_pipeline_of_another() -> None:
    fast, slow, collection = Connection(), Connection(), SampleCollection()
    states: dict[Key, Any] = {FAST: state("fast"), SLOW: state("slow")}
    connections: Any = {"": Connection(), "fast": fast, "slow": slow}

    async def messages() -> tuple[str, str]:
        found = await collection.collect(states, connections, report)
        fast_sample, slow_sample = found[FAST], found[SLOW]
        assert isinstance(fast_sample, MetricsFailure)
        assert isinstance(slow_sample, MetricsFailure)
        return fast_sample.message, slow_sample.message

    slow.may_answer.clear()
    pending = (await messages())[1]
    assert "not responded" in pending
    assert await messages() == ("response 2", pending)
    assert slow.asked == 1, "it is not asked again meanwhile"
    slow.may_answer.set()
    assert await messages() == ("response 3", "response 1")
    slow.may_answer.clear()
    assert await messages() == ("response 4", "response 1"), "the last samples are used"
    assert asyncio.get_running_loop().time() == pytest.approx(3 * PATIENCE_SECONDS)
    states.pop(SLOW)
    await collection.collect(states, connections, report)
    assert collection._samples["slow"] == {}
    collection.cancel()
