"""Assess whether the samples of a pipeline's pods can be trusted, and what to check if not. Pure.

All times follow the server's clock until the sample is created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from triton_pipelines.api.wording import listed

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

# What to check, in order, by what is known about the target. A query follows.
_CHECKS_TARGET: Final = (
    "(1) there is a PodMonitor (from spec.observability.podMonitor or the chart), (2) Prometheus "
    "selects it (by labels and namespace), and (3) series arrive with these labels"
)
_CHECKS_DOWN: Final = (
    "(1) Prometheus can reach port 8002 of the pod (NetworkPolicy), (2) server.args do not "
    "disable --allow-metrics, and (3) series arrive with these labels"
)
_CHECKS_UP: Final = {
    MetricsProblem.MISSING: (
        "(1) the pod's models are loaded, (2) relabeling rules drop no series, and (3) series "
        "arrive with these labels"
    ),
    MetricsProblem.STALE: (
        "(1) Prometheus is not falling behind, (2) Prometheus was not restarted, and (3) new "
        "samples arrive for this query"
    ),
}
_CHECKS: Final = {
    MetricsProblem.MISSING: (
        "(1) there is a PodMonitor (from spec.observability.podMonitor or the chart), (2) "
        "Prometheus selects it (by labels and namespace), (3) the target is up, and (4) series "
        "arrive with these labels"
    ),
    MetricsProblem.STALE: (
        "(1) the target is up, (2) Prometheus is not falling behind and was not restarted, and (3) "
        "new samples arrive for this query"
    ),
}


@dataclass(frozen=True, slots=True)
class _PodProblem:
    """Why a pod is not trusted."""

    kind: MetricsProblem
    why: str
    """The cause, with its remedy if there is only one."""
    checks: str = ""
    """What to check, in order, if there are several possible causes."""


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
    bad: dict[str, _PodProblem] = {}
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
        pod = min(bad)
        notes.append(f"{of_pods(pod, len(bad), len(keys))} no usable samples: {bad[pod].why}")
    notes += sorted(
        {
            f"pod {pod}: {seen.notes[expected.namespace, pod]}"
            for pod in good
            if (expected.namespace, pod) in seen.notes
        }
    )[:3]
    return PipelineSample(good, interval, source, tuple(notes))


def _wrong(
    key: PodKey,
    expected: ExpectedPods,
    histories: ScrapeHistories,
    seen: CollectionEvidence,
    interval: float,
) -> _PodProblem | None:
    """Return why a pod is not trusted; ``None`` if it is."""
    if problem := seen.problems.get(key):
        return _PodProblem(MetricsProblem.PARTIAL, problem)
    if key in seen.ahead:
        return _PodProblem(
            MetricsProblem.STALE,
            "the time of the newest scrape is in the future; synchronize the clocks of "
            "Prometheus and its stores",
        )
    scrapes = histories.scrapes(key)
    if not scrapes:
        return _with_target(MetricsProblem.MISSING, "no series", key, seen)
    limit = FRESH_INTERVALS * interval
    age = seen.now - scrapes[-1].at
    if age > limit:
        why = (
            f"the newest scrape is more than {limit:.0f} s old "
            f"({FRESH_INTERVALS:g} scrape intervals)"
        )
        return _with_target(MetricsProblem.STALE, why, key, seen)
    if lacking := sorted(expected.models - set(scrapes[-1].models)):
        return _PodProblem(MetricsProblem.PARTIAL, no_series(lacking))
    return None


def no_series(models: Sequence[str]) -> str:
    """Return the problem of a pod that has no series for some of its models."""
    if len(models) == 1:
        return f"no series for model {models[0]!r}; check that the model is loaded"
    named = listed([repr(one) for one in models])
    return f"no series for models {named}; check that the models are loaded"


def of_pods(pod: str, bad: int, pods: int) -> str:
    """Return the subject and the verb for the problem of ``bad`` of the ``pods``, such as a pod."""
    return f"pod {pod} has" if bad == 1 else f"{bad} of {pods} pods, such as pod {pod}, have"


def _with_target(
    kind: MetricsProblem, why: str, key: PodKey, seen: CollectionEvidence
) -> _PodProblem:
    """Return the problem of a pod with the state of its target and what to check in that state."""
    if seen.up is None:
        return _PodProblem(kind, why, _CHECKS[kind])
    if key not in seen.up:
        return _PodProblem(kind, f"{why}, because Prometheus has no such target", _CHECKS_TARGET)
    if not seen.up[key]:
        return _PodProblem(
            kind, f"{why}, because Prometheus cannot scrape the target (up is 0)", _CHECKS_DOWN
        )
    return _PodProblem(kind, f"{why}, although the target is up", _CHECKS_UP[kind])


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


def _failure(bad: Mapping[str, _PodProblem], pods: int, source: str, query: str) -> MetricsFailure:
    kinds = {one.kind for one in bad.values()}
    kind = kinds.pop() if len(kinds) == 1 else MetricsProblem.PARTIAL
    pod = min(bad)
    why, checks = bad[pod].why, bad[pod].checks
    of = f"pod {pod}" if pods == 1 else f"{len(bad)} of {pods} pods, such as pod {pod}"
    remedy = f"Check that {checks}" if checks else "To see the series, run this query in Prometheus"
    return MetricsFailure(
        kind, f"{source} has no usable samples for {of}: {why}. {remedy}: {query}", source
    )
