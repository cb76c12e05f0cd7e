"""The scaling loop on a real Triton, with the whole operator and a real API server.

Counts follow the load, and no request is lost.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf import json_format

from tests.support.faultproxy import Fault, FaultProxy
from tests.support.operators import Running, eventually
from tests.support.scalingworld import (
    NAME,
    World,
    ready,
    until_condition,
    until_count,
    until_verdict,
    world,
)
from triton_pipelines.api import names
from triton_pipelines.cluster.client import Client
from triton_pipelines.compile.render.model_config import with_count
from triton_pipelines.controllers.autoscaler import pod_counts
from triton_pipelines.controllers.autoscaler.actuator import Pace
from triton_pipelines.triton.client import TritonClient

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(240),
]
TOKENIZING: dict[str, float | str] = {"request": 0.02}  # 50 requests/s of one instance
LOW, MODERATE, HIGH = 10.0, 45.0, 100.0
"""Requests/s. Two instances can handle a moderate load even if other processes slow them down:
Triton completes no growth while requests wait."""
NEEDED = 2
"""Instances for a moderate load. During an overload the count is the maximum for a while."""
GOOD_P99 = 0.3
"""Seconds: ten times what an answer takes without a queue."""


def recount_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_counts, "RECOUNT_SECONDS", 1.0)


def looked(running: Running, namespace: str) -> bool:
    """Whether the loop has decided for the pipeline in this process."""
    assert running.scaler is not None
    state = running.scaler._states.get((namespace, NAME))
    return (
        state is not None
        and state.scaling_state is not None
        and bool(state.counts().get("tokenizer"))
    )


@pytest.mark.proves("spec.scaling.mode", "behaviour")
async def test_counts_follow_the_load_in_place(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    """Scale up, over a restart of the operator, and down again.

    No request fails, and remaining instances are not touched.
    """
    async with world(bare, bare_proxy, bare_namespace, tmp_path, tokenizer=TOKENIZING) as place:
        async with place.operator():
            await place.apply()
            await ready(place)
            first = place.pod.stubs("tokenizer")
            others = place.pod.stubs("model") | place.pod.stubs("postprocess")
            with place.load(MODERATE) as load:
                await until_count(place, NEEDED, 6)
                assert first < place.pod.stubs("tokenizer"), "what ran goes on running"
                await eventually("short answers again", lambda: load.p99(3.0) < GOOD_P99)
                assert place.pod.stubs("model") | place.pod.stubs("postprocess") == others
                assert (await place.recorded())["tokenizer"] >= NEEDED
                notes = await eventually("an event", lambda: place.events("Scaled"))
                assert any(note.startswith("scaled tokenizer from 1 to ") for note in notes)
                assert load.errors == []
        # No operator runs: running instances continue, and the next operator takes over.
        assert await place.pod.count() >= NEEDED
        with place.load(MODERATE) as load:
            async with place.operator() as second:
                await eventually("it has looked", lambda: looked(second, bare_namespace))
                # It may have changed the count by now; it does not begin with the initial one.
                assert await place.pod.count() >= NEEDED
                assert (await place.recorded())["tokenizer"] >= NEEDED
                load.rate = LOW
                await until_count(place, 1, 1)
                assert load.errors == []
                load.rate = 0.0
                await until_verdict(place, "Idle")
        assert first <= place.pod.stubs("tokenizer") or len(place.pod.stubs("tokenizer")) == 1


async def test_behind_a_full_gpu_no_tokenizer_is_added(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    """The model takes 0.2 s for at most four requests.

    That is 20 requests/s, while the tokenizer can handle 500: enough also on a busy machine.
    """
    async with (
        world(
            bare,
            bare_proxy,
            bare_namespace,
            tmp_path,
            tokenizer={"request": 0.002},
            model={"execution": 0.2},
        ) as place,
        place.operator(),
    ):
        await place.apply(model={"maxBatchSize": 4})
        await ready(place)
        with place.load(35.0) as load:
            await until_verdict(place, "GPUBound")
            assert await place.pod.count() == 1
            assert load.errors == []
        assert await place.events("Scaled") == []


async def test_what_triton_refuses_is_told_and_taken_back(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    """A second instance does not start, and the running one continues to serve.

    Once the second can start, the increase is retried.
    """
    full: dict[str, float | str] = {
        **TOKENIZING,
        "most": 1,
        "why": "No space left on device: /dev/shm",
    }
    async with (
        world(bare, bare_proxy, bare_namespace, tmp_path, tokenizer=full) as place,
        place.operator(),
    ):
        await place.apply()
        await ready(place)
        first = place.pod.stubs("tokenizer")
        with place.load(HIGH) as load:
            message = await until_condition(place, "ScalingActive", "ActuationFailed")
            assert "No space left on device: /dev/shm" in message
            await eventually("an event", lambda: place.events("ActuationFailed"))
            assert place.pod.stubs("tokenizer") == first

            async def back() -> bool:
                return await place.recorded() == {"tokenizer": 1}

            await eventually("new pods start from what works", back)
            place.pod.set_costs(tokenizer=TOKENIZING)
            await until_count(place, 3, 6)
            assert load.errors == []
        await until_condition(place, "ScalingActive", "Succeeded")


async def test_nothing_changes_that_cannot_be_recorded(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    async with (
        world(bare, bare_proxy, bare_namespace, tmp_path, tokenizer=TOKENIZING) as place,
        place.operator() as running,
    ):
        await place.apply()
        await ready(place)
        fault = bare_proxy.inject(
            Fault(
                method="PATCH", path=f"/configmaps/{names.live_name(NAME)}", times=None, status=500
            )
        )
        with place.load(HIGH) as load:
            await eventually(
                "an intent that is given up",
                lambda: running.samples("scaling_errors_total").get(
                    error(bare_namespace, "Intent")
                ),
            )
            assert fault.hits
            assert await place.pod.count() == 1
            bare_proxy.clear()
            await until_count(place, 3, 6)
            assert load.errors == []


def error(namespace: str, kind: str) -> tuple[tuple[str, str], ...]:
    """Labels of an error's series."""
    return (("kind", kind), ("namespace", namespace), ("pipeline", NAME))


async def test_a_drifted_pod_is_brought_in_line(
    bare: Client,
    bare_proxy: FaultProxy,
    bare_namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recount_often(monkeypatch)
    async with (
        world(bare, bare_proxy, bare_namespace, tmp_path, tokenizer=TOKENIZING) as place,
        place.operator() as running,
    ):
        await place.apply()
        await ready(place)
        await eventually("it has looked", lambda: looked(running, bare_namespace))
        before = started(place)
        await drift(place, 3)
        # The correction may come before anyone counts: Triton's log tells that there were three.
        await eventually("two more instances", lambda: started(place) - before >= 2)
        await until_count(place, 1, 1)
        assert await place.recorded() == {"tokenizer": 1}
        assert await place.events("Scaled") == [], "a correction is no decision"


async def test_a_pod_that_dies_in_mid_change_lowers_nothing(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    """The next instance starts slowly, and the pod is killed meanwhile.

    The change does not count as failed, and the next pod keeps the count.
    """
    slow: dict[str, float | str] = {**TOKENIZING, "initialize": 3.0}
    async with (
        world(bare, bare_proxy, bare_namespace, tmp_path, tokenizer=slow) as place,
        place.operator() as running,
    ):
        await place.apply()
        await ready(place)
        assert running.scaler is not None
        with place.load(HIGH) as load:
            await eventually(
                "a second instance starts", lambda: len(place.pod.stubs("tokenizer")) > 1
            )
            state = running.scaler._states[bare_namespace, NAME]
            assert state.is_changing
            recorded = await place.recorded()
            assert recorded["tokenizer"] > 1
            await place.kill()
            load.rate = 0.0
            await eventually("the change has ended", lambda: not state.is_changing)
        assert state.action_failure == ""
        assert await place.recorded() == recorded


async def test_a_slow_change_is_waited_for_and_not_sent_again(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    """The next instances take longer to start than a call may last.

    The change continues in the server and is kept as state.
    """
    slow: dict[str, float | str] = {**TOKENIZING, "initialize": 4.0}
    async with (
        world(bare, bare_proxy, bare_namespace, tmp_path, tokenizer=slow) as place,
        place.operator() as running,
    ):
        await place.apply()
        await ready(place)
        assert running.scaler is not None
        running.scaler.pace = Pace(load=1.0, settle=20.0)
        before = started(place)
        with place.load(MODERATE) as load:
            await eventually("a change is proven", lambda: proven(running))
            grown = await place.pod.count()
            assert grown >= 2
            assert load.errors == []
        assert started(place) - before == grown - 1, "each instance was started once"
        assert await place.events("ActuationFailed") == []


async def test_a_growth_is_not_given_up_while_requests_wait(
    bare: Client, bare_proxy: FaultProxy, bare_namespace: str, tmp_path: Path
) -> None:
    """Triton completes a growth of Python code only when no request waits for the step."""
    async with (
        world(bare, bare_proxy, bare_namespace, tmp_path, tokenizer={"request": 0.05}) as place,
        place.operator() as running,
    ):
        await place.apply(tokenizer={"instances": {"initial": 1, "min": 1, "max": 2}})
        await ready(place)
        assert running.scaler is not None
        running.scaler.pace = Pace(load=1.0, settle=1.0, overload=60.0)
        with place.load(80.0) as load:
            await eventually("both execute", lambda: len(place.pod.stubs("tokenizer")) == 2)
            begin = len(load.answered)
            await eventually("the usual time is over", lambda: len(load.answered) > begin + 150)
            assert await place.pod.count() == 1
            load.rate = 0.0
            await until_count(place, 2, 2)
            assert load.errors == []
        assert await place.events("ActuationFailed") == []


def started(place: World) -> int:
    """Tokenizer instances that Triton has started so far, as its log has them."""
    return len(
        re.findall(r"TRITONBACKEND_ModelInstanceInitialize: tokenizer_", place.pod.triton.log())
    )


def proven(running: Running) -> bool:
    """Whether a growth was proven."""
    found = running.samples("scaling_actions_total")
    return any(
        value
        for labels, value in found.items()
        if {("direction", "up"), ("reason", "Proven")} <= set(labels)
    )


async def drift(place: World, count: int) -> None:
    """Change a pod's count without the operator."""
    async with TritonClient(place.pod.triton.grpc_address, place.pod.key) as client:
        config = await client.model_config("tokenizer")
        await client.load_model(
            "tokenizer",
            json_format.MessageToJson(with_count(config, count), preserving_proto_field_name=True),
        )
