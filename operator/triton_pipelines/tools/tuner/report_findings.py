"""Everything that a run knows at its end, from which its report is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.graph import Graph

from .acceptance import SettingDecision, SettingMeasurement
from .calibration import StepExecutions
from .options import TuningOptions
from .padding_cost import PaddingRanking
from .prediction import PipelineModel
from .selection import PredictedSetting
from .settings import BatchingSetting
from .workload import Workload


@dataclass(frozen=True, slots=True)
class TuningFindings:
    """The results of a run."""

    pipeline: InferencePipeline
    """The resource."""
    graph: Graph
    """Its compiled graph."""
    options: TuningOptions
    """What it was tuned for."""
    slo: float
    """p99 SLO in seconds."""
    latency_budget: float
    """SLO minus network and queue, in seconds."""
    work: Workload
    """The requests."""
    pipe: PipelineModel
    """The calibrated model of the pipeline."""
    predictions: Sequence[PredictedSetting]
    """Predicted rates, best first."""
    grid: Sequence[BatchingSetting]
    """All settings that were considered."""
    measured: Sequence[SettingMeasurement]
    """Measurements in their order; the first is the calibration."""
    executed: Sequence[Mapping[str, StepExecutions]]
    """Executions of the steps during each measurement."""
    decision: SettingDecision
    """The setting to recommend."""
    current: BatchingSetting
    """The setting of the resource."""
    notes: tuple[str, ...]
    """Notes of the run itself."""
    padding: PaddingRanking | None = None
    """Costs of the padding modes, if known."""
    padding_refused: str = ""
    """Why the cheapest padding mode was refused; empty: it was not."""
    noise: str = ""
    """Why nothing can be concluded from the measurements; empty: it can."""
