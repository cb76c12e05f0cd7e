"""Priorities and queue policies: serving order, refused requests and timeouts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from tritonclient.utils import InferenceServerException

from tests.support.recorder import Asker, Model, Workbench, until

pytestmark = pytest.mark.integration
TIMEOUT_US = 1_000
NEVER_US = 3_600_000_000
FULL, LATE = "Exceeds maximum queue size", "Request timeout expired"


async def busy(client: Asker, model: Model, **options: int) -> asyncio.Task[object]:
    """A request that keeps the only instance until 0 is released."""
    model.hold(0)
    task = client.ask(model, 0, **options)
    await model.until_executing(0)
    return task


async def refusals(tasks: Sequence[asyncio.Task[object]]) -> list[str]:
    """Messages of the tasks that failed, all being done."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, (dict, InferenceServerException)) for result in results), results
    return [
        str(result.message()).removeprefix("[request id: <id_unknown>] ")
        for result in results
        if isinstance(result, InferenceServerException)
    ]


@pytest.mark.proves("spec.model.dynamicBatching.priorityLevels", "behaviour")
@pytest.mark.proves("spec.model.dynamicBatching.defaultPriorityLevel", "behaviour")
@pytest.mark.parametrize(
    ("default", "expected"), [(1, [0, 3, 20, 21, 10, 11]), (3, [0, 20, 21, 10, 11, 3])]
)
async def test_priorities_and_their_default(
    triton: Workbench, client: Asker, default: int, expected: list[int]
) -> None:
    """1 is served first; a request without a priority has the default one."""
    scheduling = f"dynamic_batching {{ priority_levels: 3 default_priority_level: {default} }}"
    model = await triton.deploy(f"priorities_{default}", scheduling, max_batch_size=1)
    tasks = [await busy(client, model)]
    tasks += await client.line_up(model, 3)
    tasks += await client.line_up(model, 10, 11, priority=2)
    tasks += await client.line_up(model, 20, 21, priority=1)
    model.release(0)
    await asyncio.gather(*tasks)
    assert model.order() == expected


@pytest.mark.proves("spec.model.dynamicBatching.queuePolicy.maxQueueSize", "behaviour")
async def test_a_full_queue_refuses_the_next(triton: Workbench, client: Asker) -> None:
    model = await triton.deploy(
        "bounded",
        "dynamic_batching { default_queue_policy { max_queue_size: 2 } }",
        max_batch_size=1,
    )
    accepted = [await busy(client, model), *await client.line_up(model, 1, 2)]
    refused = [client.ask(model, value) for value in (3, 4, 5)]
    assert await refusals(refused) == [FULL] * 3
    model.release(0)
    assert await refusals(accepted) == []
    assert model.order() == [0, 1, 2]


@pytest.mark.proves("spec.model.dynamicBatching.priorityQueuePolicies[].priority", "behaviour")
@pytest.mark.proves("spec.model.dynamicBatching.priorityQueuePolicies[].maxQueueSize", "behaviour")
async def test_a_full_queue_of_one_priority_refuses_that_one_alone(
    triton: Workbench, client: Asker
) -> None:
    scheduling = (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { "
        "key: 2 value { max_queue_size: 1 } } }"
    )
    model = await triton.deploy("bounded_second", scheduling, max_batch_size=1)
    accepted = [await busy(client, model), *await client.line_up(model, 10, priority=2)]
    refused = [client.ask(model, value, priority=2) for value in (11, 12)]
    assert await refusals(refused) == [FULL] * 2
    accepted += await client.line_up(model, 1, 2, 3, 4)
    model.release(0)
    assert await refusals(accepted) == []
    assert model.order() == [0, 1, 2, 3, 4, 10]


async def test_a_priority_has_a_policy_of_its_own_beside_the_default_one(
    triton: Workbench, client: Asker
) -> None:
    """The default policy holds for the level that has none."""
    scheduling = (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 default_queue_policy "
        "{ max_queue_size: 1 }"
        " priority_queue_policy { key: 2 value { max_queue_size: 3 } } }"
    )
    model = await triton.deploy("bounded_both", scheduling, max_batch_size=1)
    accepted = [
        await busy(client, model),
        *await client.line_up(model, 1),
        *await client.line_up(model, 10, 11, 12, priority=2),
    ]
    refused = [client.ask(model, 2), client.ask(model, 13, priority=2)]
    assert len(await refusals(refused)) == 2
    model.release(0)
    assert await refusals(accepted) == []


async def after(microseconds: int) -> None:
    """Wait for this time to pass."""
    end = time.monotonic() + microseconds / 1e6
    await until(lambda: time.monotonic() > end, "time passes")


@pytest.mark.proves("spec.model.dynamicBatching.queuePolicy.timeoutAction", "behaviour")
@pytest.mark.proves(
    "spec.model.dynamicBatching.queuePolicy.defaultTimeoutMicroseconds", "behaviour"
)
@pytest.mark.proves("spec.model.dynamicBatching.queuePolicy.allowTimeoutOverride", "behaviour")
@pytest.mark.parametrize(
    ("name", "policy", "client_timeout_us", "refused", "order"),
    [
        # Time is up while they wait: turned away, or served after those in time.
        (
            "reject",
            f"timeout_action: REJECT default_timeout_microseconds: {TIMEOUT_US}",
            None,
            True,
            [0],
        ),
        (
            "delay",
            f"timeout_action: DELAY default_timeout_microseconds: {TIMEOUT_US}",
            None,
            False,
            [0, 1, 2],
        ),
        # The client's own shorter time counts only where that is allowed.
        (
            "override",
            f"default_timeout_microseconds: {NEVER_US} allow_timeout_override: true",
            TIMEOUT_US,
            True,
            [0, 3],
        ),
        ("fixed", f"default_timeout_microseconds: {NEVER_US}", TIMEOUT_US, False, [0, 1, 2, 3]),
        (
            "override_delay",
            f"timeout_action: DELAY default_timeout_microseconds: {NEVER_US} "
            "allow_timeout_override: true",
            TIMEOUT_US,
            False,
            [0, 3, 1, 2],
        ),
        # A longer one than the default does not.
        (
            "longer",
            f"default_timeout_microseconds: {TIMEOUT_US} allow_timeout_override: true",
            NEVER_US,
            True,
            [0],
        ),
        # Without a time nothing is ever late.
        ("patient", "timeout_action: REJECT", None, False, [0, 1, 2, 3]),
    ],
)
async def test_timeouts(
    triton: Workbench,
    client: Asker,
    name: str,
    policy: str,
    client_timeout_us: int | None,
    refused: bool,
    order: list[int],
) -> None:
    """Requests 1 and 2 have the client's timeout; 3 comes after it and has none.

    Request 3 has a timeout only if its own default is short as well.
    """
    # The one that keeps the instance busy has a level of its own, without a time.
    scheduling = (
        "dynamic_batching { priority_levels: 2 default_priority_level: 2 "
        "priority_queue_policy { key: 1 value { } }"
        f" default_queue_policy {{ {policy} }} }}"
    )
    model = await triton.deploy(f"timeout_{name}", scheduling, max_batch_size=1)
    first = await busy(client, model, priority=1)
    late = await client.line_up(
        model, 1, 2, **({} if client_timeout_us is None else {"timeout": client_timeout_us})
    )
    await after(2 * TIMEOUT_US)
    fresh = await client.line_up(model, 3) if 3 in order else []
    model.release(0)
    messages = await refusals([first, *late, *fresh])
    assert messages == ([LATE] * 2 if refused else [])
    assert model.order() == order
