"""Tune a pipeline with bounded queues, priorities and a response cache on a real Triton.

Effects of these limits and of the cache do not count against a setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import yaml

from tests.support.operators import eventually
from tests.support.serving import ROOT, sample_sources
from triton_pipelines.api.tuning import TuningMode
from triton_pipelines.cli.local_pipeline import LocalPipeline, serve_locally
from triton_pipelines.tools.loadgen import LoadSpec, TextLengths
from triton_pipelines.tools.tuner import (
    BatchingSetting,
    TuningOptions,
    TuningTarget,
    effort,
    profile_loads,
    profiling,
    tune,
)
from triton_pipelines.tools.tuner.load_measurement import measurement_of
from triton_pipelines.tools.tuner.measured_server import MeasuredServer
from triton_pipelines.tools.tuner.workload import workload
from triton_pipelines.triton.client import TritonClient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
SETTINGS = TuningOptions(slo_ms=200, lengths=TextLengths(32, 0.3, 64), cores=1.0)
WAITING = 6


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPipeline]:
    """Run the benchmark's step with a short queue, a queue timeout, priorities and the cache.

    There are two priorities, and requests have the lower one.
    """
    document = yaml.safe_load((ROOT / "bench" / "gpu-step.yaml").read_text())
    document["spec"]["ensemble"] = {"responseCache": "Enabled", "maxBatchSize": 4}
    document["spec"]["model"] |= {
        "maxBatchSize": 4,
        "dynamicBatching": {
            "priorityLevels": 2,
            "defaultPriorityLevel": 2,
            "queuePolicy": {"maxQueueSize": 1},
            "priorityQueuePolicies": [
                {"priority": 2, "maxQueueSize": WAITING, "defaultTimeoutMicroseconds": 150_000}
            ],
        },
    }
    file = tmp_path_factory.mktemp("limited") / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document))
    with serve_locally(
        file, [rule.removeprefix("--source-map=") for rule in sample_sources()]
    ) as served:
        yield served


def target_of(running: LocalPipeline) -> TuningTarget:
    """The server as a run has it."""
    return TuningTarget(running.server.grpc_address, running.rebuild, url=running.server.http_url)


async def test_a_setting_is_measured_without_the_cache_and_with_the_queue(
    running: LocalPipeline,
) -> None:
    async with TritonClient(running.server.grpc_address) as client:

        async def executions() -> int:
            return sum(one.execution_count for one in await client.statistics("model"))

        async with MeasuredServer(target_of(running), running.pipeline, running.graph) as server:
            work = await workload(server.client, running.pipeline, running.graph, SETTINGS)
            await server.apply(BatchingSetting(8, 0, 1, 1))
            config = await client.model_config("model")
            assert config.dynamic_batching.priority_queue_policy[2].max_queue_size == WAITING
            before = await executions()
            for _ in range(3):
                await server.infer_each(work.requests[:1])

            async def computed() -> bool:
                return await executions() == before + 3

            await eventually(
                "each request is computed, which Triton counts after its answer", computed
            )
            # Far more than the step carries: most are turned away at once, and none of these is a
            # fault.
            found = measurement_of(
                await server.run(work.requests, LoadSpec(rate=3000, duration_s=0.8, warmup_s=0.2))
            )
            assert found.late > 100
            assert found.faults == 0, found.first_error
            assert server.failed == 0
        public = running.graph.model_name
        assert (await client.model_config(public)).response_cache.enable
        before = await executions()
        for _ in range(3):
            await client.infer(public, work.requests[0])
        assert await executions() <= before + 1, "the cache is back"


async def test_a_whole_run_has_no_failed_request(
    running: LocalPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shorter than a user's: fewer points, and as little of everything as there can be."""
    usual = effort.EFFORTS[TuningMode.QUICK]
    for module, spent in (
        (profiling, "CELL_SECONDS"),
        (profile_loads, "BURSTS_SECONDS"),
        (profiling, "CROWD_SECONDS"),
    ):
        monkeypatch.setattr(module, spent, getattr(module, spent) / 3)
    monkeypatch.setitem(
        effort.EFFORTS,
        TuningMode.QUICK,
        replace(usual, seconds=1.0, calibration=1.0, warmup=0.3, points=2),
    )
    found = await tune(target_of(running), running.pipeline, running.graph, SETTINGS)
    assert found.failed_requests == 0, found.notes
    assert len(found.points) >= 2
    assert all(point.carried > 0 for point in found.points)
    assert any("the response cache is disabled" in note for note in found.notes)
    async with TritonClient(running.server.grpc_address) as client:
        config = await client.model_config("model")
        assert config.max_batch_size == 4
        assert (
            config.dynamic_batching.priority_queue_policy[2].default_timeout_microseconds == 150_000
        )
        assert (await client.model_config(running.graph.model_name)).response_cache.enable
