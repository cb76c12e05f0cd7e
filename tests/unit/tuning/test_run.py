"""Test the targets of a run: the SLO, what is subtracted from it, and the minimum throughput."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.unit.tuning.test_prediction import LENGTHS, PIPE
from tests.unit.tuning.test_selection import BETTER, CURRENT, GRID, LATENCY_BUDGET, measured
from triton_pipelines.tools.tuner import (
    NotTunableError,
    PointOutcome,
    TuneError,
    TuningOptions,
    TuningReport,
    TuningTarget,
    run,
    slo_and_latency_budget,
)
from triton_pipelines.tools.tuner.acceptance import SettingMeasurement, decide
from triton_pipelines.tools.tuner.load_measurement import LoadMeasurement
from triton_pipelines.tools.tuner.profiling import PipelineProfile
from triton_pipelines.tools.tuner.report_builder import build_report
from triton_pipelines.tools.tuner.report_findings import TuningFindings
from triton_pipelines.tools.tuner.selection import predict_settings
from triton_pipelines.tools.tuner.workload import Workload


@pytest.mark.proves("spec.slo.p99Milliseconds", "behaviour")
@pytest.mark.proves("spec.slo.networkAndQueueBudgetMilliseconds", "behaviour")
def test_the_wall_is_the_promise_less_what_network_and_queues_take() -> None:
    promised = builders.pipeline(
        slo={"p99Milliseconds": 80, "networkAndQueueBudgetMilliseconds": 15}
    )
    assert slo_and_latency_budget(promised, TuningOptions()) == pytest.approx((0.080, 0.065))
    assert slo_and_latency_budget(promised, TuningOptions(slo_ms=40)) == pytest.approx(
        (0.040, 0.025)
    )
    assert slo_and_latency_budget(builders.pipeline(), TuningOptions(slo_ms=40)) == pytest.approx(
        (0.040, 0.035)
    ), "5 ms where nothing is written"


def test_without_a_promise_or_with_nothing_left_of_it_the_field_is_named() -> None:
    with pytest.raises(NotTunableError, match=r"spec\.slo\.p99Milliseconds"):
        slo_and_latency_budget(builders.pipeline(), TuningOptions())
    with pytest.raises(NotTunableError, match=r"networkAndQueueBudgetMilliseconds"):
        slo_and_latency_budget(builders.pipeline(), TuningOptions(slo_ms=5))


def report_of(
    least: int | None, *, proven: bool = True, share: float = 1.0, unsteady: bool = False
) -> TuningReport:
    """Return a report whose points verify 600 requests/s, or only the current 400.

    ``share`` scales these rates.
    """
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
    points = [measured(setting, share * rate, p99) for setting, rate, p99 in rates]
    return report_on(built, points)


@pytest.mark.proves("spec.slo.minThroughputPerSecond", "behaviour")
@pytest.mark.parametrize(("least", "text"), [(500, "is met"), (900, "is NOT met")])
def test_the_least_throughput_is_met_or_said_not_to_be(least: int, text: str) -> None:
    assert any(
        f"spec.slo.minThroughputPerSecond {least} {text}" in note for note in report_of(least).notes
    )
    assert not any("minThroughput" in note for note in report_of(None).notes)


def test_a_report_recommends_what_is_proven_and_patches_it() -> None:
    found = report_of(None)
    assert found.recommended == BETTER
    assert found.gain == pytest.approx(0.5)
    assert found.patch == {"spec": {"model": {"maxBatchSize": 64}}}
    assert [point.name for point in found.points] == ["current", "recommended", "current"]
    assert {curve.name for curve in found.curves if curve.measured} == {"current", "recommended"}


def test_a_report_without_proof_keeps_the_current_setting(messages: Messages) -> None:
    found = report_of(None, proven=False)
    assert found.recommended == CURRENT
    assert found.patch == {}
    messages.check(found.message)


@pytest.mark.parametrize(
    ("points", "figures"),
    [
        (
            [(4, 3.0), (40, 2.2), (467, 3.0)],
            "requests/s",
        ),
        (
            [(40, math.inf), (467, math.inf)],
            "requests/s",
        ),
    ],
)
def test_a_report_in_which_nothing_kept_the_slo_says_so_with_figures_and_what_to_do(
    points: list[tuple[float, float]], figures: str, messages: Messages
) -> None:
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})
    found = report_on(
        built,
        [lost(rate) if p99 == math.inf else measured(CURRENT, rate, p99) for rate, p99 in points],
    )
    assert {point.outcome for point in found.points} == {PointOutcome.BREAKS}
    assert "SLO" in found.message
    assert re.search(figures, found.message)
    assert "Raise spec.slo.p99Milliseconds" in found.message
    assert "spec.tuning.mode: Thorough" in found.message
    messages.check(found.message)
    assert "no other setting is predicted to serve more" not in found.message
    assert len(found.message) < 600, "whole in status.tuning"
    assert "No setting met" not in report_of(None, proven=False).message


def test_where_answers_fell_behind_a_soon_p99_is_not_told_as_beyond_the_wall(
    messages: Messages,
) -> None:
    """What fails is in no p99, and is in the time that answers took."""
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})
    behind = SettingMeasurement(
        CURRENT, 62.5, LoadMeasurement(np.full(1000, 0.02), 1000, 0, 19.0, offered=62.5)
    )
    found = report_on(built, [behind, behind])
    assert "requests/s" in found.message
    messages.check(found.message)
    late = report_on(built, [measured(CURRENT, 40, 2.2)] * 2)
    assert "backlog" not in late.message


def lost(rate: float) -> SettingMeasurement:
    """A measurement in which half of the requests got no answer."""
    one = measured(CURRENT, rate, 2.0)
    return replace(one, load=replace(one.load, failed=one.load.sent, sent=2 * one.load.sent))


def test_a_machine_on_which_less_load_takes_longer_is_said_to_be_busy() -> None:
    assert any(
        (
            "met the latency budget at 400 requests/s and exceeded it at 200, because the "
            "machine is busy with other work"
        )
        in note
        for note in report_of(None, unsteady=True).notes
    )
    assert not any("the machine is busy with other work" in note for note in report_of(None).notes)


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
    text = [note for note in found.notes if "600 requests/s" in note]
    assert text == [
        (
            f"600 requests/s were far beyond the capacity of {BETTER}, ended after 3.2 s; 40 of "
            "2440 requests timed out or were rejected"
        )
    ]


def test_too_few_answers_for_a_p99_are_told_with_what_would_be_enough() -> None:
    # 28.5 requests/s for 4 s are 114; 300 take 11 s.
    assert any(
        "a point has only 114 responses" in note and "--seconds 11 " in note
        for note in report_of(None, share=0.05).notes
    )
    assert not any("too few for a p99" in note for note in report_of(None).notes)


def report_on(
    built: builders.Built, points: list[SettingMeasurement], noise: str = ""
) -> TuningReport:
    """A report on these points."""
    return build_report(
        TuningFindings(
            pipeline=built.pipeline,
            graph=built.graph,
            options=TuningOptions(),
            slo=0.035,
            latency_budget=LATENCY_BUDGET,
            work=Workload((), LENGTHS, "a mix", 1, ("TEXT",)),
            pipe=PIPE,
            predictions=predict_settings(PIPE, [*GRID, BETTER], CURRENT, LATENCY_BUDGET),
            grid=GRID,
            measured=points,
            executed=[{} for _ in points],
            decision=decide(CURRENT, points, LATENCY_BUDGET, [BETTER]),
            current=CURRENT,
            notes=(),
            noise=noise,
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


async def quiet(*_: object) -> np.ndarray[Any, Any]:
    """Latencies of single requests on an idle machine."""
    return np.full(200, 0.007)


class Gone:
    """A server that cannot take its first setting back."""

    current, failed, late, client, rebuild = CURRENT, 3, 40, None, None
    notes = ("model ran with instances: 3",)

    async def __aenter__(self) -> Gone:
        return self

    async def __aexit__(self, *error: object) -> None:
        if error[0] is None:
            raise TuneError(
                "the original settings could not be restored, so restart the Triton server"
            )


@pytest.mark.parametrize("points", [1, 3])
async def test_a_server_that_goes_leaves_what_was_measured(
    points: int, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})

    async def made_up(*_: object) -> Workload:
        return Workload((), LENGTHS, "a mix", 1, ("TEXT",))

    async def until_it_goes(self: Any) -> None:
        self.profile, self.pipe, self.grid = PipelineProfile(PIPE, {}, 128, 1), PIPE, GRID
        self.predictions = predict_settings(PIPE, [*GRID, BETTER], CURRENT, LATENCY_BUDGET)
        rates = [(CURRENT, 300, 0.02), (CURRENT, 400, 0.02), (BETTER, 600, 0.02)]
        self.measured = [measured(setting, rate, p99) for setting, rate, p99 in rates[:points]]
        self.executed = [{} for _ in self.measured]
        raise TuneError("127.0.0.1:8001 cannot be reached")

    monkeypatch.setattr(run, "MeasuredServer", lambda *_: Gone())
    monkeypatch.setattr(run, "workload", made_up)
    monkeypatch.setattr(run.TuningRun, "prepare", until_it_goes)
    monkeypatch.setattr(run, "_single_request_latencies", quiet)
    tuning = run.tune(
        TuningTarget("", lambda _: built.graph), built.pipeline, built.graph, TuningOptions()
    )
    if points < 2:
        with messages.raises(TuneError):
            await tuning
        return
    found = await tuning
    assert [point.rate for point in found.points] == [300, 400, 600]
    assert found.patch == {}, "nothing is proven"
    assert found.failed_requests == 3
    assert found.late_requests == 40
    assert "model ran with instances: 3" in found.notes
    assert found.ended == (
        "127.0.0.1:8001 cannot be reached; the original settings could not be restored, so "
        "restart the Triton server"
    )
