"""Put one load on one model and record every request.

One event loop, callbacks instead of tasks, requests encoded beforehand, responses not parsed: that
costs little CPU per request (each summary says how much), so that the server is measured and not
the generator. Latency in an open loop counts from when a request was due: a server that stalls is
charged for every request that should have been sent meanwhile (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import select
import selectors
import signal
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from triton_pipelines.tools.loadgen.arrivals import due_times
from triton_pipelines.tools.loadgen.grpc_client import GrpcTransport
from triton_pipelines.tools.loadgen.http_client import HttpTransport
from triton_pipelines.tools.loadgen.load_spec import (
    GIVEN_UP,
    NOT_SENT,
    WINDOWS,
    InferenceProtocol,
    LoadGeneratorError,
    LoadProgress,
    LoadSpec,
    LoadTarget,
    OnProgress,
)
from triton_pipelines.tools.loadgen.payloads import encode_requests
from triton_pipelines.tools.loadgen.summary import LoadResult, stability
from triton_pipelines.tools.loadgen.triton_statistics import (
    ModelCounters,
    StatisticsReader,
    StepStatistics,
    parse_statistics,
    step_statistics,
)

Models = Callable[[], list[Any]]
"""Triton's statistics, still packed."""
StatisticsSample = tuple[float, Models | None]
"""Statistics with the loop's time of reading; ``None``: unknown."""

PROGRESS_SECONDS = 0.25
_PAUSE_AFTER_ERROR_S = 0.02
"""A server that refuses at once is not asked again in a busy loop."""
_FIRST_CONNECTIONS = 8
_BURST = 64
"""Requests that were due already and are sent at a stretch."""
_LATE_S = 1.0
"""Seconds behind the end in which requests that were due before it are still sent."""
MAX_REQUESTS = 25_000_000
"""Requests that one load may take. All their times are kept, which makes percentiles exact: 40
bytes each, a gigabyte then.
"""
STATISTICS_SECONDS = 5.0
"""How long a look at the statistics may take: of a server that tells them later, nobody knows which
time they are of.
"""
_GRACE = 3.0
"""Times ``behind_s`` that an overloaded server gets to answer what is under way: its load is rarely
more than twice what it carries.
"""
_FORGOTTEN_S = 5.0
_WAITING, _ANSWERED = -2, -1
_SELECTABLE = 1024
"""File descriptors that select(2) takes: FD_SETSIZE."""


def run_blocking(
    target: LoadTarget, spec: LoadSpec, progress: OnProgress | None = None
) -> LoadResult:
    """Run :func:`run_load` in its own event loop, which keeps time to about 0.1 ms.

    asyncio's own loop wakes up to 1 ms late.
    """
    with asyncio.Runner(loop_factory=precise_event_loop) as runner:
        return runner.run(run_load(target, spec, progress))


def precise_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that keeps time to about 0.1 ms, for an ``asyncio.Runner``."""
    # A handler that raises in the middle of this would leave half a loop, which Python complains
    # about when it goes.
    if threading.current_thread() is not threading.main_thread():
        return asyncio.SelectorEventLoop(_PreciseSelector())
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: came.append(got))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        return asyncio.SelectorEventLoop(_PreciseSelector())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for got in came:
            signal.raise_signal(got)


async def run_load(
    target: LoadTarget, spec: LoadSpec, progress: OnProgress | None = None
) -> LoadResult:
    """Put a load on a model: warm-up, measured time, then wait for what is under way.

    Args:
        target: the model and its requests.
        spec: the load.
        progress: called some times a second; must be quick.

    Returns:
        Every request with its times; failed ones are in it, they raise nothing.

    Raises:
        LoadError: the server cannot be reached, the requests cannot be made, or there are more than
            :data:`MAX_REQUESTS`.
        asyncio.CancelledError: cancelled; connections are closed, what was under way is dropped.
    """
    requests = encode_requests(target)
    rows = [target.rows_of(number) for number in range(len(requests))]
    transport: HttpTransport | GrpcTransport
    if target.protocol is InferenceProtocol.HTTP:
        transport = HttpTransport(target.url, spec.concurrency or spec.connections, spec.timeout_s)
    else:
        transport = GrpcTransport(target.url, spec.timeout_s, target.headers)
    await transport.start(
        spec.concurrency
        or _FIRST_CONNECTIONS * (1 if target.protocol is InferenceProtocol.HTTP else 16)
    )
    try:
        async with StatisticsReader(target, min(spec.timeout_s, STATISTICS_SECONDS)) as reader:
            return await LoadRun(
                spec, requests, rows, transport.send, reader if spec.statistics else None, progress
            ).run()
    finally:
        await transport.close()


class LoadRun:
    """One load under way.

    Args:
        spec: the load.
        requests, rows: what is sent in turn, and rows in each.
        send: sends one; calls back once with "" for an answer, else with what went wrong.
        reader: of Triton's statistics; None: they are not read.
        progress: as of :func:`run`.
    """

    def __init__(
        self,
        spec: LoadSpec,
        requests: list[bytes],
        rows: list[int],
        send: Callable[[bytes, Callable[[str], None]], None],
        reader: StatisticsReader | None,
        progress: OnProgress | None,
    ) -> None:
        self._spec, self._requests, self._rows, self._send, self._reader, self._progress = (
            spec,
            requests,
            rows,
            send,
            reader,
            progress,
        )
        self._now = asyncio.get_running_loop().time
        self._began = 0.0
        self._next = 0
        self._in_flight = 0
        self._stopping = False
        self._request_ended = asyncio.Event()
        self._early_end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._overloaded = False
        # By request, in the order in which they were sent; the end of one that is under way is not
        # known.
        self._due, self._sent, self._end = array("d"), array("d"), array("d")
        self._number, self._error = array("q"), array("q")
        self._errors: dict[str, int] = {}
        self._ended_count = self._failed = 0
        self._samples: list[asyncio.Future[StatisticsSample]] = []
        self._behind = 0
        # Nothing is due behind the last window there can be, however long a busy server makes the
        # looks wait that end it.
        self._last_due = spec.warmup_s + spec.duration_s + spec.extend * spec.window_s

    async def run(self) -> LoadResult:
        """Put the load on the model and return every request."""
        spec = self._spec
        self._samples = [asyncio.ensure_future(self._sample_statistics())]
        await asyncio.wait(self._samples)  # the first look takes longer than others
        cpu, loop = time.process_time(), asyncio.get_running_loop()
        self._began = loop.time()
        sender = loop.create_task(self._send_open_loop()) if spec.open_loop else None
        reporter = loop.create_task(self._report()) if self._progress else None
        try:
            if sender is None:
                for _ in range(spec.concurrency):
                    self._send_next()
            begin, end, first = await self._measure_windows(sender)
            self._stopping = True
            if sender is not None:
                self._last_due = end
                if self._behind:
                    # What was due in the measured time and is not sent yet is the latest of all,
                    # and counts.
                    await asyncio.wait({sender}, timeout=_LATE_S)
                sender.cancel()
            last = self._samples[-1]
            await self._drain()
            figures = _statistics_between(await first, await last)
        finally:
            self._stopping = True
            for task in (sender, reporter, *self._samples):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
        return self._result(begin, end, figures, time.process_time() - cpu)

    # --- sending ----------------------------------------------------------------------------------
    async def _send_open_loop(self) -> None:
        loop, began, pending = asyncio.get_running_loop(), self._began, self._spec.pending
        for due in due_times(self._spec):
            if due >= self._last_due:
                return
            wait = began + due - loop.time()
            self._behind = self._behind + 1 if wait <= 0 else 0
            if wait > 0:
                await asyncio.sleep(wait)
            elif self._behind % _BURST == 0:
                # Who is late at every request would else never let go of the loop: answers have to
                # be read, and the load has to end.
                await asyncio.sleep(0)
            # What is not sent any more never makes it later: as many as there may be is behind,
            # too.
            full = self._in_flight >= pending and math.isfinite(self._spec.behind_s)
            if full or self._backlog_seconds() > self._spec.behind_s:
                self._overloaded = True
                self._end_early()
                return
            if self._in_flight < pending:
                self._send_request(due)
            else:
                self._record_end(
                    self._record_sent(self._next_request(), due, due),
                    f"{NOT_SENT}: {pending} requests were waiting or under way",
                )

    def _backlog_seconds(self) -> float:
        """Seconds that the server is behind: so many requests wait as were due in that time.

        One that never ends does not make it late.
        """
        return self._now() - self._began - self._due[-self._in_flight] if self._in_flight else 0.0

    def _send_next(self) -> None:
        if not self._stopping:
            self._send_request(self._now() - self._began)

    def _send_request(self, due: float) -> None:
        number = self._next_request()
        place = self._record_sent(number, due, self._now() - self._began)
        self._send(self._requests[number], functools.partial(self._record_end, place))

    def _next_request(self) -> int:
        number = self._next
        self._next = number + 1 if number + 1 < len(self._requests) else 0
        return number

    def _record_sent(self, number: int, due: float, sent: float) -> int:
        """Record a request; return its index."""
        self._due.append(due)
        self._sent.append(sent)
        self._end.append(math.nan)
        self._number.append(number)
        self._error.append(_WAITING)
        self._in_flight += 1
        if len(self._due) == MAX_REQUESTS:
            self._stopping = True
            self._end_early()
        return len(self._due) - 1

    def _record_end(self, place: int, error: str) -> None:
        if self._error[place] != _WAITING:
            return  # given up before
        self._end[place] = self._now() - self._began
        self._in_flight -= 1
        self._ended_count += 1
        if error:
            self._failed += 1
            self._error[place] = self._errors.setdefault(error, len(self._errors))
        else:
            self._error[place] = _ANSWERED
        if self._stopping:
            self._request_ended.set()
        elif not self._spec.open_loop:
            if error:
                asyncio.get_running_loop().call_later(_PAUSE_AFTER_ERROR_S, self._send_next)
            else:
                self._send_next()

    def _end_early(self) -> None:
        if not self._early_end.done():
            self._early_end.set_result(None)

    async def _drain(self) -> None:
        """Wait for the requests in flight; give up those that are not answered by then."""
        # Each request has its own deadline; that of all guards against a transport that forgets
        # one.
        grace = min(_GRACE * self._spec.behind_s, self._spec.timeout_s + _FORGOTTEN_S)
        deadline = self._now() + grace
        while self._in_flight and (left := deadline - self._now()) > 0:
            self._request_ended.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._request_ended.wait(), left)
        if self._in_flight:
            for place in np.flatnonzero(np.array(self._error) == _WAITING).tolist():
                self._record_end(place, f"{GIVEN_UP} {grace:g} s after the end of the load")

    # --- measuring --------------------------------------------------------------------------------
    async def _measure_windows(
        self, sender: asyncio.Task[None] | None
    ) -> tuple[float, float, asyncio.Future[StatisticsSample]]:
        """Wait for the windows; return begin and end of the last three, and the first sample.

        For an overload that is ended early: of all windows until then.
        """
        spec = self._spec
        for number in range(WINDOWS + spec.extend + 1):
            at = spec.warmup_s + number * spec.window_s
            whole = await self._wait_until(at, sender)
            # The load continues meanwhile: a busy server takes its time to respond.
            self._samples.append(asyncio.ensure_future(self._sample_statistics()))
            if not whole:
                first = max(0, number - WINDOWS)
                begin, sample = (
                    (spec.warmup_s + first * spec.window_s, 1 + first) if number > 1 else (0.0, 0)
                )
                return begin, self._now() - self._began, self._samples[sample]
            if number < WINDOWS:
                continue
            begin = at - spec.duration_s
            # Where a queue grows no window is like the one before, however many there are.
            grows = spec.open_loop and self._backlog_seconds() > spec.window_s
            if (
                number == WINDOWS + spec.extend
                or grows
                or stability(self._result(begin, at, {}, 0.0)).stable
            ):
                return begin, at, self._samples[-1 - WINDOWS]
        raise AssertionError("no windows")

    async def _sample_statistics(self) -> StatisticsSample:
        """Read the counters; return them with the time halfway between request and response."""
        asked = self._now()
        try:
            models: Models | None = await self._reader.sample() if self._reader else None
        except LoadGeneratorError:
            models = None  # a gateway may let inference through alone
        return (asked + self._now()) / 2, models

    async def _wait_until(self, at: float, sender: asyncio.Task[None] | None) -> bool:
        """Wait; return whether the time came before the load was over."""
        # A sender that breaks ends the load at once; one whose schedule is over has done its work.
        if sender is not None and sender.done():
            if not sender.cancelled():
                sender.result()
            sender = None
        wait = self._began + at - self._now()
        if wait > 0 and not self._early_end.done():
            await asyncio.wait(
                {self._early_end} if sender is None else {self._early_end, sender},
                timeout=wait,
                return_when=asyncio.FIRST_COMPLETED,
            )
        if self._early_end.done() and not self._overloaded:
            raise LoadGeneratorError(
                f"more than {MAX_REQUESTS} requests in one run; all their times are kept: use"
                " a shorter --duration"
            )
        if self._early_end.done():
            return False
        return (
            True
            if wait <= 0 or not (sender is None or sender.done())
            else await self._wait_until(at, sender)
        )

    async def _report(self) -> None:
        assert self._progress is not None
        total = self._spec.warmup_s + self._spec.duration_s
        while True:
            elapsed = self._now() - self._began
            if elapsed > total:
                total = min(
                    total + self._spec.window_s,
                    self._spec.warmup_s
                    + self._spec.duration_s
                    + self._spec.extend * self._spec.window_s,
                )
            self._progress(
                LoadProgress(
                    elapsed, max(total, elapsed), self._ended_count - self._failed, self._failed
                )
            )
            await asyncio.sleep(PROGRESS_SECONDS)

    def _result(
        self, begin: float, end: float, figures: dict[str, StepStatistics], cpu: float
    ) -> LoadResult:
        """Return the requests that have ended, in the order of their ends."""
        ends, errors = np.array(self._end), np.array(self._error, dtype=np.int64)
        chosen = np.flatnonzero(errors != _WAITING)
        chosen = chosen[np.argsort(ends[chosen], kind="stable")]
        numbers = np.array(self._number, dtype=np.int64)[chosen]
        return LoadResult(
            spec=self._spec,
            due=np.array(self._due)[chosen],
            sent=np.array(self._sent)[chosen],
            end=ends[chosen],
            rows=np.array(self._rows, dtype=np.int64)[numbers] if len(numbers) else numbers,
            error=errors[chosen],
            errors=tuple(self._errors),
            begin_s=begin,
            end_s=end,
            cpu_s=cpu,
            elapsed_s=self._now() - self._began,
            steps=figures,
            overloaded=self._overloaded,
        )


def _statistics_between(
    first: StatisticsSample, last: StatisticsSample
) -> dict[str, StepStatistics]:
    """Return what each model with requests did between two samples.

    Empty if a sample is missing.
    """
    counters: list[dict[str, ModelCounters]] = []
    for _, models in (first, last):
        try:
            if models is None:
                return {}
            counters.append(parse_statistics(models()))
        except LoadGeneratorError:
            return {}
    found = step_statistics(counters[0], counters[1], last[0] - first[0])
    return {name: step for name, step in found.items() if step.requests or step.failures}


class _PreciseSelector(selectors.DefaultSelector):
    """Waits to the microsecond: epoll itself takes whole milliseconds, rounded up."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Select as the standard selector does."""
        if (
            timeout is not None
            and timeout > 0
            and hasattr(self, "fileno")
            and self.fileno() < _SELECTABLE
        ):
            select.select([self.fileno()], (), (), timeout)
            timeout = 0
        return super().select(timeout)
