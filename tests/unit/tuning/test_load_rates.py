"""No load asks for far more than the server carries, and what it shows is told from chance."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support import builders
from tests.unit.tuning.test_prediction import LENGTHS, PIPE
from tests.unit.tuning.test_selection import BETTER, CURRENT, GRID, LATENCY_BUDGET
from triton_pipelines.tools.loadgen import LoadResult, LoadSpec, due_times
from triton_pipelines.tools.loadgen.request_failure import (
    RequestFailure,
    error_response,
    rejected,
    timed_out,
)
from triton_pipelines.tools.tuner import BatchingSetting, TuningOptions
from triton_pipelines.tools.tuner.acceptance import (
    BudgetCheck,
    SettingMeasurement,
    decide,
    next_lower_rate,
)
from triton_pipelines.tools.tuner.load_measurement import LoadMeasurement, measurement_of
from triton_pipelines.tools.tuner.measured_points import MAX_RATE_STEP, TuningRun
from triton_pipelines.tools.tuner.options import silent
from triton_pipelines.tools.tuner.output_comparison import shares_mismatch_cause
from triton_pipelines.tools.tuner.selection import predict_settings
from triton_pipelines.tools.tuner.verification import GainVerification
from triton_pipelines.tools.tuner.workload import Workload


def answered(spec: LoadSpec, capacity: float, alone: float = 0.002) -> LoadResult:
    """Return a load's result on a server that completes one request after the other.

    Each response takes another ``alone`` seconds. Requests are given up after the deadline.
    """
    total = spec.warmup_s + spec.duration_s
    due = np.array(list(itertools.takewhile(lambda at: at < total, due_times(spec))))
    end, free = np.empty_like(due), 0.0
    for index, at in enumerate(due):
        free = max(free, at) + 1 / capacity
        end[index] = free + alone
    error = np.where(end - due > spec.timeout_s, 0, -1)
    return LoadResult(
        spec,
        due,
        due,
        end,
        np.ones(len(due), dtype=np.int64),
        error,
        (timed_out("deadline"),),
        spec.warmup_s,
        total,
        0.0,
        total,
    )


class Slow:
    """A server that carries less than its step times suggest, by default with every setting."""

    current, rebuild, client = CURRENT, None, None
    changes = 0.0
    refuses: str = ""

    def __init__(self, capacity: float, carried: float) -> None:
        self.capacity, self.carried, self.failed = capacity, carried, 0
        self.capacities: dict[BatchingSetting, float] = {}
        self.setting, self.asked_answers = CURRENT, 0
        self.asked: list[float] = []

    async def apply(self, setting: BatchingSetting, warm: object = ()) -> None:
        self.setting = setting

    async def infer_each(self, requests: object) -> list[dict[str, Any]]:
        """Larger batches change them by ``changes``; negative: every time anew."""
        self.asked_answers += 1
        by = (
            -self.changes * self.asked_answers
            if self.changes < 0
            else self.changes * (self.setting.max_batch_size > CURRENT.max_batch_size)
        )
        return [{"SCORE": np.array([1.0 + by])}]

    async def run(self, requests: object, spec: LoadSpec, tell: object = None) -> LoadResult:
        assert spec.rate <= 1.5 * MAX_RATE_STEP * self.carried, (
            "far beyond what it is known to carry, chance in few arrivals included"
        )
        self.asked.append(spec.rate)
        result = answered(spec, self.capacities.get(self.setting, self.capacity))
        self.failed += int(np.count_nonzero(result.error >= 0))
        self.carried = max(self.carried, measurement_of(result).rate)
        return result


def begun(server: Any, options: TuningOptions) -> TuningRun:
    """A run that has its plan."""
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})
    run = TuningRun(
        server,
        built.pipeline,
        built.graph,
        options,
        silent,
        Workload((), LENGTHS, "a mix", 1, ("TEXT",)),
        LATENCY_BUDGET,
    )
    run.pipe, run.grid = PIPE, [*GRID, BETTER]
    run.predictions = predict_settings(PIPE, run.grid, CURRENT, LATENCY_BUDGET)
    return run


@pytest.mark.parametrize("capacity", [20.0, 100.0, 300.0])
async def test_a_server_that_carries_far_less_than_predicted_is_not_run_over(
    capacity: float,
) -> None:
    server = Slow(capacity, carried=capacity / 2)
    run = begun(server, TuningOptions())
    assert max(one.rate for one in run.predictions) > 4 * capacity
    await run._calibrate()
    await GainVerification(run).verify()
    assert server.failed == 0
    assert max(server.asked) <= 2.5 * capacity
    assert not run.decision.is_better, "the same server, whatever the setting"
    assert all(one.load.p99 < 30 for one in run.measured)


@pytest.mark.parametrize("share", [1.0, 0.8])
async def test_a_candidate_that_is_slower_than_predicted_is_tried_at_lower_rates(
    share: float,
) -> None:
    """Requests wait near the capacity, which says nothing about the time outside the steps."""
    server = Slow(1650.0, carried=1000.0)
    run = begun(server, TuningOptions())
    best = max(one.rate for one in run.predictions)
    server.capacities = {one.setting: share * best for one in run.predictions}
    server.capacities[CURRENT] = server.capacity
    await run._calibrate()
    await GainVerification(run).verify()
    first = next(one for one in run.measured if one.setting != CURRENT)
    assert first.carried == (share == 1)
    assert first.check_budget(LATENCY_BUDGET) is BudgetCheck.EXCEEDED
    assert run.decision.is_better, run.decision.reason


@pytest.mark.parametrize("capacity", [100.0, 300.0])
@pytest.mark.parametrize("carried", [0.5, 8.0])
async def test_what_never_kept_the_wall_is_tried_at_lower_rates_until_it_does(
    capacity: float, carried: float
) -> None:
    server = Slow(capacity, carried=carried * capacity)
    run = begun(server, TuningOptions())
    await run._calibrate()
    await GainVerification(run).verify()
    found = next(number for number, one in enumerate(run.measured) if one.is_within(LATENCY_BUDGET))
    assert found > 1, "neither the calibration nor what is predicted"
    assert run.measured[found].rate < min(one.rate for one in run.measured[:found])
    assert {one.setting for one in run.measured} == {CURRENT}


@pytest.mark.parametrize("carried", [0.5, 8.0])
async def test_a_request_that_alone_takes_longer_than_the_wall_ends_the_search(
    carried: float,
) -> None:
    run = begun(Slow(20.0, carried=carried * 20), TuningOptions())
    await run._calibrate()
    await GainVerification(run).verify()
    assert len(run.measured) == 1 + run.effort.points
    assert not any(one.is_within(LATENCY_BUDGET) for one in run.measured)


async def test_a_rate_at_which_the_server_fell_behind_is_never_asked_for_again() -> None:
    """Never repeat a rate at which the server fell behind.

    The calibration arrives at a rate that the server does not carry, which predictions do not show.
    """
    run = begun(Slow(400.0, carried=400.0), TuningOptions())
    run.measured = [load(500.0, capacity=400.0)]
    run.executed = [{}]
    await GainVerification(run).verify()
    assert run.measured[1].rate == pytest.approx(200.0, rel=0.01), "half of what it carried"


def test_the_next_lower_rate() -> None:
    far, near = load(200.0, capacity=100.0), load(60.0, alone=0.5)
    assert next_lower_rate([], LATENCY_BUDGET, 50.0, 1.0) is None
    assert next_lower_rate([load(60.0)], LATENCY_BUDGET, 50.0, 1.0) is None, (
        "it was within the wall"
    )
    assert next_lower_rate([far, load(60.0)], LATENCY_BUDGET, 50.0, 1.0) is None
    assert next_lower_rate([far], LATENCY_BUDGET, 150.0, 1.0) == pytest.approx(
        0.5 * far.load.rate
    ), "what it carried, not what was offered"
    assert next_lower_rate([far], LATENCY_BUDGET, 40.0, 1.0) == 40.0, (
        "as predicted, where that is lower"
    )
    assert next_lower_rate(
        [far, near], LATENCY_BUDGET, 0.99 * near.load.rate, 1.0
    ) == pytest.approx(0.5 * min(60.0, near.load.rate))
    assert next_lower_rate([near], LATENCY_BUDGET, 0.0, 50.0) == 50.0
    assert next_lower_rate([near], LATENCY_BUDGET, 0.0, 60.0) is None, "nothing is told apart below"


async def test_a_setting_that_carries_what_is_predicted_is_led_there() -> None:
    server = Slow(1e6, carried=50.0)
    run = begun(server, TuningOptions(seconds=1.0))
    best = max(one.rate for one in run.predictions)
    one, _ = await run._measure(BETTER, best, 1.0, 0.0, 1.0, "a candidate")
    assert one.rate == best
    steps = server.asked[:-1]
    assert all(after <= 2.5 * before for before, after in zip([50.0, *steps], steps, strict=False))
    await run._measure(BETTER, best, 1.0, 0.0, 1.0, "the candidate again")
    assert len(server.asked) == len(steps) + 2, "what is known needs no way there"


def load(
    offered: float,
    *,
    alone: float = 0.01,
    capacity: float = 1e6,
    seconds: float = 16.0,
    seed: int = 0,
) -> SettingMeasurement:
    spec = LoadSpec(rate=offered, duration_s=seconds, warmup_s=1.0, seed=seed)
    return SettingMeasurement(CURRENT, offered, measurement_of(answered(spec, capacity, alone)))


def test_requests_that_take_long_are_no_backlog() -> None:
    slow = load(60, alone=2.5)
    assert slow.load.rate == pytest.approx(60, rel=0.1)
    assert slow.check_budget(3.0) is BudgetCheck.MET
    assert load(60, alone=0.5, capacity=40).check_budget(3.0) is BudgetCheck.EXCEEDED


@pytest.mark.parametrize("alone", [0.02, 0.09])
def test_one_straggler_in_a_hundred_is_no_backlog(alone: float) -> None:
    spec = LoadSpec(rate=62.5, duration_s=16.0, warmup_s=1.0)
    fine = answered(spec, 1e6, alone)
    for stragglers in (1, 9):
        end = fine.end.copy()
        end[-stragglers:] += 3.0
        one = SettingMeasurement(CURRENT, 62.5, measurement_of(replace(fine, end=end)))
        assert one.load.p99 <= 0.1
        assert one.carried
        assert one.is_within(0.1)
        assert next_lower_rate([one], 0.1, 50.0, 1.0) is None, "no point is spent on a lower rate"
    end = fine.end.copy()
    end[-100:] += 3.0
    assert (
        SettingMeasurement(CURRENT, 62.5, measurement_of(replace(fine, end=end))).check_budget(0.1)
        is BudgetCheck.EXCEEDED
    )


def test_few_arrivals_by_chance_do_not_break_the_wall() -> None:
    rates = [load(6, seed=seed) for seed in range(40)]
    assert min(one.load.rate for one in rates) < 0.85 * 6, "by chance"
    assert all(one.check_budget(LATENCY_BUDGET) is BudgetCheck.INCONCLUSIVE for one in rates), (
        "too few to prove anything, either way"
    )


def test_one_lost_request_of_the_current_setting_proves_nothing_for_another() -> None:
    fine = np.full(2400, 0.01)
    lost = SettingMeasurement(CURRENT, 571, LoadMeasurement(fine, 2401, 1, 4.2, "reset", 571))
    better = SettingMeasurement(BETTER, 600, LoadMeasurement(fine, 2400, 0, 4.0, "", 600))
    assert lost.check_budget(LATENCY_BUDGET) is BudgetCheck.INCONCLUSIVE
    assert not decide(CURRENT, [lost, better], LATENCY_BUDGET, [BETTER]).is_better


def overload(
    seconds: float, *, failure: RequestFailure, capacity: float = 100.0, ended: bool = True
) -> LoadResult:
    """200 requests/s on a server that carries 100, some of them with an error."""
    spec = LoadSpec(rate=200, duration_s=seconds, warmup_s=0.0, timeout_s=seconds / 2)
    return replace(answered(spec, capacity), errors=(failure,), overloaded=ended)


@pytest.mark.parametrize(
    ("failure", "late"),
    [
        (timed_out("given up 4 s after the end of the load"), True),
        (timed_out("no response within 30 s"), True),
        (timed_out("no free connection within 30 s"), True),
        (rejected("not sent: 20000 requests were waiting or in progress"), True),
        (error_response("DEADLINE_EXCEEDED: Deadline Exceeded", is_timeout=True), True),
        (error_response("503 Unavailable: [request id: x] Exceeds maximum queue size"), True),
        (error_response("UNAVAILABLE: Request timeout expired"), True),
        (RequestFailure("the connection was lost: Connection reset by peer"), False),
        (error_response("500 Internal Server Error: Stub process is not healthy"), False),
    ],
)
def test_what_overload_makes_fail_is_told_from_a_fault(failure: RequestFailure, late: bool) -> None:
    found = measurement_of(overload(8.0, failure=failure))
    assert found.failed > 0
    assert (found.late, found.faults) == ((found.failed, 0) if late else (0, found.failed))
    assert found.first_error == failure.message
    assert found.ended == 8.0


def test_a_request_that_is_lost_where_there_is_no_overload_is_a_fault_whatever_it_says() -> None:
    spec = LoadSpec(rate=50, duration_s=8.0, warmup_s=0.0)
    fine = answered(spec, 1e6)
    lost = np.arange(len(fine.error)) == 7
    for end in (fine.end, fine.end + 30 * lost):
        found = measurement_of(
            replace(
                fine,
                end=end,
                error=np.where(lost, 0, -1),
                errors=(timed_out("no response within 30 s"),),
            )
        )
        assert (found.failed, found.late, found.faults) == (1, 0, 1)


def test_too_late_at_a_higher_rate_says_nothing_of_a_lower_one() -> None:
    fine = np.full(2400, 0.01)
    far = SettingMeasurement(
        BETTER,
        1200,
        LoadMeasurement(np.full(2000, 2.0), 2400, 400, 4.0, "given up", 1200, late=400, ended=4.0),
    )
    kept = SettingMeasurement(BETTER, 600, LoadMeasurement(fine, 2400, 0, 4.0, "", 600))
    broken = SettingMeasurement(
        CURRENT, 571, LoadMeasurement(np.full(2400, 2.0), 2400, 0, 9.0, "", 571)
    )
    assert decide(CURRENT, [broken, far, kept], LATENCY_BUDGET, [BETTER]).is_better
    lost = replace(far, load=replace(far.load, late=399))
    assert not decide(CURRENT, [broken, lost, kept], LATENCY_BUDGET, [BETTER]).is_better, (
        "one failed for another reason"
    )


async def test_a_setting_that_changes_answers_is_never_measured_and_said_to() -> None:
    server = Slow(1e6, carried=50.0)
    server.changes = 0.01
    run = begun(server, TuningOptions(seconds=1.0))
    await run._record_reference_outputs()
    await GainVerification(run).verify()
    assert {one.setting.max_batch_size for one in run.measured} == {CURRENT.max_batch_size}
    assert any(
        "was rejected: output 'SCORE' differs: values differ by up to 0.01" in note
        for note in run.notes
    )
    assert len([note for note in run.notes if "was rejected" in note]) == 1, (
        "larger batches are as unlike: they are not tried one by one"
    )
    assert "rejected" in run.decision.reason
    assert not run.decision.is_better


async def test_answers_that_are_never_twice_the_same_are_not_compared_and_that_is_said() -> None:
    server = Slow(1e6, carried=50.0)
    server.changes = -0.01
    run = begun(server, TuningOptions(seconds=1.0))
    await run._record_reference_outputs()
    await GainVerification(run).verify()
    assert BETTER in {one.setting for one in run.measured}
    assert any("returns different outputs for the same requests" in note for note in run.notes)


def test_what_is_proven_counts_though_a_corrected_prediction_left_it_out() -> None:
    run = begun(Slow(1e6, carried=50.0), TuningOptions())
    fine = np.full(2400, 0.01)
    run.measured = [
        SettingMeasurement(
            CURRENT, 571, LoadMeasurement(np.full(2400, 2.0), 2400, 0, 9.0, "", 571)
        ),
        SettingMeasurement(BETTER, 600, LoadMeasurement(fine, 2400, 0, 4.0, "", 600)),
    ]
    run.predictions = [one for one in run.predictions if one.setting != BETTER]
    assert run.decision.setting == BETTER


@pytest.mark.parametrize(
    ("begun_at", "beside", "more"), [(140.0, 0.0, True), (160.0, 0.0, False), (140.0, 20.0, False)]
)
async def test_no_point_is_begun_that_would_end_behind_the_limit(
    begun_at: float, beside: float, more: bool
) -> None:
    """Start no point that would end after the time limit.

    A quick run has three minutes, 10 s of which are for the report and the way back. A point takes
    17.5 s plus the overhead of points.
    """
    run = begun(Slow(1e6, carried=50.0), TuningOptions())
    run._clock = lambda: 0.0
    run._began = 0.0
    await run._calibrate()
    run._clock, run._overhead_seconds = lambda: begun_at, beside
    await GainVerification(run).verify()
    assert (len(run.measured) > 1) == more
    assert any("reached its time limit after 1 points" in note for note in run.notes) != more


@pytest.mark.parametrize(
    ("batch", "refused"),
    [(64, {64, 128}), (4, {2, 4})],
)
def test_batches_as_unlike_the_current_ones_are_refused_along(
    batch: int, refused: set[int]
) -> None:
    current = BatchingSetting(8)
    assert {
        size
        for size in (2, 4, 8, 16, 64, 128)
        if shares_mismatch_cause(BatchingSetting(size, 500), BatchingSetting(batch), current)
    } == refused
