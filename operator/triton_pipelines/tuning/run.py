"""One tuning run: profile, predict, choose, verify, report."""

from __future__ import annotations

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.pipeline.graph import Graph

from .contract import Progress, Report, Settings, TuneError, TuneTarget, silent


async def tune(target: TuneTarget, pipeline: InferencePipeline, graph: Graph, settings: Settings, progress: Progress = silent) -> Report:
    """Tune a pipeline on a server that runs it and serves nobody else; the server is left with the setting it had.

    Raises:
        TuneError: the pipeline cannot be tuned, or the server failed; the message says what to do.
    """
    raise TuneError("not built yet")
