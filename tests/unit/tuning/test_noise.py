"""Test what makes a run inconclusive, and that nothing is recommended or predicted then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import builders
from tests.support.messages import Messages
from tests.unit.tuning.test_prediction import LENGTHS, PIPE
from tests.unit.tuning.test_report import REPORT
from tests.unit.tuning.test_run import Gone, quiet, report_of, report_on
from tests.unit.tuning.test_selection import BETTER, CURRENT, GRID, LATENCY_BUDGET, measured
from triton_pipelines.cli.tune_report import TuneOutput, write_report
from triton_pipelines.tools.loadgen import Array
from triton_pipelines.tools.tuner import TuningOptions, TuningReport, TuningTarget, run, status_of
from triton_pipelines.tools.tuner.noise import MIN_REQUESTS, NoiseSamples, noise_reason
from triton_pipelines.tools.tuner.plot import chart
from triton_pipelines.tools.tuner.profiling import PipelineProfile
from triton_pipelines.tools.tuner.selection import predict_settings
from triton_pipelines.tools.tuner.workload import Workload

IDLE = np.random.default_rng(1).normal(0.0068, 0.0004, 220)
# Half of the requests wait for a busy process.
BUSY = np.where(np.arange(180) % 2, 0.0064, 0.0107)
NOTHING = np.empty(0)
MEASURED = [measured(CURRENT, 300, 0.02), measured(CURRENT, 56, 0.5), measured(BETTER, 600, 0.02)]


def reason(start: Array, end: Array, predicted: float = 100.0) -> str:
    return noise_reason(
        NoiseSamples(start, end), MEASURED, {CURRENT: predicted, BETTER: 900.0}, LATENCY_BUDGET
    )


def test_an_idle_machine_is_not_noisy() -> None:
    assert reason(IDLE, 1.3 * IDLE) == ""


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        (BUSY, IDLE, "at the start of the run, 10% of single requests took less than 6.4 ms"),
        (IDLE, BUSY, "at the end of the run, 10% of single requests took less than 6.4 ms"),
        (IDLE, 1.6 * IDLE, "a single request took 6.8 ms at the start of the run and 10.9 ms at"),
        (1.6 * IDLE, IDLE, "a single request took 10.9 ms at the start of the run and 6.8 ms at"),
    ],
)
def test_other_work_is_noticed_before_and_after_the_measurements(
    start: Array, end: Array, text: str
) -> None:
    assert text in reason(start, end)


def test_a_run_that_ended_early_is_evaluated_from_its_start() -> None:
    assert reason(IDLE, NOTHING) == ""
    assert "at the start of the run" in reason(BUSY, NOTHING)


def test_too_few_requests_show_no_noise() -> None:
    assert reason(BUSY[: MIN_REQUESTS - 1], IDLE) == ""


def test_a_prediction_that_a_measurement_contradicts_is_noise() -> None:
    assert reason(IDLE, IDLE, 3 * 56) == ""
    text = reason(IDLE, IDLE, 3815)
    assert "exceeded the latency budget at 56 requests/s" in text
    assert "predict 3815" in text


def test_the_calibration_does_not_contradict_the_predictions_made_from_it() -> None:
    calibration = [measured(CURRENT, 56, 0.5), *MEASURED[2:]]
    samples = NoiseSamples(IDLE, IDLE)
    assert noise_reason(samples, calibration, {CURRENT: 3815.0}, LATENCY_BUDGET) == ""


# --- report ---------------------------------------------------------------------------------------

NOISY = "a single request took 7 ms at the start of the run and 70 ms at the end"


@pytest.fixture
def noisy() -> TuningReport:
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})
    return report_on(built, [measured(CURRENT, 400, 0.02), measured(BETTER, 600, 0.02)], NOISY)


def test_an_inconclusive_report_recommends_and_predicts_nothing(
    noisy: TuningReport, messages: Messages
) -> None:
    assert report_of(None).patch, "the same measurements verify a gain"
    assert (noisy.patch, noisy.gain, noisy.recommended) == ({}, 0.0, CURRENT)
    assert (noisy.advice, noisy.bound, noisy.padding, noisy.ends) == ("", "", "", ())
    assert [point.name for point in noisy.points] == ["current", "candidate"]
    assert all(curve.measured for curve in noisy.curves)
    document = status_of(noisy)
    assert str(NOISY) in document["message"]
    messages.check(document["message"])
    assert not {"patch", "advice", "gainPercent"} & set(document)
    assert chart(noisy).note.startswith("INCONCLUSIVE: ")


def test_inconclusive_is_the_first_line_that_is_printed(
    noisy: TuningReport, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_report(noisy, TuneOutput.TABLE, None, tmp_path / "report.json")
    printed = capsys.readouterr().out
    assert printed.startswith(f"INCONCLUSIVE: {NOISY}.")
    assert printed.count("INCONCLUSIVE") == 1
    assert json.loads((tmp_path / "report.json").read_text())["message"] == noisy.message
    write_report(noisy, TuneOutput.PATCH, None, None)
    yaml = capsys.readouterr()
    assert (yaml.out, yaml.err[:13]) == ("{}\n", "INCONCLUSIVE:")
    write_report(noisy, TuneOutput.JSON, None, None)
    assert json.loads(capsys.readouterr().out)["inconclusive"] == NOISY
    write_report(REPORT, TuneOutput.TABLE, None, None)
    assert "INCONCLUSIVE" not in capsys.readouterr().out


class Restored(Gone):
    """A server that goes back to its first setting."""

    async def __aexit__(self, *error: object) -> None:
        return


@pytest.mark.parametrize("factor", [1.0, 3.0])
async def test_a_run_measures_noise_before_and_after_its_points(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = builders.built(model={"maxBatchSize": 4}, slo={"p99Milliseconds": 35})
    order: list[str] = []
    factors: Iterator[float] = iter([1.0, factor])

    async def single(*_: object) -> Array:
        order.append("single requests")
        return next(factors) * await quiet()

    async def made_up(*_: object) -> Workload:
        return Workload((), LENGTHS, "a mix", 1, ("TEXT",))

    async def prepared(self: Any) -> None:
        order.append("prepare")
        self.profile, self.pipe, self.grid = PipelineProfile(PIPE, {}, 128, 1), PIPE, GRID
        self.predictions = predict_settings(PIPE, [*GRID, BETTER], CURRENT, LATENCY_BUDGET)

    async def verified(self: Any) -> None:
        order.append("verify")
        rates = [(CURRENT, 400, 0.02), (BETTER, 600, 0.02), (CURRENT, 600 / 1.05, 0.08)]
        self._run.measured = [measured(setting, rate, p99) for setting, rate, p99 in rates]
        self._run.executed = [{} for _ in rates]

    monkeypatch.setattr(run, "MeasuredServer", lambda *_: Restored())
    monkeypatch.setattr(run, "workload", made_up)
    monkeypatch.setattr(run, "_single_request_latencies", single)
    monkeypatch.setattr(run.TuningRun, "prepare", prepared)
    monkeypatch.setattr(run.GainVerification, "verify", verified)
    found = await run.tune(
        TuningTarget("", lambda _: built.graph), built.pipeline, built.graph, TuningOptions()
    )
    assert order == ["single requests", "prepare", "verify", "single requests"]
    assert bool(found.inconclusive) == (factor > 1)
    assert bool(found.patch) == (factor == 1)
