"""A step whose queue is full sheds load at once, also through the ensemble.

It answers what it has accepted.
"""

from __future__ import annotations

import asyncio

import pytest
from tritonclient.utils import InferenceServerException

from tests.support.recorder import Asker, Model, Workbench

pytestmark = pytest.mark.integration
LIMIT, BATCH, FACTOR = 8, 4, 3
SCHEDULING = (
    'ensemble_scheduling {{ step {{ model_name: "{first}" model_version: -1 input_map {{ key: '
    '"X" value: "X" }} output_map {{ key: "Y" value: "B" }} }}'
    ' step {{ model_name: "{second}" model_version: -1 input_map {{ key: "X" value: "B" }} '
    'output_map {{ key: "Y" value: "Y" }} }} }}'
)


async def deploy(triton: Workbench, name: str, policy: str) -> tuple[Model, Model]:
    """A quick step before a slow one with that queue policy, and the ensemble ``name`` of both.

    Requests with priority 1 have no limits; all others have those of the policy.
    """
    first = await triton.deploy(f"{name}_first", "dynamic_batching { }")
    second = await triton.deploy(
        f"{name}_second",
        "dynamic_batching { priority_levels: 2 default_priority_level: 2 "
        "priority_queue_policy { key: 1 value { } }"
        f" default_queue_policy {{ {policy} }} }}",
        max_batch_size=BATCH,
    )
    scheduling = SCHEDULING.format(first=first.name, second=second.name)
    await triton.deploy(name, scheduling, max_batch_size=BATCH, platform='platform: "ensemble"')
    return first, second


async def outcomes(tasks: list[asyncio.Task[object]]) -> tuple[list[object], list[str]]:
    """Answers and messages of all."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    messages = [
        str(result.message()) for result in results if isinstance(result, InferenceServerException)
    ]
    return [result for result in results if isinstance(result, dict)], messages


async def test_a_full_queue_sheds_at_once_and_answers_what_it_took(
    triton: Workbench, client: Asker
) -> None:
    first, second = await deploy(triton, "shedding", f"max_queue_size: {LIMIT}")
    second.hold(1)  # the value 0 of the client, after the first step
    busy = client.ask("shedding", 0)
    await second.until_executing(1)
    tasks = [client.ask("shedding", value) for value in range(10, 10 + FACTOR * LIMIT)]
    refused: set[asyncio.Task[object]] = set()
    # Nothing is executed meanwhile: requests are refused at once, not when they time out.
    while len(refused) < (FACTOR - 1) * LIMIT:
        done, _ = await asyncio.wait(
            set(tasks) - refused, timeout=20, return_when=asyncio.FIRST_COMPLETED
        )
        assert done, f"only {len(refused)} of {len(tasks)} were refused"
        refused |= done
    assert not busy.done()
    second.release(1)
    answers, messages = await outcomes([busy, *tasks])
    assert len(answers) + len(messages) == len(tasks) + 1
    # One batch may have left the queue for the instance before it was full.
    assert 1 + LIMIT <= len(answers) <= 1 + LIMIT + BATCH
    assert all(
        "in ensemble 'shedding'" in text and "Exceeds maximum queue size" in text
        for text in messages
    )
    assert sum(map(len, first.batches())) == len(tasks) + 1
    assert (await client.ask("shedding", 99))["Y"] == [[101]]  # and it serves on


async def test_an_expired_request_is_not_computed(triton: Workbench, client: Asker) -> None:
    """Limit the time in the queue instead of its length.

    This is right at every speed of the step, but it refuses late.
    """
    _, second = await deploy(
        triton, "expiring", "timeout_action: REJECT default_timeout_microseconds: 1000"
    )
    second.hold(1)
    # This one has no time limit: it would expire as well while the instance is not yet asked.
    busy = client.ask(second, 1, priority=1)
    await second.until_executing(1)
    tasks = [client.ask("expiring", value) for value in (10, 11, 12)]
    _, messages = await outcomes(tasks) if await shed(tasks) else ([], [])
    second.release(1)
    assert (await busy)["Y"] == [[2]]
    assert len(messages) == len(tasks)
    assert all(
        "in ensemble 'expiring'" in text and "Request timeout expired" in text for text in messages
    )
    assert second.order() == [1]


async def shed(tasks: list[asyncio.Task[object]]) -> bool:
    """Whether all ended while the step was busy."""
    done, _ = await asyncio.wait(tasks, timeout=30)
    return len(done) == len(tasks)
