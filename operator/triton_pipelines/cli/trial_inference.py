"""Run the operator's test inference against a local server.

What would keep a pipeline from becoming Ready is found before it is in a cluster.
"""

from __future__ import annotations

import asyncio

from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.example_request import example_of
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.triton.probe import probe
from triton_pipelines.triton.tensor_origin import with_tensor_origin


def trial_inference_error(pipeline: InferencePipeline, graph: Graph, address: str) -> str | None:
    """Return why the test inference fails, for people.

    ``None`` if it succeeds, or if no request can be generated.

    Args:
        pipeline: the resource.
        graph: its graph.
        address: ``host:port`` of the server's gRPC API.
    """
    # Imported late: it imports the whole reconciler, which other commands need not wait for.
    from triton_pipelines.controllers.pipeline.prober import probe_request

    example = example_of(pipeline, graph)
    if example is None:
        return None
    result = asyncio.run(probe(address, graph.model_name, None, probe_request(example)))
    return result.inference_error and with_tensor_origin(
        graph, result.inference_error, result.faulty_tensor
    )
