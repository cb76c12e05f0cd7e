"""What the operator's start-up hands to the reconciler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.app.operator_metrics import Metrics
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.store import Store
from triton_pipelines.cluster.work_queue import Backoff, Key, Result, WorkQueue


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a pass needs of the outside.

    Attributes:
        client: the API server, for writes and what is not watched.
        store: what the watches told. Put in it what a write answered, so that the next pass reads its own writes.
        control_key: the operator key (``controlkey.derive`` makes each revision's key of it).
        enqueue, enqueue_after: make another pipeline due.
        beside: run something (its name, and what makes it) beside the passes for as long as they run; its failure ends the operator.
    """

    config: OperatorConfig
    client: Client
    store: Store
    metrics: Metrics
    control_key: bytes
    enqueue: Callable[[Key], None]
    enqueue_after: Callable[[Key, float], None]
    beside: Callable[[str, Callable[[], Coroutine[Any, Any, None]]], None]


Reconcile = Callable[[Key], Awaitable[Result]]
Build = Callable[[Services], Reconcile]
Classify = Callable[[BaseException], Backoff]

__all__ = ["Backoff", "Build", "Classify", "Key", "Reconcile", "Result", "Services", "WorkQueue"]
