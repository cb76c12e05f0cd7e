"""Load on a model that Triton serves: open and closed loop, percentiles, and where the time goes.

Stands alone: knows Triton's inference protocols and statistics, nothing of pipelines or clusters.
"""

from triton_pipelines.tools.loadgen.engine import blocking, run
from triton_pipelines.tools.loadgen.load_spec import (
    Arrivals,
    LoadError,
    LoadSpec,
    Progress,
    Protocol,
    Target,
)
from triton_pipelines.tools.loadgen.summary import (
    LoadResult,
    Stability,
    Summary,
    stability,
    summarise,
)
from triton_pipelines.tools.loadgen.triton_statistics import StepFigures, steps

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
