"""Test the work queue on a virtual clock.

There are examples of each guarantee, and random schedules of adds, failures and durations.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import looptime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_pipelines.cluster.work_queue import BUG, TRANSIENT, Backoff, Key, Result, WorkQueue

A: Key = ("default", "a")
B: Key = ("default", "b")
C: Key = ("default", "c")


class Recorder:
    """Work that takes as long and ends as told, and records when each key was in work."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.spans: list[tuple[Key, float, float]] = []
        self.results: dict[Key, list[Result | BaseException]] = {}
        self.running: set[Key] = set()
        self.most = 0
        self.observed: list[tuple[Key, str, float, float]] = []

    async def work(self, key: Key) -> Result:
        assert key not in self.running, "one key in work twice"
        start = asyncio.get_running_loop().time()
        self.running.add(key)
        self.most = max(self.most, len(self.running))
        try:
            await asyncio.sleep(self.seconds)
            outcome = self.results[key].pop(0) if self.results.get(key) else Result()
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome
        finally:
            self.running.discard(key)
            self.spans.append((key, start, asyncio.get_running_loop().time()))

    def observe(
        self, key: Key, *, outcome: str, seconds: float, waited: float, error: BaseException | None
    ) -> None:
        self.observed.append((key, outcome, seconds, waited))

    def starts(self, key: Key) -> list[float]:
        return [start for found, start, _ in self.spans if found == key]

    def queue(self, **options: Any) -> WorkQueue:
        return WorkQueue(
            self.work, observe=self.observe, uniform=lambda _low, high: high, **options
        )


def on_virtual_clock(main: Coroutine[Any, Any, None]) -> None:
    loop = looptime.new_event_loop(start=0)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main)
    finally:
        loop.close()
        asyncio.set_event_loop(None)


async def run_for(queue: WorkQueue, seconds: float) -> None:
    """Runs the queue and stops it gracefully after so many (virtual) seconds."""
    asyncio.get_running_loop().call_later(seconds, queue.stop)
    await queue.run()


@pytest.mark.looptime(start=0)
async def test_many_adds_before_the_turn_run_once() -> None:
    recorder = Recorder()
    queue = recorder.queue()
    for _ in range(5):
        queue.add(A)
    assert queue.depth == 1
    await run_for(queue, 10)
    assert recorder.starts(A) == [0]


@pytest.mark.looptime(start=0)
async def test_a_key_dirtied_in_work_runs_once_more_right_afterwards() -> None:
    recorder = Recorder(seconds=2)
    queue = recorder.queue()
    queue.add(A)
    loop = asyncio.get_running_loop()
    for moment in (0.5, 1.0, 1.5):
        loop.call_at(moment, queue.add, A)
    await run_for(queue, 10)
    assert recorder.starts(A) == [0, 2]


@pytest.mark.looptime(start=0)
async def test_no_more_workers_than_allowed_and_in_order() -> None:
    recorder = Recorder()
    queue = recorder.queue(workers=2)
    keys = [("n", str(number)) for number in range(5)]
    for key in keys:
        queue.add(key)
    await run_for(queue, 10)
    assert recorder.most == 2
    assert [(key, start) for key, start, _ in recorder.spans] == list(
        zip(keys, [0, 0, 1, 1, 2], strict=True)
    )


@pytest.mark.looptime(start=0)
async def test_delayed_adds_keep_the_earliest_and_do_not_pile_up() -> None:
    recorder = Recorder(seconds=0.1)
    queue = recorder.queue()
    queue.add_after(A, 5)
    queue.add_after(A, 3)
    queue.add_after(A, 9)
    queue.add_after(B, 4)
    assert queue.delayed == 2
    await run_for(queue, 20)
    assert recorder.starts(A) == [pytest.approx(3)]
    assert recorder.starts(B) == [pytest.approx(4)]
    assert queue.delayed == 0


@pytest.mark.looptime(start=0)
async def test_long_delays_end_together() -> None:
    recorder = Recorder(seconds=0.1)
    queue = recorder.queue()
    for key, delay in ((A, 30.1), (B, 30.9), (C, 9.9)):
        queue.add_after(key, delay)
    await run_for(queue, 40)
    assert recorder.starts(A) == recorder.starts(B) == [pytest.approx(31)]
    assert recorder.starts(C) == [pytest.approx(9.9)], "a short delay is exact"


@pytest.mark.looptime(start=0)
async def test_outdated_delayed_adds_take_a_bounded_part_of_the_memory() -> None:
    """A pipeline that changes all the time is due in a moment again and again, and in ten minutes.

    Neither may remain until its time.
    """
    recorder = Recorder(seconds=0)
    recorder.results[A] = [Result(requeue_after=600.0) for _ in range(2000)]
    queue = recorder.queue()
    loop = asyncio.get_running_loop()
    for number in range(2000):
        loop.call_at(0.1 * number, queue.add_after, A, 0.05)
    queue.add_after(B, 500)
    await run_for(queue, 201)
    assert len(recorder.starts(A)) == 2000
    assert len(queue._heap) < 200
    assert queue.delayed == 2


@pytest.mark.looptime(start=0)
async def test_a_delayed_add_survives_an_earlier_run() -> None:
    recorder = Recorder(seconds=0.1)
    queue = recorder.queue()
    queue.add_after(A, 5)
    queue.add(A)
    await run_for(queue, 20)
    assert recorder.starts(A) == [0, pytest.approx(5)]


@pytest.mark.looptime(start=0)
async def test_requeue_after_counts_from_the_end_of_the_pass() -> None:
    recorder = Recorder(seconds=1)
    recorder.results[A] = [Result(requeue_after=4, outcome="waiting"), Result(requeue_after=0)]
    queue = recorder.queue()
    queue.add(A)
    await run_for(queue, 20)
    assert recorder.starts(A) == [pytest.approx(moment) for moment in (0, 5, 6)]
    assert [outcome for _, outcome, *_ in recorder.observed] == ["waiting", "ok", "ok"]


@pytest.mark.looptime(start=0)
async def test_failures_back_off_by_class_and_success_forgets_them() -> None:
    recorder = Recorder(seconds=0)
    lost = ConnectionError("lost")
    recorder.results[A] = [lost, lost, lost, ValueError("bug"), lost, Result(), lost]
    transient = Backoff("transient", 1, 3)
    queue = recorder.queue(
        backoff_of=lambda error: (
            transient if isinstance(error, ConnectionError) else Backoff("bug", 10, 100)
        )
    )
    queue.add(A)
    await run_for(queue, 100)
    # The waits are 1, 2 and 3 s (the maximum), then 10 s for the other class and 1 s again. After
    # the success nothing runs until the end.
    assert recorder.starts(A) == [pytest.approx(moment) for moment in (0, 1, 3, 6, 16, 17)]
    assert [outcome for _, outcome, *_ in recorder.observed] == [
        "transient",
        "transient",
        "transient",
        "bug",
        "transient",
        "ok",
    ]
    assert queue.failures(A) == 0
    recorder.spans.clear()
    assert queue.delayed == 0


@pytest.mark.looptime(start=0)
async def test_one_keys_failures_hold_up_no_other() -> None:
    recorder = Recorder(seconds=0)
    recorder.results[A] = [ValueError("bug")] * 50
    queue = recorder.queue(workers=1)
    queue.add(A)
    for moment in range(1, 5):
        asyncio.get_running_loop().call_at(moment, queue.add, B)
    await run_for(queue, 6)
    assert recorder.starts(B) == [1, 2, 3, 4]
    assert queue.failures(A) == 2  # at 0 and 5


@pytest.mark.looptime(start=0)
async def test_forgetting_drops_failures_and_delays() -> None:
    recorder = Recorder(seconds=0)
    recorder.results[A] = [ValueError("bug")]
    queue = recorder.queue()
    queue.add(A)
    asyncio.get_running_loop().call_at(1, queue.forget, A)
    await run_for(queue, 100)
    assert recorder.starts(A) == [0]
    assert (queue.failures(A), queue.delayed) == (0, 0)


@pytest.mark.looptime(start=0)
async def test_a_hung_pass_is_ended_and_counts_as_a_failure() -> None:
    recorder = Recorder(seconds=1000)
    queue = recorder.queue(timeout_seconds=10)
    queue.add(A)
    await run_for(queue, 12)
    assert recorder.spans == [(A, 0, 10)]
    assert [outcome for _, outcome, *_ in recorder.observed] == ["bug"]


@pytest.mark.looptime(start=0)
async def test_a_cancellation_inside_the_work_is_an_error_and_the_queue_lives_on() -> None:
    recorder = Recorder(seconds=0)
    recorder.results[A] = [asyncio.CancelledError()]
    queue = recorder.queue()
    queue.add(A)
    await run_for(queue, 6)
    assert recorder.starts(A) == [0, 5]


@pytest.mark.looptime(start=0)
async def test_a_graceful_stop_finishes_what_is_in_work_and_starts_nothing() -> None:
    recorder = Recorder(seconds=5)
    queue = recorder.queue(workers=1)
    queue.add(A)
    queue.add(B)
    queue.add_after(C, 1)
    await run_for(queue, 2)
    assert recorder.spans == [(A, 0, 5)]
    assert queue.depth == 2


@pytest.mark.looptime(start=0)
async def test_cancelling_the_queue_cancels_what_is_in_work() -> None:
    recorder = Recorder(seconds=50)
    queue = recorder.queue()
    queue.add(A)
    task = asyncio.create_task(queue.run())
    asyncio.get_running_loop().call_at(3, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorder.spans == [(A, 0, 3)]


@pytest.mark.looptime(start=0)
async def test_figures() -> None:
    recorder = Recorder(seconds=4)
    queue = recorder.queue(workers=1)
    figures: list[tuple[int, int, float]] = []

    def look() -> None:
        figures.append((queue.depth, queue.in_work, queue.longest_work()))

    loop = asyncio.get_running_loop()
    queue.add(A)
    queue.add(B)
    loop.call_at(1, queue.add, A)
    loop.call_at(3, look)
    await run_for(queue, 11)
    assert figures == [(2, 1, 3)]
    assert [(key, waited) for key, _, _, waited in recorder.observed] == [(A, 0), (B, 4), (A, 7)]


@pytest.mark.looptime(start=0)
async def test_passes_do_not_inherit_the_context_of_whoever_adds() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="own")
    seen: list[str] = []

    async def work(key: Key) -> Result:
        seen.append(variable.get())
        return Result()

    queue = WorkQueue(work)

    async def handler() -> None:
        variable.set("handler's")
        queue.add(A)
        queue.add_after(B, 1)

    async def add_later() -> None:
        await asyncio.sleep(1)
        await asyncio.create_task(handler())

    other = asyncio.create_task(add_later())
    await run_for(queue, 5)
    await other
    assert seen == ["own", "own"]


def test_backoff_doubles_to_its_maximum_with_half_jitter() -> None:
    drawn: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    assert [TRANSIENT.delay(count, uniform) for count in (1, 2, 3, 8, 100_000)] == [
        0.25,
        0.5,
        1.0,
        30.0,
        30.0,
    ]
    assert drawn[-1] == (30.0, 60.0)
    assert Backoff("x", 1, 2, at_least=7).delay(1, uniform) == 7.5
    assert BUG.maximum == 300


def test_workers_must_be_positive() -> None:
    with pytest.raises(ValueError, match="workers"):
        WorkQueue(Recorder().work, workers=0)


KEYS = st.sampled_from([A, B, C, ("other", "a")])
TIMES = st.integers(0, 40).map(lambda tenths: tenths / 10)
ENDS = st.lists(st.sampled_from(["ok", "requeue", "error"]), max_size=4)


@given(
    adds=st.lists(st.tuples(TIMES, KEYS, st.one_of(st.none(), TIMES)), min_size=1, max_size=25),
    seconds=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5]),
    workers=st.integers(1, 3),
    ends=st.dictionaries(KEYS, ENDS),
)
def test_never_twice_at_once_and_no_dirty_key_is_lost(
    adds: list[tuple[float, Key, float | None]],
    seconds: float,
    workers: int,
    ends: dict[Key, list[str]],
) -> None:
    recorder = Recorder(seconds)  # asserts that no key is in work twice
    outcomes: dict[str, Result | BaseException] = {
        "ok": Result(),
        "requeue": Result(requeue_after=0.4),
        "error": ConnectionError(),
    }
    recorder.results = {key: [outcomes[end] for end in wanted] for key, wanted in ends.items()}
    queue = recorder.queue(workers=workers, backoff_of=lambda _: Backoff("transient", 0.2, 1.0))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for moment, key, delay in adds:
            if delay is None:
                loop.call_at(moment, queue.add, key)
            else:
                loop.call_at(moment, queue.add_after, key, delay)
        await run_for(queue, 1000)

    on_virtual_clock(main())
    assert recorder.most <= workers
    assert (queue.depth, queue.in_work, queue.delayed) == (0, 0, 0)
    for moment, key, _ in adds:
        # A run that starts at the time of an add, or later, has processed what was dirty then.
        assert any(start >= moment - 1e-5 for start in recorder.starts(key)), (moment, key)
    for key, delays in {
        key: [(moment, delay) for moment, of, delay in adds if of == key] for _, key, _ in adds
    }.items():
        # A lone delayed add runs at its moment, not before, and late only by what is in work.
        if len(delays) == 1 and delays[0][1]:
            due = delays[0][0] + delays[0][1]
            assert (
                due - 1e-5 <= recorder.starts(key)[0] <= due + seconds * len(recorder.spans) + 1e-5
            )
    for key, wanted in ends.items():
        # Each pass that asked for another one, or failed, was followed by another one.
        runs = len(recorder.starts(key))
        assert all(runs > index + 1 for index, end in enumerate(wanted[:runs]) if end != "ok"), (
            key,
            wanted,
            runs,
        )
    # De-duplication: no more runs than adds plus requeues and failures.
    repeats = sum(1 for key, wanted in ends.items() for end in wanted if end != "ok")
    assert len(recorder.spans) <= len(adds) + repeats


@pytest.mark.looptime(start=0)
async def test_namespaces_alternate() -> None:
    recorder = Recorder()
    queue = recorder.queue(workers=1)
    for number in range(40):
        queue.add(("busy", str(number)))
    for number in range(3):
        queue.add(("other", str(number)))
    await run_for(queue, 100)
    order = [key for key, _, _ in recorder.spans]
    assert [key for key in order[:6] if key[0] == "other"] == [
        ("other", "0"),
        ("other", "1"),
        ("other", "2"),
    ]
    assert [key for key in order if key[0] == "busy"] == [("busy", str(n)) for n in range(40)]


@pytest.mark.looptime(start=0)
async def test_a_namespace_with_slow_keys_leaves_workers_to_others() -> None:
    """Every write of its pipelines may take as long as the time-out of a request."""
    recorder = Recorder(seconds=30)
    queue = recorder.queue(workers=8)
    for number in range(20):
        queue.add(("slow", str(number)))
    asyncio.get_running_loop().call_at(1, queue.add, ("other", "a"))
    await run_for(queue, 10)
    assert recorder.starts(("other", "a")) == [1]
    assert sum(key[0] == "slow" for key, _, _ in recorder.spans) == 6


@pytest.mark.looptime(start=0)
async def test_slow_namespaces_together_leave_workers_to_others() -> None:
    """Webhooks delay each write in many namespaces, and each key is retried soon."""
    waits: list[float] = []
    runs: Counter[str] = Counter()

    async def work(key: Key) -> Result:
        runs[key[0]] += 1
        await asyncio.sleep(0.1 if key[0] == "other" else 40)
        return Result(requeue_after=None if key[0] == "other" else 1.0)

    def observe(key: Key, *, waited: float, **_: object) -> None:
        if key[0] == "other":
            waits.append(waited)

    queue = WorkQueue(work, workers=8, observe=observe)
    for number in range(100):
        queue.add((f"slow-{number % 20}", str(number)))
    for number in range(100):
        asyncio.get_running_loop().call_at(150 + 10 * number, queue.add, ("other", str(number)))
    await run_for(queue, 1200)
    assert (len(waits), max(waits)) == (100, 0.0)
    assert min(runs[f"slow-{number}"] for number in range(20)) >= 8, "they are reconciled as well"


@pytest.mark.looptime(start=0)
async def test_an_urgent_key_runs_before_others_of_its_namespace_only() -> None:
    recorder = Recorder()
    queue = recorder.queue(workers=1)
    for name in ("first", "a", "b", "changed", "c"):
        queue.add(("busy", name))
    queue.add(("other", "x"))
    queue.add(("busy", "changed"), urgent=True)
    queue.add(("busy", "new"), urgent=True)
    await run_for(queue, 100)
    order = [f"{namespace} {name}" for (namespace, name), _, _ in recorder.spans]
    assert order == ["busy changed", "other x", *(f"busy {n}" for n in ("new", "first", *"abc"))]


@pytest.mark.looptime(start=0)
async def test_a_key_that_changes_while_it_runs_is_not_urgent_afterwards() -> None:
    recorder = Recorder()
    queue = recorder.queue(workers=1)
    queue.add(A, urgent=True)
    queue.add(B)
    asyncio.get_running_loop().call_at(0.5, lambda: queue.add(A, urgent=True))
    await run_for(queue, 10)
    assert [key for key, _, _ in recorder.spans] == [A, B, A]


@pytest.mark.looptime(start=0)
async def test_an_expensive_key_rests_and_delays_no_other() -> None:
    recorder = Recorder()
    recorder.results[A] = [Result(cpu_seconds=2.0, requeue_after=0.0), Result(cpu_seconds=0.01)]
    queue = recorder.queue(workers=1)
    queue.add(A)
    loop = asyncio.get_running_loop()
    for moment in (0.5, 3.0):  # One event while it runs, and one while it rests.
        loop.call_at(moment, queue.add, A)
    loop.call_at(3.0, queue.add, B)
    loop.call_at(30.0, queue.add, A)
    await run_for(queue, 60)
    assert recorder.starts(A) == [0, 21, 30]
    assert recorder.starts(B) == [3]


@pytest.mark.looptime(start=0)
async def test_a_forgotten_key_does_not_rest() -> None:
    recorder = Recorder()
    recorder.results[A] = [Result(cpu_seconds=5.0)]
    queue = recorder.queue()
    queue.add(A)
    loop = asyncio.get_running_loop()
    loop.call_at(2.0, queue.forget, A)
    loop.call_at(2.0, queue.add, A)
    await run_for(queue, 10)
    assert recorder.starts(A) == [0, 2]
