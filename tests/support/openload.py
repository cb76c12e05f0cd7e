"""Open-loop load on one pod.

Requests are sent when they are due, however late the answers are, like those of many users.

One thread with an event loop and one connection; at 100 requests/s it takes a few percent of a
core, so that what is measured is the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from triton_pipelines.triton.client import TritonClient
from triton_pipelines.triton.errors import TritonError

DEADLINE_SECONDS = 60.0


@dataclass
class OpenLoad:
    """Requests in flight; create one with :func:`open_load`.

    ``rate`` (requests/s) may be changed at any time; 0 pauses the load.
    """

    address: str
    model: str
    rate: float = 0.0
    answered: list[tuple[float, float]] = field(
        default_factory=list
    )  # when (monotonic), and latency in seconds
    errors: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)

    def p99(self, seconds: float) -> float:
        """Return the seconds within which 99 of 100 answers of the last ``seconds`` came.

        The result is infinity if there were none.
        """
        since = time.monotonic() - seconds
        late = sorted(latency for at, latency in self.answered if at >= since)
        return late[int(0.99 * (len(late) - 1))] if late else float("inf")

    async def run(self) -> None:
        """Send until stopped; then wait for what is under way."""
        text = np.array([[b"a text"]], dtype=object)
        under_way: set[asyncio.Task[None]] = set()
        async with TritonClient(self.address) as client:

            async def one() -> None:
                begin = time.monotonic()
                try:
                    await client.infer(self.model, {"TEXT": text}, deadline_s=DEADLINE_SECONDS)
                    self.answered.append((time.monotonic(), time.monotonic() - begin))
                except TritonError as error:
                    self.errors.append(str(error))

            due = time.monotonic()
            while not self._stop.is_set():
                now = time.monotonic()
                if self.rate <= 0:
                    due = now
                while self.rate > 0 and due <= now:
                    task = asyncio.create_task(one())
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                    due += 1 / self.rate
                await asyncio.sleep(0.01)
            await asyncio.gather(*under_way)


@contextlib.contextmanager
def open_load(address: str, model: str, rate: float = 0.0) -> Iterator[OpenLoad]:
    """Send load to a pod's gRPC address from a separate thread.

    At the end, the requests in flight are awaited.
    """
    load = OpenLoad(address, model, rate)
    thread = threading.Thread(target=lambda: asyncio.run(load.run()))
    thread.start()
    try:
        yield load
    finally:
        load._stop.set()
        thread.join()
