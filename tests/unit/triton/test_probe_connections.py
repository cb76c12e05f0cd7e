"""Probes over connections that are kept, against gRPC servers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import resource
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.support.certificates import HOST, Authority
from triton_pipelines.triton import probe_connections
from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.output_faults import ProbeRequest
from triton_pipelines.triton.probe import SMALL_RESPONSE_BYTES
from triton_pipelines.triton.probe_connections import (
    CONFIG_SECONDS,
    CONNECTIONS_MAX,
    PodEndpoint,
    ProbeConnections,
)
from triton_pipelines.triton.tls import TlsIdentity

SERVICE = "/inference.GRPCInferenceService/"
REQUEST = ProbeRequest({"X": np.zeros((1, 1), np.float32)})
AUTHORITY = Authority(dt.datetime.now(dt.UTC))
FORMER, RENEWED = AUTHORITY.secret("former.nlp.svc"), AUTHORITY.secret(HOST)


class FakePod(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A model with one output of a number of columns; counts calls and the clients' ports."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.peers: set[str] = set()
        self.columns = self.declared = 1
        self.inferences_max = 1000  # it refuses more
        self.models = ["m"]
        self.is_ready, self.hangs = True, False
        self.hanging = frozenset[str]()
        """Methods that hang; all of them if :attr:`hangs`."""
        self.is_hanging = asyncio.Event()

    def service(self, details: Any) -> Any:
        method = details.method.removeprefix(SERVICE)

        async def once(request: bytes, context: Any) -> bytes:
            self.calls[method] += 1
            self.peers.add(context.peer())
            if self.hangs or method in self.hanging:
                self.is_hanging.set()
                await asyncio.Event().wait()
            if self.calls["ModelInfer"] > self.inferences_max:
                await context.abort(grpc.StatusCode.UNAVAILABLE)
            if method == "ModelInfer" and not self.is_ready:
                await context.abort(grpc.StatusCode.NOT_FOUND, "unknown model 'm'")
            return bytes(self._answer(method).SerializeToString())

        return grpc.unary_unary_rpc_method_handler(once)

    def _answer(self, method: str) -> Any:
        if method == "ModelReady":
            return service_pb2.ModelReadyResponse(ready=self.is_ready)
        if method == "RepositoryIndex":
            index = service_pb2.RepositoryIndexResponse()
            for name in self.models:
                index.models.add(name=name, version="1", state="READY")
            return index
        if method == "ModelConfig":
            config = model_config_pb2.ModelConfig(name="m", max_batch_size=1)
            config.output.add(name="Y", data_type=model_config_pb2.TYPE_FP32, dims=[self.declared])
            return service_pb2.ModelConfigResponse(config=config)
        data = np.ones((1, self.columns), np.float32).tobytes()
        answer = service_pb2.ModelInferResponse(model_name="m", raw_output_contents=[data])
        answer.outputs.add(name="Y", datatype="FP32", shape=[1, self.columns])
        return answer


@asynccontextmanager
async def listening(
    pod: FakePod, port: int = 0, certificate: dict[str, bytes] | None = None
) -> AsyncIterator[int]:
    server = grpc.aio.server(options=[("grpc.max_send_message_length", 2**31 - 1)])
    server.add_generic_rpc_handlers((pod,))
    address = f"127.0.0.1:{port}"
    if certificate is None:
        bound = server.add_insecure_port(address)
    else:
        pair = certificate["tls.key"], certificate["tls.crt"]
        bound = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)


def endpoint(port: int, tls: TlsIdentity | None = None, namespace: str = "nlp") -> PodEndpoint:
    return PodEndpoint(namespace, f"127.0.0.1:{port}", "m", "key", tls)


@pytest.fixture
async def connections() -> AsyncIterator[ProbeConnections]:
    async with ProbeConnections() as made:
        yield made


def counted_closings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list whose only item is the number of clients that were closed."""
    closings, close = [0], TritonClient.close

    async def counted(client: TritonClient) -> None:
        closings[0] += 1
        await close(client)

    monkeypatch.setattr(TritonClient, "close", counted)
    return closings


async def closed(connections: ProbeConnections) -> None:
    await asyncio.gather(*connections._closing)


async def test_probes_share_a_connection_and_the_config(connections: ProbeConnections) -> None:
    pod = FakePod()
    async with listening(pod) as port:
        for _ in range(3):
            assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
    assert len(pod.peers) == 1
    assert pod.calls == {"ModelInfer": 3, "ModelConfig": 1, "ModelReady": 1, "RepositoryIndex": 1}


async def test_a_frozen_pod_with_sequences_is_not_healthy(connections: ProbeConnections) -> None:
    """An inference of a sequence counts as busy without a response, so it shows no readiness."""
    pod, asked = FakePod(), ProbeRequest(REQUEST.inputs, sequence_id=2**30)
    async with listening(pod) as port:
        assert (await connections.probe("uid", endpoint(port), asked)).healthy
        pod.hangs = True
        result = await connections.probe("uid", endpoint(port), asked, deadline_s=0.3)
        pod.hangs = False
    assert not result.healthy
    assert result.error


async def test_a_fault_stays_if_the_states_cannot_be_read_in_time(
    connections: ProbeConnections,
) -> None:
    pod = FakePod()
    async with listening(pod) as port:
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
        pod.columns, pod.hanging = 2, frozenset({"ModelReady"})
        result = await connections.probe("uid", endpoint(port), REQUEST, deadline_s=1.0)
    assert result.error is None
    assert "declared" in (result.inference_error or "")


async def test_a_later_probe_reports_the_states_that_an_earlier_one_read(
    connections: ProbeConnections,
) -> None:
    pod = FakePod()
    async with listening(pod) as port:
        first = await connections.probe("uid", endpoint(port), REQUEST)
        later = await connections.probe("uid", endpoint(port), REQUEST)
    assert [model.name for model in later.models] == ["m"]
    assert (later.ensemble_ready, later.models) == (True, first.models)


async def test_a_failed_test_inference_is_explained_by_the_present_states(
    connections: ProbeConnections,
) -> None:
    pod = FakePod()
    async with listening(pod) as port:
        await connections.probe("uid", endpoint(port), REQUEST)
        pod.columns, pod.models = 2, ["m", "n"]
        wrong = await connections.probe("uid", endpoint(port), REQUEST)
        assert wrong.mismatch
        assert [model.name for model in wrong.models] == ["m", "n"]
        assert pod.calls["ModelInfer"] == 2, "one test inference per probe"
        pod.columns = 1
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
        pod.is_ready = False
        unloaded = await connections.probe("uid", endpoint(port), REQUEST)
    assert (unloaded.ensemble_ready, unloaded.inference_error) == (False, "'m' is not ready")


async def test_states_are_read_until_a_test_inference_succeeds(
    connections: ProbeConnections,
) -> None:
    pod = FakePod()
    pod.columns = 2
    async with listening(pod) as port:
        for _ in range(3):
            assert (await connections.probe("uid", endpoint(port), REQUEST)).mismatch
    assert pod.calls["RepositoryIndex"] == 3


async def test_a_pod_that_is_gone_keeps_no_connection(connections: ProbeConnections) -> None:
    pod = FakePod()
    async with listening(pod) as port:
        await connections.probe("uid", endpoint(port), REQUEST)
        assert len(connections) == 1
        connections.close("uid")
        assert len(connections) == 0
        await closed(connections)
        await connections.probe("uid", endpoint(port), REQUEST)
    assert len(pod.peers) == 2


async def test_a_restarted_pod_at_the_same_address_is_probed_at_once(
    connections: ProbeConnections,
) -> None:
    former, restarted = FakePod(), FakePod()
    async with listening(former) as port:
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
    assert (await connections.probe("uid", endpoint(port), REQUEST)).is_unreachable
    assert len(connections) == 0
    async with listening(former, port):
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
    async with listening(restarted, port):
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
    assert restarted.calls["ModelInfer"] == 1


async def test_a_rotated_certificate_is_accepted_in_the_same_probe(
    connections: ProbeConnections,
) -> None:
    """The pod restarts before its annotation names the new certificate."""
    roots = FORMER["tls.crt"] + RENEWED["tls.crt"]
    renewed = TlsIdentity(roots, HOST)
    tls = TlsIdentity(roots, "former.nlp.svc", alternatives=(renewed,))
    async with listening(FakePod(), certificate=FORMER) as port:
        assert (await connections.probe("uid", endpoint(port, tls), REQUEST)).healthy
    pod = FakePod()
    async with listening(pod, port, RENEWED):
        assert (await connections.probe("uid", endpoint(port, tls), REQUEST)).healthy
        # Another identity needs another connection, even while the former one works.
        assert (await connections.probe("uid", endpoint(port, renewed), REQUEST)).healthy
        stranger = TlsIdentity(Authority(dt.datetime.now(dt.UTC)).certificate, HOST)
        assert (await connections.probe("uid", endpoint(port, stranger), REQUEST)).error
    assert pod.calls["ModelInfer"] == 2


async def test_a_pod_that_hangs_keeps_no_connection(connections: ProbeConnections) -> None:
    pod = FakePod()
    async with listening(pod) as port:
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
        pod.hangs = True
        assert (await connections.probe("uid", endpoint(port), REQUEST, 0.2)).error
        assert len(connections) == 0
        pod.hangs = False
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy


async def test_a_canceled_probe_keeps_no_connection(connections: ProbeConnections) -> None:
    pod = FakePod()
    async with listening(pod) as port:
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
        pod.hangs = True
        probe = asyncio.create_task(connections.probe("uid", endpoint(port), REQUEST))
        await pod.is_hanging.wait()
        probe.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await probe
        assert len(connections) == 0
        await closed(connections)


async def test_outputs_that_seem_wrong_are_checked_against_the_present_config(
    connections: ProbeConnections,
) -> None:
    pod = FakePod()
    async with listening(pod) as port:
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
        pod.columns = pod.declared = 2
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
        pod.columns = 3
        for configs in (3, 4):
            assert (await connections.probe("uid", endpoint(port), REQUEST)).mismatch
            assert pod.calls["ModelConfig"] == configs
    assert pod.calls["ModelInfer"] == 4


async def test_models_that_no_test_inference_runs_are_reported_in_time() -> None:
    now, pod, found = 0.0, FakePod(), list[int]()
    kept = ProbeConnections(clock=lambda: now)
    async with listening(pod) as port, kept as connections:
        await connections.probe("uid", endpoint(port), REQUEST)
        pod.models = ["m", "n"]
        for now in (CONFIG_SECONDS - 1, CONFIG_SECONDS):  # noqa: B007 - the clock reads it
            found.append(len((await connections.probe("uid", endpoint(port), REQUEST)).models))
    assert found == [1, 2]


async def test_a_config_is_read_again_in_time() -> None:
    """The model is loaded with another config, and its outputs stay those of the former one."""
    now, pod = 0.0, FakePod()
    kept = ProbeConnections(clock=lambda: now)
    async with listening(pod) as port, kept as connections:
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
        pod.declared = 2
        now = CONFIG_SECONDS - 1
        assert (await connections.probe("uid", endpoint(port), REQUEST)).healthy
        now = CONFIG_SECONDS
        assert (await connections.probe("uid", endpoint(port), REQUEST)).mismatch
    assert len(pod.peers) == 1


async def test_large_outputs_are_checked_over_a_connection_of_their_own(
    connections: ProbeConnections,
) -> None:
    pod = FakePod()
    pod.declared = 1
    pod.columns = SMALL_RESPONSE_BYTES // 4 + 1
    async with listening(pod) as port:
        for inferences in (2, 3):  # once more for the first probe, which finds out
            found = await connections.probe("uid", endpoint(port), REQUEST)
            assert found.mismatch
            assert pod.calls["ModelInfer"] == inferences
        assert len(connections) == 0


async def test_outputs_that_only_a_second_inference_could_check_are_taken_for_right(
    connections: ProbeConnections,
) -> None:
    pod = FakePod()
    pod.columns = SMALL_RESPONSE_BYTES // 4 + 1
    pod.inferences_max = 1
    async with listening(pod) as port:
        found = await connections.probe("uid", endpoint(port), REQUEST)
    assert pod.calls["ModelInfer"] == 2
    assert found.healthy
    assert found.is_unchecked


async def test_connections_in_use_count_when_they_are_to_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closings = counted_closings(monkeypatch)
    kept, pod = ProbeConnections(maximum=2, namespace_share=1.0), FakePod()
    async with listening(pod) as port, kept as connections:
        probes = (connections.probe(uid, endpoint(port), REQUEST) for uid in "abcd")
        assert all(found.healthy for found in await asyncio.gather(*probes))
        await closed(connections)
        assert len(connections) == 2
        assert closings == [2]


async def test_of_concurrent_probes_of_a_pod_one_connection_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closings = counted_closings(monkeypatch)
    kept, pod = ProbeConnections(), FakePod()
    async with listening(pod) as port, kept as connections:
        probes = (connections.probe("uid", endpoint(port), REQUEST) for _ in range(3))
        assert all(found.healthy for found in await asyncio.gather(*probes))
        await closed(connections)
        assert len(connections) == 1
        assert closings == [2]


async def test_no_more_connections_are_kept_than_allowed() -> None:
    kept, pod = ProbeConnections(maximum=2, namespace_share=1.0), FakePod()
    async with listening(pod) as port, kept as connections:
        for _ in range(2):
            for uid in ("a", "b", "c"):
                assert (await connections.probe(uid, endpoint(port), REQUEST)).healthy
        assert len(connections) == 2
    assert len(pod.peers) == 4


async def test_the_pods_of_one_namespace_do_not_take_all_kept_connections() -> None:
    kept, pod = ProbeConnections(maximum=8), FakePod()
    async with listening(pod) as port, kept as connections:
        for uid in "abcde":
            ours = endpoint(port, namespace="greedy")
            assert (await connections.probe(uid, ours, REQUEST)).healthy
        assert len(connections) == 2
        assert (await connections.probe("f", endpoint(port, namespace="other"), REQUEST)).healthy
        assert len(connections) == 3
        connections.close("a")
        assert (await connections.probe("c", endpoint(port, namespace="greedy"), REQUEST)).healthy
        assert len(connections) == 3


def test_kept_connections_leave_half_of_the_file_descriptors_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {1024: 128, 1_048_576: CONNECTIONS_MAX, resource.RLIM_INFINITY: CONNECTIONS_MAX}
    for soft, expected in limits.items():
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert ProbeConnections().maximum == expected


async def test_a_large_config_is_not_kept(
    connections: ProbeConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_connections, "_CONFIG_BYTES_MAX", 8)
    pod = FakePod()
    async with listening(pod) as port:
        for _ in range(2):
            await connections.probe("uid", endpoint(port), REQUEST)
    assert pod.calls["ModelConfig"] == 2
