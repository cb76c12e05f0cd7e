"""Choose batching settings by measurement: profile, predict, choose and verify on a real server.

:func:`tune` runs on a :class:`TuningTarget` with :class:`TuningOptions` and returns a
:class:`TuningReport`. The report has three forms: :func:`report_document` (JSON), :func:`status_of`
(``status.tuning``) and :func:`patch_yaml` (the merge patch). :func:`chart` and :func:`terminal`
draw it. Everything else is internal to the package.
"""

from .errors import NotTunableError, TuneError
from .options import (
    ProgressCallback,
    TuningOptions,
    TuningTarget,
    slo_and_latency_budget,
)
from .plot import chart, terminal
from .report import PointOutcome, ReportPoint, TuningReport, report_document
from .run import tune
from .settings import BatchingSetting
from .status_summary import patch_yaml, status_of

__all__ = [
    "BatchingSetting",
    "NotTunableError",
    "PointOutcome",
    "ProgressCallback",
    "ReportPoint",
    "TuneError",
    "TuningOptions",
    "TuningReport",
    "TuningTarget",
    "chart",
    "patch_yaml",
    "report_document",
    "slo_and_latency_budget",
    "status_of",
    "terminal",
    "tune",
]
