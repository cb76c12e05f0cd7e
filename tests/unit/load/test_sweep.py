"""Several loads in rounds: order, seeds, and a backlog that the next load must not wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.messages import Messages
from triton_pipelines.tools.loadgen import (
    LoadGeneratorError,
    LoadSpec,
    LoadTarget,
    SweepEndedError,
    sweep,
)


class _Server(ThreadingHTTPServer):
    """A server that answers at once, one request at a time.

    The first request takes 0.4 s, whether or not its client still waits.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.turn = threading.Lock()
        self.first = True
        self.began: list[float] = []
        self.freed = 0.0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.turn:
            if self.server.first:
                self.server.first = False
                threading.Event().wait(0.4)
                self.server.freed = time.monotonic()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_rounds_go_over_all_loads_and_the_next_begins_when_the_backlog_is_done(
    server: _Server,
) -> None:
    target = LoadTarget(
        f"http://127.0.0.1:{server.server_address[1]}", "m", (), path="/", bodies=[b"x"]
    )
    specs = [
        LoadSpec(
            concurrency=number,
            duration_s=0.06,
            warmup_s=0,
            timeout_s=0.15,
            statistics=False,
            seed=5,
        )
        for number in (1, 2)
    ]
    reported: list[tuple[int, int, str, bool]] = []
    ends: list[float] = []

    def tell(number: int, total: int, spec: LoadSpec, far: object) -> None:
        if far is None:
            reported.append((number, total, spec.name, True))
            ends.append(time.monotonic())

    found = sweep([(target, spec) for spec in specs], 2, tell)
    assert [(number, name) for number, _, name, _ in reported] == [
        (0, "concurrency 1"),
        (1, "concurrency 2"),
        (2, "concurrency 1"),
        (3, "concurrency 2"),
    ]
    assert [len(item.runs) for item in found] == [2, 2]
    # The first request was given up after 0.15 s, and the server was busy with it for 0.4 s: nobody
    # else paid for that.
    assert dict(found[0].errors) == {"no response within 0.15 s": 1}
    assert not found[1].errors
    assert ends[0] >= server.freed > 0
    assert found[1].median("requests_per_s") > 0


def test_a_server_that_goes_leaves_what_was_measured(server: _Server, messages: Messages) -> None:
    server.first = False
    target = LoadTarget(
        f"http://127.0.0.1:{server.server_address[1]}", "m", (), path="/", bodies=[b"x"]
    )
    specs = [
        LoadSpec(concurrency=number, duration_s=0.06, warmup_s=0, timeout_s=0.5, statistics=False)
        for number in (1, 2, 3)
    ]

    def tell(number: int, total: int, spec: LoadSpec, far: object) -> None:
        if far is None and number == 1:  # behind the second of three loads
            server.shutdown()
            server.server_close()

    with messages.raises(SweepEndedError) as caught:
        sweep([(target, spec) for spec in specs], 2, tell)
    assert {
        place: (item.spec.concurrency, len(item.runs))
        for place, item in caught.value.measured.items()
    } == {0: (1, 1), 1: (2, 1)}
    assert all(run.requests > 0 for item in caught.value.measured.values() for run in item.runs)


def test_a_server_that_was_never_there_is_said_plainly() -> None:
    target = LoadTarget("http://127.0.0.1:9", "m", (), path="/", bodies=[b"x"])
    with pytest.raises(LoadGeneratorError) as caught:
        sweep([(target, LoadSpec(concurrency=1, duration_s=0.06, warmup_s=0, statistics=False))], 1)
    assert not isinstance(caught.value, SweepEndedError)
