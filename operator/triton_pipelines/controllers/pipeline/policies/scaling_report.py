"""Record what the status reports about scaling, for comparison with the next report. Pure."""

from __future__ import annotations

import datetime as dt

from triton_pipelines.controllers.pipeline.chain import Draft, Outcome
from triton_pipelines.controllers.pipeline.report_state import ScalingReportState
from triton_pipelines.controllers.pipeline.snapshot import Snapshot


def decide(snapshot: Snapshot, draft: Draft, now: dt.datetime) -> Outcome:
    """Record source of metrics, limitations and topics.

    The recorded ones stay until scaling has observed the pipeline.
    """
    view = snapshot.view
    if view is None:
        return Outcome()
    source = "" if view.metrics_failure else view.metrics_source
    decision = view.decision
    return Outcome(states=(ScalingReportState(source, decision.limited_subjects, decision.topics),))
