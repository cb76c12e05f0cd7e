"""A point that is left over goes to other instances: how these share a device is measured, not predicted."""

from __future__ import annotations

import pytest

from tests.unit.tuning.test_choose import CURRENT, WALL
from tests.unit.tuning.test_rates import Slow, begun
from triton_pipelines.load import LoadResult, LoadSpec
from triton_pipelines.tuning.choose import Planned, rival
from triton_pipelines.tuning.contract import Knobs, Settings
from triton_pipelines.tuning.run import _Run

ONE, TWO = Knobs(64, 0, 1, 1), Knobs(64, 0, 1, 2)


class Shared(Slow):
    """Carries by the number of tokenizers, and the current setting less."""

    def __init__(self, capacities: dict[Knobs, float]) -> None:
        super().__init__(0.0, carried=1e6)
        self.capacities = capacities
        self.loads: list[tuple[Knobs, float]] = []

    async def run(self, requests: object, spec: LoadSpec, tell: object = None) -> LoadResult:
        self.capacity = self.capacities[self.knobs]
        if spec.statistics:
            self.loads.append((self.knobs, spec.rate))
        return await super().run(requests, spec, tell)


def verified(server: Shared) -> _Run:
    """A run over three settings, two of which are predicted to be alike, before its points are measured."""
    run = begun(server, Settings())
    run.planned = [Planned(ONE, 560.0, 0.02, 900.0), Planned(TWO, 550.0, 0.02, 900.0), Planned(CURRENT, 400.0, 0.02, 500.0)]
    run._learn = lambda one, seen: None  # type: ignore[method-assign]
    run._plan = unchanged  # type: ignore[method-assign]
    return run


@pytest.mark.parametrize(("other", "chosen"), [(2000.0, TWO), (720.0, ONE), (560.0, ONE)])
async def test_other_instances_are_chosen_where_they_carry_more_as_measured(other: float, chosen: Knobs) -> None:
    """560: breaks the wall at 5 % more; 720: keeps it there, later than the first."""
    server = Shared({CURRENT: 450.0, ONE: 800.0, TWO: other})
    run = verified(server)
    await run._verify()
    assert len(run.measured) == run.effort.points
    assert [knobs for knobs, _ in server.loads] == [CURRENT, ONE, TWO, CURRENT, chosen]
    assert server.loads[2][1] == pytest.approx(1.05 * 560)
    assert server.loads[3][1] == pytest.approx(560 / 1.05), "what the first has to be proven against"
    assert run.verdict.better
    assert run.verdict.knobs == chosen
    assert all(one.load.p99 <= WALL for one in run.measured if one.knobs == chosen)


async def test_the_time_that_is_left_goes_to_the_proof_first() -> None:
    server = Shared({CURRENT: 450.0, ONE: 800.0, TWO: 2000.0})
    run = verified(server)
    # Two points more after each, never three.
    run._began, run._clock = 0.0, lambda: run.effort.limit - 2.5 * (run.effort.warmup + run.effort.seconds)
    await run._verify()
    assert [knobs for knobs, _ in server.loads] == [CURRENT, ONE, CURRENT, ONE]
    assert (run.verdict.better, run.verdict.knobs) == (True, ONE)


async def unchanged() -> None:
    """No prediction is corrected."""


def test_the_rival_has_other_instances_and_is_the_best_of_these() -> None:
    found = [
        Planned(knobs, rate, 0.02, 900.0) for knobs, rate in ((ONE, 560.0), (Knobs(32, 0, 1, 1), 555.0), (Knobs(16, 0, 1, 2), 540.0), (TWO, 550.0))
    ]
    best = rival(found, ONE, {CURRENT})
    assert best is not None
    assert best.knobs == TWO
    assert rival(found[:2], ONE, set()) is None
    assert rival([Planned(TWO, 0.0, 0.02, 900.0)], ONE, set()) is None
    assert rival(found, ONE, {TWO, Knobs(16, 0, 1, 2)}) is None
