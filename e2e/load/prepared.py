"""Generate load cheaply, in a separate process.

Requests are serialized beforehand and answers are not read.

On a machine of two cores the clients share them with the server; what a request costs here is
gRPC's own work (some 0.3 ms), so that what is measured is the server. Either in an open loop
(requests leave at random times at a rate, however late the answers are, as those of many users do)
or from a number of clients, each of which sends when its time has come and its last request has
been answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import grpc
import numpy as np

from e2e.load.bins import Answer
from triton_pipelines.tools.loadgen import (
    INFER_METHOD,
    InferenceProtocol,
    LoadTarget,
    encode_requests,
)

DEADLINE_SECONDS = 60.0
READY_SECONDS = 30.0
TELL_SECONDS = 0.1
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)


def request_of(model: str, name: str, texts: Sequence[str]) -> bytes:
    """A request of one input of texts, `[rows, 1]`, as it goes over the wire."""
    rows = np.array([[text.encode()] for text in texts], dtype=np.object_)
    (data,) = encode_requests(LoadTarget("", model, [{name: rows}], InferenceProtocol.GRPC))
    return data


@dataclass
class PreparedLoad:
    """Requests on their way; make one with `prepared_load`.

    Attributes:
        answers: those that ended so far, in the order of their ends.
        clients: 0 for an open loop, else how many clients.
    """

    clients: int
    answers: list[Answer] = field(default_factory=list)
    _pipe: Connection | None = None
    _failure: str = ""

    def rate(self, per_second: float) -> None:
        """Set the rate in requests/s of all clients together.

        0 pauses the load. Infinity makes each client send again right after an answer (clients
        only).
        """
        assert self._pipe is not None
        if self.clients == 0 and per_second == float("inf"):
            raise ValueError("an open loop needs a finite rate")
        self._pipe.send(per_second)

    def since(self, index: int) -> Sequence[Answer]:
        """Answers after the first `index` of them.

        Raises:
            AssertionError: the load itself broke.
        """
        assert not self._failure, f"the load broke: {self._failure}"
        return self.answers[index:]


@contextlib.contextmanager
def prepared_load(
    address: str, requests: Sequence[bytes], *, clients: int = 0, seed: int = 1
) -> Iterator[PreparedLoad]:
    """Send load to a gRPC address (`host:port`).

    The load is paused at first. At the end, the requests in flight are awaited.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_main, args=(theirs, address, list(requests), clients, seed), daemon=True
    )
    process.start()
    theirs.close()
    load = PreparedLoad(clients, _pipe=ours)
    if not ours.poll(READY_SECONDS) or ours.recv() != "ready":
        process.kill()
        raise RuntimeError("the load did not start")
    reader = threading.Thread(target=_read, args=(ours, load), name="answers", daemon=True)
    reader.start()
    try:
        yield load
    finally:
        with contextlib.suppress(OSError):
            ours.send(None)
        reader.join(DEADLINE_SECONDS + 5)
        process.join(5)
        if process.is_alive():
            process.kill()
        ours.close()


def _read(pipe: Connection, load: PreparedLoad) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            reported = pipe.recv()
            if isinstance(reported, str):
                load._failure = reported
            elif reported is None:
                return
            else:
                load.answers += [Answer(*one) for one in reported]


# --- in the process -------------------------------------------------------------------------------


def _main(pipe: Connection, address: str, requests: list[bytes], clients: int, seed: int) -> None:
    try:
        asyncio.run(_Sender(pipe, requests, clients, seed).run(address))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
    finally:
        with contextlib.suppress(OSError):
            pipe.send(None)


class _Sender:
    def __init__(self, pipe: Connection, requests: list[bytes], clients: int, seed: int) -> None:
        self._pipe, self._requests, self._clients = pipe, requests, clients
        self._random = random.Random(seed)
        self._rate = 0.0
        self._stopped = False
        self._sent = 0
        self._changed = asyncio.Event()
        self._reported: list[tuple[float, float, str]] = []

    async def run(self, address: str) -> None:
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._command)
        async with (
            grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS) as channel,
            asyncio.TaskGroup() as group,
        ):
            self._call = channel.unary_unary(INFER_METHOD)
            telling = group.create_task(self._tell())
            self._pipe.send("ready")
            async with asyncio.TaskGroup() as work:
                if self._clients:
                    for number in range(self._clients):
                        work.create_task(self._client(number))
                else:
                    work.create_task(self._open(work))
            telling.cancel()
            self._flush()

    def _command(self) -> None:
        try:
            said = self._pipe.recv()
        except (EOFError, OSError):
            said = None
        if said is None:
            self._stopped = True
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
        else:
            self._rate = said
        self._changed.set()
        self._changed = asyncio.Event()

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            self._flush()

    def _flush(self) -> None:
        if self._reported:
            self._pipe.send(self._reported)
            self._reported = []

    async def _pause(self, until: float) -> None:
        """Until then, or until something is commanded."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), max(0.0, until - time.monotonic()))

    async def _open(self, work: asyncio.TaskGroup) -> None:
        due, last = time.monotonic(), 0.0
        while not self._stopped:
            now, rate = time.monotonic(), self._rate
            if rate != last:
                due, last = now, rate
            while rate > 0 and due <= now:
                work.create_task(self._one(due))
                due += self._random.expovariate(rate)
            await self._pause(due if rate > 0 else now + 3600)

    async def _client(self, number: int) -> None:
        due, last = time.monotonic(), 0.0
        while not self._stopped:
            now, rate = time.monotonic(), self._rate
            if rate != last:
                due, last = now + (number / rate if rate > 0 else 0.0), rate
            if rate <= 0:
                await self._pause(now + 3600)
            elif due > now:
                await self._pause(due)
            else:
                await self._one(now)
                due = max(due + self._clients / rate, time.monotonic())

    async def _one(self, due: float) -> None:
        request = self._requests[self._sent % len(self._requests)]
        self._sent += 1
        try:
            await self._call(request, timeout=DEADLINE_SECONDS)
            error = ""
        except grpc.aio.AioRpcError as failed:
            error = f"{failed.code().name}: {failed.details()}"
        self._reported.append((due, time.monotonic(), error))
