"""Custom batching libraries: their limit shows in the batches that are formed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from tests.support.recorder import Asker, Workbench, compiled, tensor, until
from triton_pipelines.triton.errors import TritonError

pytestmark = pytest.mark.integration
LIMIT = 3
# Longer than any test.
NEVER_US = 3_600_000_000
PARAMETER = "TRITON_BATCH_STRATEGY_PATH"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The library, compiled."""
    return compiled(
        Path(__file__).with_name("batchstrategy.c"),
        tmp_path_factory.mktemp("strategy"),
        f"-DLIMIT={LIMIT}",
    )


@pytest.mark.proves("spec.model.batchStrategy.path", "behaviour")
@pytest.mark.parametrize(
    ("name", "place", "named"),
    [
        ("none", None, False),
        ("by_default_name", "batchstrategy.so", False),
        ("in_the_version", "1/batchstrategy.so", False),
        ("by_path", "libraries/own.so", True),
        ("unnamed", "libraries/own.so", False),
    ],
)
async def test_the_limit_shows_in_the_batches(
    triton: Workbench, client: Asker, library: bytes, name: str, place: str | None, named: bool
) -> None:
    """A batch waits for its eighth request.

    The library admits three, and the fourth sends them off.
    """
    model_name = f"strategy_{name}"
    parameters = {PARAMETER: str(triton.repository / model_name / str(place))} if named else {}
    files = {} if place is None else {place: library}
    scheduling = f"dynamic_batching {{ max_queue_delay_microseconds: {NEVER_US} }}"
    # Only where shapes may differ does every request wake the batcher; else it sleeps until a whole
    # batch is there.
    tensors = {"inputs": tensor("X", dims="-1"), "outputs": tensor("Y", dims="-1")}
    model = await triton.deploy(
        model_name, scheduling, files=files, parameters=parameters, **tensors
    )
    tasks = []
    for value in range(1, 8):
        tasks.append(client.ask(model, value))

        async def arrived(count: int = value) -> bool:
            return await model.pending() + len(model.order()) == count

        await until(arrived, f"request {value} arrives")
    limited = place is not None and (named or place.endswith("batchstrategy.so"))
    expected = [[1, 2, 3], [4, 5, 6], [7]] if limited else [list(range(1, 8))]
    await until(lambda: model.batches() == expected[:-1], f"the batches {expected[:-1]}")
    # Eight rows are a batch by themselves: what waits before them goes.
    full = np.arange(100, 108, dtype=np.int32).reshape(8, 1)
    await asyncio.gather(*tasks, client.ask(model, inputs={"X": full}))
    assert model.batches() == [*expected, full.ravel().tolist()]


async def test_without_a_delay_a_library_cannot_limit_a_batch(
    triton: Workbench, client: Asker, library: bytes
) -> None:
    """Triton 24.10 counts a request that joins a waiting batch separately.

    A request that joins a batch that only waits for its instance gets a separate account, so that
    every request is the first.
    """
    model = await triton.deploy(
        "strategy_undelayed", "dynamic_batching { }", files={"batchstrategy.so": library}
    )
    model.hold(0)
    first = client.ask(model, 0)
    await model.until_executing(0)
    others = await client.line_up(model, *range(1, LIMIT + 3))
    model.release(0)
    await asyncio.gather(first, *others)
    assert max(map(len, model.batches())) > LIMIT


@pytest.mark.parametrize(
    ("name", "path", "scheduling", "reason"),
    [
        ("absent", "absent.so", "dynamic_batching { }", "path not found"),
        ("with_sequences", "batchstrategy.so", "sequence_batching { }", "cannot be specified"),
    ],
)
async def test_what_triton_refuses(
    triton: Workbench, library: bytes, name: str, path: str, scheduling: str, reason: str
) -> None:
    model_name = f"strategy_{name}"
    parameters = {PARAMETER: str(triton.repository / model_name / path)}
    with pytest.raises(TritonError, match=reason):
        await triton.deploy(
            model_name, scheduling, files={"batchstrategy.so": library}, parameters=parameters
        )
