"""Test comparing outputs where queues are short and models slow.

A request that a queue rejects is not an error.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.unit.tuning.test_load_rates import Slow, answered, begun
from tests.unit.tuning.test_measured_server import OTHER, StandIn, server
from tests.unit.tuning.test_run import report_on
from tests.unit.tuning.test_selection import BETTER, CURRENT, LATENCY_BUDGET, measured
from triton_pipelines.tools.loadgen import LoadResult, LoadSpec
from triton_pipelines.tools.loadgen.request_failure import (
    RequestFailure,
    error_response,
    rejected,
    timed_out,
)
from triton_pipelines.tools.tuner import TuneError, TuningOptions
from triton_pipelines.tools.tuner import measured_server as tuned
from triton_pipelines.tools.tuner.acceptance import BudgetCheck, SettingMeasurement, decide
from triton_pipelines.tools.tuner.errors import OutputMismatchError, SettingRefusedError
from triton_pipelines.tools.tuner.load_measurement import (
    LoadMeasurement,
    count_late,
    measurement_of,
)
from triton_pipelines.tools.tuner.measured_points import TuningRun
from triton_pipelines.tools.tuner.output_comparison import (
    MAX_COMPARED,
    MIN_COMPARED,
    OutputComparison,
    requests_to_compare,
)
from triton_pipelines.tools.tuner.profile_loads import timed_load
from triton_pipelines.triton.errors import DeadlineError, OverloadedError, UnreachableError

FULL = "[request id: 3] Exceeds maximum queue size"
REQUESTS = [{"TEXT": np.array([[b"%d" % number]], dtype=object)} for number in range(MAX_COMPARED)]


class Asked(StandIn):
    """Answers ``together`` requests at once, each after ``seconds``, and turns the others away."""

    def __init__(self, together: int = 1000, seconds: float = 0.01) -> None:
        super().__init__()
        self.together, self.seconds, self.by = together, seconds, 0.0
        self.under_way = self.most = self.answered = 0
        self.error: Exception = OverloadedError("full", FULL)

    async def infer(self, name: str, request: Any, deadline_s: float) -> dict[str, Any]:
        if self.under_way >= self.together:
            raise self.error
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(min(self.seconds, deadline_s))
            if self.seconds > deadline_s:
                raise DeadlineError("no response before the deadline")
        finally:
            self.under_way -= 1
        self.answered += 1
        return {"SCORE": np.array([float(request["TEXT"][0, 0]) + self.by])}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    monkeypatch.setattr(tuned, "TritonClient", lambda *_, **_options: made)
    return made


@pytest.mark.looptime(start=0)
@pytest.mark.parametrize("together", [1000, 8, 1])
async def test_what_a_short_queue_turns_away_is_asked_again_with_less_company(
    client: Asked, together: int
) -> None:
    client.together = together
    async with server() as one:
        found = await one.infer_each(REQUESTS)
    assert [float(answer["SCORE"][0]) for answer in found] == list(range(MAX_COMPARED))
    assert client.most == min(together, MAX_COMPARED), "as many share batches as may"
    assert client.answered == MAX_COMPARED, "none is asked twice that was answered"


@pytest.mark.looptime(start=0)
@pytest.mark.parametrize("seconds", [0.01, 1000.0])
async def test_a_setting_without_responses_to_single_requests_is_rejected_and_the_run_continues(
    client: Asked, seconds: float, messages: Messages
) -> None:
    async with server() as one:
        comparison = OutputComparison(one)
        assert await comparison.record_reference(REQUESTS) == ""
        await comparison.check(OTHER)
        client.seconds = seconds
        client.together = 0 if seconds < 1 else 1000
        with messages.raises(SettingRefusedError) as caught:
            await comparison.check(OTHER)
        assert not isinstance(caught.value, OutputMismatchError), (
            "it says nothing of settings like it"
        )
    assert asyncio.get_running_loop().time() < 70, "whatever is asked again"


@pytest.mark.looptime(start=0)
async def test_a_current_setting_that_leaves_lone_requests_unanswered_is_not_compared_with(
    client: Asked,
) -> None:
    client.together = 0
    async with server() as one:
        comparison = OutputComparison(one)
        assert await comparison.record_reference(REQUESTS) == (
            "outputs are not compared, because Triton rejects single requests or times out "
            "with the current setting (full)"
        )
        client.together, client.by = 1000, 1.0
        await comparison.check(OTHER)


@pytest.mark.looptime(start=0)
async def test_other_answers_are_found_behind_a_short_queue_too(
    client: Asked, messages: Messages
) -> None:
    client.together = 3
    async with server() as one:
        comparison = OutputComparison(one)
        assert await comparison.record_reference(REQUESTS) == ""
        client.by = 0.1
        with messages.raises(OutputMismatchError):
            await comparison.check(OTHER)


async def test_a_server_that_is_gone_is_no_short_queue(client: Asked, messages: Messages) -> None:
    client.together, client.error = 0, UnreachableError("gone")
    async with server() as one:
        with messages.raises(TuneError):
            await one.infer_each(REQUESTS)


@pytest.mark.parametrize(
    ("latency", "count"),
    [
        (0.0, MAX_COMPARED),
        (0.005, MAX_COMPARED),
        (0.1, 20),
        (0.25, 8),
        (1.25, MIN_COMPARED),
        (float("inf"), MIN_COMPARED),
    ],
)
def test_of_slow_models_few_requests_are_compared(latency: float, count: int) -> None:
    assert requests_to_compare(latency) == count


@pytest.mark.looptime(start=0)
async def test_a_slow_model_is_asked_for_few_answers(client: Asked) -> None:
    client.seconds = 1.25
    async with server() as one:
        run = begun(one, TuningOptions())
        run.work = replace(run.work, requests=tuple(REQUESTS))
        run.measured = [
            SettingMeasurement(CURRENT, 0.5, LoadMeasurement(np.full(20, 1.25), 20, 0, 40.0))
        ]
        await run._record_reference_outputs()
    assert client.answered == 2 * MIN_COMPARED
    assert not run.notes


@pytest.mark.looptime(start=0)
async def test_a_setting_that_turns_its_warm_up_away_is_refused(
    client: Asked, messages: Messages
) -> None:
    """Such as a delay longer than the queue's timeout: every request that is alone expires."""
    async with server() as one:
        client.together = 0
        with messages.raises(SettingRefusedError):
            await one.apply(OTHER, REQUESTS)
        with messages.raises(TuneError):
            await one.apply(one.current, REQUESTS)


@pytest.mark.looptime(start=0)
async def test_a_machine_that_pauses_once_refuses_no_setting(
    client: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request expires in the queue though it is alone; asked again, it is answered."""
    infer, failures = client.infer, [client.error]

    async def paused(name: str, request: Any, deadline_s: float) -> dict[str, Any]:
        if failures:
            raise failures.pop()
        return await infer(name, request, deadline_s)

    monkeypatch.setattr(client, "infer", paused)
    async with server() as one:
        await one.apply(one.current, REQUESTS[:1])
    assert client.answered == 1


@pytest.mark.looptime(start=0)
async def test_a_queue_that_is_still_full_after_a_load_is_waited_for(client: Asked) -> None:
    async with server() as one:
        client.together = 0
        asyncio.get_running_loop().call_later(3.0, setattr, client, "together", 1)
        await one._worked_off(REQUESTS[0])
    assert asyncio.get_running_loop().time() == pytest.approx(3.0, abs=0.2)


@pytest.mark.parametrize(
    ("failure", "shed"),
    [
        (error_response(f"503 Service Unavailable: {FULL}"), True),
        (error_response("UNAVAILABLE: Request timeout expired"), True),
        (rejected("not sent: 20000 requests were waiting or in progress"), True),
        (timed_out("no response within 30 s"), False),
        (timed_out("given up 4 s after the end of the load"), False),
        (timed_out("no free connection within 30 s"), False),
        (error_response("DEADLINE_EXCEEDED: Deadline Exceeded", is_timeout=True), False),
    ],
)
def test_what_is_turned_away_below_overload_is_late_and_no_fault(
    failure: RequestFailure, shed: bool
) -> None:
    assert failure.is_late
    assert failure.is_rejected == shed
    found = burst(failure)
    assert found.rate > 0.93 * found.offered, "no overload"
    assert (found.late, found.faults) == ((3, 0) if shed else (0, 3))
    assert count_late(few_fail(failure)) == (3 if shed else 0)


def few_fail(failure: RequestFailure) -> LoadResult:
    fine = answered(LoadSpec(rate=100, duration_s=8.0, warmup_s=0.0), 1e6)
    return replace(
        fine,
        error=np.where(np.isin(np.arange(len(fine.error)), (7, 257, 507)), 0, -1),
        errors=(failure,),
    )


def burst(failure: RequestFailure) -> LoadMeasurement:
    """Three requests of 8 s fail so."""
    found = measurement_of(few_fail(failure))
    assert found.failed == 3
    return found


def test_a_shed_burst_proves_nothing_and_bars_nothing() -> None:
    shed = SettingMeasurement(BETTER, 100, burst(error_response(FULL)))
    assert shed.check_budget(LATENCY_BUDGET) is BudgetCheck.INCONCLUSIVE
    fine = SettingMeasurement(
        BETTER, 90, LoadMeasurement(np.full(2400, 0.01), 2400, 0, 2400 / 90, "", 90)
    )
    broken = SettingMeasurement(
        CURRENT, 80, LoadMeasurement(np.full(2400, 2.0), 2400, 0, 40.0, "", 80)
    )
    assert decide(CURRENT, [broken, shed, fine], LATENCY_BUDGET, [BETTER]).is_better, (
        "a lower rate was kept"
    )


async def test_a_shed_burst_does_not_end_the_calibration(messages: Messages) -> None:
    class Sheds(Slow):
        message = FULL

        async def run(self, requests: object, spec: LoadSpec, tell: object = None) -> LoadResult:
            result = await super().run(requests, spec, tell)
            return replace(
                result,
                error=np.where(np.arange(len(result.error)) == 3 * len(result.error) // 4, 0, -1),
                errors=(error_response(self.message),),
            )

    one = Sheds(1e6, carried=1000.0)
    run: TuningRun = begun(one, TuningOptions())
    await run._calibrate()
    assert run.measured[0].load.late == 1
    one.message = "the connection was lost: reset"
    with messages.raises(TuneError):
        await begun(one, TuningOptions())._calibrate()


class Bursts(Slow):
    """Every burst is more than its queue takes."""

    description = FULL

    async def run(self, requests: object, spec: LoadSpec, tell: object = None) -> LoadResult:
        return few_fail(error_response(self.description))


async def test_bursts_beyond_a_short_queue_still_time_the_steps(messages: Messages) -> None:
    server = Bursts(1e6, carried=50.0)
    found = await timed_load(cast("Any", server), [], LoadSpec(concurrency=1))
    assert len(found.latencies) > 700
    server.description = "500 Internal Server Error: no"
    with messages.raises(TuneError, match="500"):
        await timed_load(cast("Any", server), [], LoadSpec(concurrency=1))


def test_a_shed_burst_is_told_as_such() -> None:
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})
    shed = SettingMeasurement(BETTER, 100, burst(error_response(FULL)))
    notes = report_on(built, [measured(CURRENT, 80, 0.02), shed]).notes
    assert any("were rejected at 100 requests/s" in note and FULL in note for note in notes)
    assert not any("far beyond" in note for note in notes)
