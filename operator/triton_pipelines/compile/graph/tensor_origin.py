"""Find the field of the resource from which a wrong tensor originates. Pure.

Triton passes on whatever a python step returns, of any type and shape. If another step reads it,
the error names that correct step; if clients read it, there is no error at all. In both cases the
message is extended by the step that produced the tensor and by what that step declares (measured
with Triton 2.51.0).
"""

from __future__ import annotations

import re
from typing import Final

from .graph import PIPELINE, Graph, Reference

# Triton's errors (core: infer_request.cc) about an input that an ensemble passes to a model.
_READ: Final = (
    re.compile(
        r"inference input '(?P<input>[^']+)' data-type is '\w+', but model "
        r"'(?P<model>[^']+)' expects"
    ),
    re.compile(r"unexpected shape for input '(?P<input>[^']+)' for model '(?P<model>[^']+)'"),
    re.compile(
        r"input byte size mismatch for input '(?P<input>[^']+)' for model '(?P<model>[^']+)'"
    ),
    re.compile(
        r"input '(?P<input>[^']+)' has no shape but model requires batch dimension for "
        r"'(?P<model>[^']+)'"
    ),
    re.compile(
        r"for model '(?P<model>[^']+)'\. Got input\(s\) .* missing required input\(s\) "
        r"\['(?P<input>[^']+)'"
    ),
)
# Errors from checking the outputs of a probe (triton.probe).
_ANSWERED: Final = re.compile(r"output (?P<output>\S+) (is|has) ")
# Triton adds a note to shape errors for authors of config.pbtxt, which does not apply here.
_NOTE: Final = re.compile(r"\.? NOTE: Setting a non-zero max_batch_size .*", re.DOTALL)


def with_tensor_origin(graph: Graph, message: str) -> str:
    """Return the reason why an inference failed, extended by the step that produced the tensor.

    ``message`` is returned unchanged if it names no tensor that a step produced.
    """
    source = _source_of(graph, message)
    if source is None:
        return message
    step = next((one for one in (*graph.steps, *graph.auxiliary) if one.name == source.step), None)
    tensor = step.output(source.tensor) if step is not None else None
    if step is None or tensor is None:
        return message
    return (
        f"{_NOTE.sub('', message.rstrip())} (produced by {step.path}: step {step.name} declares its"
        f" output as {tensor}, and must return exactly that)"
    )


def _source_of(graph: Graph, message: str) -> Reference | None:
    if found := _ANSWERED.match(message):
        return next(
            (output.source for output in graph.outputs if output.tensor.name == found["output"]),
            None,
        )
    for pattern in _READ:
        if found := pattern.search(message):
            reader = next(
                (step for step in graph.models if step.model_name == found["model"]), None
            )
            source = (
                next(
                    (one.source for one in reader.inputs if one.tensor.name == found["input"]), None
                )
                if reader is not None
                else None
            )
            return source if source is not None and source.step != PIPELINE else None
    return None
