"""Find the outputs of ONNX runners that are only pooled, so their padding is never read.

A request with several texts is padded to its longest one. The runner computes each text at its own
length if the output may have any value at padding. Clients that call the step's own model instead
of the pipeline get 0 there.
"""

from __future__ import annotations

import json
from dataclasses import replace

from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.postprocess import POOLINGS, PostprocessType

from .graph import Graph, Implementation, Input, Reference, Step
from .tokenizer_settings import prefixed

_TYPE, _INPUT, _MASK, _PADS = (
    f"{RUNTIME_PARAMETER_PREFIX}{key}" for key in ("type", "input", "mask", "pad_inputs")
)


def with_pooled_outputs(graph: Graph) -> Graph:
    """Return the graph with the parameter ``pooled_outputs`` of each ONNX runner that has any."""
    if any(step.implementation is Implementation.CODE for step in graph.models):
        return graph  # Custom code can call any model, and read its outputs.
    repeated = {step.repeats for step in graph.steps}
    return replace(
        graph,
        steps=tuple(
            step if step.name in repeated else _with_pooled(step, graph) for step in graph.steps
        ),
    )


def _with_pooled(step: Step, graph: Graph) -> Step:
    if step.implementation is not Implementation.ONNX_RUNNER:
        return step
    names = [tensor.name for tensor in step.outputs if _is_pooled(step, tensor.name, graph)]
    if not names:
        return step
    parameters = {**step.parameters, **prefixed({"pooled_outputs": json.dumps(names)})}
    return replace(step, parameters=parameters)


def _is_pooled(step: Step, output: str, graph: Graph) -> bool:
    """Return whether pooling steps read an output, and neither other steps nor clients do."""
    source = Reference(step.name, output)
    readers = [
        (reader, entry)
        for reader in graph.steps
        for entry in reader.inputs
        if entry.source == source
    ]
    if any(public.source == source for public in graph.outputs):
        return False
    return bool(readers) and all(_pools(reader, entry, step) for reader, entry in readers)


def _pools(reader: Step, entry: Input, step: Step) -> bool:
    """Return whether a reader ignores what an output of a step contains at padding.

    The first token is never padding. A mean ignores it if its mask is an input of the step that is
    padded with 0.
    """
    if reader.implementation is not Implementation.POSTPROCESS or reader.repeats is not None:
        return False
    kind = PostprocessType(reader.parameters[_TYPE])
    if kind not in POOLINGS or reader.parameters[_INPUT] != entry.tensor.name:
        return False
    if kind is PostprocessType.FIRST_TOKEN:
        return True
    pads = json.loads(step.parameters[_PADS])
    masks = {own.source for own in step.inputs if pads.get(own.tensor.name) == 0}
    mask = next(own for own in reader.inputs if own.tensor.name == reader.parameters[_MASK])
    return mask.source in masks
