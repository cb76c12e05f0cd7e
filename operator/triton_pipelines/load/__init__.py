"""Load on a model that Triton serves: open and closed loop, percentiles, and where the time goes.

Stands alone: knows Triton's inference protocols and statistics, nothing of pipelines or clusters.
"""

from triton_pipelines.load.engine import blocking, run
from triton_pipelines.load.spec import Arrivals, LoadError, LoadSpec, Progress, Protocol, Target
from triton_pipelines.load.statistics import StepFigures, steps
from triton_pipelines.load.summary import LoadResult, Stability, Summary, stability, summarise

__all__ = [
    "Arrivals",
    "LoadError",
    "LoadResult",
    "LoadSpec",
    "Progress",
    "Protocol",
    "Stability",
    "StepFigures",
    "Summary",
    "Target",
    "blocking",
    "run",
    "stability",
    "steps",
    "summarise",
]
