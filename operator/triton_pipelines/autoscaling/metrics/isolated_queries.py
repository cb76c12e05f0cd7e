"""Send queries for many namespaces so that the series of one of them do not affect the others.

Tenants choose how many series and samples their pods have. A query that the server rejects, or
whose result is too large, is therefore repeated for half of its namespaces each. This takes little
time. A query that takes too long is divided as well, but in the next collections
(:mod:`.slow_namespaces`). A collection takes no longer for this, and sends one query at a time.

If no query of a kind succeeds, the server is at fault and not a namespace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from .namespace_query import NamespaceQuery, QueryKind
from .prometheus_response import PrometheusError
from .query_results import QueryResultError
from .scrape_history import PodKey
from .slow_namespaces import SlowNamespaces

REJECTED_SECONDS: Final = 30.0
"""How long a query that the server rejected is not sent again."""
REJECTIONS_MAX: Final = 64
"""Rejected queries of a collection before the first success. After them, none is divided again."""
SHARES: Final = 4
"""A query counts as slow if this part of a collection's time (1/4) is not enough for it."""

Send = Callable[[NamespaceQuery, float], None]
"""Sends a query whose result must be complete at the given monotonic time, in seconds."""
QueryKey = tuple[QueryKind, tuple[str, ...]]
"""Kind and namespaces of a query."""
_SERVER: Final = (
    "check the CPU and the limits for queries of the Prometheus server, and the connection's "
    "timeoutSeconds"
)


class _Cause(Enum):
    """Why a query has no result."""

    REJECTED = auto()
    """The server rejected it, or its result is too large. Half of it may succeed."""
    SLOW = auto()
    """It took too long, although it had enough time."""
    NO_TIME = auto()
    """Other queries left too little time."""
    FINAL = auto()
    """Further queries would fail, too."""
    INVALID = auto()
    """The result has another shape."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """A query without a result. The error is not kept: its frames hold the response in memory."""

    cause: _Cause
    text: str
    has_remedy: bool


@dataclass(slots=True)
class QueryOutcome:
    """How the queries of a collection ended, apart from their results."""

    errors: dict[QueryKind, dict[PodKey, str]] = field(
        default_factory=lambda: {kind: {} for kind in QueryKind}
    )
    """Why there is no result for a pod, and what to do."""
    incomplete: set[QueryKind] = field(default_factory=set)
    """Kinds of which a query that was due had no turn or too little time."""


class IsolatedQueries:
    """Sends the queries of one connection. ``monotonic`` returns seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._slow = SlowNamespaces()
        self._rejected: dict[QueryKey, tuple[float, _Failure]] = {}
        """When and why a query was rejected."""

    def run(
        self, queries: Iterable[NamespaceQuery], send: Send, begin: float, deadline: float
    ) -> QueryOutcome:
        """Send queries in sequence.

        Args:
            queries: The queries.
            send: Sends one of them; raises ``PrometheusError`` or ``QueryResultError``.
            begin: Monotonic time at which the collection began.
            deadline: Monotonic time by which it must be done.
        """
        oldest = begin - REJECTED_SECONDS
        self._rejected = {key: one for key, one in self._rejected.items() if one[0] > oldest}
        known = {key: failure for key, (_, failure) in self._rejected.items()}
        divided = self._slow.divide(queries, begin)
        sequence = _Sequence(self._monotonic, send, (deadline - begin) / SHARES, deadline, known)
        sequence.run(divided.common, are_apart=False)
        sequence.run(divided.apart, are_apart=True)
        succeeded = sequence.succeeded
        rejected = {
            key: (begin, one) for key, one in sequence.rejected.items() if key[0] in succeeded
        }
        self._rejected = rejected | self._rejected
        for query in sequence.done:
            self._slow.note_success(query)
        outcome = QueryOutcome(incomplete=sequence.incomplete)
        for query, message in divided.not_due:
            outcome.errors[query.kind].update(dict.fromkeys(query.pods, message))
        for query, failure in sequence.failures:
            is_server = query.kind not in succeeded
            message = _message(query, failure, is_server=is_server)
            outcome.errors[query.kind].update(dict.fromkeys(query.pods, message))
            if failure.cause is _Cause.SLOW:
                self._slow.note_timeout(query, message, begin, is_server=is_server)
        return outcome


@dataclass(slots=True)
class _Sequence:
    """The queries of one collection, as they are sent."""

    monotonic: Callable[[], float]
    send: Send
    share: float
    """Seconds that are enough for a query."""
    deadline: float
    known: Mapping[QueryKey, _Failure]
    """Queries that were rejected a short time ago."""
    rejected: dict[QueryKey, _Failure] = field(default_factory=dict)
    """Queries that are rejected now."""
    succeeded: set[QueryKind] = field(default_factory=set)
    """The kinds of which a query succeeded."""
    done: list[NamespaceQuery] = field(default_factory=list)
    """Queries that succeeded."""
    failures: list[tuple[NamespaceQuery, _Failure]] = field(default_factory=list)
    final: _Failure | None = None
    """Why further queries would fail, too."""
    incomplete: set[QueryKind] = field(default_factory=set)

    def run(self, queries: Iterable[NamespaceQuery], *, are_apart: bool) -> None:
        """Send queries in sequence. Those of slow namespaces share the time that is left."""
        waiting = deque(queries)
        while waiting:
            query, left = waiting.popleft(), self.deadline - self.monotonic()
            seconds = max(self.share, left / (1 + len(waiting))) if are_apart else left
            failure = self.final or self._failure(query, min(seconds, left))
            if failure is None:
                self.succeeded.add(query.kind)
                self.done.append(query)
                continue
            if failure.cause is _Cause.FINAL:
                self.final = failure
            elif failure.cause is _Cause.REJECTED and (halves := self._halves(query, failure)):
                waiting.extend(halves)
                continue
            if failure.cause not in (_Cause.REJECTED, _Cause.INVALID):
                self.incomplete.add(query.kind)
            self.failures.append((query, failure))

    def _failure(self, query: NamespaceQuery, seconds: float) -> _Failure | None:
        """Send a query; return why it has no result within these seconds, now or recently."""
        known = self.known.get((query.kind, query.group.namespaces))
        if known is not None:
            return known
        try:
            self.send(query, self.monotonic() + seconds)
        except QueryResultError as error:
            return _Failure(_Cause.INVALID, str(error), has_remedy=True)
        except PrometheusError as error:
            cause = _Cause.FINAL if error.final else _Cause.REJECTED
            if error.is_timeout:
                cause = _Cause.SLOW if seconds >= self.share else _Cause.NO_TIME
            return _Failure(cause, str(error), error.has_remedy)
        return None

    def _halves(self, query: NamespaceQuery, failure: _Failure) -> tuple[NamespaceQuery, ...]:
        """Return the queries to send instead of one that was rejected; none if it has failed."""
        self.rejected.setdefault((query.kind, query.group.namespaces), failure)
        if query.kind in self.succeeded or len(self.rejected) < REJECTIONS_MAX:
            return query.halves()
        return ()


def _message(query: NamespaceQuery, failure: _Failure, *, is_server: bool) -> str:
    """Return why there is no result, and what to do.

    Args:
        query: The query.
        failure: Why it failed.
        is_server: Whether no query of this kind succeeded.
    """
    if failure.has_remedy:
        return failure.text
    namespaces = query.group.namespaces
    if is_server or len(namespaces) > 1 or failure.cause not in (_Cause.REJECTED, _Cause.SLOW):
        return f"{failure.text}; {_SERVER}"
    what = "take too long" if failure.cause is _Cause.SLOW else "fail"
    return (
        f"queries for the metrics of namespace {namespaces[0]} {what} ({failure.text}); reduce the "
        "number of series and samples of its pods, or limit them in Prometheus (sample_limit)"
    )
