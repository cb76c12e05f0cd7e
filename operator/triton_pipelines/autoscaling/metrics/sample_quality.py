"""Assess whether the samples of a pipeline's pods can be trusted, and what to check if not. Pure.

All times follow the server's clock until the sample is created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from .query_results import rebased
from .samples import (
    FRESH_INTERVALS,
    ExpectedPods,
    MetricsFailure,
    MetricsProblem,
    PipelineSample,
    PodHistory,
)
from .scrape_history import PodKey, ScrapeHistories

# The interval assumed until two scrapes are known: the default of the Prometheus operator.
INTERVAL_UNKNOWN: Final = 30.0
# Usage figures of a container are discarded when they are older than this.
USAGE_SECONDS_MAX: Final = 300.0
# Smaller differences between clocks are ignored.
SKEW_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class CollectionEvidence:
    """Findings of one collection in addition to the samples."""

    now: float
    """The server's time."""
    skew: float
    """Seconds by which the server's clock is ahead of the operator's."""
    interval: float = INTERVAL_UNKNOWN
    """Seconds between scrapes, as observed over all pods."""
    problems: Mapping[PodKey, str] = field(default_factory=dict)
    """Why the series of a pod cannot be used."""
    notes: Mapping[PodKey, str] = field(default_factory=dict)
    """Notes by pod."""
    ahead: Mapping[PodKey, float] = field(default_factory=dict)
    """Seconds by which a pod's newest scrape is in the server's future."""
    up: Mapping[PodKey, bool] | None = None
    """Whether the last scrape of a target worked, by pod; ``None`` if it was not queried."""
    general_notes: tuple[str, ...] = ()
    """Notes on the collection as a whole."""


def assess_sample(
    expected: ExpectedPods,
    histories: ScrapeHistories,
    seen: CollectionEvidence,
    source: str,
    query: Callable[[], str],
) -> PipelineSample | MetricsFailure:
    """Return a sample of the trustworthy pods, or why there are none.

    A pod is trusted if its newest scrape holds every series of every model and is at most 2.5
    scrape intervals old. Other pods are left out of the sample, with a note. Scaling knows which
    pods are ready and lowers no count on the evidence of only some of them.

    Args:
        expected: Pods and models of the pipeline.
        histories: Scrapes of all pods.
        seen: Other findings of the collection.
        source: Name of the source, for messages.
        query: Returns the query that users should try.
    """
    keys = [(expected.namespace, pod) for pod in expected.pods]
    if not keys:
        return MetricsFailure(
            MetricsProblem.MISSING, "no pod is ready, so there is nothing to measure", source
        )
    interval = histories.interval(keys, seen.interval)
    good: dict[str, PodHistory] = {}
    bad: dict[str, tuple[MetricsProblem, str]] = {}
    for key in keys:
        wrong = _wrong(key, expected, histories, seen, interval)
        if wrong is None:
            good[key[1]] = _history(key, histories, seen)
        else:
            bad[key[1]] = wrong
    if not good:
        return _failure(bad, len(keys), source, query())
    notes = list(seen.general_notes)
    if bad:
        pod, (_, why) = next(iter(sorted(bad.items())))
        who = (
            f"pod {pod} has"
            if len(bad) == 1
            else f"{len(bad)} of {len(keys)} pods, such as pod {pod}, have"
        )
        notes.append(f"{who} no usable samples: {why}")
    notes += sorted(
        {
            f"pod {pod}: {seen.notes[expected.namespace, pod]}"
            for pod in good
            if (expected.namespace, pod) in seen.notes
        }
    )[:3]
    gpu_known = any(
        history.usage is not None and history.usage.gpu is not None for history in good.values()
    )
    return PipelineSample(good, interval, source, gpu_known, tuple(notes))


def _wrong(
    key: PodKey,
    expected: ExpectedPods,
    histories: ScrapeHistories,
    seen: CollectionEvidence,
    interval: float,
) -> tuple[MetricsProblem, str] | None:
    """Return why a pod is not trusted; ``None`` if it is."""
    if problem := seen.problems.get(key):
        return MetricsProblem.PARTIAL, problem
    if key in seen.ahead:
        return (
            MetricsProblem.STALE,
            (
                "the time of the newest scrape is in the future; synchronize the clocks of "
                "Prometheus and its stores"
            ),
        )
    scrapes = histories.scrapes(key)
    if not scrapes:
        return MetricsProblem.MISSING, f"no series{_target(key, seen)}"
    limit = FRESH_INTERVALS * interval
    age = seen.now - scrapes[-1].at
    if age > limit:
        return (
            MetricsProblem.STALE,
            (
                f"the newest scrape is more than {limit:.0f} s old "
                f"({FRESH_INTERVALS:g} scrape intervals){_target(key, seen)}"
            ),
        )
    if lacking := sorted(expected.models - set(scrapes[-1].models)):
        return (
            MetricsProblem.PARTIAL,
            f"no series for model {', '.join(lacking)}; check that it is loaded",
        )
    return None


def _target(key: PodKey, seen: CollectionEvidence) -> str:
    if seen.up is None:
        return ""
    if key not in seen.up:
        return (
            "; Prometheus has no such target (the PodMonitor is missing or not selected, or the"
            " labels differ)"
        )
    return (
        ", although the target is up"
        if seen.up[key]
        else (
            "; Prometheus cannot scrape the target (up is 0); check that it can reach port 8002"
            " (NetworkPolicy, --allow-metrics)"
        )
    )


def _history(key: PodKey, histories: ScrapeHistories, seen: CollectionEvidence) -> PodHistory:
    """Return the history of a pod with times on the operator's clock."""
    usage = histories.usage(key)
    if usage is not None:
        usage = (
            replace(usage, at=usage.at - seen.skew)
            if seen.now - usage.at <= USAGE_SECONDS_MAX
            else None
        )
    scrapes = histories.scrapes(key)
    return PodHistory(
        tuple(rebased(scrape, seen.skew) for scrape in scrapes) if seen.skew else scrapes, usage
    )


def _failure(
    bad: Mapping[str, tuple[MetricsProblem, str]], pods: int, source: str, query: str
) -> MetricsFailure:
    problems = {problem for problem, _ in bad.values()}
    problem = problems.pop() if len(problems) == 1 else MetricsProblem.PARTIAL
    pod, (_, why) = next(iter(sorted(bad.items())))
    of = f"pod {pod}" if pods == 1 else f"{len(bad)} of {pods} pods, such as pod {pod}"
    checks = {
        MetricsProblem.MISSING: (
            "(1) there is a PodMonitor (from spec.observability.podMonitor or the chart), (2) "
            "Prometheus selects it (by labels and namespace) and the target is up, and (3) "
            "series arrive with these labels"
        ),
        MetricsProblem.STALE: (
            "(1) the target is still up, (2) Prometheus is not falling behind and was not "
            "restarted, and (3) new samples arrive for this query"
        ),
        MetricsProblem.PARTIAL: (
            "(1) all models are loaded, (2) relabeling rules drop no series, and (3) "
            "series arrive once for each pod and model"
        ),
    }
    return MetricsFailure(
        problem,
        f"{source} has no usable samples for {of}: {why}. Check that {checks[problem]}: {query}",
        source,
    )
