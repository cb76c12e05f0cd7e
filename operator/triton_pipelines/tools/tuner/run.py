"""One tuning run: profile, calibrate, predict, choose, verify, report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.resource_patch import PaddingSetting
from triton_pipelines.tools.loadgen import LoadSpec

from .acceptance import LEAST_GAIN, STEP_BACK, Kept, Measured, Verdict, judge, lower_rate
from .calibration import FEWEST, Executed, calibrated
from .contract import Knobs, Progress, Report, Settings, TuneError, TuneTarget, silent, wall_of
from .effort import effort
from .knobs import grid
from .measured_server import TIMEOUT_SECONDS, Server, SettingRefusedError, load_of
from .output_comparison import Comparison, OtherAnswersError, alike
from .padding_cost import Verdict as PaddingVerdict
from .padding_options import Paddings
from .prediction import MOST_BUSY, Pipe, simulate
from .profiling import Profile, executed, profile
from .report import DOUBTFUL, Findings, report
from .selection import Planned, candidates, plan, planned, rival
from .workload import Workload, workload

# Share of what the current setting is expected to carry at which the pipeline is calibrated: loaded, and safely stable.
CALIBRATION_SHARE = 0.6
# No load asks for more than so many times what the server is known to carry: predictions do not see all that limits it (connections, the
# ensemble, a busy machine), and a server far beyond its limit answers nobody for as long as its backlog takes. A setting that is new is
# led to its rate by loads of so many seconds, each at most twice the one before; beyond so much overload it is given less.
MOST_STEP = 2.0
STEP_SECONDS = 1.0
MOST_OVERLOAD = 1.5
# Points that a second try and the proof behind it take.
LEAST_PROOF = 2
LEAST_POINTS = 4
# An overload is ended when the server is so many walls behind, and never before so many seconds: a machine's hiccup is none.
WALLS_BEHIND = 4.0
LEAST_BEHIND = 2.0
# Settings that a corrected prediction looks at again.
AGAIN = 10


async def tune(
    target: TuneTarget,
    pipeline: InferencePipeline,
    graph: Graph,
    settings: Settings,
    progress: Progress = silent,
    left: Callable[[str], None] | None = None,
) -> Report:
    """Tune a pipeline on a server that runs it and serves nobody else; the server is left with the setting it had.

    Args:
        target, pipeline, graph: the server and what it runs.
        settings: what to tune for.
        progress: told of what goes on.
        left: told in words where the run is stopped and the server could not be left so.

    Raises:
        TuneError: the pipeline cannot be tuned, or the server failed before there was anything to compare; the message says what to do. One
            that fails later leaves a report of what was measured, with ``ended``.
    """
    began, walls = time.monotonic(), wall_of(pipeline, settings)
    made: Report | None = None
    try:
        async with Server(target, pipeline, graph, left) as server:
            made = await _tuned(server, pipeline, graph, settings, walls, progress)
    except TuneError as error:
        if made is None or not made.ended:
            raise
        made = replace(
            made, ended=str(error) if made.ended in str(error) else f"{made.ended}; {error}"
        )
    progress(1.0, "done")
    return replace(made, seconds=time.monotonic() - began)


async def _tuned(
    server: Server,
    pipeline: InferencePipeline,
    graph: Graph,
    settings: Settings,
    walls: tuple[float, float],
    progress: Progress,
) -> Report:
    slo, wall = walls
    progress(0.0, "looking at the server")
    work = await workload(server.client, pipeline, graph, settings)
    run = _Run(server, pipeline, graph, settings, progress, work, wall)
    ended = ""
    try:
        await run.all()
    except TuneError as error:
        if not run.comparable:
            raise
        ended = str(error)
    found = Findings(
        pipeline=pipeline,
        graph=graph,
        settings=settings,
        slo=slo,
        wall=wall,
        work=work,
        profile=run.profile,
        pipe=run.pipe,
        planned=run.planned,
        grid=run.grid,
        measured=run.measured,
        executed=run.executed,
        verdict=run.verdict,
        current=server.current,
        notes=(*server.notes, *run.notes),
        padding=run.padding,
        padding_refused=run.padding_refused,
    )
    made = await asyncio.to_thread(report, found)
    return replace(made, failed_requests=server.failed, late_requests=server.late, ended=ended)


class _Run:
    """State of one run."""

    profile: Profile
    pipe: Pipe

    def __init__(
        self,
        server: Server,
        pipeline: InferencePipeline,
        graph: Graph,
        settings: Settings,
        progress: Progress,
        work: Workload,
        wall: float,
    ) -> None:
        self.server, self.graph, self.settings, self.work, self.wall = (
            server,
            graph,
            settings,
            work,
            wall,
        )
        self.effort = effort(settings)
        self.grid = list(grid(pipeline, graph, settings.rows, settings.cores))
        self.paddings = Paddings(pipeline, graph, server.rebuild, work)
        self.padding: PaddingVerdict | None = None
        self.padding_refused = ""
        self._comparison = Comparison(server)
        self.measured: list[Measured] = []
        self.executed: list[Mapping[str, Executed]] = []
        self.planned: list[Planned] = []
        self.notes: list[str] = []
        self.refused: set[Knobs] = set()
        self._beside = 0.0  # most seconds that a point took beside its own
        self._rival: Knobs | None = None  # what challenged a setting that kept the wall
        self._progress = progress
        self._clock = time.monotonic
        self._began = self._clock()
        self._at = 0.2  # share of the run that is done

    @property
    def verdict(self) -> Verdict:
        """What is proven."""
        # What was measured counts, also where a corrected prediction left it out.
        order = list(
            dict.fromkeys(
                [*(one.knobs for one in self.planned), *(one.knobs for one in self.measured)]
            )
        )
        found = judge(self.server.current, self.measured, self.wall, order, self._rival)
        tried = any(one.knobs != self.server.current for one in self.measured)
        if self.refused and not found.better and not tried:
            return replace(
                found, reason="what is expected to carry more is refused, as the notes say"
            )
        return found

    @property
    def comparable(self) -> bool:
        """Whether a report can be made: beside the calibration, something was measured."""
        return bool(self.planned) and len(self.measured) > 1

    def tell(self, low: float, high: float, text: str, share: float = 0.0) -> None:
        """Progress within a part of the run."""
        self._progress(low + (high - low) * share, text)

    async def all(self) -> None:
        """Everything that is measured."""
        self.profile = await profile(
            self.server,
            self.graph,
            self.work,
            self.grid,
            self.wall,
            lambda share: self.tell(0.02, 0.12, "timing the steps", share),
            timing=self.paddings.timing(),
        )
        self.notes += self.profile.notes
        self.grid = [
            knobs
            for knobs in self.grid
            if knobs == self.server.current
            or (
                knobs.max_batch_size <= self.profile.largest
                and knobs.model_instances <= self.profile.model_instances
            )
        ]
        self.pipe = self.profile.pipe
        await self._calibrate()
        await self._remember_answers()
        await self._judge_padding()
        await self._plan()
        await self._verify()

    async def _plan(self) -> None:
        self.tell(
            self._at, self._at, f"predicting {AGAIN if self.planned else len(self.grid)} settings"
        )
        able = [knobs for knobs in self.grid if knobs not in self.refused]
        if self.planned:
            # A correction moves rates more than it moves the order: the best are looked at again.
            able = [
                one.knobs for one in self.planned if one.rate > 0 and one.knobs not in self.refused
            ][:AGAIN]
        self.planned = await asyncio.to_thread(
            plan, self.pipe, able, self.server.current, self.wall, self.settings.seed
        )

    async def _calibrate(self) -> None:
        """The current setting under a real load; what that shows goes into every prediction."""
        current = await asyncio.to_thread(
            planned, self.pipe, self.server.current, self.wall, None, self.settings.seed
        )
        rate = max(
            CALIBRATION_SHARE * (current.rate or current.capacity), FEWEST / self.effort.calibration
        )
        one, seen = await self._measure(
            self.server.current, rate, self.effort.calibration, 0.14, 0.2, "the current setting"
        )
        if one.load.faults:
            raise TuneError(
                f"requests fail at {one.rate:.0f} requests/s, where there is no overload: {one.load.first_error}"
            )
        self._learn(one, seen)

    async def _remember_answers(self) -> None:
        """What the current setting, which is on the server, answers: no other may answer anything else."""
        latency = self.measured[-1].load.p50 if self.measured else 0.0
        if said := await self._comparison.remember(self.work.requests, latency):
            self.notes.append(said)

    async def _judge_padding(self) -> None:
        """What each padding costs the model; settings with the cheapest join the others, where it can be tried."""
        tokenized = self.executed[-1].get(self.pipe.tokenizer)
        self.padding = await asyncio.to_thread(
            self.paddings.judge, self.pipe, self.profile, tokenized, self.server.current
        )
        trial = self.padding.trial if self.padding is not None else None
        if trial is None:
            return
        self.pipe = replace(
            self.pipe,
            shapes={**self.pipe.shapes, trial.way.padded: self.paddings.shape(trial.way.padded)},
        )
        self.grid += [replace(knobs, padding=trial.way.padded) for knobs in self.grid]

    def _learn(self, one: Measured, seen: Mapping[str, Executed]) -> None:
        """What a measurement shows goes into every further prediction."""
        latencies = one.load.latencies if one.carried else None
        self.pipe = calibrated(
            self.pipe.with_knobs(one.knobs), seen, one.load.arrivals, latencies, self.settings.seed
        )

    async def _verify(self) -> None:
        """Points in turn, the current setting between the others; what they show decides what is measured next."""
        current, left = self.server.current, self.effort.points
        step = 0.78 / left

        async def point(knobs: Knobs, rate: float, name: str) -> Measured | None:
            nonlocal left
            low = 0.2 + step * (self.effort.points - left)
            if not self._time_for(1):
                self.notes.append(
                    f"time was over after {len(self.measured)} points (another takes {self._point_seconds():.0f} s here): this machine is slow or busy; --thorough takes more"
                )
                left = 0
                return None
            try:
                one, seen = await self._measure(
                    knobs, rate, self.effort.seconds, low, low + step, name
                )
            except SettingRefusedError as error:
                self.refused.add(knobs)
                if isinstance(error, OtherAnswersError):
                    self.refused.update(
                        other for other in self.grid if alike(other, knobs, current)
                    )
                if knobs.padding != PaddingSetting():
                    self.padding_refused = str(error)
                self.notes.append(f"{knobs} is refused: {error}")
                return None
            left -= 1
            self._at = low + step
            if abs(one.predicted_p99 / one.load.p99 - 1) > DOUBTFUL and left > 1:
                self._learn(one, seen)
                await self._plan()
            return one

        # A prediction after which the server fell behind does not see what limits it.
        behind = any(not one.carried or one.load.ended for one in self.measured)
        first = await point(
            current,
            (self._lower(current) if behind else None) or self._carries(current),
            "the current setting",
        )
        winner: tuple[Knobs, float] | None = None
        tried: set[Knobs] = set()
        while left > 1 and winner is None:
            rate = self._carries(current)
            better = [
                one
                for one in candidates(self.planned, current)
                if one.rate >= (1 + LEAST_GAIN) * rate and one.knobs not in tried | self.refused
            ]
            if not better:
                break
            one = better[0]
            got = await point(one.knobs, one.rate, "a candidate")
            if got is None or got.load.faults or got.rate < (1 + LEAST_GAIN) * rate:
                tried.add(one.knobs)
            elif got.kept(self.wall) is Kept.YES:
                winner = (one.knobs, got.rate)
            elif self._carries(one.knobs) > STEP_BACK * got.rate:
                # Measured worse than predicted, and the prediction does not see why: once more at a lower rate, where that is a gain still.
                tried.add(one.knobs)
                lower = STEP_BACK * got.rate
                if left >= LEAST_PROOF and lower >= (1 + LEAST_GAIN) * rate:
                    got = await point(one.knobs, lower, "the candidate, at a lower rate")
                    winner = (
                        (one.knobs, got.rate)
                        if got is not None and got.kept(self.wall) is Kept.YES
                        else None
                    )
        if winner is not None:
            # A/B/A: the current one at a rate at which it has to break for the gain to be proven, then the candidate again. Between the two
            # the challenge: what it takes longer than expected, as to load, is a repeat at most.
            (knobs, rate), own, proof = (
                winner,
                winner[1] / (1 + LEAST_GAIN),
                2 * (self.effort.repeats - 1),
            )
            for number in range(proof):
                if left > 0 and number % 2 == 0:
                    # Where that is far beyond all that it carries, twice that breaks it as well.
                    await point(current, own, "the current setting, at the candidate's rate")
                elif left > 0:
                    await point(knobs, rate, "the candidate again")
                if number == 0 and left >= proof and self._time_for(proof):
                    knobs, rate = await self._challenged(*winner, tried, point)
            return
        # Nothing better is expected, or proven: the curve of the current setting and the best other one say so.
        while left > 0 and (less := self._lower(current)) is not None:
            if await point(current, less, "the current setting, at a lower rate") is None:
                break
        base = first.rate if first is not None else self._carries(current)
        others = [
            one
            for one in candidates(self.planned, current, 1)
            if one.knobs not in tried | self.refused and one.rate
        ]
        for one in others[: left > 1]:
            await point(one.knobs, one.rate, "the best other setting")
        for share in (0.5, STEP_BACK):
            if left > 0 and len(self.measured) < LEAST_POINTS:
                await point(current, share * base, "the current setting")

    def _point_seconds(self) -> float:
        """Seconds that another point takes."""
        return self.effort.warmup + self.effort.seconds + self._beside

    def _time_for(self, points: int) -> bool:
        """Whether so many points more end within the limit: what is left goes to the proof of a gain first."""
        return self._clock() - self._began + points * self._point_seconds() <= self.effort.limit

    async def _challenged(
        self,
        knobs: Knobs,
        rate: float,
        tried: set[Knobs],
        point: Callable[..., Awaitable[Measured | None]],
    ) -> tuple[Knobs, float]:
        """A setting that kept the wall at a rate, or one with other instances that does better: what instances share is what a prediction
        knows least. It gets more requests/s; where its p99 is lower even so, it carries more."""
        other, more = (
            rival(self.planned, knobs, {*tried, *self.refused, self.server.current}),
            rate * (1 + LEAST_GAIN),
        )
        self._rival = other.knobs if other is not None else None
        got = (
            await point(other.knobs, more, "a candidate with other instances")
            if other is not None
            else None
        )
        if got is None or got.rate < more or got.kept(self.wall) is not Kept.YES:
            return knobs, rate
        held = max(one.load.p99 for one in self.measured if one.knobs == knobs and one.rate == rate)
        return (got.knobs, more) if got.load.p99 < held else (knobs, rate)

    def _carries(self, knobs: Knobs) -> float:
        """Requests/s to try a setting with: what it is expected to carry within the wall, or at all where that is nothing."""
        one = next((one for one in self.planned if one.knobs == knobs), None)
        if one is None:
            return 0.0
        return max(one.rate or 0.5 * one.capacity, FEWEST / self.effort.seconds)

    def _lower(self, knobs: Knobs) -> float | None:
        """Requests/s to try a setting with that was never within the wall; ``None``: it was, or there is nothing lower."""
        own = [one for one in self.measured if one.knobs == knobs]
        return lower_rate(own, self.wall, self._carries(knobs), FEWEST / self.effort.seconds)

    async def _reach(self, knobs: Knobs, rate: float) -> float:
        """Requests/s to load a setting with, which is on the server: ``rate``, or what it carries safely by short loads on the way there."""
        known = max((one.load.rate for one in self.measured if one.knobs == knobs), default=0.0)
        if known:
            return min(rate, MOST_STEP * known)
        known = self.server.carried
        while True:
            known = min(rate, MOST_STEP * known) or rate
            # Twice the wall: what waits at the end may wait so long, and is no backlog.
            seconds = max(STEP_SECONDS, min(2 * self.wall, self.effort.seconds))
            spec = self._spec(
                known, seconds, STEP_SECONDS / 2, self.settings.seed + len(self.measured)
            )
            got = load_of(
                await self.server.run(self.work.requests, replace(spec, statistics=False))
            )
            if got.failed or got.ended or got.rate < got.offered / MOST_OVERLOAD:
                return MOST_BUSY * (got.rate or known / MOST_STEP)
            if known >= rate:
                return rate

    async def _measure(
        self, knobs: Knobs, rate: float, seconds: float, low: float, high: float, name: str
    ) -> tuple[Measured, Mapping[str, Executed]]:
        begun = self._clock()
        self.tell(low, high, f"{name}: {knobs}, {rate:.0f} requests/s")
        await self.server.put(knobs, self.work.requests)
        await self._comparison.check(knobs)
        rate = await self._reach(knobs, rate)
        text = f"{name}: {knobs}, {rate:.0f} requests/s"
        seed = self.settings.seed + 101 * (len(self.measured) + 1)
        spec = self._spec(rate, seconds, self.effort.warmup, seed)
        result = await self.server.run(
            self.work.requests, spec, lambda share: self.tell(low, high, text, share)
        )
        self._beside = max(self._beside, self._clock() - begun - result.end_s)
        load = load_of(result)
        # For the very arrivals that were sent: what differs is the prediction, not the draw.
        predicted = await asyncio.to_thread(
            simulate, self.pipe.with_knobs(knobs), load.arrivals, seed
        )
        one, seen = Measured(knobs, rate, load, predicted.p99), executed(result, self.graph)
        self.measured.append(one)
        self.executed.append(seen)
        return one, seen

    def _spec(self, rate: float, seconds: float, warmup: float, seed: int) -> LoadSpec:
        """A load that ends early where the server is far beyond the wall: more of it would prove nothing more."""
        behind = max(LEAST_BEHIND, WALLS_BEHIND * self.wall)
        return LoadSpec(
            rate=rate,
            duration_s=seconds,
            warmup_s=warmup,
            seed=seed,
            timeout_s=TIMEOUT_SECONDS,
            behind_s=behind,
        )
