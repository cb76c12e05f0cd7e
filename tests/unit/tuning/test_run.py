"""What a run is measured against: the promise, what is subtracted from it, and the least throughput."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support import builders
from tests.unit.tuning.test_choose import BETTER, CURRENT, GRID, WALL, measured
from tests.unit.tuning.test_predict import LENGTHS, PIPE
from triton_pipelines.tools.tuner import run
from triton_pipelines.tools.tuner.acceptance import Measured, judge
from triton_pipelines.tools.tuner.contract import (
    Load,
    NotTunableError,
    Outcome,
    Report,
    Settings,
    TuneError,
    TuneTarget,
    wall_of,
)
from triton_pipelines.tools.tuner.profiling import Profile
from triton_pipelines.tools.tuner.report import Findings, report
from triton_pipelines.tools.tuner.selection import plan
from triton_pipelines.tools.tuner.workload import Workload


@pytest.mark.proves("spec.slo.p99Milliseconds", "behaviour")
@pytest.mark.proves("spec.slo.networkAndQueueBudgetMilliseconds", "behaviour")
def test_the_wall_is_the_promise_less_what_network_and_queues_take() -> None:
    promised = builders.pipeline(
        slo={"p99Milliseconds": 80, "networkAndQueueBudgetMilliseconds": 15}
    )
    assert wall_of(promised, Settings()) == pytest.approx((0.080, 0.065))
    assert wall_of(promised, Settings(slo_ms=40)) == pytest.approx((0.040, 0.025))
    assert wall_of(builders.pipeline(), Settings(slo_ms=40)) == pytest.approx((0.040, 0.035)), (
        "5 ms where nothing is written"
    )


def test_without_a_promise_or_with_nothing_left_of_it_the_field_is_named() -> None:
    with pytest.raises(NotTunableError, match=r"spec\.slo\.p99Milliseconds"):
        wall_of(builders.pipeline(), Settings())
    with pytest.raises(NotTunableError, match=r"networkAndQueueBudgetMilliseconds"):
        wall_of(builders.pipeline(), Settings(slo_ms=5))


def report_of(
    least: int | None, *, proven: bool = True, share: float = 1.0, unsteady: bool = False
) -> Report:
    """A report on points in which 600 requests/s are proven, or the current 400 are kept; ``share``: of these rates."""
    built = builders.built(
        model={"maxBatchSize": 4},
        slo={"p99Milliseconds": 35} | ({"minThroughputPerSecond": least} if least else {}),
    )
    rates = [
        (CURRENT, 400, 0.02),
        (BETTER, 600, 0.02),
        (CURRENT, 600 / 1.05, 0.08 if proven else 0.02),
    ]
    rates += [(CURRENT, 200, 0.08)] * unsteady
    points = [measured(knobs, share * rate, p99) for knobs, rate, p99 in rates]
    return report_on(built, points)


@pytest.mark.proves("spec.slo.minThroughputPerSecond", "behaviour")
@pytest.mark.parametrize(("least", "said"), [(500, "is met"), (900, "is NOT met")])
def test_the_least_throughput_is_met_or_said_not_to_be(least: int, said: str) -> None:
    assert any(
        f"spec.slo.minThroughputPerSecond {least} {said}" in note for note in report_of(least).notes
    )
    assert not any("minThroughput" in note for note in report_of(None).notes)


def test_a_report_recommends_what_is_proven_and_patches_it() -> None:
    found = report_of(None)
    assert found.recommended == BETTER
    assert found.gain == pytest.approx(0.5)
    assert found.patch == {"spec": {"model": {"maxBatchSize": 64}}}
    assert [point.name for point in found.points] == ["current", "recommended", "current"]
    assert {curve.name for curve in found.curves if curve.measured} == {"current", "recommended"}


def test_a_report_without_proof_keeps_the_current_setting() -> None:
    found = report_of(None, proven=False)
    assert found.recommended == CURRENT
    assert found.patch == {}
    assert "stays" in found.message


@pytest.mark.parametrize(
    ("points", "figures"),
    [
        (
            [(4, 3.0), (40, 2.2), (467, 3.0)],
            r"\(4\.0 to 467 requests/s\) p99 was 2200 ms at best, at 40 requests/s; the wall is 30 ms",
        ),
        (
            [(40, math.inf), (467, math.inf)],
            r"\(40 to 467 requests/s\) no p99 was seen, so many requests were lost; the wall is 30 ms",
        ),
    ],
)
def test_a_report_in_which_nothing_kept_the_slo_says_so_with_figures_and_what_to_do(
    points: list[tuple[float, float]], figures: str
) -> None:
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})
    found = report_on(
        built,
        [lost(rate) if p99 == math.inf else measured(CURRENT, rate, p99) for rate, p99 in points],
    )
    assert {point.outcome for point in found.points} == {Outcome.BREAKS}
    assert found.message.startswith(
        "Nothing kept the SLO of 35 ms: at every rate that was measured "
    )
    assert re.search(figures, found.message)
    assert "Raise spec.slo.p99Milliseconds" in found.message
    assert "spec.tuning.mode: Thorough" in found.message
    assert "no other setting is expected to carry more" not in found.message
    assert len(found.message) < 600, "whole in status.tuning"
    assert "Nothing kept" not in report_of(None, proven=False).message


def test_where_answers_fell_behind_a_soon_p99_is_not_told_as_beyond_the_wall() -> None:
    """What fails is in no p99, and is in the time that answers took."""
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})
    behind = Measured(CURRENT, 62.5, Load(np.full(1000, 0.02), 1000, 0, 19.0, offered=62.5))
    found = report_on(built, [behind, behind])
    assert (
        "p99 was 20 ms at best, at 62 requests/s, where answers fell behind requests; the wall is 30 ms"
        in found.message
    )
    late = report_on(built, [measured(CURRENT, 40, 2.2)] * 2)
    assert "fell behind" not in late.message


def lost(rate: float) -> Measured:
    """A measurement in which half of the requests got no answer."""
    one = measured(CURRENT, rate, 2.0)
    return replace(one, load=replace(one.load, failed=one.load.sent, sent=2 * one.load.sent))


def test_a_machine_on_which_less_load_takes_longer_is_said_to_be_busy() -> None:
    assert any(
        "kept the wall at 400 requests/s and broke it at 200: the machine does something else"
        in note
        for note in report_of(None, unsteady=True).notes
    )
    assert not any("the machine does something else" in note for note in report_of(None).notes)


def test_too_late_is_told_apart_from_failed() -> None:
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})
    one = measured(BETTER, 600, 2.0, failed=40)
    far = replace(
        one,
        load=replace(
            one.load, first_error="given up 6 s after the end of the load", late=40, ended=3.2
        ),
    )
    points = [measured(CURRENT, 400, 0.02), far]
    found = report_on(built, points)
    said = [note for note in found.notes if "600 requests/s" in note]
    assert said == [
        f"600 requests/s were far beyond what {BETTER} carries, ended after 3.2 s; 40 of 2440 requests waited too long and were given up or turned away"
    ]


def test_too_few_answers_for_a_p99_are_told_with_what_would_be_enough() -> None:
    # 28.5 requests/s for 4 s are 114; 300 take 11 s.
    assert any(
        "a point has 114 answers only" in note and "--seconds 11 " in note
        for note in report_of(None, share=0.05).notes
    )
    assert not any("answers only" in note for note in report_of(None).notes)


def report_on(built: builders.Built, points: list[Measured]) -> Report:
    """A report on these points."""
    return report(
        Findings(
            pipeline=built.pipeline,
            graph=built.graph,
            settings=Settings(),
            slo=0.035,
            wall=WALL,
            work=Workload((), LENGTHS, "a mix", 1, ("TEXT",)),
            profile=Profile(PIPE, {}, 128, 1),
            pipe=PIPE,
            planned=plan(PIPE, [*GRID, BETTER], CURRENT, WALL),
            grid=GRID,
            measured=points,
            executed=[{} for _ in points],
            verdict=judge(CURRENT, points, WALL, [BETTER]),
            current=CURRENT,
            notes=(),
        )
    )


def test_requests_that_failed_are_told_with_their_error() -> None:
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})
    one = measured(BETTER, 600, 0.02, failed=7)
    failing = replace(one, load=replace(one.load, first_error="UNAVAILABLE: no more shared memory"))
    points = [measured(CURRENT, 400, 0.02), failing]
    found = report_on(built, points)
    assert found.patch == {}
    assert any(
        "7 of 2407 requests failed at 600 requests/s" in note and "shared memory" in note
        for note in found.notes
    )


class Gone:
    """A server that cannot take its first setting back."""

    current, failed, late, client, rebuild = CURRENT, 3, 40, None, None
    notes = ("model ran with instances: 3",)

    async def __aenter__(self) -> Gone:
        return self

    async def __aexit__(self, *error: object) -> None:
        if error[0] is None:
            raise TuneError("the first setting could not be put back on the server; start it anew")


@pytest.mark.parametrize("points", [1, 3])
async def test_a_server_that_goes_leaves_what_was_measured(
    points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})

    async def made_up(*_: object) -> Workload:
        return Workload((), LENGTHS, "a mix", 1, ("TEXT",))

    async def until_it_goes(self: Any) -> None:
        self.profile, self.pipe, self.grid = Profile(PIPE, {}, 128, 1), PIPE, GRID
        self.planned = plan(PIPE, [*GRID, BETTER], CURRENT, WALL)
        rates = [(CURRENT, 300, 0.02), (CURRENT, 400, 0.02), (BETTER, 600, 0.02)]
        self.measured = [measured(knobs, rate, p99) for knobs, rate, p99 in rates[:points]]
        self.executed = [{} for _ in self.measured]
        raise TuneError("127.0.0.1:8001 cannot be reached")

    monkeypatch.setattr(run, "Server", lambda *_: Gone())
    monkeypatch.setattr(run, "workload", made_up)
    monkeypatch.setattr(run._Run, "all", until_it_goes)
    tuning = run.tune(
        TuneTarget("", lambda _: built.graph), built.pipeline, built.graph, Settings()
    )
    if points < 2:
        with pytest.raises(TuneError, match="cannot be reached"):
            await tuning
        return
    found = await tuning
    assert [point.rate for point in found.points] == [300, 400, 600]
    assert found.patch == {}, "nothing is proven"
    assert found.failed_requests == 3
    assert found.late_requests == 40
    assert "model ran with instances: 3" in found.notes
    assert (
        found.ended
        == "127.0.0.1:8001 cannot be reached; the first setting could not be put back on the server; start it anew"
    )
