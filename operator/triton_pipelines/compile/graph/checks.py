"""Check that Triton can load a graph and that it computes what the user intends.

The rules are Triton's own (ensemble_utils.cc, model_config_utils.cc; facts measured against Triton
24.10) and a few of this product. Each message says what to write instead. The rest of Triton's
rules are checked on the rendered configs (:mod:`triton_pipelines.compile.validation`).
"""

from __future__ import annotations

from triton_pipelines.api.base import Finding
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .batching_checks import check_batching
from .example_request import check_example
from .gpu_memory import check_gpu_memory
from .graph import Graph
from .model_checks import check_models
from .name_checks import check_names
from .options import Options
from .postprocess_checks import check_postprocess
from .repeated_steps import check_repeated
from .server_checks import check_server
from .source_checks import check_sources
from .tokenizer_checks import check_tokenizer
from .wiring import check_wiring


def check(pipeline: InferencePipeline, graph: Graph, options: Options) -> list[Finding]:
    """Return every error that would prevent the pipeline from loading or from answering correctly.

    If the result is empty, the pipeline may be rendered.
    """
    return [
        *check_repeated(pipeline, graph),
        *check_wiring(pipeline, graph),
        *check_names(pipeline, graph),
        *check_batching(graph),
        *check_tokenizer(pipeline, graph),
        *check_postprocess(pipeline, graph),
        *check_models(pipeline, graph, options),
        *check_sources(graph),
        *check_server(pipeline, graph, options),
        *check_gpu_memory(pipeline, graph, options),
        *check_example(pipeline, graph),
    ]
