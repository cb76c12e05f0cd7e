"""Arguments that fields of the resource become, on a real Triton.

Traces, response cache, auto-complete, and how a pod with sequences ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from tests.support.builders import built
from tests.support.recorder import until
from tests.support.triton import triton_server, write_model
from tests.support.web import LoopbackServer, Response
from triton_pipelines.compile.graph.drain import exit_timeout_seconds
from triton_pipelines.compile.graph.server_settings import feature_arguments
from triton_pipelines.triton.client import TritonClient

pytestmark = pytest.mark.integration

TENSORS = (
    'input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "Y" data_type: '
    "TYPE_INT32 dims: [ 1 ] }"
)
GROUP = "instance_group { kind: KIND_CPU count: 1 }"
# Y counts the executions.
COUNTING = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.calls = 0

    def execute(self, requests):
        self.calls += 1
        y = pb_utils.Tensor("Y", np.array([[self.calls]], np.int32))
        return [pb_utils.InferenceResponse([y]) for _ in requests]
"""
COMPLETING = (
    COUNTING
    + """
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "Y", "data_type": "TYPE_INT32", "dims": [1]})
        return config
"""
)


def counting(repository: Path, more: str = "") -> None:
    write_model(
        repository,
        "count",
        f'name: "count" backend: "python" max_batch_size: 4 {TENSORS} {GROUP} {more}',
        {"model.py": COUNTING},
    )


async def ask(client: TritonClient, value: int) -> int:
    answer = await client.infer("count", {"X": np.array([[value]], np.int32)})
    return int(answer["Y"][0, 0])


async def ask_in_sequence(client: InferenceServerClient, value: int, *, start: bool) -> int:
    tensor = InferInput("X", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], np.int32))
    answer = await client.infer("count", [tensor], sequence_id=7, sequence_start=start)
    return int(answer.as_numpy("Y")[0, 0])


@pytest.fixture
def collector() -> Iterator[LoopbackServer]:
    """An OTLP collector that takes everything."""
    with LoopbackServer(
        lambda _: Response(200, {"Content-Type": "application/x-protobuf"})
    ) as server:
        yield server


@pytest.mark.proves("spec.observability.tracing.otlpEndpoint", "behaviour")
@pytest.mark.proves("spec.observability.tracing.sampleEvery", "behaviour")
async def test_one_of_so_many_requests_is_traced_to_the_collector(
    tmp_path: Path, collector: LoopbackServer
) -> None:
    counting(tmp_path)
    one = built(
        observability={"tracing": {"otlpEndpoint": f"{collector.url}/v1/traces", "sampleEvery": 3}}
    )
    # Sent soon, for the test alone.
    soon = "--trace-config=opentelemetry,bsp_schedule_delay=100"
    with triton_server(
        tmp_path, ["count"], extra_args=[*feature_arguments(one.pipeline, one.graph), soon]
    ) as server:
        async with TritonClient(server.grpc_address) as client:
            for value in range(9):
                await ask(client, value)

        def spans() -> int:
            return sum(request.body.count(b"InferRequest") for request in list(collector.requests))

        await until(lambda: spans() >= 3, "three spans of nine requests", 20)
    assert spans() == 3
    assert {(request.method, request.path) for request in collector.requests} == {
        ("POST", "/v1/traces")
    }
    body = b"".join(request.body for request in collector.requests)
    for text in (b"service.name", b"sentiment", b"service.namespace", b"nlp", b"count"):
        assert text in body, text


@pytest.mark.proves("spec.ensemble.responseCache", "behaviour")
@pytest.mark.parametrize("cached", [True, False])
async def test_the_response_cache_is_there_when_it_is_asked_for(
    tmp_path: Path, cached: bool
) -> None:
    counting(tmp_path, "response_cache { enable: true }")
    one = built(ensemble={"responseCache": "Enabled" if cached else "Disabled"})
    with triton_server(
        tmp_path, ["count"], extra_args=feature_arguments(one.pipeline, one.graph)
    ) as server:
        async with TritonClient(server.grpc_address) as client:
            assert [await ask(client, value) for value in (5, 5, 6, 5)] == (
                [1, 1, 2, 1] if cached else [1, 2, 3, 4]
            )


@pytest.mark.proves("spec.server.autoComplete", "behaviour")
@pytest.mark.parametrize(("enabled", "batch", "inputs"), [(True, 4, ["X"]), (False, 0, [])])
async def test_a_backend_completes_its_config_only_with_auto_complete(
    tmp_path: Path, enabled: bool, batch: int, inputs: list[str]
) -> None:
    write_model(
        tmp_path, "count", f'name: "count" backend: "python" {GROUP}', {"model.py": COMPLETING}
    )
    graph = built(server={"autoComplete": "Enabled" if enabled else "Disabled"}).graph
    with triton_server(tmp_path, ["count"], auto_complete=graph.auto_complete) as server:
        async with TritonClient(server.grpc_address) as client:
            config = await client.model_config("count")
            assert (config.max_batch_size, [entry.name for entry in config.input]) == (
                batch,
                inputs,
            )


SEQUENCES = {
    "platform": "python",
    "source": None,
    "python": {"code": {"inline": "x = 1"}},
    "instances": {"count": 1, "kind": "CPU"},
    "sequenceBatching": {
        "strategy": "Direct",
        "maxSequenceIdleMicroseconds": 5_000_000,
        "controls": [{"name": "START", "kind": "START", "dataType": "INT32"}],
    },
}


@pytest.mark.proves("spec.model.sequenceBatching.maxSequenceIdleMicroseconds", "behaviour")
@pytest.mark.parametrize(("timeout", "code"), [(None, 0), (3, 1)], ids=["the pod's", "too short"])
async def test_an_open_sequence_is_waited_for_within_the_exit_timeout(
    tmp_path: Path, timeout: int | None, code: int
) -> None:
    """After a stop signal, Triton answers on open connections until the last sequence is idle.

    A shorter timeout ends it earlier.
    """
    one = built(model=SEQUENCES, rollout={"drainSeconds": 1})
    batching = (
        "sequence_batching { direct { } max_sequence_idle_microseconds: 5000000 control_input"
        ' { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }'
    )
    counting(tmp_path, batching)
    with triton_server(
        tmp_path, ["count"], stop_s=timeout or exit_timeout_seconds(one.pipeline)
    ) as server:
        async with InferenceServerClient(server.grpc_address) as client:
            assert await ask_in_sequence(client, 1, start=True) == 1
            process = server._process
            assert process is not None
            process.terminate()
            await until(
                lambda: (
                    "Waiting for in-flight requests" in server.log() or "Timeout" in server.log()
                ),
                "the signal is seen",
                20,
            )
            assert await ask_in_sequence(client, 2, start=False) == 2
            assert await asyncio.to_thread(process.wait, 30) == code
