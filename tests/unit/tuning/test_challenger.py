"""Test that a spare point goes to another number of instances.

How instances share a device is measured, not predicted.
"""

from __future__ import annotations

import pytest

from tests.unit.tuning.test_load_rates import Slow, begun
from tests.unit.tuning.test_selection import CURRENT, LATENCY_BUDGET
from triton_pipelines.tools.loadgen import LoadResult, LoadSpec
from triton_pipelines.tools.tuner import BatchingSetting, TuningOptions
from triton_pipelines.tools.tuner.measured_points import TuningRun
from triton_pipelines.tools.tuner.selection import PredictedSetting, challenger
from triton_pipelines.tools.tuner.verification import GainVerification

ONE, TWO = BatchingSetting(64, 0, 1, 1), BatchingSetting(64, 0, 1, 2)


class Shared(Slow):
    """Carries by the number of tokenizers, and the current setting less."""

    def __init__(self, capacities: dict[BatchingSetting, float]) -> None:
        super().__init__(0.0, carried=1e6)
        self.capacities = capacities
        self.loads: list[tuple[BatchingSetting, float]] = []
        self.changing: dict[BatchingSetting, float] = {}
        self.now = 0.0

    async def apply(self, setting: BatchingSetting, warm: object = ()) -> None:
        self.now += self.changing.get(setting, 3.0)
        await super().apply(setting, warm)

    async def run(self, requests: object, spec: LoadSpec, tell: object = None) -> LoadResult:
        self.capacity = self.capacities[self.setting]
        self.now += spec.warmup_s + spec.duration_s
        if spec.statistics:
            self.loads.append((self.setting, spec.rate))
        return await super().run(requests, spec, tell)


def verified(server: Shared) -> TuningRun:
    """Return a run over three settings before its points are measured.

    Two of the settings have similar predictions.
    """
    run = begun(server, TuningOptions())
    run.predictions = [
        PredictedSetting(ONE, 560.0, 900.0),
        PredictedSetting(TWO, 550.0, 900.0),
        PredictedSetting(CURRENT, 400.0, 500.0),
    ]
    run._recalibrate = lambda one, seen: None  # type: ignore[method-assign]
    run._predict = unchanged  # type: ignore[method-assign]
    return run


@pytest.mark.parametrize(("other", "chosen"), [(2000.0, TWO), (720.0, ONE), (560.0, ONE)])
async def test_other_instances_are_chosen_where_they_carry_more_as_measured(
    other: float, chosen: BatchingSetting
) -> None:
    """560: breaks the wall at 5 % more; 720: keeps it there, later than the first."""
    server = Shared({CURRENT: 450.0, ONE: 800.0, TWO: other})
    run = verified(server)
    await GainVerification(run).verify()
    assert len(run.measured) == run.effort.points
    assert [setting for setting, _ in server.loads] == [CURRENT, ONE, CURRENT, TWO, chosen]
    assert server.loads[2][1] == pytest.approx(560 / 1.05), (
        "what the first has to be proven against, and what proves the other one too"
    )
    assert server.loads[3][1] == pytest.approx(1.05 * 560)
    proven = 1.05 * 560 if chosen == TWO else 560
    assert server.loads[4][1] == pytest.approx(proven), "the rate at which it kept the wall"
    assert run.decision.is_better
    assert run.decision.setting == chosen
    assert run.decision.rate == pytest.approx(proven)
    assert all(one.load.p99 <= LATENCY_BUDGET for one in run.measured if one.setting == chosen)


async def test_a_current_setting_predicted_far_too_low_is_led_to_its_limit() -> None:
    """A disturbed calibration predicts a fraction of what the current setting serves."""
    server = Shared({CURRENT: 450.0, ONE: 800.0, TWO: 560.0})
    run = verified(server)
    run.predictions[-1] = PredictedSetting(CURRENT, 150.0, 180.0)
    await GainVerification(run).verify()
    rates = [rate for setting, rate in server.loads if setting == CURRENT]
    assert 250 < rates[1] < 350, "twice what it was measured to serve, well within the budget"
    assert rates[2:] == [pytest.approx(560 / 1.05)]
    assert (run.decision.is_better, run.decision.setting) == (True, ONE), run.decision.reason
    assert run.decision.gain == pytest.approx(560 / rates[1] - 1)


async def test_the_time_that_is_left_goes_to_the_proof_first() -> None:
    server = Shared({CURRENT: 450.0, ONE: 800.0, TWO: 2000.0})
    run = verified(server)
    # One point more after each, never two.
    run._began, run._clock = (
        0.0,
        lambda: run.effort.limit - 1.5 * (run.effort.warmup + run.effort.seconds),
    )
    await GainVerification(run).verify()
    assert [setting for setting, _ in server.loads] == [CURRENT, ONE, CURRENT, ONE]
    assert (run.decision.is_better, run.decision.setting) == (True, ONE)


async def test_a_challenger_that_is_slow_to_load_costs_a_repeat_and_no_proof() -> None:
    """Spend a repeat, not a verification, on a challenger that is slow to load.

    The load time of a setting is known only after its first point, and by then the candidate has
    been verified.
    """
    server = Shared({CURRENT: 450.0, ONE: 800.0, TWO: 2000.0})
    server.changing[TWO] = 20.0
    run = verified(server)
    server.now, run._began, run._clock = 59.0, 0.0, lambda: server.now
    await GainVerification(run).verify()
    assert [setting for setting, _ in server.loads] == [CURRENT, ONE, CURRENT, TWO]
    assert any("the run reached its time limit after 4 points" in note for note in run.notes)
    assert (run.decision.is_better, run.decision.setting, run.decision.rate) == (True, ONE, 560.0)


async def unchanged() -> None:
    """No prediction is corrected."""


def test_the_challenger_has_other_instances_and_is_the_best_of_these() -> None:
    found = [
        PredictedSetting(setting, rate, 900.0)
        for setting, rate in (
            (ONE, 560.0),
            (BatchingSetting(32, 0, 1, 1), 555.0),
            (BatchingSetting(16, 0, 1, 2), 540.0),
            (TWO, 550.0),
        )
    ]
    best = challenger(found, ONE, {CURRENT})
    assert best is not None
    assert best.setting == TWO
    assert challenger(found[:2], ONE, set()) is None
    assert challenger([PredictedSetting(TWO, 0.0, 900.0)], ONE, set()) is None
    assert challenger(found, ONE, {TWO, BatchingSetting(16, 0, 1, 2)}) is None
