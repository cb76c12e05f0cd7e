"""A report in the shape of ``status.tuning``. Pure.

It is small enough for a container's termination message.
"""

from __future__ import annotations

import json
import math
from typing import Any

import yaml

from triton_pipelines.api.tuning_status import TuningPoint, TuningStatus
from triton_pipelines.api.wording import truncate

from .report import ReportPoint, TuningReport

# A termination message has at most 4096 bytes; the text around this document needs the rest.
MAX_BYTES = 3500
_MAX_MESSAGE = 600
_MAX_PADDING = 200
_MAX_MICROSECONDS = 2**31 - 1
_MAX_POINTS = 32


def status_of(report: TuningReport) -> dict[str, Any]:
    """Return the fields of ``status.tuning`` that a report fills: at most 3.5 kB as JSON.

    The request, state and times of the run are filled by the controller.
    """
    points = [_point(point) for point in (*report.points, *report.ends)][:_MAX_POINTS]
    message_length = _MAX_MESSAGE
    while True:
        status = TuningStatus(
            message=truncate(report.message, message_length),
            advice=truncate(report.advice, 2 * message_length),
            padding=truncate(report.padding, _MAX_PADDING),
            patch=patch_yaml(report),
            gain_percent=max(0, round(100 * report.gain)),
            points=tuple(points),
        )
        document: dict[str, Any] = status.model_dump(
            mode="json", by_alias=True, exclude_defaults=True
        )
        if len(json.dumps(document, separators=(",", ":")).encode()) <= MAX_BYTES:
            return document
        # Verified points are first: predictions and later candidates are dropped before text.
        if len(points) > 3:
            points.pop()
        else:
            message_length //= 2


def patch_yaml(report: TuningReport) -> str:
    """Return the merge patch as YAML; empty if no setting is verified as better."""
    return yaml.safe_dump(report.patch, sort_keys=False) if report.patch else ""


def _point(point: ReportPoint) -> TuningPoint:
    return TuningPoint(
        name=point.name,
        max_batch_size=point.setting.max_batch_size,
        queue_delay_microseconds=point.setting.queue_delay,
        model_instances=point.setting.model_instances,
        tokenizer_instances=point.setting.tokenizer_instances,
        padding=str(point.setting.padding),
        requests_per_second=round(point.carried if point.measured else point.rate),
        p99_microseconds=_microseconds(point.p99) if point.measured else 0,
        predicted_p99_microseconds=_microseconds(point.predicted_p99),
        outcome=point.outcome.value,
    )


def _microseconds(seconds: float) -> int:
    """Return whole microseconds, at most the maximum of the status field (36 minutes).

    0, which leaves the field out, if too few requests were answered for a p99.
    """
    return min(round(seconds * 1e6), _MAX_MICROSECONDS) if math.isfinite(seconds) else 0
