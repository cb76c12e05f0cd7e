"""Watch a new revision for an SLO violation that its predecessor did not have. Pure.

Nothing is rolled back without figures of both revisions (``latency_figures.py``). In doubt, the new
revision stays.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import Final

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.latency_figures import (
    REQUESTS_MIN,
    WINDOW_SECONDS,
    Latencies,
    RevisionLatency,
    latency_budget_of,
)
from triton_pipelines.controllers.pipeline.reconciled_spec import ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import Snapshot
from triton_pipelines.controllers.pipeline.state import SloGuardState
from triton_pipelines.controllers.pipeline.status_events import Event
from triton_pipelines.controllers.timestamps import moment, rfc3339

from .replicas import Replicas
from .revision import DesiredRevision
from .rollout_target import RolloutTarget

# A rollout is watched this long after every pod serves the new revision: a violation shows within
# two of Triton's windows, and load comes in waves of minutes.
WATCH_PERIOD: Final = dt.timedelta(minutes=5)
# More requests per second in one pod than this multiple of the predecessor's mean another load, or
# fewer pods, and are not the revision's fault.
LOAD_RATIO_MAX: Final = 1.5
# Path and beginning of the warning that there is nothing to compare.
UNKNOWN_PATH: Final = "spec.slo.p99Milliseconds"
UNKNOWN: Final = "the p99 latency of the pods is unknown"
# Time between iterations during a watch (seconds).
RECHECK_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class SloVerdict:
    """Result of comparing a watched rollout with the SLO."""

    watch: SloGuardState
    violation: str = ""
    """Why the revision is rolled back; empty if it is not."""
    summary: str = ""
    """Summary of the watch; empty if it continues, or there is none."""


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Compare the latency of a new revision with the SLO and with its predecessor's."""
    desired, target = draft.of(DesiredRevision).name, draft.of(RolloutTarget)
    pipeline = draft.of(ReconciledSpec).pipeline
    verdict = SloVerdict(SloGuardState())
    if target.revision == desired:
        verdict = continue_watch(
            draft.state.slo_guard,
            desired,
            target.state.verified,
            latency_budget_of(pipeline),
            target.serves_whole_pipeline if draft.of(Replicas).desired(pipeline) else None,
            snapshot.latencies,
            now,
        )
    watched = Event(False, "SLOWatched", "Watch", verdict.summary)
    watch = verdict.watch if verdict.watch.revision else SloGuardState()
    return Outcome(
        verdict,
        (watch,),
        events=(watched,) if verdict.summary else (),
        requeue_after=_due_in(watch, now),
    )


def _due_in(watch: SloGuardState, now: dt.datetime) -> float | None:
    """Return the seconds until the next iteration of a watch; ``None`` without one."""
    since = moment(watch.since) if watch.since else None
    if since is None:
        return None
    return min(RECHECK_SECONDS, max(0.0, (since + WATCH_PERIOD - now).total_seconds()))


def unknown_latency(
    budget: float | None, latencies: Latencies | None, revision: str, recorded: str
) -> str:
    """Return why the SLO cannot be watched: the p99 is unknown. Empty if it is known.

    Args:
        budget: The latency budget in milliseconds; ``None`` without an SLO.
        latencies: The known latencies; ``None``: no pod was read yet.
        revision: The revision that should be watched.
        recorded: The recorded reason, which holds until pods have been measured.
    """
    if budget is None:
        return ""
    return recorded if latencies is None else latencies.missing.get(revision, "")


def unknown_latency_warnings(reason: str) -> list[Finding]:
    """Return the warning that the p99 is unknown for this ``reason``; none if that is empty."""
    if not reason:
        return []
    text = (
        f"{UNKNOWN}, because {reason}; while it is unknown, a revision that violates the SLO is "
        "not rolled back"
    )
    return [Finding(UNKNOWN_PATH, text, Severity.WARNING, code=FindingCode.LATENCY_UNKNOWN)]


def continue_watch(
    watch: SloGuardState,
    desired: str,
    verified: str,
    budget: float | None,
    serves_whole_pipeline: bool | None,
    latencies: Latencies | None,
    now: dt.datetime,
) -> SloVerdict:
    """Continue the watch.

    Args:
        watch: The recorded watch.
        desired: The revision that the spec requests and that is being rolled out or serves.
        verified: The revision that last served the whole pipeline, before this reconcile iteration.
        budget: The latency budget (:func:`latency_budget_of`).
        serves_whole_pipeline: Whether ``desired`` alone does so. ``None``: no pods are desired
            (suspended, or no replicas), so there is nothing to watch, and the watch starts again
            with the next ones.
        latencies: The known latencies; ``None``: no pod was read yet.
        now: The current time (UTC).
    """
    watch = _watch_of_rollout(watch, desired, verified)
    if budget is None or not watch.revision:
        return SloVerdict(SloGuardState())
    latencies = latencies or Latencies()
    if serves_whole_pipeline is None:
        watch = replace(watch, since="")
    if not watch.before and (old := latencies.figures.get(watch.predecessor)) is not None:
        watch = replace(watch, before=round(old.high, 3), rate=round(old.rate, 3))
    if not watch.since:
        return SloVerdict(replace(watch, since=rfc3339(now)) if serves_whole_pipeline else watch)
    new = latencies.figures.get(desired)
    if (
        new is not None
        and 0 < watch.before <= budget < new.low
        and new.rate <= LOAD_RATIO_MAX * watch.rate
    ):
        text = (
            f"its p99 in the server was at least {new.low:.1f} ms for {WINDOW_SECONDS:.0f} s at "
            f"{new.rate:.0f} requests/s per pod; the p99 of revision {watch.predecessor} was at "
            f"most {watch.before:.1f} ms at {watch.rate:.0f} requests/s per pod; spec.slo "
            f"allows {budget:g} ms"
        )
        return SloVerdict(watch, violation=text)
    since = moment(watch.since)
    if since is None or now - since >= WATCH_PERIOD:
        return SloVerdict(SloGuardState(), summary=_summary(watch, new, budget, latencies))
    return SloVerdict(watch)


def watched_until(watch: SloGuardState, budget: float | None) -> str:
    """Return until when (RFC 3339) this watch may roll a revision back.

    Empty if there is no watch, or if it has nothing to compare: the latency of the predecessor
    is not known, or was over the ``budget`` (milliseconds) as well.
    """
    since = moment(watch.since) if watch.since else None
    if since is None or budget is None or not 0 < watch.before <= budget:
        return ""
    return rfc3339(since + WATCH_PERIOD)


def _watch_of_rollout(watch: SloGuardState, desired: str, verified: str) -> SloGuardState:
    """Return the watch of this rollout.

    There is none for a first revision, nor for one that served before without another in between.
    """
    if watch.revision == desired:
        return watch
    if verified in ("", desired):
        return SloGuardState()
    if watch.revision == verified:
        # The replaced revision has not been compared yet, so a rollback still restores the one
        # before.
        return (
            SloGuardState()
            if watch.predecessor == desired
            else replace(watch, revision=desired, since="")
        )
    if watch.predecessor == verified:
        # Changed again during the rollout. The latency of the serving revision is known, and its
        # pods may be gone by now.
        return replace(watch, revision=desired, since="")
    return SloGuardState(revision=desired, predecessor=verified)


def _summary(
    watch: SloGuardState, new: RevisionLatency | None, budget: float, latencies: Latencies
) -> str:
    budget_text = f"spec.slo allows {budget:g} ms"
    begin = f"revision {watch.revision} was watched for {WATCH_PERIOD.total_seconds() / 60:.0f} min"
    if new is None:
        why = (
            latencies.missing.get(watch.revision)
            or f"fewer than {REQUESTS_MIN} requests in {WINDOW_SECONDS:.0f} s in each of its pods"
        )
        return f"{begin}, and its p99 is unknown: {why}"
    summary = (
        f"{begin}: its p99 in the server was at most {new.high:.1f} ms at {new.rate:.0f} "
        f"requests/s per pod; {budget_text}"
    )
    if not watch.before:
        return (
            f"{summary}; the p99 of the previous revision {watch.predecessor} is unknown, so "
            "the two cannot be compared"
        )
    return (
        f"{summary}; the p99 of the previous revision {watch.predecessor} was "
        f"{watch.before:.1f} ms at {watch.rate:.0f} requests/s per pod"
    )
