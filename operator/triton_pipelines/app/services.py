"""What start-up gives the composition root: configuration, connections and the queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from triton_pipelines.app.config import OperatorConfig
from triton_pipelines.app.operator_metrics import OperatorMetrics
from triton_pipelines.cluster.client import Client
from triton_pipelines.cluster.store import Store
from triton_pipelines.cluster.work_queue import Key, Result

Background = Callable[[], Coroutine[Any, Any, None]]
"""Starts a task that runs until the operator ends."""
Reconcile = Callable[[Key], Awaitable[Result]]
"""Reconciles one pipeline."""


@dataclass(frozen=True, slots=True)
class Services:
    """What the operator's parts are built on."""

    config: OperatorConfig
    """The operator's options."""
    client: Client
    """Client of the API server, for writes and for what is not watched."""
    store: Store
    """Caches, kept up to date by watches. Put the answer to a write in it, so that the next
    reconcile reads its own writes."""
    metrics: OperatorMetrics
    """The operator's own metrics."""
    control_key: bytes
    """The operator key; ``control_key.derive`` derives each revision's key from it."""
    enqueue: Callable[[Key], None]
    """Makes a pipeline due."""
    run_in_background: Callable[[str, Background], None]
    """Runs a named task next to the reconciles; if it fails, the operator ends."""


Build = Callable[[Services], Reconcile]
"""Builds the reconcile function on the services."""
