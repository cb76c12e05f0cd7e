"""Send requests at a bounded rate in a separate thread while a test changes the server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from e2e.load.clients import CLIENTS, ONE_ADDRESS, Answer, Ask, RequestError
from e2e.load.record import Outcome, Summary, summarize
from e2e.suite.reach import Endpoint

Judge = Callable[[str, Answer], str]
"""Gives the answer to a text a name for the record; raises AssertionError for a wrong one."""

WORKERS = 3
INTERVAL_SECONDS = 0.15
"""Seconds between two requests of one worker.

With all kinds of clients this is 60 requests/s, which takes a fraction of a core.
"""
STOP_SECONDS = 60.0


@dataclass
class Load:
    """Requests on their way; make one with `under_load`.

    Args:
        endpoint: where the pipeline answers.
        model: the ensemble's name.
        texts: sent in turn.
        judge: names answers.
        clients: kinds of clients, of `CLIENTS`.
        workers: clients per kind.
        interval: seconds between two requests of one client; a late answer delays the next request,
            none is skipped.
        open_loop: requests go out at their times whether or not those before have been answered:
            what is asked for does not fall when answers are late. For kinds of clients that may
            have several requests under way: not `http-keep-alive`.
    """

    endpoint: Endpoint
    model: str
    texts: Sequence[str]
    judge: Judge
    clients: Sequence[str] = ONE_ADDRESS
    workers: int = WORKERS
    interval: float = INTERVAL_SECONDS
    open_loop: bool = False
    _outcomes: list[Outcome] = field(default_factory=list, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)
    _began: float = 0.0
    _failure: BaseException | None = None

    @property
    def outcomes(self) -> list[Outcome]:
        """What is known so far, in the order of the ends."""
        return list(self._outcomes)

    def now(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._began

    def summary(self) -> Mapping[str, Summary]:
        """Kind of client → what became of its requests so far."""
        return summarize(self.outcomes)

    def wait_requests(
        self, count: int = 3, deadline: float = 60.0, *, answered: bool = False
    ) -> None:
        """Wait until every client has finished `count` more requests that began after this call.

        Args:
            count: further requests per client.
            deadline: seconds from now.
            answered: count only those with a right answer.

        Raises:
            AssertionError: the deadline (seconds) passed, or the load itself broke.
        """
        since, left = (
            self.now(),
            {(client, worker): count for client in self.clients for worker in range(self.workers)},
        )

        def done() -> bool:
            if self._failure is not None:
                raise AssertionError(f"the load broke: {self._failure!r}")
            seen = dict.fromkeys(left, 0)
            for outcome in reversed(self._outcomes):
                if outcome.end < since:
                    break
                if outcome.start >= since and not (answered and outcome.error):
                    seen[outcome.client, outcome.worker] += 1
            return all(seen[key] >= wanted for key, wanted in left.items())

        with self._changed:
            if not self._changed.wait_for(done, deadline):
                raise AssertionError(
                    f"clients did not finish {count} requests each within {deadline:.0f} "
                    f"s: {[str(s) for s in self.summary().values()]}"
                )

    def run(self) -> None:
        """Send until `stop`; blocks."""
        self._began = time.monotonic()
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._failure = error
            raise
        finally:
            with self._changed:
                self._changed.notify_all()

    def stop(self) -> None:
        """Let requests in flight end and send no more."""
        self._stop.set()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            total = len(self.clients) * self.workers
            for number in range(total):
                client, worker = (
                    self.clients[number % len(self.clients)],
                    number // len(self.clients),
                )
                group.create_task(self._work(client, worker, self.interval * number / total))

    async def _work(self, client: str, worker: int, offset: float) -> None:
        due = self.now() + offset
        async with (
            CLIENTS[client](self.endpoint, self.model) as ask,
            asyncio.TaskGroup() as under_way,
        ):
            turn = worker
            while not self._stop.is_set():
                await asyncio.sleep(max(0.0, due - self.now()))
                one = self._one(ask, client, worker, self.texts[turn % len(self.texts)])
                if self.open_loop:
                    under_way.create_task(one)
                else:
                    await one
                turn += 1
                due = (
                    due + self.interval if self.open_loop else max(due + self.interval, self.now())
                )

    async def _one(self, ask: Ask, client: str, worker: int, text: str) -> None:
        start = self.now()
        answer = error = ""
        try:
            answer = self.judge(text, await ask(text))
        except RequestError as failure:
            error = str(failure)
        except AssertionError as wrong:
            error = f"wrong answer: {wrong}"
        with self._changed:
            self._outcomes.append(Outcome(client, worker, start, self.now() - start, answer, error))
            self._changed.notify_all()


@contextlib.contextmanager
def under_load(load: Load) -> Iterator[Load]:
    """Run a load for the duration of the context.

    The context begins when every client has received an answer. When it ends, all requests have
    ended.
    """
    thread = threading.Thread(target=load.run, name="load", daemon=True)
    thread.start()
    try:
        load.wait_requests(1)
        yield load
    finally:
        load.stop()
        thread.join(STOP_SECONDS)
        assert not thread.is_alive(), "the load did not end"
