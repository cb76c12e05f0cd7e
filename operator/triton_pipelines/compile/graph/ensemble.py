"""Connect the steps: public inputs and outputs, and the order of the data flow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from triton_pipelines.api.base import Switch
from triton_pipelines.api.tensors import DataType
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .defaults import POSTPROCESS
from .graph import PIPELINE, Graph, PublicTensor, Reference, Step, Tensor

ONE_TEXT = (1,)
"""Shape of the texts in a row of a batch, unless declared otherwise."""


def declared_text_dims(spec: PipelineSpec) -> tuple[int, ...] | None:
    """Return the shape of the texts that the pipeline's inputs declare; ``None`` if none is."""
    name = spec.tokenizer.inputs.text if spec.tokenizer else ""
    return next((one.dims for one in spec.ensemble.inputs if one.name == name), None)


def text_dims(spec: PipelineSpec, batch: int) -> tuple[int, ...]:
    """Return the shape of the text tensors.

    It is the shape of the pipeline's input if declared, else one text per row. Without a batch axis
    it is any number of texts.
    """
    return declared_text_dims(spec) or (ONE_TEXT if batch > 0 else (-1,))


def has_rows_of_texts(spec: PipelineSpec, batches: Sequence[int]) -> bool:
    """Return whether a row of a request has several texts, such as dims [-1].

    The built-in tokenizer then has no batch axis: it reads the whole request, and each text becomes
    one row of the steps after it, which batch as usual.

    Args:
        spec: The spec of the pipeline.
        batches: Rows of a batch of the model and of each further step.
    """
    tokenizer = spec.tokenizer
    if (
        tokenizer is None
        or tokenizer.python is not None
        or tokenizer.inputs.text_from
        or spec.ensemble.entry_point is not None
    ):
        return False
    rows = spec.ensemble.max_batch_size
    if tokenizer.max_batch_size is not None:
        # Without the ensemble's batch size the pipeline has no batch axis either.
        return tokenizer.max_batch_size == 0 and bool(rows)
    is_batched = min(batches, default=0) > 0 if rows is None else rows > 0
    return is_batched and declared_text_dims(spec) not in (None, ONE_TEXT)


def text_inputs(spec: PipelineSpec, batch: int | None) -> list[Tensor]:
    """Return the public inputs that the tokenizer reads."""
    if spec.tokenizer is None or batch is None:
        return []
    texts = spec.tokenizer.inputs
    dims = text_dims(spec, batch)
    result = [] if texts.text_from else [Tensor(texts.text, DataType.STRING, dims)]
    if texts.text_pair is not None and not texts.text_pair_from:
        result.append(Tensor(texts.text_pair, DataType.STRING, dims))
    return result


def with_entry_point(graph: Graph) -> Graph:
    """Return the graph of a pipeline whose entry point calls the other models itself.

    No steps are wired, and the entry point's tensors are the public ones.
    """
    entry = next((step for step in graph.models if step.name == graph.entry), None)
    if entry is None:
        return graph

    def unwired(step: Step) -> Step:
        return replace(step, inputs=tuple(replace(one, source=None) for one in step.inputs))

    return replace(
        graph,
        max_batch_size=entry.max_batch_size,
        inputs=tuple(one.tensor for one in entry.inputs),
        optional_inputs=frozenset(one.tensor.name for one in entry.inputs if one.optional),
        outputs=tuple(
            PublicTensor(tensor, Reference(entry.name, tensor.name), entry.path)
            for tensor in entry.outputs
        ),
        steps=tuple(map(unwired, graph.steps)),
        auxiliary=tuple(map(unwired, graph.auxiliary)),
    )


def with_ensemble(graph: Graph, spec: PipelineSpec, tokenizer_batch: int | None) -> Graph:
    """Return the graph with steps in data-flow order and with public inputs and outputs."""
    steps = tuple(in_order(graph.steps))
    declared = tuple(Tensor(one.name, one.data_type, one.dims) for one in spec.ensemble.inputs)
    inputs = declared or tuple(_collected(text_inputs(spec, tokenizer_batch), steps))
    graph = replace(
        graph, steps=steps, inputs=inputs, optional_inputs=_optional_inputs(spec, steps)
    )
    return replace(graph, outputs=tuple(_outputs(graph, spec)))


def _collected(texts: Iterable[Tensor], steps: Sequence[Step]) -> list[Tensor]:
    """Return the pipeline's inputs: first the texts, then the other inputs that steps read.

    Each input appears once, as its first reader declares it.
    """
    result = {tensor.name: tensor for tensor in texts}
    for step in steps:
        for entry in step.inputs:
            if entry.source is not None and entry.source.step == PIPELINE:
                result.setdefault(
                    entry.source.tensor,
                    replace(entry.tensor, name=entry.source.tensor, reshape=None),
                )
    return list(result.values())


def _optional_inputs(spec: PipelineSpec, steps: Sequence[Step]) -> frozenset[str]:
    """Return the public inputs that a request may omit.

    They are those declared so, or, if no input is declared, those that every reader may omit.
    """
    if spec.ensemble.inputs:
        declared = spec.ensemble.inputs
        return frozenset(one.name for one in declared if one.optional is Switch.ENABLED)
    readers: dict[str, list[bool]] = {}
    for step in steps:
        for entry in step.inputs:
            if entry.source is not None and entry.source.step == PIPELINE:
                readers.setdefault(entry.source.tensor, []).append(entry.optional)
    return frozenset(name for name, optional in readers.items() if all(optional))


def _outputs(graph: Graph, spec: PipelineSpec) -> list[PublicTensor]:
    if spec.ensemble.outputs:
        result = []
        for index, declared in enumerate(spec.ensemble.outputs):
            source = Reference.parse(declared.from_)
            made = graph.resolve(source) or Tensor(declared.name, DataType.FP32, (-1,))
            tensor = replace(made, name=declared.name, reshape=None)
            result.append(PublicTensor(tensor, source, f"spec.ensemble.outputs[{index}].from"))
        return result
    last = _last(graph)
    if last is None:
        return []
    return [
        PublicTensor(replace(tensor, reshape=None), Reference(last.name, tensor.name), last.path)
        for tensor in last.outputs
    ]


def _last(graph: Graph) -> Step | None:
    """Return the step whose outputs are the pipeline's.

    It is the postprocess, else the last step that no other step reads.
    """
    read = {
        entry.source.step
        for step in graph.steps
        for entry in step.inputs
        if entry.source is not None
    }
    post = graph.step(POSTPROCESS)
    unread = [step for step in graph.steps if step.name not in read]
    return post or (unread[-1] if unread else None)


def in_order(steps: Sequence[Step]) -> list[Step]:
    """Return the steps in the order of the data flow, else in the declared order.

    Steps of a cycle come last, so that the checks find them.
    """
    left, done = list(steps), {PIPELINE}
    result: list[Step] = []
    known = {step.name for step in steps}
    while left:
        ready = next(
            (
                step
                for step in left
                if all(
                    entry.source is None
                    or entry.source.step in done
                    or entry.source.step not in known
                    for entry in step.inputs
                )
            ),
            None,
        )
        if ready is None:
            return [*result, *left]
        left.remove(ready)
        result.append(ready)
        done.add(ready.name)
    return result
