"""The objects that the first iteration applies for a new pipeline. Pure."""

from __future__ import annotations

import datetime as dt

from triton_pipelines.api.crd import stored
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Graph, Options
from triton_pipelines.compile.render import Revision

from .chain import Context
from .compiled_pipeline import CompiledPipeline
from .planner import plan_for
from .reconciled_spec import ReconciledSpec
from .snapshot import Object, Snapshot


def first_objects(
    pipeline: InferencePipeline,
    graph: Graph,
    revision: Revision,
    options: Options,
    control_key: str,
) -> list[Object]:
    """Return these objects in the order in which they are applied.

    ``tritonpipe render --manifests`` prints it.
    """
    # The state's hash of the spec is that of the spec as the API server stores it.
    document = stored(
        pipeline.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    )
    generation = pipeline.metadata.generation or 1
    snapshot = Snapshot(
        {**document, "metadata": {**document["metadata"], "generation": generation}}
    )
    context = Context(options, lambda _uid, _revision: control_key)
    spec = ReconciledSpec(CompiledPipeline(pipeline, graph, revision, revision.server_image))
    return list(plan_for(spec, snapshot, context, dt.datetime.fromtimestamp(0, dt.UTC)).apply)
