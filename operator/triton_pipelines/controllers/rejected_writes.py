"""Delay the repetition of writes that the API server rejects. Pure; the clock is passed in.

The queue retries a failed pipeline with increasing delays, but each event of the pipeline or of its
objects makes it due at once, and users cause as many events as they like. A write that was rejected
is therefore not sent again before a back-off of its own has passed: its last error is raised again.
A changed spec and other content are written at once.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from triton_pipelines.cluster.client import Object
from triton_pipelines.cluster.errors import (
    ClusterError,
    Forbidden,
    Invalid,
    NamespaceTerminating,
)
from triton_pipelines.cluster.store import Key
from triton_pipelines.cluster.work_queue import TRANSIENT, Backoff
from triton_pipelines.controllers.pipeline.owner_references import NameTaken

WriteName = tuple[str, str, str]
"""Verb, and kind and name of the object."""
Attempt = Callable[[WriteName, object], AbstractContextManager[None]]
"""Returns the context of one write; the second argument is its content, for comparison."""
# Rejected writes that are remembered of one pipeline. It has about ten objects.
WRITES_MAX: Final = 64
# Statuses with which the API server answers for as long as others do not act: a webhook cannot be
# called in time (500), or the object is too large (413, and 500 from etcd).
_LASTING: Final = frozenset({413, 500})


@dataclass(frozen=True, slots=True)
class _Rejection:
    """The last rejection of a write."""

    content: object
    """What was written."""
    error: Exception
    """Why it was rejected."""
    attempts: int
    """How often in a row."""
    until: dt.datetime
    """Before this time it is not sent again."""


@dataclass(slots=True)
class RejectedWrites:
    """Rejected writes of all pipelines; one instance for each part that writes."""

    clock: Callable[[], dt.datetime]
    """Returns the current time in UTC."""
    backoff: Backoff = TRANSIENT
    """The shorter half of its delays is used, so that the queue's own retries are all sent."""
    _rejections: dict[Key, dict[WriteName, _Rejection]] = field(default_factory=dict)

    def of(self, key: Key, pipeline: Object) -> Attempt:
        """Return the context of the writes for a pipeline in its present state.

        Args:
            key: The pipeline's key.
            pipeline: The pipeline. With another ``spec``, all writes are sent at once.
        """
        metadata = pipeline["metadata"]
        return partial(self._attempt, key, (metadata.get("uid"), metadata.get("generation")))

    def forget(self, key: Key) -> None:
        """Drop what is known about a deleted pipeline."""
        self._rejections.pop(key, None)

    @contextlib.contextmanager
    def _attempt(
        self, key: Key, state: object, write: WriteName, content: object
    ) -> Iterator[None]:
        """Raise the last error of a write that must not be sent yet; else remember how it ends."""
        whole = (state, content)
        last = self._rejections.get(key, {}).get(write)
        if last is not None and last.content != whole:
            last = None
        if last is not None and self.clock() < last.until:
            raise _bare(last.error)
        try:
            yield
        except Exception as error:
            if _is_lasting(error):
                self._record(key, write, whole, error, 1 if last is None else last.attempts + 1)
            raise
        if rejected := self._rejections.get(key):
            rejected.pop(write, None)

    def _record(
        self, key: Key, write: WriteName, content: object, error: Exception, attempts: int
    ) -> None:
        seconds = self.backoff.delay(attempts, min)
        until = self.clock() + dt.timedelta(seconds=seconds)
        rejected = self._rejections.setdefault(key, {})
        rejected.pop(write, None)
        rejected[write] = _Rejection(content, _bare(error), attempts, until)
        if len(rejected) > WRITES_MAX:
            del rejected[next(iter(rejected))]


def _is_lasting(error: Exception) -> bool:
    """Return whether the same write would very likely fail again."""
    if isinstance(error, NamespaceTerminating):
        return False
    if isinstance(error, Forbidden | Invalid | NameTaken):
        return True
    return isinstance(error, ClusterError) and (
        error.status in _LASTING or error.reason == "Timeout"
    )


def _bare(error: Exception) -> Exception:
    """Return a copy of an error without traceback, which keeps the objects of its frames alive."""
    kind: Any = type(error)
    copied: Exception = kind.__new__(kind, *error.args)
    copied.__dict__.update(error.__dict__)
    return copied
