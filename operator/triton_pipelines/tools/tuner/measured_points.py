"""Measure points of one tuning run, and keep the predictions in line with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.resource_patch import PaddingSetting
from triton_pipelines.tools.loadgen import LoadSpec

from .acceptance import (
    SettingDecision,
    SettingMeasurement,
    decide,
    next_lower_rate,
)
from .calibration import MIN_EXECUTIONS, StepExecutions, calibrate
from .effort import effort
from .errors import OutputMismatchError, SettingRefusedError, TuneError
from .load_measurement import measurement_of
from .measured_server import TIMEOUT_SECONDS, MeasuredServer
from .options import (
    ProgressCallback,
    TuningOptions,
)
from .output_comparison import OutputComparison, shares_mismatch_cause
from .padding_cost import PaddingRanking
from .padding_options import PaddingOptions
from .prediction import MAX_UTILIZATION, PipelineModel, simulate
from .profiling import PipelineProfile, executions_by_step, profile
from .report_notes import MAX_PREDICTION_ERROR
from .selection import PredictedSetting, predict_setting, predict_settings
from .settings import BatchingSetting, setting_grid
from .workload import Workload

# Share of the current setting's predicted rate at which the pipeline is calibrated: loaded, and
# safely stable.
CALIBRATION_SHARE = 0.6
# No load offers more than this multiple of what the server is known to serve. Predictions do not
# include everything that limits it (connections, the ensemble, a busy machine), and a server far
# beyond its limit answers no request until its backlog is finished. The rate of a new setting is
# raised by short loads of STEP_SECONDS, each at most twice the previous one; beyond MAX_OVERLOAD it
# gets less.
MAX_RATE_STEP = 2.0
STEP_SECONDS = 1.0
MAX_OVERLOAD = 1.5
# An overload is ended when the backlog is this many latency budgets, but never below
# MIN_BEHIND_SECONDS: a short pause of the machine is no overload.
BUDGETS_BEHIND = 4.0
MIN_BEHIND_SECONDS = 2.0
# Settings that are predicted again after a correction.
REPREDICTED_SETTINGS = 10


class TuningRun:
    """The state of one run: its predictions, and the points that it measured."""

    profile: PipelineProfile
    pipe: PipelineModel

    def __init__(
        self,
        server: MeasuredServer,
        pipeline: InferencePipeline,
        graph: Graph,
        options: TuningOptions,
        progress: ProgressCallback,
        work: Workload,
        latency_budget: float,
    ) -> None:
        self.server = server
        self.graph = graph
        self.options = options
        self.work = work
        self.latency_budget = latency_budget
        self.effort = effort(options)
        self.grid = list(setting_grid(pipeline, graph, options.rows, options.cores))
        self.paddings = PaddingOptions(pipeline, graph, server.rebuild, work)
        self.padding: PaddingRanking | None = None
        self.padding_refused = ""
        self._comparison = OutputComparison(server)
        self.measured: list[SettingMeasurement] = []
        self.executed: list[Mapping[str, StepExecutions]] = []
        self.predictions: list[PredictedSetting] = []
        self.notes: list[str] = []
        self.refused: set[BatchingSetting] = set()
        self.points_left = self.effort.points
        # Most seconds that a point took in addition to its load.
        self._overhead_seconds = 0.0
        # The setting that was tried after another one had met the budget.
        self.challenger: BatchingSetting | None = None
        self._progress = progress
        self._clock = time.monotonic
        self._began = self._clock()
        # Share of the run that is done.
        self._progress_share = 0.2

    @property
    def decision(self) -> SettingDecision:
        """The verified setting."""
        # A measured setting counts even if a corrected prediction dropped it.
        order = list(
            dict.fromkeys(
                [
                    *(one.setting for one in self.predictions),
                    *(one.setting for one in self.measured),
                ]
            )
        )
        found = decide(
            self.server.current, self.measured, self.latency_budget, order, self.challenger
        )
        tried = any(one.setting != self.server.current for one in self.measured)
        if self.refused and not found.is_better and not tried:
            return replace(
                found,
                reason="all settings that are predicted to serve more requests were rejected; see "
                "the notes",
            )
        return found

    @property
    def can_report(self) -> bool:
        """Whether anything was measured besides the calibration."""
        return bool(self.predictions) and len(self.measured) > 1

    def report_progress(self, low: float, high: float, text: str, share: float = 0.0) -> None:
        """Report progress within the part of the run from ``low`` to ``high``."""
        self._progress(low + (high - low) * share, text)

    async def prepare(self) -> None:
        """Profile and calibrate on the current setting, then predict the other settings."""
        self.profile = await profile(
            self.server,
            self.graph,
            self.work,
            self.grid,
            self.latency_budget,
            lambda share: self.report_progress(0.02, 0.12, "timing the steps", share),
            timing=self.paddings.timing(),
        )
        self.notes += self.profile.notes
        self.grid = [
            setting
            for setting in self.grid
            if setting == self.server.current
            or (
                setting.max_batch_size <= self.profile.largest
                and setting.model_instances <= self.profile.model_instances
            )
        ]
        self.pipe = self.profile.pipe
        await self._calibrate()
        await self._record_reference_outputs()
        await self._rank_paddings()
        await self._predict()

    async def _predict(self) -> None:
        count = REPREDICTED_SETTINGS if self.predictions else len(self.grid)
        self.report_progress(
            self._progress_share, self._progress_share, f"predicting {count} settings"
        )
        able = [setting for setting in self.grid if setting not in self.refused]
        if self.predictions:
            # A correction moves rates more than it moves the order: only the best are predicted
            # again.
            able = [
                one.setting
                for one in self.predictions
                if one.rate > 0 and one.setting not in self.refused
            ][:REPREDICTED_SETTINGS]
        self.predictions = await asyncio.to_thread(
            predict_settings,
            self.pipe,
            able,
            self.server.current,
            self.latency_budget,
        )

    async def _calibrate(self) -> None:
        """Correct the model of the pipeline by a real load on the current setting."""
        current = await asyncio.to_thread(
            predict_setting, self.pipe, self.server.current, self.latency_budget
        )
        rate = max(
            CALIBRATION_SHARE * (current.rate or current.capacity),
            MIN_EXECUTIONS / self.effort.calibration,
        )
        one, seen = await self._measure(
            self.server.current, rate, self.effort.calibration, 0.14, 0.2, "the current setting"
        )
        if one.load.faults:
            raise TuneError(
                f"requests fail at {one.rate:.0f} requests/s, although the server is not "
                f"overloaded: {one.load.first_error}"
            )
        self._recalibrate(one, seen)

    async def _record_reference_outputs(self) -> None:
        """Record the outputs of the current setting, which no other setting may change."""
        latency = self.measured[-1].load.p50 if self.measured else 0.0
        if problem := await self._comparison.record_reference(self.work.requests, latency):
            self.notes.append(problem)

    async def _rank_paddings(self) -> None:
        """Rank the padding modes by cost; add settings with the cheapest one that can be tried."""
        tokenized = self.executed[-1].get(self.pipe.tokenizer)
        self.padding = await asyncio.to_thread(
            self.paddings.rank_paddings,
            self.pipe,
            self.profile,
            tokenized,
            self.server.current,
        )
        trial = self.padding.trial if self.padding is not None else None
        if trial is None:
            return
        padding = trial.candidate.padding
        effects = {**self.pipe.padding_effects, padding: self.paddings.effect(padding)}
        self.pipe = replace(self.pipe, padding_effects=effects)
        self.grid += [replace(setting, padding=padding) for setting in self.grid]

    def _recalibrate(self, one: SettingMeasurement, seen: Mapping[str, StepExecutions]) -> None:
        """Correct the model of the pipeline by a measurement.

        Beyond the latency budget, requests also wait for the steps. Once a load was within the
        budget, only such loads show the time outside the steps.
        """
        within = [other.is_within(self.latency_budget) for other in self.measured]
        is_telling = one.is_within(self.latency_budget) or not any(within)
        latencies = one.load.latencies if one.carried and is_telling else None
        self.pipe = calibrate(
            self.pipe.with_setting(one.setting),
            seen,
            one.load.arrivals,
            latencies,
        )

    # --- points ----------------------------------------------------------------------------------
    async def measure_point(
        self, setting: BatchingSetting, rate: float, name: str
    ) -> SettingMeasurement | None:
        """Measure a point; ``None`` if there is no time left or the setting is refused."""
        step = 0.78 / self.effort.points
        low = 0.2 + step * (self.effort.points - self.points_left)
        if not self.has_time_for(1):
            self.notes.append(
                f"the run reached its time limit after {len(self.measured)} points (another "
                f"takes {self._point_seconds():.0f} s here), because this machine is slow "
                "or busy; --thorough allows more time"
            )
            self.points_left = 0
            return None
        try:
            one, seen = await self._measure(
                setting, rate, self.effort.seconds, low, low + step, name
            )
        except SettingRefusedError as error:
            self._refuse(setting, error)
            return None
        self.points_left -= 1
        self._progress_share = low + step
        error_share = abs(one.predicted_p99 / one.load.p99 - 1)
        if error_share > MAX_PREDICTION_ERROR and self.points_left > 1:
            self._recalibrate(one, seen)
            await self._predict()
        return one

    def _refuse(self, setting: BatchingSetting, error: SettingRefusedError) -> None:
        """Exclude a setting, and those that would change the outputs for the same reason."""
        self.refused.add(setting)
        if isinstance(error, OutputMismatchError):
            self.refused.update(
                other
                for other in self.grid
                if shares_mismatch_cause(other, setting, self.server.current)
            )
        if setting.padding != PaddingSetting():
            self.padding_refused = str(error)
        self.notes.append(f"{setting} was rejected: {error}")

    def _point_seconds(self) -> float:
        """Return the seconds that another point takes."""
        return self.effort.warmup + self.effort.seconds + self._overhead_seconds

    def has_time_for(self, points: int) -> bool:
        """Return whether this number of further points fits into the time limit.

        The remaining time goes to the verification of a gain first.
        """
        elapsed = self._clock() - self._began
        return elapsed + points * self._point_seconds() <= self.effort.limit

    # --- rates ----------------------------------------------------------------------------------
    def expected_rate(self, setting: BatchingSetting) -> float:
        """Return the predicted maximum requests/s within the latency budget.

        For a setting that is predicted to miss the budget at every rate: half of its capacity.
        """
        one = next((one for one in self.predictions if one.setting == setting), None)
        if one is None:
            return 0.0
        return max(one.rate or 0.5 * one.capacity, MIN_EXECUTIONS / self.effort.seconds)

    def lower_rate(self, setting: BatchingSetting) -> float | None:
        """Return the rate for a setting that never met the budget; ``None`` if there is none."""
        own = [one for one in self.measured if one.setting == setting]
        least = MIN_EXECUTIONS / self.effort.seconds
        return next_lower_rate(own, self.latency_budget, self.expected_rate(setting), least)

    async def _ramp_up(self, setting: BatchingSetting, rate: float) -> float:
        """Return ``rate``, or the lower rate that the applied setting can safely be loaded with.

        A setting that was not loaded yet is led there by short loads.
        """
        known = max((one.load.rate for one in self.measured if one.setting == setting), default=0.0)
        if known:
            return min(rate, MAX_RATE_STEP * known)
        known = self.server.carried
        while True:
            known = min(rate, MAX_RATE_STEP * known) or rate
            # Twice the latency budget: requests may wait as long at the end without a backlog.
            seconds = max(STEP_SECONDS, min(2 * self.latency_budget, self.effort.seconds))
            spec = self._load_spec(known, seconds, STEP_SECONDS / 2, len(self.measured))
            got = measurement_of(
                await self.server.run(self.work.requests, replace(spec, statistics=False))
            )
            if got.failed or got.ended or got.rate < got.offered / MAX_OVERLOAD:
                return MAX_UTILIZATION * (got.rate or known / MAX_RATE_STEP)
            if known >= rate:
                return rate

    async def _measure(
        self,
        setting: BatchingSetting,
        rate: float,
        seconds: float,
        low: float,
        high: float,
        name: str,
    ) -> tuple[SettingMeasurement, Mapping[str, StepExecutions]]:
        begun = self._clock()
        self.report_progress(low, high, f"{name}: {setting}, {rate:.0f} requests/s")
        await self.server.apply(setting, self.work.requests)
        await self._comparison.check(setting)
        rate = await self._ramp_up(setting, rate)
        text = f"{name}: {setting}, {rate:.0f} requests/s"
        seed = 101 * (len(self.measured) + 1)
        result = await self.server.run(
            self.work.requests,
            self._load_spec(rate, seconds, self.effort.warmup, seed),
            lambda share: self.report_progress(low, high, text, share),
        )
        self._overhead_seconds = max(self._overhead_seconds, self._clock() - begun - result.end_s)
        load = measurement_of(result)
        # For the same arrivals: the difference is the prediction's error, not chance.
        predicted = await asyncio.to_thread(
            simulate, self.pipe.with_setting(setting), load.arrivals, seed
        )
        one = SettingMeasurement(setting, rate, load, predicted.p99)
        seen = executions_by_step(result, self.graph)
        self.measured.append(one)
        self.executed.append(seen)
        return one, seen

    def _load_spec(self, rate: float, seconds: float, warmup: float, seed: int) -> LoadSpec:
        """Return a load that ends early in a large overload: more of it would show nothing new."""
        return LoadSpec(
            rate=rate,
            duration_s=seconds,
            warmup_s=warmup,
            seed=seed,
            timeout_s=TIMEOUT_SECONDS,
            behind_s=max(MIN_BEHIND_SECONDS, BUDGETS_BEHIND * self.latency_budget),
        )
