"""Move pooling from the postprocess step into the ONNX file of the step that it reads.

The loader adds the operators to the file (``loader/model_pooling.py``). Pooling stays in a step
unless the resource asks for it (``spec.postprocess.placement``), because the placement changes the
rendered files, and an operator upgrade must not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.steps import Platform
from triton_pipelines.api.tensors import INTEGER_TYPES, DataType

from .defaults import BACKENDS, POSTPROCESS
from .graph import Graph, Implementation, Input, ModelPooling, Reference, Step, Tensor

_MASK, _NORMALIZE = (f"{RUNTIME_PARAMETER_PREFIX}{key}" for key in ("mask", "normalize"))
ONNX_ENDING = ".onnx"
_POOLED = frozenset({DataType.FP16, DataType.FP32, DataType.FP64})
"""Element types that the added operators read."""


def has_onnx_file(step: Step) -> bool:
    """Return whether the loader fetches and checks an ONNX file for a step."""
    return (
        step.source is not None
        and (step.file_name or "").endswith(ONNX_ENDING)
        and step.implementation is not Implementation.CODE
        and step.tokenizer is None
    )


def file_outputs(step: Step) -> tuple[Tensor, ...]:
    """Return the outputs of a step's file as the loader fetches it."""
    pooling = step.pooling
    if pooling is None:
        return step.outputs
    return tuple(pooling.tokens if one == pooling.embedding else one for one in step.outputs)


def with_model_pooling(graph: Graph) -> Graph:
    """Return the graph with pooling in the model and without a postprocess step.

    The graph stays as it is if that is not possible; :func:`pooling_blocker` returns why.
    """
    post = graph.step(POSTPROCESS)
    if post is None or pooling_blocker(graph):
        return graph
    (embedding,), read = post.outputs, post.inputs[0].source
    assert read is not None
    old, new = Reference(post.name, embedding.name), Reference(read.step, embedding.name)

    def moved(source: Reference | None) -> Reference | None:
        return new if source == old else source

    def rewired(step: Step) -> Step:
        inputs = tuple(replace(one, source=moved(one.source)) for one in step.inputs)
        step = replace(step, inputs=inputs)
        return _pooled(step, read.tensor, post, embedding) if step.name == read.step else step

    return replace(
        graph,
        steps=tuple(rewired(step) for step in graph.steps if step.name != post.name),
        outputs=tuple(
            replace(one, source=new) if one.source == old else one for one in graph.outputs
        ),
    )


def _pooled(step: Step, name: str, post: Step, embedding: Tensor) -> Step:
    """Return the step with its output ``name`` replaced by the embedding."""
    tokens = step.output(name)
    assert tokens is not None
    mask = _mask_input(step, post) if _MASK in post.parameters else None
    return replace(
        step,
        outputs=tuple(embedding if one == tokens else one for one in step.outputs),
        pooling=ModelPooling(
            tokens=tokens,
            mask=mask.tensor.name if mask is not None else None,
            embedding=embedding,
            normalize=post.parameters[_NORMALIZE] == "Enabled",
        ),
    )


def _mask_input(step: Step, post: Step) -> Input | None:
    """Return the step's own input that reads the mask of the postprocess step."""
    mask = next(one for one in post.inputs if one.tensor.name == post.parameters[_MASK])
    return next((one for one in step.inputs if one.source == mask.source), None)


def pooling_blocker(graph: Graph) -> str:
    """Return why the graph's postprocess step cannot move into a model; "" if it can."""
    post = graph.step(POSTPROCESS)
    assert post is not None
    if graph.entry is not None:
        return "ensemble.entryPoint calls the postprocess step itself"
    return next(_blockers(graph, post), "")


def _blockers(graph: Graph, post: Step) -> Iterator[str]:
    """Yield what keeps pooling in a step."""
    source = post.inputs[0].source
    step = graph.step(source.step) if source is not None else None
    tokens = step.output(source.tensor) if step is not None and source is not None else None
    if source is None or step is None or tokens is None:
        yield f"{source} is not an output of a step"
        return
    runs_onnx = (
        step.implementation is Implementation.ONNX_RUNNER or step.backend == BACKENDS[Platform.ONNX]
    )
    if not (runs_onnx and has_onnx_file(step)):
        yield f"step {step.name} does not run an ONNX file that the loader fetches"
    if step.max_batch_size == 0:
        yield f"{step.path}.maxBatchSize is 0, but pooling in the model needs a batch axis"
    if step.sequences is not None:
        yield f"{step.path} has sequenceBatching"
    if "output" in (step.config_patch or {}):
        yield f"{step.path}.configPatch sets output"
    if tokens.reshape is not None:
        yield f"{source} is reshaped"
    if len(tokens.dims) != 2 or tokens.dims[-1] < 1:
        yield f"{source} has dims {list(tokens.dims)}, but [-1, D] is needed"
    if tokens.data_type not in _POOLED:
        types = ", ".join(sorted(_POOLED))
        yield f"{source} is {tokens.data_type.value}, but one of {types} is needed"
    yield from _reader_blockers(graph, post, step, source)
    yield from _name_blockers(step, post)
    yield from _mask_blockers(step, post)


def _reader_blockers(graph: Graph, post: Step, step: Step, source: Reference) -> Iterator[str]:
    """Yield who else needs the tensor or the step that would be gone."""
    readers = [
        one.name
        for one in graph.steps
        if one.name != post.name and any(entry.source == source for entry in one.inputs)
    ]
    if readers:
        yield f"step {readers[0]} also reads {source}"
    public = [one.tensor.name for one in graph.outputs if one.source == source]
    if public:
        yield f"the pipeline's output {public[0]} also reads {source}"
    repeating = next((one for one in graph.steps if one.repeats in (step.name, post.name)), None)
    if repeating is not None:
        yield f"step {repeating.name} repeats {repeating.repeats}"


def _name_blockers(step: Step, post: Step) -> Iterator[str]:
    name = post.outputs[0].name
    if step.output(name) is not None or any(one.tensor.name == name for one in step.inputs):
        yield f"step {step.name} already has a tensor {name}"


def _mask_blockers(step: Step, post: Step) -> Iterator[str]:
    if _MASK not in post.parameters:
        return  # the first token needs no mask
    mask = _mask_input(step, post)
    if mask is None:
        source = next(
            one.source for one in post.inputs if one.tensor.name == post.parameters[_MASK]
        )
        yield f"step {step.name} does not read the mask {source}"
        return
    tensor = mask.tensor
    if mask.optional or tensor.reshape is not None or len(tensor.dims) != 1:
        yield f"input {tensor.name} of step {step.name} is optional, reshaped or not [-1]"
    if tensor.data_type not in INTEGER_TYPES:
        yield f"input {tensor.name} of step {step.name} is {tensor.data_type.value}, not an integer"
