"""What is left on the server that was tuned: its first setting, however the run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2

from tests.support import builders
from tests.support.messages import Messages
from triton_pipelines.compile.graph import build
from triton_pipelines.compile.render.model_config import configs, parse
from triton_pipelines.tools.tuner import BatchingSetting, TuneError, TuningTarget
from triton_pipelines.tools.tuner import measured_server as tuned
from triton_pipelines.tools.tuner.errors import SettingRefusedError
from triton_pipelines.tools.tuner.measured_server import MeasuredServer
from triton_pipelines.triton.errors import RejectedError, UnreachableError

BUILT = builders.built(model={"maxBatchSize": 8})
OTHER = BatchingSetting(32, 1000, 1, 1)
PUBLIC = BUILT.graph.model_name


class StandIn:
    """A fake client without a server, which keeps the config of each model.

    Loads hang, are rejected or fail where a test requests it.
    """

    def __init__(self) -> None:
        self.running: dict[str, Any] = {
            name: parse(text) for name, text in configs(BUILT.graph).items()
        }
        self.hangs = asyncio.Event()
        self.hanging: set[str] = set()
        self.refused: set[str] = set()
        self.gone = False
        self.loaded: list[str] = []

    async def model_config(self, name: str) -> Any:
        return self.running[name]

    async def load_model(self, name: str, config: str) -> None:
        if self.gone:
            raise UnreachableError("gone")
        self.loaded.append(name)
        wanted = json_format.Parse(config, model_config_pb2.ModelConfig())
        if name in self.refused:
            self.refused.discard(name)
            if name == PUBLIC:  # as Triton does: a refused ensemble is taken down
                del self.running[name]
            raise RejectedError("no room", "no room")
        # As in Triton, a load that was asked for goes on when nobody waits for it.
        self.running[name] = wanted
        if name in self.hanging:
            self.hanging.discard(name)
            self.hangs.set()
            await asyncio.Event().wait()

    async def model_ready(self, name: str) -> bool:
        return name in self.running

    async def close(self) -> None:
        pass

    def setting(self) -> tuple[int, int, int]:
        model = self.running["model"]
        return (
            model.max_batch_size,
            model.dynamic_batching.max_queue_delay_microseconds,
            self.running[PUBLIC].max_batch_size,
        )


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setattr(tuned, "TritonClient", lambda *_, **_options: made)
    return made


def server(*, own: bool = False, left: Callable[[str], None] | None = None) -> MeasuredServer:
    return MeasuredServer(
        TuningTarget("127.0.0.1:1", lambda changed: build(changed, BUILT.options), own=own),
        BUILT.pipeline,
        BUILT.graph,
        left,
    )


async def tuning(client: StandIn, *, own: bool = False) -> None:
    async with server(own=own) as one:
        await one.apply(OTHER)
        assert client.setting() == (32, 1000, 32)
        client.hangs.set()
        await asyncio.Event().wait()


async def stopped(task: asyncio.Task[None], client: StandIn) -> None:
    await asyncio.wait_for(client.hangs.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_run_that_is_stopped_leaves_the_first_setting(client: StandIn) -> None:
    await stopped(asyncio.create_task(tuning(client)), client)
    assert client.setting() == (8, 0, 8)


async def test_what_ran_is_put_back_as_it_was_not_what_the_resource_says(client: StandIn) -> None:
    """Restore what ran before, not what the resource says.

    That is other instances after live scaling, another delay and batch size set by hand, and a
    field that no setting names.
    """
    model, tokenizer, public = (client.running[name] for name in ("model", "tokenizer", PUBLIC))
    model.instance_group[0].count, model.max_batch_size = 3, 16
    model.dynamic_batching.max_queue_delay_microseconds = 5000
    model.optimization.priority = 2
    tokenizer.instance_group[0].count = 2
    public.max_batch_size = 16
    before = {
        name: type(config).FromString(config.SerializeToString())
        for name, config in client.running.items()
    }
    async with server() as one:
        text = " ".join(one.notes)
        assert (
            "model 'model' was running with max_batch_size 16 (8), a queue delay of 5000 us (0), "
            "instances: 3 (1)" in text
        )
        assert "model 'tokenizer' was running with instances: 2 (1)" in text
        await one.apply(one.current)
        assert client.setting() == (8, 0, 8), "the current setting is the resource's"
        await one.apply(OTHER)
    assert client.running == before


async def test_a_server_that_runs_what_the_resource_says_has_nothing_to_tell(
    client: StandIn,
) -> None:
    for config in client.running.values():  # as Triton tells it
        config.version_policy.latest.num_versions = 1
        for group in config.instance_group:
            group.name = f"{config.name}_0"
    async with server() as one:
        await one.apply(one.current)
        assert not one.notes
    assert client.loaded == [], "it runs already"


@pytest.mark.parametrize("change", ["output", "steps"])
async def test_a_server_of_another_pipeline_of_that_name_is_left_alone(
    client: StandIn, change: str, messages: Messages
) -> None:
    if change == "output":
        client.running["model"].output[0].dims[:] = [7]
    else:
        client.running[PUBLIC].ensemble_scheduling.step[0].model_name = "another"
    with messages.raises(TuneError):
        async with server():
            pass
    assert client.loaded == []


async def test_its_own_server_is_not_restored(client: StandIn) -> None:
    async with server(own=True) as one:
        await one.apply(OTHER)
    assert client.setting() == (32, 1000, 32)


async def test_a_server_of_its_own_just_ends(client: StandIn) -> None:
    await stopped(asyncio.create_task(tuning(client, own=True)), client)
    assert client.setting() == (32, 1000, 32)


@pytest.mark.parametrize("name", ["model", PUBLIC])
async def test_a_load_that_is_broken_off_is_undone(client: StandIn, name: str) -> None:
    client.hanging = {name}
    await stopped(asyncio.create_task(tuning(client)), client)
    assert client.setting() == (8, 0, 8)


@pytest.mark.parametrize("name", ["model", PUBLIC])
async def test_a_refused_setting_leaves_what_ran(client: StandIn, name: str) -> None:
    async with server() as one:
        client.refused = {name}
        with pytest.raises(SettingRefusedError, match="no room"):
            await one.apply(OTHER)
        assert client.setting() == (8, 0, 8)


async def test_another_delay_than_the_resource_says_is_not_measured_as_the_current_setting(
    client: StandIn,
) -> None:
    client.running["model"].dynamic_batching.max_queue_delay_microseconds = 5000
    async with server() as one:
        await one.apply(one.current)
        assert client.setting() == (8, 0, 8)


async def test_a_setting_that_stays_is_told_beside_what_went_wrong(
    client: StandIn, messages: Messages
) -> None:
    async def broken() -> None:
        async with server() as one:
            await one.apply(OTHER)
            client.gone = True
            raise TuneError("requests fail")

    with messages.raises(TuneError):
        await broken()


async def test_a_setting_that_stays_is_told_where_the_run_was_stopped(client: StandIn) -> None:
    """Who stops a run gets none of its errors."""
    reported: list[str] = []

    async def begun() -> None:
        async with server(left=reported.append) as one:
            await one.apply(OTHER)
            client.gone = True
            client.hangs.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(begun())
    await asyncio.wait_for(client.hangs.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert reported == ["the original settings could not be restored, so restart the Triton server"]
    assert caught.value.__notes__ == reported


async def test_a_way_back_that_is_broken_off_is_told(client: StandIn) -> None:
    reported: list[str] = []

    async def begun() -> None:
        async with server(left=reported.append) as one:
            await one.apply(OTHER)
            client.hanging = {"model"}

    task = asyncio.create_task(begun())
    await stopped(task, client)
    assert len(reported) == 1


async def test_a_run_that_is_stopped_and_put_back_has_nothing_to_tell(client: StandIn) -> None:
    reported: list[str] = []

    async def begun() -> None:
        async with server(left=reported.append) as one:
            await one.apply(OTHER)
            client.hangs.set()
            await asyncio.Event().wait()

    await stopped(asyncio.create_task(begun()), client)
    assert client.setting() == (8, 0, 8)
    assert reported == []


async def test_no_setting_is_measured_out_of_the_response_cache(client: StandIn) -> None:
    built = builders.built(model={"maxBatchSize": 8}, ensemble={"responseCache": "Enabled"})
    client.running = {name: parse(text) for name, text in configs(built.graph).items()}
    assert client.running[PUBLIC].response_cache.enable
    client.running["model"].response_cache.enable = True
    target = TuningTarget("127.0.0.1:1", lambda changed: build(changed, built.options))
    async with MeasuredServer(target, built.pipeline, built.graph) as one:
        (text,) = [note for note in one.notes if "cache" in note]
        assert text.startswith(
            f"model, {PUBLIC}: the response cache is disabled"
        ) or text.startswith(f"{PUBLIC}, model: the response cache is disabled")
        for setting in (one.current, OTHER):
            await one.apply(setting)
            assert not any(config.response_cache.enable for config in client.running.values())
    assert client.running[PUBLIC].response_cache.enable, "as it was"
    assert client.running["model"].response_cache.enable
