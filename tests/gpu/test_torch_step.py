"""A PyTorch step in a real Triton on the GPU.

Its answers are right for every batch, including batches of several requests, under a load that
keeps the GPU measurably busy.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import numpy as np
import pytest

from tests.gpu import encoder, figures, nvml
from tests.gpu.conftest import Served
from tests.gpu.serving import MODEL, PIPELINE
from tests.support.python_backend import texts
from triton_pipelines.triton.client import TritonClient

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
TOLERANCE = 1e-4
TEXTS = encoder.sentences(64)


async def check(client: TritonClient, served: Served, rows: list[str]) -> None:
    answer = await client.infer(PIPELINE, {"TEXT": texts(*rows)})
    np.testing.assert_allclose(
        answer["logits"], served.reference.logits(rows), rtol=0, atol=TOLERANCE
    )


def test_the_texts_have_answers_that_differ(served: Served) -> None:
    """Otherwise the right answer to another text would pass."""
    logits = served.reference.logits(TEXTS)
    distances = np.abs(logits[:, None] - logits[None]).max(axis=2) + np.eye(len(TEXTS))
    assert distances.min() > 10 * TOLERANCE


async def test_the_step_runs_where_it_should(served: Served) -> None:
    async with TritonClient(served.triton.grpc_address) as client:
        config = await client.model_config(MODEL)
    (group,) = config.instance_group
    assert group.kind == (group.KIND_GPU if served.plan.gpu else group.KIND_CPU)
    where = f"on cuda:0: {served.plan.gpu.name}" if served.plan.gpu else "on cpu: CPU"
    assert where in served.triton.log()


@pytest.mark.parametrize("rows", [1, 2, 64])
async def test_batches_of_every_size(served: Served, rows: int) -> None:
    async with TritonClient(served.triton.grpc_address, deadline_s=60) as client:
        await check(client, served, TEXTS[-rows:])


async def test_32_clients_with_mixed_lengths_and_batches(served: Served) -> None:
    served.reference.logits(TEXTS)  # computed before, so that the clients are not slowed down

    async def ask(number: int) -> None:
        random = np.random.default_rng(number)
        async with TritonClient(served.triton.grpc_address, deadline_s=60) as client:
            for _ in range(8):
                await check(
                    client,
                    served,
                    list(random.choice(TEXTS, size=int(random.choice([1, 1, 2, 3, 8])))),
                )

    async with TritonClient(served.triton.grpc_address) as client:
        (before,) = await client.statistics(MODEL)
        await asyncio.gather(*(ask(number) for number in range(32)))
        (after,) = await client.statistics(MODEL)
    # A batch must hold rows of several requests; otherwise the test shows nothing about batching.
    requests = after.inference_stats.success.count - before.inference_stats.success.count
    assert requests == 32 * 8
    assert after.execution_count - before.execution_count < requests


@dataclass(frozen=True)
class Loaded:
    """What was seen before and under load; the GPU's side is None in a rehearsal."""

    load: figures.Load
    idle: nvml.Sampler | None = None
    busy: nvml.Sampler | None = None
    metrics: dict[str, float] | str | None = None


@pytest.fixture(scope="module")
def loaded(served: Served) -> Loaded:
    plan, gpu = served.plan, served.plan.gpu
    order = np.random.default_rng(1).permutation(len(TEXTS)).reshape(-1, plan.rows_per_request)
    requests = [[TEXTS[index] for index in request] for request in order]

    def drive() -> figures.Load:
        load = asyncio.run(
            figures.closed_loop(
                served.triton.grpc_address, requests, plan.clients, plan.windows, plan.window_s
            )
        )
        served.measured["load"] = load.summary()
        return load

    if gpu is None:
        return Loaded(drive())
    with nvml.Sampler(gpu.handle) as earlier:
        earlier.collect(10)  # NVML averages over up to 1 s: the tests before still count in here
    with nvml.Sampler(gpu.handle) as idle:
        idle.collect(10)
    with nvml.Sampler(gpu.handle) as busy:
        load = drive()
        metrics = figures.gpu_metrics(
            figures.scrape(served.triton.metrics_url), gpu.uuid, served.triton.log()
        )
    served.measured |= {
        "nvml": {"idle": idle.summary(), "load": busy.summary()},
        "triton_gpu_metrics": metrics,
    }
    return Loaded(load, idle, busy, metrics)


def test_load_is_answered_in_every_window(loaded: Loaded) -> None:
    assert all(loaded.load.windows)
    assert loaded.load.mean_rows > 0


def test_nvml_shows_real_utilisation_under_load(
    served: Served, loaded: Loaded, gpu: nvml.Gpu
) -> None:
    assert loaded.idle is not None
    assert loaded.busy is not None
    idle, busy = loaded.idle.summary(), loaded.busy.summary()
    assert busy["mean_percent"] > idle["mean_percent"], (
        f"{gpu.name}: is something else at work on it?"
    )
    # At least the weights came into the GPU's memory with the server.
    size = sum(array.nbytes for array in encoder.weights(served.plan.shape).values()) >> 20
    assert busy["memory_mib"] - served.memory_before_mib > size


def test_tritons_gpu_metrics_tell_the_truth_or_are_unavailable(
    served: Served, loaded: Loaded, gpu: nvml.Gpu
) -> None:
    if loaded.metrics == figures.GPU_METRICS_UNAVAILABLE:
        assert re.search(f"DCGM|GPU metrics|{figures.UNREADABLE}", served.triton.log()), (
            "no GPU metrics, and Triton's log does not say why"
        )
        return
    assert isinstance(loaded.metrics, dict)
    assert 0 < loaded.metrics["nv_gpu_utilization"] <= 1
    assert loaded.metrics["nv_gpu_memory_total_bytes"] == pytest.approx(
        gpu.memory_mib << 20, rel=0.05
    )


async def test_step_times(served: Served) -> None:
    plan = served.plan
    points = await figures.step_times(served.triton.grpc_address, plan.rows, plan.tokens)
    served.measured["step_times"] = points
    by_shape = {(point["rows"], point["tokens"]): point["ms"] for point in points}
    assert all(ms > 0 for ms in by_shape.values())
    # More work takes longer: the smallest against the largest.
    assert by_shape[plan.rows[0], plan.tokens[0]] < by_shape[plan.rows[-1], plan.tokens[-1]]
