"""The request that the operator would ask every pod, asked of the server here: what would keep a pipeline from becoming Ready is told before it is in a cluster."""

from __future__ import annotations

import asyncio

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.example_request import example_of
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.tensor_origin import with_tensor_origin
from triton_pipelines.triton.probe import probe


def fault_of(pipeline: InferencePipeline, graph: Graph, address: str) -> str | None:
    """Why an example request is not answered as it should be, in words; None where it is, and where no request can be made up.

    Args:
        pipeline, graph: what is served.
        address: ``host:port`` of the server's gRPC API.
    """
    # Late: it leads to the whole reconciler, which commands that never get here need not wait for.
    from triton_pipelines.controllers.pipeline.prober import question_of

    example = example_of(pipeline, graph)
    if example is None:
        return None
    result = asyncio.run(probe(address, graph.model_name, None, question_of(example)))
    return result.inference_error and with_tensor_origin(graph, result.inference_error)
