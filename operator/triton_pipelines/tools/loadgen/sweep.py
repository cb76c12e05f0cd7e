"""Run several loads on targets, several times each, interleaved.

Interleaving keeps a machine that warms up or slows down from favoring one of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.tools.loadgen.engine import run_blocking
from triton_pipelines.tools.loadgen.load_spec import (
    LoadGeneratorError,
    LoadProgress,
    LoadSpec,
    LoadTarget,
    OnProgress,
)
from triton_pipelines.tools.loadgen.summary import LoadSummary, summarize


@dataclass(frozen=True)
class SweepResult:
    """One load over all its runs."""

    spec: LoadSpec
    """The load."""
    runs: tuple[LoadSummary, ...]
    """Figures of each run."""

    def median(self, name: str) -> float:
        """Return the median over the runs of an attribute of :class:`LoadSummary`."""
        return float(statistics.median(getattr(run, name) for run in self.runs))

    def spread(self, name: str) -> tuple[float, float]:
        """Return the minimum and the maximum over the runs of an attribute."""
        values = [getattr(run, name) for run in self.runs]
        return min(values), max(values)

    @property
    def typical(self) -> LoadSummary:
        """The run with the median throughput, for figures that must be from the same run."""
        return sorted(self.runs, key=lambda run: run.requests_per_s)[(len(self.runs) - 1) // 2]

    @property
    def stable(self) -> bool:
        """Whether every run was stable."""
        return all(run.stability.stable for run in self.runs)

    @property
    def errors(self) -> Mapping[str, int]:
        """Errors of all runs."""
        result: dict[str, int] = {}
        for run in self.runs:
            for message, count in run.errors.items():
                result[message] = result.get(message, 0) + count
        return result


class SweepEndedError(LoadGeneratorError):
    """A sweep ended early, after ``rounds`` of ``total`` rounds.

    ``measured`` has their results, without loads that have no run yet.
    """

    def __init__(
        self, reason: str, rounds: int, total: int, measured: Sequence[tuple[int, SweepResult]]
    ) -> None:
        super().__init__(
            f"{reason}. The measurement stopped after {rounds} of {total} runs; their results "
            "follow"
        )
        self.rounds, self.total = rounds, total
        self.measured = dict(measured)
        """Results by the index of the load in the sweep."""


_PATIENCE = 4
"""Multiple of a load's timeout in which the server may finish its backlog."""

OnSweepProgress = Callable[[int, int, LoadSpec, LoadProgress | None], None]
"""Called with the index of the run, the number of runs, its load and its progress (None: done)."""


def _drain_spec(spec: LoadSpec) -> LoadSpec:
    """Return a single request, which waits until the server has finished its backlog.

    The next load must not wait for requests that were given up.
    """
    return LoadSpec(
        concurrency=1,
        duration_s=0.001,
        warmup_s=0,
        timeout_s=_PATIENCE * spec.timeout_s,
        statistics=False,
    )


def sweep(
    targets: Sequence[tuple[LoadTarget, LoadSpec]], runs: int, on_run: OnSweepProgress | None = None
) -> list[SweepResult]:
    """Measure loads, each ``runs`` times, in rounds over all of them; blocks.

    Args:
        targets: Pairs of target and load.
        runs: Runs of each; each run of a Poisson load has its own arrivals (seed plus round).
        on_run: Called with the progress.

    Returns:
        The results in the order of ``targets``.

    Raises:
        SweepEndedError: The server failed during the sweep; it holds the results until then.
        LoadGeneratorError: Nothing could be measured; see
            :func:`~triton_pipelines.tools.loadgen.engine.run_load`.
    """
    found: list[list[LoadSummary]] = [[] for _ in targets]
    total = runs * len(targets)
    for number in range(total):
        turn, index = divmod(number, len(targets))
        target, spec = targets[index]
        tell: OnProgress | None = (
            None
            if on_run is None
            else lambda progress, number=number, spec=spec: on_run(number, total, spec, progress)
        )
        try:
            result = run_blocking(target, replace(spec, seed=spec.seed + turn), tell)
            found[index].append(summarize(result))
            if result.errors and number + 1 < total:
                run_blocking(target, _drain_spec(spec))
        except LoadGeneratorError as error:
            kept = [
                (place, SweepResult(spec, tuple(runs)))
                for place, ((_, spec), runs) in enumerate(zip(targets, found, strict=True))
                if runs
            ]
            if not kept:
                raise
            raise SweepEndedError(str(error), sum(map(len, found)), total, kept) from error
        if on_run is not None:
            on_run(number, total, spec, None)
    return [
        SweepResult(spec, tuple(summaries))
        for (_, spec), summaries in zip(targets, found, strict=True)
    ]
