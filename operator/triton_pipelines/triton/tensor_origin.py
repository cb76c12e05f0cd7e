"""Find the field of the resource from which a wrong tensor originates. Pure.

Triton passes on whatever a Python step returns, of any type and shape. If another step reads it,
the error names that correct step; if clients read it, there is no error at all. In both cases the
message is extended by the step that produced the tensor and by what that step declares (measured
with Triton 2.51.0).
"""

from __future__ import annotations

import re
from typing import Final

from triton_pipelines.compile.graph.graph import PIPELINE, Graph, Reference

from .faulty_tensor import FaultyTensor

# Triton adds a note to shape errors for authors of config.pbtxt, which does not apply here.
_NOTE: Final = re.compile(r"\.? NOTE: Setting a non-zero max_batch_size .*", re.DOTALL)


def with_tensor_origin(graph: Graph, message: str, tensor: FaultyTensor | None) -> str:
    """Return the reason why an inference failed, extended by the step that produced the tensor.

    Args:
        graph: The pipeline's graph.
        message: Why the inference failed.
        tensor: The tensor at fault. Without one, or if no step produced it, the message is
            returned unchanged.
    """
    source = _source_of(graph, tensor) if tensor is not None else None
    if source is None or source.step == PIPELINE:
        return message
    step = next((one for one in (*graph.steps, *graph.auxiliary) if one.name == source.step), None)
    declared = step.output(source.tensor) if step is not None else None
    if step is None or declared is None:
        return message
    return (
        f"{_NOTE.sub('', message.rstrip())} (produced by {step.path}: step '{step.name}' "
        f"must return its output as declared, {declared})"
    )


def _source_of(graph: Graph, tensor: FaultyTensor) -> Reference | None:
    if not tensor.reader:
        return next(
            (output.source for output in graph.outputs if output.tensor.name == tensor.name), None
        )
    reader = next((step for step in graph.models if step.model_name == tensor.reader), None)
    inputs = reader.inputs if reader is not None else ()
    return next((one.source for one in inputs if one.tensor.name == tensor.name), None)
