"""Test a count change over several pods: their order, and the report of each possible outcome."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from triton_pipelines.autoscaling.backoff import ScalingBackoff
from triton_pipelines.controllers.autoscaler.actuator import (
    Pace,
    PodGoneError,
    PodRejectedError,
    PodResult,
    PodTarget,
    PodUnresponsiveError,
    change_count,
)

PACE = Pace(load=5.0, settle=0.2, settle_poll=0.01, verify=0.05, verify_poll=0.01)


@dataclass
class FakePod:
    """A fake pod that behaves like Triton; the integration tests use the real one.

    A load sets the count, or sets it late or never.
    """

    name: str
    now: int = 1
    refuses: str = ""
    silent: bool = False
    mute: bool = False  # does not report its count
    late: int = 0  # looks at the count until a silent load shows
    gone: bool = False
    ignores: bool = False
    faults: list[str] = field(default_factory=list)
    inference: str = ""
    log: list[str] = field(default_factory=list)
    pending: int | None = None
    gate: asyncio.Event | None = None

    async def count(self, model: str) -> int:
        if self.mute:
            raise PodUnresponsiveError("deadline")
        if self.pending is not None:
            self.late -= 1
            if self.late < 0:
                self.now, self.pending = self.pending, None
        return self.now

    async def load(self, model: str, config_json: str, deadline: float) -> None:
        self.log.append(f"{self.name} {config_json}")
        if self.gate is not None:
            await self.gate.wait()
        if self.gone:
            raise PodGoneError("connection refused")
        if self.refuses:
            raise PodRejectedError(self.refuses)
        if self.silent:
            self.pending = int(config_json)
            raise PodUnresponsiveError("deadline")
        if not self.ignores:
            self.now = int(config_json)

    async def fault(self, model: str, public: str) -> str:
        return self.faults.pop(0) if self.faults else ""

    async def inference_error(self) -> str:
        return self.inference


def targets(*pods: FakePod) -> list[PodTarget]:
    return [PodTarget(pod.name, pod, str, pod.now) for pod in pods]


async def test_growth_goes_to_the_first_pod_alone_then_to_a_quarter_at_a_time() -> None:
    log: list[str] = []
    pods = [FakePod(f"p{index}", log=log, gate=asyncio.Event()) for index in range(8)]
    started: asyncio.Queue[str] = asyncio.Queue()
    running = asyncio.create_task(
        change_count(
            "tokenizer",
            "sentiment",
            3,
            targets(*pods),
            pace=PACE,
            started=lambda one: started.put_nowait(one.pod),
        )
    )
    for group in (["p0"], ["p1", "p2"], ["p3", "p4"], ["p5", "p6"], ["p7"]):
        assert [await asyncio.wait_for(started.get(), 5) for _ in group] == group
        for _ in range(10):  # whoever else was to start would have by now
            await asyncio.sleep(0)
        assert started.empty()
        for name in group:
            gate = pods[int(name[1:])].gate
            assert gate is not None
            gate.set()
    outcome = await running
    assert outcome.is_verified
    assert {pod.now for pod in pods} == {3}


async def test_removal_goes_from_pod_to_pod() -> None:
    pods = [FakePod(name, now=4, gate=asyncio.Event()) for name in "abc"]
    started: asyncio.Queue[str] = asyncio.Queue()
    running = asyncio.create_task(
        change_count(
            "tokenizer",
            "sentiment",
            2,
            targets(*pods),
            pace=PACE,
            started=lambda one: started.put_nowait(one.pod),
        )
    )
    for pod in pods:
        assert await asyncio.wait_for(started.get(), 5) == pod.name
        for _ in range(10):
            await asyncio.sleep(0)
        assert started.empty()
        assert pod.gate is not None
        pod.gate.set()
    assert (await running).is_verified


@pytest.mark.parametrize(
    ("spoil", "expected", "words", "count"),
    [
        (
            lambda pod: setattr(pod, "refuses", "no space in /dev/shm"),
            PodResult.REJECTED,
            "rejected the change to 3 instances: no space in /dev/shm",
            1,
        ),
        (
            lambda pod: vars(pod).update(refuses="no space in /dev/shm", mute=True),
            PodResult.REJECTED,
            "rejected the change to 3 instances: no space in /dev/shm",
            1,
        ),
        (
            lambda pod: setattr(pod, "ignores", True),
            PodResult.BROKEN,
            "reports 1 instances after a change to 3",
            1,
        ),
        (
            lambda pod: setattr(pod, "inference", "stub process is not healthy"),
            PodResult.BROKEN,
            "stub process",
            3,
        ),
        (
            lambda pod: pod.faults.extend(["'sentiment' is not ready"] * 100),
            PodResult.BROKEN,
            "'sentiment' is not ready",
            3,
        ),
        (
            lambda pod: vars(pod).update(silent=True, late=1000),
            PodResult.UNKNOWN,
            "the count did not change",
            1,
        ),
    ],
)
async def test_a_canary_that_fails_keeps_the_others_as_they_are(
    spoil: Callable[[FakePod], object], expected: PodResult, words: str, count: int
) -> None:
    canary, other = FakePod("canary"), FakePod("other")
    spoil(canary)
    outcome = await change_count("tokenizer", "sentiment", 3, targets(canary, other), pace=PACE)
    assert outcome.pods["canary"].result is expected
    assert words in outcome.reason
    assert outcome.pods["canary"].count == count
    assert outcome.pods["other"].result is PodResult.SKIPPED
    assert (other.now, other.log) == (1, [])
    assert not outcome.is_verified


async def test_a_load_without_an_answer_is_watched_and_never_sent_again() -> None:
    pod = FakePod("pod", silent=True, late=3)
    outcome = await change_count("tokenizer", "sentiment", 2, targets(pod), pace=PACE)
    assert outcome.pods["pod"].result is PodResult.VERIFIED
    assert pod.log == ["pod 2"]


@pytest.mark.parametrize(
    ("waiting", "result"), [(True, PodResult.VERIFIED), (False, PodResult.UNKNOWN)]
)
async def test_a_load_is_watched_for_longer_while_requests_wait(
    waiting: bool, result: PodResult
) -> None:
    pod = FakePod("pod", silent=True, late=8)
    (target,) = targets(pod)
    target = replace(target, is_waited_for=lambda: waiting)
    pace = replace(PACE, settle=0.02, overload=5.0)
    outcome = await change_count("tokenizer", "sentiment", 2, [target], pace=pace)
    assert outcome.pods["pod"].result is result


async def test_a_removal_is_not_watched_for_longer_while_requests_wait() -> None:
    """It keeps the step from growing, which is what would end the wait."""
    (target,) = targets(FakePod("pod", now=4, silent=True, late=8))
    target = replace(target, is_waited_for=lambda: True)
    pace = replace(PACE, settle=0.02, overload=5.0)
    outcome = await change_count("tokenizer", "sentiment", 2, [target], pace=pace)
    assert outcome.pods["pod"].result is PodResult.UNKNOWN


async def test_a_removal_does_not_continue_while_requests_wait() -> None:
    pods = [FakePod(name, now=4) for name in "abc"]
    waits = [replace(target, is_waited_for=lambda: True) for target in targets(*pods)]
    outcome = await change_count("tokenizer", "sentiment", 2, waits, pace=PACE)
    assert [pod.now for pod in pods] == [2, 4, 4]
    assert [change.result for change in outcome.pods.values()] == [
        PodResult.VERIFIED,
        PodResult.SKIPPED,
        PodResult.SKIPPED,
    ]
    assert outcome.reason == "", "this is no failure"


async def test_a_change_that_is_not_desired_any_more_stops() -> None:
    pods = [FakePod(name) for name in "abc"]
    outcome = await change_count(
        "tokenizer",
        "sentiment",
        2,
        targets(*pods),
        pace=PACE,
        is_desired=lambda: pods[0].now == 1,
    )
    assert [pod.now for pod in pods] == [2, 1, 1]
    assert not outcome.is_verified
    assert outcome.reason == "", "this is no failure"


async def test_a_load_without_an_answer_is_not_watched_once_it_is_not_desired() -> None:
    pod, began = FakePod("pod", silent=True, late=1000), time.monotonic()
    outcome = await change_count(
        "tokenizer",
        "sentiment",
        2,
        targets(pod),
        pace=replace(PACE, settle=30.0),
        is_desired=lambda: not pod.log,
    )
    assert time.monotonic() - began < 10.0
    assert outcome.pods["pod"].result is PodResult.SKIPPED
    assert outcome.reason == "", "this is no failure"


async def test_a_load_that_ends_after_the_last_request_waited_is_noticed() -> None:
    pod = FakePod("pod", silent=True, late=1000)
    (target,) = targets(pod)
    began = time.monotonic()

    def is_waited_for() -> bool:
        if time.monotonic() - began < 0.4:
            return True
        pod.late = min(pod.late, 1)  # the queue is empty, so the load ends a moment later
        return False

    target = replace(target, is_waited_for=is_waited_for)
    pace = replace(PACE, settle=0.2, overload=5.0)
    outcome = await change_count("tokenizer", "sentiment", 2, [target], pace=pace)
    assert outcome.pods["pod"].result is PodResult.VERIFIED


async def test_an_ensemble_that_comes_back_within_its_time_is_no_fault() -> None:
    outcome = await change_count(
        "tokenizer",
        "sentiment",
        2,
        targets(FakePod("pod", faults=["'sentiment' is not ready"])),
        pace=PACE,
    )
    assert outcome.is_verified
    assert outcome.reason == ""


async def test_a_deleted_pod_does_not_block_others() -> None:
    gone, other = FakePod("gone", gone=True), FakePod("other")
    outcome = await change_count("tokenizer", "sentiment", 2, targets(gone, other), pace=PACE)
    assert [result.result for result in outcome.pods.values()] == [
        PodResult.GONE,
        PodResult.VERIFIED,
    ]
    assert outcome.is_verified
    assert other.now == 2


@pytest.mark.parametrize(
    ("ends_after", "result"),
    [(0.0, PodResult.GONE), (0.02, PodResult.GONE), (9, PodResult.UNKNOWN)],
)
async def test_a_pod_counts_as_gone_once_kubernetes_reports_it(
    ends_after: float, result: PodResult
) -> None:
    (target,) = targets(FakePod("gone", gone=True))
    began = time.monotonic()
    target = replace(target, is_serving=lambda: time.monotonic() - began < ends_after)
    outcome = await change_count("tokenizer", "sentiment", 2, [target], pace=PACE)
    assert outcome.pods["gone"].result is result
    assert outcome.is_verified is (result is PodResult.GONE)


async def test_pods_that_have_the_count_are_left_alone() -> None:
    pod = FakePod("pod", now=2)
    outcome = await change_count("tokenizer", "sentiment", 2, targets(pod), pace=PACE)
    assert outcome.is_verified
    assert pod.log == []


def test_pauses_double_with_each_failure() -> None:
    once = ScalingBackoff().failed(100.0, "full")
    assert ScalingBackoff().wait(8.0, 0.0) == 0.0
    assert once.wait(8.0, 100.0) == 16.0
    assert once.wait(8.0, 110.0) == 6.0
    twice = once.failed(120.0, "full")
    assert twice.wait(8.0, 120.0) == 32.0
    assert ScalingBackoff(failures=40, last=0.0).wait(8.0, 0.0) == 600.0
