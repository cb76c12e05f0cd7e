"""The report of a tuning run, and its JSON document. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from triton_pipelines.api.tuning import TuningMode

from .settings import BatchingSetting


class PointOutcome(StrEnum):
    """What a point shows; the values are those of ``status.tuning.points[].outcome``."""

    WITHIN = "WithinSLO"
    BREAKS = "BreaksSLO"
    PREDICTED = "Predicted"


@dataclass(frozen=True, slots=True)
class ReportPoint:
    """A setting at one request rate. Times in seconds."""

    name: str
    """``current``, ``recommended``, ``candidate``, or one of the two predicted extremes."""
    setting: BatchingSetting
    """The setting."""
    rate: float
    """Requests/s offered."""
    carried: float = 0.0
    """Requests/s answered; 0: not measured."""
    p50: float = 0.0
    """Measured median latency."""
    p99: float = 0.0
    """Measured p99 latency."""
    predicted_p99: float = 0.0
    """Predicted p99 latency."""
    failed: int = 0
    """Failed requests."""
    outcome: PointOutcome = PointOutcome.PREDICTED
    """Comparison with the latency budget."""

    @property
    def measured(self) -> bool:
        """Whether it was measured."""
        return self.outcome is not PointOutcome.PREDICTED


@dataclass(frozen=True, slots=True)
class StepProfile:
    """The execution time of a step: ``fixed + per_row * rows + per_token * tokens`` seconds."""

    step: str
    """Name of the step."""
    fixed: float
    """Seconds of an execution, whatever its size."""
    per_row: float
    """Seconds of a row."""
    per_token: float
    """Seconds of a token."""
    residual: float
    """Relative error of the fit."""
    fitted: bool
    """Whether the linear model is used; otherwise ``table`` is."""
    table: tuple[tuple[float, float, float], ...] = ()
    """Measurements: rows of an execution, tokens of a row, seconds."""
    busy: float = 0.0
    """Utilization of its instances at the highest rate measured within the latency budget."""


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """p99 latency over throughput for one setting."""

    name: str
    """As of :class:`ReportPoint`."""
    setting: BatchingSetting
    """The setting."""
    points: tuple[tuple[float, float], ...]
    """Requests/s and p99 in seconds, ascending."""
    measured: bool = False
    """Whether the points were measured; otherwise they are predictions."""


@dataclass(frozen=True, slots=True)
class TuningReport:
    """The result of a tuning run."""

    pipeline: str
    """Name of the pipeline."""
    mode: TuningMode
    """Quick or thorough."""
    slo: float
    """p99 SLO in seconds."""
    latency_budget: float
    """SLO minus network and queue, in seconds."""
    workload: str
    """Description of the requests."""
    current: BatchingSetting
    """The setting of the resource."""
    recommended: BatchingSetting
    """The verified best setting; equal to ``current`` if no other one is verified as better."""
    points: tuple[ReportPoint, ...]
    """Measurements, in their order."""
    ends: tuple[ReportPoint, ...]
    """Predictions for the latency-first and the throughput-first setting."""
    curves: tuple[LatencyCurve, ...]
    """Latency over throughput."""
    steps: tuple[StepProfile, ...]
    """Execution times of the steps."""
    patch: Mapping[str, Any]
    """Merge patch to the recommended setting; empty if it is the current one."""
    gain: float
    """Share of requests/s gained."""
    message: str
    """The result in a sentence or two."""
    bound: str
    """The bottleneck."""
    advice: str
    """What to do about the bottleneck."""
    notes: tuple[str, ...] = ()
    """Further notes."""
    failed_requests: int = 0
    """Requests that failed for a reason other than the load."""
    late_requests: int = 0
    """Requests that timed out or were rejected under deliberate overload."""
    seconds: float = 0.0
    """Duration of the run."""
    simulated_steps: tuple[str, ...] = ()
    """Steps that were simulated, for the plot."""
    ended: str = ""
    """Why the run ended early; empty: it did not."""
    padding: str = ""
    """The cheapest padding mode and the cost of the others; empty: unknown."""
    inconclusive: str = ""
    """Why nothing can be concluded from the measurements; empty: it can. Then nothing is
    recommended or predicted."""


# Keys of the JSON document that are not the names of the fields.
_KEYS = {"latency_budget": "wall", "setting": "knobs", "simulated_steps": "stand_ins"}


def report_document(report: TuningReport) -> dict[str, Any]:
    """Return the report as a JSON document (``tritonpipe tune -o json``).

    JSON has no infinity: a p99 that no request met is null.
    """
    document: dict[str, Any] = _json_value(asdict(report))
    return document


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {_KEYS.get(key, key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
