"""Test the load engine against a fake server.

Covered are loops, deadlines, errors, and latency counted from the time when a request was due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from tests.support.kserve import kserve
from tests.support.messages import Messages
from triton_pipelines.tools.loadgen import (
    Arrivals,
    LoadGeneratorError,
    LoadProgress,
    LoadSpec,
    LoadTarget,
    load_run,
    run_load,
    summarize,
)
from triton_pipelines.tools.loadgen.load_run import LoadRun
from triton_pipelines.tools.loadgen.request_failure import (
    OnRequestEnd,
    RequestFailure,
    rejected,
    timed_out,
)
from triton_pipelines.tools.loadgen.summary import LoadResult
from triton_pipelines.tools.loadgen.triton_statistics import StatisticsReader

QUICK: dict[str, Any] = {"duration_s": 0.3, "warmup_s": 0.0, "statistics": False}


def target(url: str, rows: int = 1, texts: int = 3) -> LoadTarget:
    inputs = [
        {"TEXT": np.array([[b"text %d" % number]] * rows, dtype=np.object_)}
        for number in range(texts)
    ]
    return LoadTarget(url, "sentiment", inputs)


async def test_closed_loop_keeps_as_many_under_way_as_asked() -> None:
    async with kserve(lambda _: (0.01, 200, b"{}")) as stand:
        result = await run_load(target(stand.url), LoadSpec(concurrency=4, **QUICK))
    summary = summarize(result)
    assert stand.most_under_way == 4
    assert stand.connections == 4
    # Little's law: requests/s times latency is what is under way.
    assert summary.requests_per_s * summary.mean_s == pytest.approx(4, rel=0.15)
    assert summary.failed == 0


async def test_requests_go_out_in_turn_and_whole() -> None:
    async with kserve() as stand:
        await run_load(target(stand.url, rows=2), LoadSpec(concurrency=1, **QUICK))
    begun = [request.partition(b"\r\n\r\n")[2] for request in stand.requests[:4]]
    assert [b"text 0" in body for body in begun] == [True, False, False, True]
    assert begun[1].count(b"text 1") == 2
    assert stand.requests[0].startswith(b"POST /v2/models/sentiment/infer HTTP/1.1\r\n")


class Counter:
    """A server that serves one request at a time, in the loop's clock; other requests queue."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds, self.free, self.number = seconds, 0.0, 0

    def send(self, _: bytes, done: OnRequestEnd) -> None:
        loop = asyncio.get_running_loop()
        self.free = max(self.free, loop.time()) + self.seconds(self.number)
        self.number += 1
        loop.call_at(self.free, done, None)


def paced(rate: float, **fields: Any) -> LoadSpec:
    """Return an open loop of evenly spaced requests, without warmup and statistics."""
    defaults: dict[str, Any] = {"warmup_s": 0, "statistics": False}
    return LoadSpec(rate=rate, arrivals=Arrivals.CONSTANT, **(defaults | fields))


async def run_on(server: Counter, spec: LoadSpec, reader: object = None) -> LoadResult:
    """Put a load of one-row requests on a fake server; ``reader`` samples its statistics."""
    samples = cast("StatisticsReader | None", reader)
    return await LoadRun(spec, [b""], [1], server.send, samples, None).run()


@pytest.mark.looptime(start=0)
async def test_latency_of_an_open_loop_counts_from_when_requests_were_due() -> None:
    # A server of 1 ms that stalls once for a second. Of 100 requests/s a hundred were due in the
    # stall, and every one of them waited.
    def stalls(number: int) -> float:
        return 1.0 if number == 10 else 0.001

    even = paced(100, duration_s=3)
    open_loop = await run_on(Counter(stalls), even)
    waited = np.sort(open_loop.latencies)[::-1]
    # Those due later waited less: the request that stalled a second, the next one (10 ms later) 991
    # ms, and so on.
    assert waited[:100] == pytest.approx([1.0 - 0.009 * number for number in range(100)], abs=1e-6)
    assert summarize(open_loop).p99_s > 0.95
    # A client that waits for its answers sends nothing meanwhile, and sees one slow request of two
    # thousand: p99 does not know of the stall.
    closed = await run_on(Counter(stalls), replace(even, rate=0, concurrency=1))
    assert summarize(closed).p99_s == pytest.approx(0.001)


async def test_the_wait_for_a_free_connection_is_in_the_latency() -> None:
    # One connection, and a server that stalls once for 0.3 s: thirty requests were due meanwhile
    # and could not even be sent.
    async with kserve(lambda number: (0.3 if number == 5 else 0.0, 200, b"{}")) as stand:
        spec = paced(100, connections=1, duration_s=0.6)
        result = await run_load(target(stand.url), spec)
    assert stand.connections == 1
    assert np.count_nonzero(result.latencies > 0.1) >= 18
    assert summarize(result).max_s >= 0.3


async def test_open_loop_sends_when_due_however_late_the_answers_are() -> None:
    async with kserve(lambda _: (0.2, 200, b"{}")) as stand:
        result = await run_load(target(stand.url), paced(100, duration_s=0.3))
    assert stand.most_under_way >= 18
    assert np.sort(result.due)[:30] == pytest.approx(np.arange(30) / 100)
    # Answered after the measured time, and counted all the same: they were due in it.
    assert len(result.latencies) == 30


async def test_a_schedule_is_kept_and_ends() -> None:
    schedule = [0.0, 0.05, 0.05, 0.11]
    async with kserve() as stand:
        result = await run_load(target(stand.url), LoadSpec(schedule=schedule, **QUICK))
    assert sorted(result.due.tolist()) == schedule
    assert len(stand.requests) == 4


async def test_errors_are_counted_by_what_the_server_said() -> None:
    def behave(number: int) -> tuple[float, int, bytes]:
        return (
            (0.0, 503, b'{"error": "queue\\n is full"}')
            if number % 2
            else (0.002, 200, b"x" * 100_000)
        )

    async with kserve(behave) as stand:
        summary = summarize(await run_load(target(stand.url), LoadSpec(concurrency=1, **QUICK)))
    assert set(summary.errors) == {"503 Reason: queue is full"}
    assert summary.errors["503 Reason: queue is full"] == summary.failed > 0
    # A server that refuses at once is not asked in a busy loop: at most one failure for each 20 ms.
    assert summary.failed <= 16


async def test_what_takes_too_long_is_given_up_and_its_connection_replaced() -> None:
    async with kserve(lambda number: (0.6 if number == 0 else 0.0, 200, b"{}")) as stand:
        result = await run_load(target(stand.url), LoadSpec(concurrency=1, timeout_s=0.1, **QUICK))
        assert result.errors == (timed_out("no response within 0.1 s"),)
        assert stand.connections == 2
    assert summarize(result).requests > 0


async def test_a_broken_connection_fails_one_request_alone() -> None:
    async with kserve(lambda number: (0.0, 0 if number == 5 else 200, b"{}")) as stand:
        result = await run_load(target(stand.url), LoadSpec(concurrency=1, **QUICK))
    assert result.errors == (RequestFailure("the connection was lost: closed by the server"),)
    assert np.count_nonzero(result.error >= 0) == 1
    assert len(result.end) > 20


async def test_chunked_answers_of_gateways_are_read_to_their_end() -> None:
    async with kserve(lambda _: (0.001, 200, b"y" * 5000), chunked=True) as stand:
        summary = summarize(await run_load(target(stand.url), LoadSpec(concurrency=2, **QUICK)))
    assert summary.failed == 0
    assert summary.requests > 20


async def test_more_than_is_bounded_fails_unsent() -> None:
    async with kserve(lambda _: (0.4, 200, b"{}")) as stand:
        result = await run_load(target(stand.url), LoadSpec(rate=200, pending=5, **QUICK))
    assert stand.most_under_way <= 5
    assert result.errors == (rejected("not sent, because 5 requests were waiting or in progress"),)


async def test_a_rate_beyond_what_can_be_sent_still_ends() -> None:
    # Every request is late, so that there is never time to wait: the loop must be let go of all the
    # same.
    sent = 0

    def send(_: bytes, done: OnRequestEnd) -> None:
        nonlocal sent
        sent += 1
        if sent > 3_000_000:  # many seconds of a load of 0.3
            raise AssertionError("the load does not end")
        done(None)

    result = await LoadRun(LoadSpec(rate=1e9, **QUICK), [b""], [1], send, None, None).run()
    assert result.end_s == pytest.approx(0.3)
    assert result.elapsed_s < 3


async def test_what_a_late_generator_has_not_sent_at_the_end_counts() -> None:
    """Count requests that a late generator has not sent at the end.

    The generator blocks from 0.2 s until after the end, so a third of all requests are the latest.
    """
    loop, begun = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    stood = False

    def send(_: bytes, done: OnRequestEnd) -> None:
        nonlocal stood
        if not stood and loop.time() - begun > 0.2:
            stood = True
            while loop.time() - begun < 0.35:
                pass
        done(None)

    result = await LoadRun(paced(1000, duration_s=0.3), [b""], [1], send, None, None).run()
    summary = summarize(result)
    assert summary.requests == 300
    assert summary.p99_s > 0.1


@pytest.mark.looptime(start=0)
async def test_a_server_that_is_slow_to_tell_its_statistics_is_not_sent_more_for_it() -> None:
    """Send no further load because statistics are slow.

    On an overloaded Triton each sample took half a minute, and a load of 3 s lasted as long as one.
    """

    class Slow:
        async def sample(self) -> Callable[[], list[Any]]:
            await asyncio.sleep(30)
            return list

    server = Counter(lambda _: 0.001)
    spec = paced(100, duration_s=2, warmup_s=1, statistics=True)
    result = await run_on(server, spec, Slow())
    assert server.number == 300
    assert (result.begin_s, result.end_s) == (1.0, 3.0)


@pytest.mark.looptime(start=0)
async def test_an_overload_is_ended_when_the_server_is_far_behind() -> None:
    """End an overload of 200 requests/s on a server that answers 100.

    After two seconds, one second of arrivals is waiting, and more load would show nothing new.
    """
    server = Counter(lambda _: 0.01)
    result = await run_on(server, paced(200, duration_s=60, warmup_s=0.5, behind_s=1))
    assert result.overloaded
    assert result.begin_s == 0.0, "less than a window: all of it counts"
    assert result.end_s == pytest.approx(2.0, abs=0.05)
    assert len(result.due) == server.number == pytest.approx(400, abs=10)
    assert not result.errors, "what is under way has its time to be answered"
    assert result.latencies.max() == pytest.approx(2.0, abs=0.1)
    assert asyncio.get_running_loop().time() == pytest.approx(4.0, abs=0.1)


@pytest.mark.looptime(start=0)
async def test_what_an_overloaded_server_does_not_answer_is_given_up_long_before_its_timeout() -> (
    None
):
    server = Counter(lambda number: 0.01 if number < 200 else 100.0)
    result = await run_on(server, paced(100, duration_s=6, behind_s=0.5))
    assert result.overloaded
    assert result.begin_s == 0.0
    assert result.end_s == pytest.approx(2.5, abs=0.1)
    assert result.errors == (timed_out("abandoned 1.5 s after the end of the load"),)
    assert np.count_nonzero(result.error >= 0) == pytest.approx(50, abs=5)
    assert asyncio.get_running_loop().time() == pytest.approx(4.0, abs=0.1)
    assert np.all(np.diff(result.end) >= 0)


@pytest.mark.looptime(start=0)
@pytest.mark.parametrize("behind_s", [5.0, float("inf")])
async def test_as_many_requests_as_there_may_be_are_an_overload(behind_s: float) -> None:
    """Treat the maximum of pending requests as an overload.

    Fifty requests are half a second of arrivals. Requests that are not sent beyond them would never
    be five seconds behind.
    """
    spec = paced(100, duration_s=9, pending=50, behind_s=behind_s, timeout_s=20)
    result = await run_on(Counter(lambda _: 0.5), spec)
    ends = behind_s < 60
    assert result.overloaded == ends
    assert result.end_s == pytest.approx(0.51 if ends else 9.0, abs=0.05)
    assert any(error.is_rejected for error in result.errors) != ends


@pytest.mark.looptime(start=0)
async def test_one_request_that_never_ends_is_no_overload() -> None:
    class OneHangs(Counter):
        def send(self, payload: bytes, done: OnRequestEnd) -> None:
            if self.number == 7:
                self.number += 1
                return
            super().send(payload, done)

    result = await run_on(OneHangs(lambda _: 0.001), paced(100, duration_s=6, behind_s=0.5))
    assert not result.overloaded
    assert (result.begin_s, result.end_s) == (0.0, 6.0)
    assert np.count_nonzero(result.error >= 0) == 1


@pytest.mark.looptime(start=0)
async def test_an_open_loop_whose_queue_grows_is_not_prolonged_for_being_unsteady() -> None:
    spec = paced(200, duration_s=3, warmup_s=1, extend=6)
    result = await run_on(Counter(lambda _: 0.01), spec)
    assert (result.begin_s, result.end_s) == (1.0, 4.0)
    summary = summarize(result)
    assert not summary.stability.stable
    assert summary.requests_per_s == pytest.approx(100, rel=0.02)
    assert summary.requests == 600, "all that was due, however late"


@pytest.mark.looptime(start=0)
async def test_windows_do_not_wait_for_looks_and_looks_are_dated_between_question_and_answer() -> (
    None
):
    """Date a sample between its request and its response.

    The last sample arrives two seconds late, with counters from one second before. Half of a core
    was busy all the time.
    """

    class Late:
        asked = 0

        async def sample(self) -> Callable[[], list[Any]]:
            self.asked += 1
            late = 2 if self.asked == 5 else 0  # before the load, and at 1, 2, 3 and 4 seconds
            await asyncio.sleep(late)
            done = round(asyncio.get_running_loop().time() - late / 2) * 10  # 50 ms of work each
            batch = {"batch_size": 1, "compute_infer": {"count": done, "ns": done * 5 * 10**7}}
            model = {
                "name": "m",
                "execution_count": done,
                "inference_count": done,
                "batch_stats": [batch],
            }
            return lambda: [model | {"inference_stats": {"success": {"count": done}}}]

    spec = paced(10, duration_s=3, warmup_s=1, statistics=True)
    result = await run_on(Counter(lambda _: 0.001), spec, Late())
    assert (result.begin_s, result.end_s) == (1.0, 4.0)
    assert result.steps["m"].requests == 40
    assert result.steps["m"].busy == pytest.approx(0.5, rel=0.01)


async def test_a_request_that_waited_for_a_connection_is_given_up_by_its_own_age() -> None:
    """Count the time that a request waits for a connection toward its deadline.

    Two requests of 0.25 s share one connection. The second has waited 0.25 s when it is sent, and
    does not get 0.4 s more.
    """
    async with kserve(lambda _: (0.25, 200, b"{}")) as stand:
        spec = LoadSpec(schedule=[0.0, 0.0], connections=1, timeout_s=0.4, **QUICK)
        result = await run_load(target(stand.url), spec)
    assert result.errors == (timed_out("no response within 0.4 s"),)
    assert result.elapsed_s < 0.6


async def test_rows_are_counted() -> None:
    async with kserve(lambda _: (0.005, 200, b"{}")) as stand:
        summary = summarize(
            await run_load(target(stand.url, rows=8), LoadSpec(concurrency=1, **QUICK))
        )
    assert summary.rows_per_s == pytest.approx(8 * summary.requests_per_s)


async def test_an_unreachable_server_is_one_message(messages: Messages) -> None:
    async with kserve() as stand:
        url = stand.url
    with messages.raises(LoadGeneratorError, match="127"):
        await run_load(target(url), LoadSpec(concurrency=1, **QUICK))


@pytest.mark.looptime(start=0)
async def test_it_runs_until_it_is_stable_and_no_longer() -> None:
    # Slow in the first window, steady from then on.
    spec = LoadSpec(concurrency=1, duration_s=3, warmup_s=0, extend=6, statistics=False)
    warming = Counter(lambda _: 0.05 if asyncio.get_running_loop().time() < 1 else 0.01)
    result = await run_on(warming, spec)
    assert (result.begin_s, result.end_s) == pytest.approx((1.0, 4.0))
    assert summarize(result).stability.stable
    # One that never is ends, too, and is said to be none.
    slower = Counter(lambda number: 0.001 * number)
    result = await run_on(slower, replace(spec, extend=2))
    assert (result.begin_s, result.end_s) == pytest.approx((2.0, 5.0))
    assert not summarize(result).stability.stable


async def test_progress_is_told_and_a_cancelled_load_leaves_nothing() -> None:
    reported: list[LoadProgress] = []
    twice = asyncio.Event()

    def tell(progress: LoadProgress) -> None:
        reported.append(progress)
        if len(reported) == 2:
            twice.set()

    async with kserve(lambda _: (0.01, 200, b"{}")) as stand:
        load = asyncio.create_task(
            run_load(
                target(stand.url), LoadSpec(concurrency=2, duration_s=30, statistics=False), tell
            )
        )
        await twice.wait()
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
        assert reported[-1].answered > 0
        assert reported[-1].total_s == 31.0
        assert asyncio.all_tasks() == {asyncio.current_task()} | {
            task for task in asyncio.all_tasks() if "listening" in repr(task)
        }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"concurrency": 1, "rate": 5.0},
        {"concurrency": 1, "duration_s": 0.0},
        {"rate": 5.0, "warmup_s": -1.0},
    ],
)
def test_wrong_specifications_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(LoadGeneratorError):
        LoadSpec(**fields)


@pytest.mark.looptime(start=0)
@pytest.mark.parametrize(
    "load",
    [
        LoadSpec(concurrency=4, duration_s=60.0, warmup_s=0.0),
        LoadSpec(rate=1000.0, duration_s=60.0, warmup_s=0.0),
    ],
)
async def test_a_load_ends_where_its_times_would_fill_the_memory(
    load: LoadSpec, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr(load_run, "MAX_REQUESTS", 500)
    server = Counter(lambda _: 0.001)
    with messages.raises(LoadGeneratorError, match="--duration"):
        await run_on(server, load)
    assert 500 <= server.number <= 510
    assert asyncio.get_running_loop().time() < 2
