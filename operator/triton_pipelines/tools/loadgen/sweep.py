"""Several loads on one target, several runs each, interleaved, so that a machine that warms up or slows down favours none."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from triton_pipelines.tools.loadgen.engine import blocking
from triton_pipelines.tools.loadgen.load_spec import (
    LoadError,
    LoadSpec,
    OnProgress,
    Progress,
    Target,
)
from triton_pipelines.tools.loadgen.summary import Summary, summarise


@dataclass(frozen=True)
class Measured:
    """One load over all its runs.

    Attributes:
        spec: the load.
        runs: figures of each run.
    """

    spec: LoadSpec
    runs: tuple[Summary, ...]

    def median(self, name: str) -> float:
        """Median over the runs of a figure, by its attribute's name in :class:`Summary`."""
        return float(statistics.median(getattr(run, name) for run in self.runs))

    def spread(self, name: str) -> tuple[float, float]:
        """Least and greatest over the runs."""
        values = [getattr(run, name) for run in self.runs]
        return min(values), max(values)

    @property
    def typical(self) -> Summary:
        """The run with the median throughput: where figures must go together (percentiles, steps)."""
        return sorted(self.runs, key=lambda run: run.requests_per_s)[(len(self.runs) - 1) // 2]

    @property
    def stable(self) -> bool:
        """Whether every run was steady."""
        return all(run.stability.stable for run in self.runs)

    @property
    def errors(self) -> Mapping[str, int]:
        """Errors of all runs."""
        result: dict[str, int] = {}
        for run in self.runs:
            for message, count in run.errors.items():
                result[message] = result.get(message, 0) + count
        return result


class SweepEndedError(LoadError):
    """A sweep ended early, after ``rounds`` of ``total`` rounds; ``measured`` holds what those gave, without loads that have no run yet."""

    def __init__(
        self, reason: str, rounds: int, total: int, measured: Sequence[tuple[int, Measured]]
    ) -> None:
        super().__init__(f"{reason}; ended after {rounds} of {total} runs, which are shown")
        self.rounds, self.total = rounds, total
        self.measured = dict(measured)
        """By the load's place in the sweep."""


_PATIENCE = 4
"""Timeouts of a load that its backlog may take to be worked off."""

OnRun = Callable[[int, int, LoadSpec, Progress | None], None]
"""Number of the run (from 0), how many there are, its load, and how far it is (None: it is done)."""


def _last(spec: LoadSpec) -> LoadSpec:
    """A single request behind everything that the server still does for requests which were given up: the next load must not wait for it."""
    return LoadSpec(
        concurrency=1,
        duration_s=0.001,
        warmup_s=0,
        timeout_s=_PATIENCE * spec.timeout_s,
        statistics=False,
    )


def sweep(
    targets: Sequence[tuple[Target, LoadSpec]], runs: int, on_run: OnRun | None = None
) -> list[Measured]:
    """Measure loads, each ``runs`` times, in rounds over all of them; blocks.

    Args:
        targets: pairs of target and load.
        runs: of each; each run of a Poisson load has arrivals of its own (the spec's seed plus the round).
        on_run: told how far it is.

    Returns:
        In the order of ``targets``.

    Raises:
        SweepEndedError: the server went while this was under way; it holds what was measured until then.
        LoadError: nothing could be measured; as :func:`~triton_pipelines.tools.loadgen.engine.run`.
    """
    found: list[list[Summary]] = [[] for _ in targets]
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
            result = blocking(target, replace(spec, seed=spec.seed + turn), tell)
            found[index].append(summarise(result))
            if result.errors and number + 1 < total:
                blocking(target, _last(spec))
        except LoadError as error:
            kept = [
                (place, Measured(spec, tuple(runs)))
                for place, ((_, spec), runs) in enumerate(zip(targets, found, strict=True))
                if runs
            ]
            if not kept:
                raise
            raise SweepEndedError(str(error), sum(map(len, found)), total, kept) from error
        if on_run is not None:
            on_run(number, total, spec, None)
    return [
        Measured(spec, tuple(summaries))
        for (_, spec), summaries in zip(targets, found, strict=True)
    ]
