"""C6: metrics that are missing, stale, partial or implausible never lower a count.

The load falls meanwhile, so that good metrics would lower it. Simulated: the control law is the
operator's own, and its metrics of two pods are corrupted for five minutes of low load after high
load. Tests against a real Prometheus and real pods show that the collector reports such failures
(tests/integration/metrics).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from bench.results import thresholds, write
from bench.simulator import traces
from bench.simulator.engine import LawInput, Run
from bench.simulator.managed import Managed
from bench.simulator.scenarios import WORLD
from triton_pipelines.autoscaling.metrics.samples import (
    MetricsFailure,
    MetricsProblem,
    ModelCounters,
    PipelineSample,
    PodHistory,
    Scrape,
)

SEEDS = (1, 2, 3)
SECONDS = 1000
BAD = (600.0, 900.0)
"""Seconds in which metrics are spoilt."""
PODS = 2

Spoil = Callable[[PipelineSample, float], PipelineSample | MetricsFailure]


@dataclass(frozen=True)
class Fault:
    """One kind of bad metrics.

    `spoil` gets a good sample and how long (seconds) it has been bad.
    """

    name: str
    kind: str
    spoil: Spoil


def _fails(trouble: MetricsProblem) -> Spoil:
    return lambda sample, bad: MetricsFailure(trouble, "spoilt")


def _stale(sample: PipelineSample, bad: float) -> PipelineSample:
    """The scrapes end where the fault began."""
    newest = max(history.scrapes[-1].at for history in sample.pods.values())
    cut = {
        name: replace(
            history, scrapes=tuple(one for one in history.scrapes if one.at <= newest - bad)
        )
        for name, history in sample.pods.items()
    }
    return replace(sample, pods=cut)


def _one_pod_missing(sample: PipelineSample, bad: float) -> PipelineSample:
    return replace(sample, pods=dict(list(sample.pods.items())[1:]))


def _one_pod_empty(sample: PipelineSample, bad: float) -> PipelineSample:
    name, history = next(iter(sample.pods.items()))
    return replace(sample, pods={**sample.pods, name: replace(history, scrapes=())})


def _no_pods(sample: PipelineSample, bad: float) -> PipelineSample:
    return replace(sample, pods={})


def _one_model_missing(sample: PipelineSample, bad: float) -> PipelineSample:
    def without(scrape: Scrape) -> Scrape:
        return replace(
            scrape,
            models={
                name: counters for name, counters in scrape.models.items() if name != "tokenizer"
            },
        )

    return _changed(sample, without)


def _values(change: Callable[[ModelCounters], ModelCounters]) -> Spoil:
    def spoil(sample: PipelineSample, bad: float) -> PipelineSample:
        return _changed(
            sample,
            lambda scrape: replace(
                scrape, models={name: change(counters) for name, counters in scrape.models.items()}
            ),
        )

    return spoil


def _changed(sample: PipelineSample, change: Callable[[Scrape], Scrape]) -> PipelineSample:
    pods: dict[str, PodHistory] = {
        name: replace(history, scrapes=tuple(map(change, history.scrapes)))
        for name, history in sample.pods.items()
    }
    return replace(sample, pods=pods)


def _backwards(sample: PipelineSample, bad: float) -> PipelineSample:
    """Every scrape's counters are lower than those of the scrape before."""
    newest = max(history.scrapes[-1].at for history in sample.pods.values())
    return _changed(
        sample,
        lambda scrape: replace(
            scrape,
            models={
                name: replace(one, success=newest - scrape.at)
                for name, one in scrape.models.items()
            },
        ),
    )


def _frozen(sample: PipelineSample, bad: float) -> PipelineSample:
    """No counter moves, and requests wait."""
    return _changed(
        sample,
        lambda scrape: replace(
            scrape,
            models={
                name: ModelCounters(success=1e6, execs=1e6, pending=20.0) for name in scrape.models
            },
        ),
    )


def _ahead(sample: PipelineSample, bad: float) -> PipelineSample:
    return _changed(sample, lambda scrape: replace(scrape, at=scrape.at + 3600.0))


FAULTS = (
    Fault("Prometheus does not answer", "missing", _fails(MetricsProblem.ERROR)),
    Fault("no series", "missing", _fails(MetricsProblem.MISSING)),
    Fault("no pod in the response", "missing", _no_pods),
    Fault("no series for the tokenizer", "missing", _one_model_missing),
    Fault("old samples", "stale", _stale),
    Fault("samples marked as stale", "stale", _fails(MetricsProblem.STALE)),
    Fault("one of two pods is missing", "partial", _one_pod_missing),
    Fault("one of two pods without samples", "partial", _one_pod_empty),
    Fault("samples marked as partial", "partial", _fails(MetricsProblem.PARTIAL)),
    Fault(
        "counters are NaN",
        "implausible",
        _values(lambda one: replace(one, success=math.nan, pending=math.nan)),
    ),
    Fault(
        "counters are infinite", "implausible", _values(lambda one: replace(one, success=math.inf))
    ),
    Fault(
        "counters are negative",
        "implausible",
        _values(lambda one: replace(one, success=-one.success, pending=-1.0)),
    ),
    Fault("counters run backwards", "implausible", _backwards),
    Fault("counters do not move while requests wait", "implausible", _frozen),
    Fault("timestamps one hour ahead", "implausible", _ahead),
)


class Spoilt(Managed):
    """The operator's law, with what it sees spoilt for a while.

    `falls`: times (seconds) at which it asked for less meanwhile.
    """

    def __init__(self, fault: Fault | None) -> None:
        super().__init__(replace(WORLD, pods=PODS))
        self._fault = fault
        self._last: int | None = None
        self.falls: list[float] = []

    def wanted(self, view: LawInput) -> tuple[Mapping[str, int], str]:
        """One decision."""
        at = view.now - 1.7e9
        bad = BAD[0] <= at < BAD[1]
        if bad and self._fault is not None and isinstance(view.sample, PipelineSample):
            view = replace(view, sample=self._fault.spoil(view.sample, at - BAD[0]))
        counts, verdict = super().wanted(view)
        count = next(iter(counts.values()))
        if bad and self._last is not None and count < self._last:
            self.falls.append(at)
        self._last = count
        return counts, verdict


def falling(seed: int) -> traces.Rates:
    """Return a high load that falls over five minutes from 400 s on.

    Good metrics lower the count in the period in which the others are corrupted.
    """
    del seed
    return [700.0 - min(1.0, max(0.0, (t - 400) / 300)) * 600.0 for t in range(SECONDS)]


def falls(fault: Fault | None, seed: int) -> list[float]:
    """Times of downward steps in the spoilt five minutes of one run."""
    law = Spoilt(fault)
    Run(replace(WORLD, pods=PODS), falling(seed), law, seed).result()
    return law.falls


def run() -> None:
    """Play all faults and seeds, print and write C6; three minutes."""
    good = [len(falls(None, seed)) for seed in SEEDS]
    print(f"good metrics: {good} downward steps in the same time", flush=True)
    found = {}
    for fault in FAULTS:
        found[fault.name] = [len(falls(fault, seed)) for seed in SEEDS]
        print(f"{fault.kind}, {fault.name}: {found[fault.name]}", flush=True)
    steps = [float(sum(counts)) for counts in found.values()]
    met = not any(steps) and all(good)
    path = write(
        "C6",
        steps,
        unit="scale-downs per fault",
        goal=thresholds()["C6"]["goal"],
        met=met,
        workload=(
            f"simulated: {PODS} pods, load falls from 700 to 100 requests/s while metrics are "
            f"bad for {BAD[1] - BAD[0]:.0f} s, {len(SEEDS)} seeds"
        ),
        stand_ins=[
            (
                "Triton, its pods, the load and the scrapes: simulated as discrete events "
                "(bench.simulator)"
            )
        ],
        detail={
            "goodMetrics": good,
            "faults": {
                fault.name: {"kind": fault.kind, "downwardSteps": found[fault.name]}
                for fault in FAULTS
            },
        },
    )
    print(
        f"C6: {sum(steps):.0f} downward steps ({'met' if met else 'missed'}); {path.name} written"
    )
