"""One load while it runs: send requests, record their times, measure windows."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from triton_pipelines.tools.loadgen.arrivals import due_times
from triton_pipelines.tools.loadgen.load_spec import (
    WINDOWS,
    LoadGeneratorError,
    LoadProgress,
    LoadSpec,
    OnProgress,
)
from triton_pipelines.tools.loadgen.request_failure import (
    OnRequestEnd,
    RequestFailure,
    rejected,
    timed_out,
)
from triton_pipelines.tools.loadgen.summary import LoadResult, stability
from triton_pipelines.tools.loadgen.triton_statistics import (
    ModelStatisticsCounters,
    StatisticsReader,
    StepStatistics,
    parse_statistics,
    step_statistics,
)

Models = Callable[[], list[Any]]
"""Triton's statistics, still packed."""

StatisticsSample = tuple[float, Models | None]
"""The loop's time of the sample, and the statistics; ``None``: unknown."""

PROGRESS_SECONDS = 0.25

_PAUSE_AFTER_ERROR_S = 0.02
"""Pause after an error, so that a server which rejects at once is not called in a busy loop."""

_BURST = 64
"""Overdue requests that are sent in a row before the event loop handles other work."""

_LATE_S = 1.0
"""Seconds after the end in which requests that were due before it are still sent."""

MAX_REQUESTS = 25_000_000
"""Maximum requests of one load.

All their times are kept, which makes percentiles exact: 40 bytes each, so a gigabyte at most.
"""

_GRACE = 3.0
"""Multiple of ``behind_s`` in which an overloaded server may answer the requests in flight.

Its load is rarely more than twice what it can sustain.
"""

_FORGOTTEN_S = 5.0

_WAITING, _ANSWERED = -2, -1


class LoadRun:
    """One load while it runs.

    Args:
        spec: The load.
        requests: The encoded requests, which are sent in turn.
        rows: Number of rows in each request.
        send: Sends one request; calls back once, with ``None`` for an answer, otherwise with the
            failure.
        reader: Reads Triton's statistics; ``None``: they are not read.
        progress: As in :func:`run_load`.
    """

    def __init__(
        self,
        spec: LoadSpec,
        requests: list[bytes],
        rows: list[int],
        send: Callable[[bytes, OnRequestEnd], None],
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
        # One entry per request, in the order of sending; the end of a request in flight is unknown.
        self._due, self._sent, self._end = array("d"), array("d"), array("d")
        self._number, self._error = array("q"), array("q")
        self._errors: dict[RequestFailure, int] = {}
        self._ended_count = self._failed = 0
        self._samples: list[asyncio.Future[StatisticsSample]] = []
        self._behind = 0
        # No request is due after the last possible window, however long a busy server delays the
        # sample that ends it.
        self._last_due = spec.warmup_s + spec.duration_s + spec.extend * spec.window_s

    async def run(self) -> LoadResult:
        """Put the load on the model and return every request."""
        spec = self._spec
        self._samples = [asyncio.ensure_future(self._sample_statistics())]
        await asyncio.wait(self._samples)  # the first sample takes longer than others
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
                    # Requests that were due in the measured time but are not sent yet have the
                    # highest latency, and they count.
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
                # A sender that is late for every request would otherwise never yield to the event
                # loop, which has to read answers and to end the load.
                await asyncio.sleep(0)
            # Requests that are not sent cannot increase the backlog, so a full pending queue counts
            # as being behind as well.
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
                    rejected(f"not sent, because {pending} requests were waiting or in progress"),
                )

    def _backlog_seconds(self) -> float:
        """Return the seconds that the server is behind.

        As many requests are in flight as were due in that time. Only their number counts, so a
        single request that never ends does not make the server late.
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

    def _record_end(self, place: int, failure: RequestFailure | None) -> None:
        if self._error[place] != _WAITING:
            return  # was already given up
        self._end[place] = self._now() - self._began
        self._in_flight -= 1
        self._ended_count += 1
        if failure is not None:
            self._failed += 1
            self._error[place] = self._errors.setdefault(failure, len(self._errors))
        else:
            self._error[place] = _ANSWERED
        if self._stopping:
            self._request_ended.set()
        elif not self._spec.open_loop:
            if failure is not None:
                asyncio.get_running_loop().call_later(_PAUSE_AFTER_ERROR_S, self._send_next)
            else:
                self._send_next()

    def _end_early(self) -> None:
        if not self._early_end.done():
            self._early_end.set_result(None)

    async def _drain(self) -> None:
        """Wait for the requests in flight; give up those that are not answered in time."""
        # Each request has its own deadline. The common one guards against a transport that forgets
        # a request.
        grace = min(_GRACE * self._spec.behind_s, self._spec.timeout_s + _FORGOTTEN_S)
        deadline = self._now() + grace
        while self._in_flight and (left := deadline - self._now()) > 0:
            self._request_ended.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._request_ended.wait(), left)
        if self._in_flight:
            given_up = timed_out(f"abandoned {grace:g} s after the end of the load")
            for place in np.flatnonzero(np.array(self._error) == _WAITING).tolist():
                self._record_end(place, given_up)

    # --- measuring --------------------------------------------------------------------------------
    async def _measure_windows(
        self, sender: asyncio.Task[None] | None
    ) -> tuple[float, float, asyncio.Future[StatisticsSample]]:
        """Wait for the windows to end.

        Returns:
            Begin and end of the last three windows, and the sample at their begin. If an overload
            ended the load early: those of the windows until then.
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
            # While a queue grows, windows never agree, however many there are.
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
        began = self._now()
        try:
            models: Models | None = await self._reader.sample() if self._reader else None
        except LoadGeneratorError:
            models = None  # a gateway may allow only inference
        return (began + self._now()) / 2, models

    async def _wait_until(self, at: float, sender: asyncio.Task[None] | None) -> bool:
        """Wait until ``at``; return whether that time was reached before the load ended."""
        # A sender that fails ends the load at once; one whose schedule is over has done its work.
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
                f"a run can have at most {MAX_REQUESTS} requests, because all request times "
                "are kept in memory; use a shorter --duration"
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
    counters: list[dict[str, ModelStatisticsCounters]] = []
    for _, models in (first, last):
        try:
            if models is None:
                return {}
            counters.append(parse_statistics(models()))
        except LoadGeneratorError:
            return {}
    found = step_statistics(counters[0], counters[1], last[0] - first[0])
    return {name: step for name, step in found.items() if step.requests or step.failures}
