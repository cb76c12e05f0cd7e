"""Watching a new revision after its rollout: one that breaks the promised latency which its predecessor kept is taken back. Pure.

Figures are Triton's own: the p99 of the pipeline's public model over a sliding window of a minute, per pod (``summary_latencies``). They
know nothing of the network and of what waits in front of the server; the share that the resource sets aside for these is taken off the
promise first. Nothing is taken back without both figures, and where in doubt for the new revision.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.controllers.timestamps import moment, rfc3339

# A rollout is watched for so long once every pod serves the new revision: a breach shows within two of Triton's windows, and load comes in waves of minutes.
WATCH: Final = dt.timedelta(minutes=5)
# Every look at a pod within this time has to be over the limit: longer than Triton's window (60 s, prometheus-cpp's default), so that the
# first slow answers of a fresh process are forgotten by the last of them.
HELD_SECONDS: Final = 75.0
# Requests of one pod within that time below which its p99 is chance: three of three hundred may be slower than it.
REQUESTS_MIN: Final = 300
# More requests per second in one pod than so many times the predecessor's are another load, or fewer pods, and no fault of the revision.
LOAD_RATIO_MAX: Final = 1.5
# Where and how the status says that there is nothing to watch by.
UNKNOWN_PATH: Final = "spec.slo.p99Milliseconds"
UNKNOWN: Final = "the p99 of the pods is not known"
# A remembered figure beyond this is somebody's edit, and may be too large an integer for a float.
_FIGURE_MAX: Final = 1e12
# A planner that watches looks this often (seconds).
RECHECK_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a pod: Unix seconds, p99 of its last minute in milliseconds (``None``: no request in it), and requests since its start."""

    at: float
    p99: float | None
    requests: float


@dataclass(frozen=True, slots=True)
class Figure:
    """Latency of one revision over :data:`HELD_SECONDS`, of the pod that is worst: ``low`` and ``high`` are the least and the greatest p99
    (milliseconds) that it had in that time; ``rate``: requests per second of the pod that has most: with fewer pods each has more to do."""

    low: float
    high: float
    rate: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """What is known of a pipeline's latency: figures by revision, and why there is none (revision → words)."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Watch:
    """A rollout under watch, as it is remembered: ``predecessor`` is the revision to go back to, ``before`` its p99 in milliseconds and
    ``rate`` its requests per second in a pod (0: not known); ``since``: when the new revision served the whole pipeline (RFC 3339; "": not yet)."""

    revision: str = ""
    predecessor: str = ""
    before: float = 0.0
    rate: float = 0.0
    since: str = ""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Watch:
        """Read it; what an edit has made unreadable counts as no watch."""
        texts = [document.get(key, "") for key in ("revision", "predecessor", "since")]
        numbers = [document.get(key, 0.0) for key in ("before", "rate")]
        if not all(isinstance(text, str) for text in texts) or not all(
            _is_figure(number) for number in numbers
        ):
            return cls()
        if texts[2] and moment(texts[2]) is None:
            return cls()
        return cls(texts[0], texts[1], float(numbers[0]), float(numbers[1]), texts[2])

    def to_document(self) -> dict[str, Any]:
        """What is remembered; empty without a watch."""
        values: dict[str, Any] = {key: getattr(self, key) for key in self.__slots__}
        return {key: value for key, value in values.items() if value} if self.revision else {}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a look at a watched rollout comes to: the watch to remember, why the revision is taken back ("": it is not), and how the watch
    ended, in words ("": it goes on, or there is none)."""

    watch: Watch
    broken: str = ""
    ended: str = ""


def limit_of(pipeline: InferencePipeline) -> float | None:
    """Milliseconds that the promise leaves for the server; ``None`` where nothing is promised, or nothing is left."""
    budget = pipeline.spec.slo.latency_budget_milliseconds()
    return float(budget) if budget is not None and budget > 0 else None


def doubts(
    limit: float | None,
    latencies: Latencies | None,
    revision: str,
    said: Sequence[Mapping[str, Any]],
) -> list[Finding]:
    """A warning where the promise cannot be watched since the p99 is not known. ``said``: the warnings of the status as it stands, which
    hold until pods have been looked at."""
    if limit is None:
        return []
    if latencies is None:
        return [
            Finding(UNKNOWN_PATH, text, Severity.WARNING)
            for item in said
            if (text := str(item.get("message", ""))).startswith(UNKNOWN)
        ]
    why = latencies.missing.get(revision)
    return (
        [
            Finding(
                UNKNOWN_PATH,
                f"{UNKNOWN}: {why}; a revision that breaks the SLO is not taken back",
                Severity.WARNING,
            )
        ]
        if why
        else []
    )


def figure_of(pods: Sequence[Sequence[Look]]) -> Figure | None:
    """The figure of a revision from the looks at each of its pods, oldest first; ``None`` while no pod has been looked at for long enough,
    or none has had enough requests."""
    spans = [held for looks in pods if (held := _held(looks)) is not None]
    judged = [held for held in spans if held[-1].requests - held[0].requests >= REQUESTS_MIN]
    known = [[look.p99 for look in held if look.p99 is not None] for held in judged]
    complete = [
        values for values, held in zip(known, judged, strict=True) if len(values) == len(held)
    ]
    if not complete:
        return None
    rate = max(
        (held[-1].requests - held[0].requests) / (held[-1].at - held[0].at) for held in spans
    )
    return Figure(max(map(min, complete)), max(map(max, complete)), rate)


def _held(looks: Sequence[Look]) -> list[Look] | None:
    """The looks of the last :data:`HELD_SECONDS`, where they reach back so far and the counter has not begun anew."""
    last = looks[-1].at if looks else 0.0
    before = [index for index, look in enumerate(looks) if last - look.at >= HELD_SECONDS]
    if not before:
        return None
    held = list(looks[before[-1] :])
    return held if all(a.requests <= b.requests for a, b in itertools.pairwise(held)) else None


def follow(
    watch: Watch,
    wanted: str,
    proven: str,
    limit: float | None,
    whole: bool | None,
    latencies: Latencies | None,
    now: dt.datetime,
) -> Judgement:
    """Go on watching.

    Args:
        watch: as remembered.
        wanted: the revision that the spec asks for and that is being rolled out or serves.
        proven: the revision that last served the whole pipeline, before this look.
        limit: :func:`limit_of`.
        whole: whether ``wanted`` serves the whole pipeline alone; ``None``: no pods are wanted (suspended, or no replicas), so there is
            nothing to watch, and the watch begins anew with the next ones.
        latencies: what is known; ``None``: nothing has been looked at.
        now: UTC.
    """
    watch = _begun(watch, wanted, proven)
    if limit is None or not watch.revision:
        return Judgement(Watch())
    latencies = latencies or Latencies()
    if whole is None:
        watch = replace(watch, since="")
    if not watch.before and (old := latencies.figures.get(watch.predecessor)) is not None:
        watch = replace(watch, before=round(old.high, 3), rate=round(old.rate, 3))
    if not watch.since:
        return Judgement(replace(watch, since=rfc3339(now)) if whole else watch)
    new = latencies.figures.get(wanted)
    if (
        new is not None
        and 0 < watch.before <= limit < new.low
        and new.rate <= LOAD_RATIO_MAX * watch.rate
    ):
        text = (
            f"its p99 in the server is {new.low:.1f} ms and more for {HELD_SECONDS:.0f} s at {new.rate:.0f} requests/s in a pod, that of revision"
            f" {watch.predecessor} was at most {watch.before:.1f} ms at {watch.rate:.0f}; spec.slo leaves {limit:g} ms"
        )
        return Judgement(watch, broken=text)
    since = moment(watch.since)
    if since is None or now - since >= WATCH:
        return Judgement(Watch(), ended=_summary(watch, new, limit, latencies))
    return Judgement(watch)


def judged_until(watch: Watch, limit: float | None) -> str:
    """Until when (RFC 3339) a revision may be taken back by this watch; "" where none goes on, and where it cannot judge, since what the revision
    before had is not known, or was beyond the ``limit`` as well (milliseconds)."""
    since = moment(watch.since) if watch.since else None
    if since is None or limit is None or not 0 < watch.before <= limit:
        return ""
    return rfc3339(since + WATCH)


def _begun(watch: Watch, wanted: str, proven: str) -> Watch:
    """The watch that this rollout is under; none for a first revision and for one that has served before without another in between."""
    if watch.revision == wanted:
        return watch
    if proven in ("", wanted):
        return Watch()
    if watch.revision == proven:
        # The one that is replaced has not been judged yet: what is gone back to is still the one before.
        return Watch() if watch.predecessor == wanted else replace(watch, revision=wanted, since="")
    if watch.predecessor == proven:
        # Changed again on its way: what the one that serves had is known, and its pods may have gone by now.
        return replace(watch, revision=wanted, since="")
    return Watch(revision=wanted, predecessor=proven)


def _summary(watch: Watch, new: Figure | None, limit: float, latencies: Latencies) -> str:
    promise = f"spec.slo leaves {limit:g} ms"
    begin = f"revision {watch.revision} was watched for {WATCH.total_seconds() / 60:.0f} min"
    if new is None:
        why = (
            latencies.missing.get(watch.revision)
            or f"fewer than {REQUESTS_MIN} requests in {HELD_SECONDS:.0f} s in each of its pods"
        )
        return f"{begin}, and its p99 is not known: {why}"
    said = f"{begin}: p99 in the server at most {new.high:.1f} ms at {new.rate:.0f} requests/s in a pod; {promise}"
    if not watch.before:
        return f"{said}; that of revision {watch.predecessor} before it was not known, so nothing could be compared"
    return f"{said}; revision {watch.predecessor} had {watch.before:.1f} ms at {watch.rate:.0f}"


def _is_figure(number: Any) -> bool:
    return (
        isinstance(number, int | float)
        and not isinstance(number, bool)
        and 0 <= number <= _FIGURE_MAX
    )
