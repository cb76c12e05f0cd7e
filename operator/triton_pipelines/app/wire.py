"""The reconciler on the operator's services: what a pass stands on, and how its errors back off."""

from __future__ import annotations

import datetime as dt

from triton_pipelines.app.controlkey import derive
from triton_pipelines.app.main import classify_by_retry
from triton_pipelines.app.prober import ask
from triton_pipelines.app.services import Reconcile, Services
from triton_pipelines.cluster.errors import ClusterError
from triton_pipelines.reconcile.queue import BUG, Backoff
from triton_pipelines.reconcile.reconciler import Reconciler


def build_reconcile(services: Services) -> Reconcile:
    """The reconcile function of a running operator."""
    return Reconciler(
        client=services.client,
        store=services.store,
        options=services.config.render_options,
        derive=lambda uid, revision: derive(services.control_key, uid, revision),
        prober=ask,
        clock=lambda: dt.datetime.now(dt.UTC),
        instance=services.config.instance,
        max_concurrent_rollouts=services.config.max_concurrent_rollouts,
    ).reconcile


def classify(error: BaseException) -> Backoff:
    """Errors of the API server are tried again soon; anything else is a defect of ours and waits longer."""
    return classify_by_retry(error) if isinstance(error, ClusterError) else BUG
