"""Spans of the Python steps: Triton runs the operator's file around the step's own model.py."""

from __future__ import annotations

from dataclasses import replace

from triton_pipelines.api.loadfetch import FetchKind
from triton_pipelines.api.observability import Tracing
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .graph import Step
from .tokenizer_settings import prefixed

# Not a name that a user's module is likely to have; the file imports the step's model.py.
TRACED_FILE = "tritonpipe_traced.py"


def traced_step(step: Step, tracing: Tracing, pipeline: InferencePipeline) -> Step:
    """Return the step with spans, if it runs in the python backend.

    A folder with code may consist of numbered versions, which are not known before it is fetched;
    such a step stays without spans.
    """
    from_folder = any(item.slot == "code" and item.kind is FetchKind.MODEL for item in step.fetches)
    if not step.python or from_folder:
        return step
    return replace(
        step,
        python_file=TRACED_FILE,
        parameters={
            **step.parameters,
            **prefixed(
                {
                    "trace_endpoint": tracing.otlp_endpoint,
                    "trace_service": pipeline.name,
                    "trace_namespace": pipeline.namespace,
                }
            ),
        },
    )
