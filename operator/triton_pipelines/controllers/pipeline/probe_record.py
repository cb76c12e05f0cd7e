"""Result of the last probe of a pod, and what the probes before it add to it. Pure."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class ModelState:
    """One model of a pod, as Triton's repository index reports it."""

    name: str
    state: str
    reason: str = ""


# Consecutive probes without a response after which a healthy pod no longer counts as healthy: about
# two minutes with the default period.
MISSES_ALLOWED = 3
# How long a probe that met a dead process counts, and how many are kept: Triton releases up to
# 24.05 restart such processes themselves.
DEAD_WINDOW = dt.timedelta(minutes=10)
DEAD_KEPT = 16
# Probes that met a dead process or full shared memory, after which a pod is recreated if another
# one serves. A single one may be an accident of the probe.
DEAD_PROBES = 3
# Consecutive such probes if no other pod serves: with one dead process of several, the others still
# answer most requests. A probe that meets the dead one every time shows that they do not.
DEAD_PROBES_ALONE = 6
# The same in a row for failed probes of a pod with an unhealthy device: two reports agree.
LOST_PROBES = 2
LOST_PROBES_ALONE = 3
# Consecutive probes without a response, while the pod completed no inference, after which a model
# counts as hung, and after which a pod is recreated although no other one serves: three and
# six minutes with the default period. A single long inference must not look like this.
HUNG_PROBES = 5
HUNG_PROBES_ALONE = 10
# Least time between two probes that count as hung: a full queue rejects a probe at once, where
# other probes wait for their deadline.
HUNG_INTERVAL = dt.timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of the last probe of one Triton pod.

    Two are equal if decisions would be: a probe that confirms the last result, or the one that the
    status reports, changes nothing.
    """

    at: dt.datetime = field(compare=False)
    """UTC."""
    ensemble_ready: bool
    """Whether the ensemble itself is ready."""
    models: tuple[ModelState, ...] = ()
    """In order of their names."""
    inference_error: str | None = None
    """Why a test inference failed; empty if it succeeded, ``None`` if none was sent."""
    mismatch: str = ""
    """How an otherwise valid output differs from the declared type, shape or number of rows
    (:mod:`~.output_mismatch`)."""
    error: str = ""
    """Why the pod could not be probed at all."""
    misses: int = 0
    """Later probes that brought no response in time: a busy pod keeps its last result for some."""
    dead: tuple[dt.datetime, ...] = ()
    """Recent probes that met a dead process of a model, oldest first."""
    consecutive_dead: int = 0
    """How many of the last probes did."""
    consecutive_wrong: int = 0
    """How many of the last probes met another fault of the output."""
    shared_memory_full: bool = False
    """Whether this probe failed because the pod's shared memory is full."""
    completed: int | None = None
    """Inferences that the pod had completed when a probe last got no result; ``None`` after one
    with a result."""
    consecutive_hung: int = 0
    """How many of the last probes got no result while the pod completed no inference."""
    hung_at: dt.datetime | None = None
    """When the last of these probes began."""
    server_restarts: int = 0
    """How often Triton's container had been restarted."""
    has_answered: bool = False
    """Whether the pod has answered a test inference in time since its ensemble became ready.

    Without it, a failing probe may only show that the model is slow or rejects the example.
    """
    is_reported: bool = field(default=False, compare=False)
    """Whether this result is what the status reports: the pod was healthy before the operator
    started, and has not responded to it yet."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong with the pod."""
        return self.ensemble_ready and not self.inference_error and not self.error

    def merged_with(self, last: Probe | None) -> Probe:
        """Return this probe, or the last one if this one brought no response.

        A healthy pod is allowed :data:`MISSES_ALLOWED` of those.
        """
        own = self._with_progress(last)
        hung = own.consecutive_hung
        is_hung = bool(self.error) and hung >= HUNG_PROBES
        is_missed = bool(self.error) and not is_hung
        if is_missed and last is not None and last.is_healthy and last.misses < MISSES_ALLOWED:
            return replace(
                last,
                at=self.at,
                misses=last.misses + 1,
                completed=own.completed,
                consecutive_hung=hung,
                hung_at=own.hung_at,
                server_restarts=own.server_restarts,
                has_answered=own.has_answered,
            )
        before = tuple(
            moment for moment in (last.dead if last else ()) if self.at - moment < DEAD_WINDOW
        )
        dead, wrong = (last.consecutive_dead, last.consecutive_wrong) if last else (0, 0)
        if self.dead:
            dead += 1  # which does not concern outputs
        elif not self.error:  # a probe without a response concerns neither
            dead, wrong = 0, wrong + 1 if self.inference_error or self.mismatch else 0
        return replace(
            own,
            dead=(*before, *self.dead)[-DEAD_KEPT:],
            consecutive_dead=dead,
            consecutive_wrong=wrong,
            inference_error=_hung_text(hung) if is_hung else self.inference_error,
        )

    def _with_progress(self, last: Probe | None) -> Probe:
        """Return this probe with what it adds to the evidence that a model hangs."""
        if last is None or last.server_restarts != self.server_restarts:
            last = None
        responded = self.ensemble_ready and self.inference_error == ""
        # A probe with an error may not know whether the ensemble is ready.
        kept = last is not None and last.has_answered and (self.ensemble_ready or self.error != "")
        own = replace(self, has_answered=responded or kept)
        if self.completed is None:
            if last is None or not (self.error or self.inference_error is None):
                return own
            # No statistics, or no test inference: the next count still compares with the last one.
            return _counted(own, last.completed, last.consecutive_hung, last.hung_at)
        if last is None or last.hung_at is None or last.completed != self.completed:
            return _counted(own, self.completed, 1, self.at)
        if self.at - last.hung_at < HUNG_INTERVAL:
            return _counted(own, last.completed, last.consecutive_hung, last.hung_at)
        return _counted(own, self.completed, last.consecutive_hung + 1, self.at)


def _counted(probe: Probe, completed: int | None, hung: int, at: dt.datetime | None) -> Probe:
    return replace(probe, completed=completed, consecutive_hung=hung, hung_at=at)


def _hung_text(probes: int) -> str:
    return (
        f"a model hangs: {probes} consecutive test inferences received no response, and the pod "
        "completed no other inference in the meantime"
    )
