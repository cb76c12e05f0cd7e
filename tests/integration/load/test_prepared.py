"""Prepared load against a gRPC server on loopback.

The server answers late, refuses, and counts the requests in flight.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from tritonclient.grpc import service_pb2

from e2e.load.prepared import prepared_load, request_of
from triton_pipelines.tools.loadgen import INFER_METHOD

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
DEADLINE = 60.0
CLIENTS = 4


@dataclass
class Server:
    """Answers after `delay` seconds, or refuses; `most`: requests that it had at once."""

    delay: float = 0.2
    refuses: bool = False
    port: int = 0
    most: int = 0
    seen: list[bytes] = field(default_factory=list)
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: bytes, context: Any) -> bytes:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.seen.append(request)
        threading.Event().wait(self.delay)
        with self._lock:
            self._now -= 1
        if self.refuses:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size")
        return b""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, call: Any) -> Any:
            return (
                grpc.unary_unary_rpc_method_handler(made.answer)
                if call.method == INFER_METHOD
                else None
            )

    running = grpc.server(futures.ThreadPoolExecutor(64), handlers=(Handler(),))
    made.port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield made
    running.stop(None).wait(10)


def until(holds: Callable[[], bool]) -> None:
    end, tick = time.monotonic() + DEADLINE, threading.Event()
    while not holds():
        assert time.monotonic() < end, "not in time"
        tick.wait(0.02)


def test_open_loop_does_not_wait_for_answers(server: Server) -> None:
    """Send 60 requests/s that take 0.2 s each.

    A dozen are in flight at once, and each has its own time.
    """
    request = request_of("documents", "TEXT", ["one", "two"])
    with prepared_load(f"127.0.0.1:{server.port}", [request]) as load:
        assert load.since(0) == []
        began = time.monotonic()
        load.rate(60.0)
        until(lambda: len(load.answers) >= 60)
        assert time.monotonic() - began > 0.5, "60 of them need about a second"
        load.rate(0.0)
    assert server.most > CLIENTS
    assert not any(answer.error for answer in load.answers)
    assert all(answer.seconds >= server.delay for answer in load.answers)
    assert len(load.answers) == len(server.seen), "what is under way at the end is waited for"
    sent = service_pb2.ModelInferRequest.FromString(server.seen[0])
    assert (sent.model_name, sent.inputs[0].name, list(sent.inputs[0].shape)) == (
        "documents",
        "TEXT",
        [2, 1],
    )
    assert sent.raw_input_contents[0] == b"\3\0\0\0one\3\0\0\0two"


def test_clients_wait_for_their_answers(server: Server) -> None:
    server.delay = 0.02
    with prepared_load(f"127.0.0.1:{server.port}", [b"a", b"b"], clients=CLIENTS) as load:
        load.rate(float("inf"))
        until(lambda: len(load.answers) >= 100)
    assert server.most == CLIENTS
    assert set(server.seen) == {b"a", b"b"}


def test_paced_clients_keep_their_rate(server: Server) -> None:
    server.delay = 0.0
    with prepared_load(f"127.0.0.1:{server.port}", [b"a"], clients=CLIENTS) as load:
        load.rate(40.0)
        until(lambda: len(load.answers) >= 80)
    dues = [answer.due for answer in load.answers]
    assert 80 / (max(dues) - min(dues)) < 44.0


def test_refusals_are_told(server: Server) -> None:
    server.refuses, server.delay = True, 0.0
    with prepared_load(f"127.0.0.1:{server.port}", [b"a"], clients=1) as load:
        load.rate(50.0)
        until(lambda: len(load.answers) >= 3)
    assert {answer.error for answer in load.answers} == {"UNAVAILABLE: Exceeds maximum queue size"}


def test_an_open_loop_needs_a_rate(server: Server) -> None:
    with (
        prepared_load(f"127.0.0.1:{server.port}", [b"a"]) as load,
        pytest.raises(ValueError, match="finite"),
    ):
        load.rate(float("inf"))
