"""Check the connections: every reference must name an existing tensor of fitting type and shape."""

from __future__ import annotations

from collections.abc import Iterator

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.suggestions import did_you_mean
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .defaults import TOKENIZER
from .graph import PIPELINE, Graph, Input, PublicTensor, Reference, Role, Step, Tensor


def check_wiring(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Yield findings about references between steps, the pipeline's inputs and its outputs."""
    if graph.entry is not None:
        yield from _entry(graph)
        return
    yield from _circle(graph)
    for step in graph.steps:
        for entry in step.inputs:
            yield from _input(graph, step, entry)
        if not step.inputs:
            yield Finding(
                f"{step.path}.inputs",
                f"required, because without a tokenizer the inputs of step '{step.name}' "
                "are unknown; list each input tensor",
                code=FindingCode.REQUIRED,
            )
    yield from _unread(graph)
    yield from _public(pipeline, graph)


def _entry(graph: Graph) -> Iterator[Finding]:
    known = [step.name for step in graph.models]
    if graph.entry not in known:
        yield Finding(
            "spec.ensemble.entryPoint",
            _no_step(graph, str(graph.entry), "", known),
            code=FindingCode.UNKNOWN_STEP,
        )


def _no_step(graph: Graph, name: str, tensor: str, known: list[str]) -> str:
    """Return the message for a reference to a step that does not exist.

    ``tensor`` (with its dot) is the requested tensor.
    """
    meant = next(
        (step.name for step in graph.models if step.model_name == name and step.name in known), None
    )
    if meant is not None:
        return f"{name!r} is a model name, not a step name; use {meant}{tensor}"
    if any(step.name == name for step in graph.auxiliary):
        return (
            f"{name!r} is an auxiliary model and cannot be connected; move that model to "
            f"spec.steps, or use one of: {', '.join(known)}"
        )
    return (
        f"step {name!r} does not exist; use one of: "
        f"{', '.join(known)}{did_you_mean(name, known, after=tensor)}"
    )


def _circle(graph: Graph) -> Iterator[Finding]:
    """Return the steps that wait for each other."""
    position = {step.name: index for index, step in enumerate(graph.steps)}
    for step in graph.steps:
        for entry in step.inputs:
            if (
                entry.source is not None
                and position.get(entry.source.step, -1) >= position[step.name]
            ):
                origin = (
                    "the same step"
                    if entry.source.step == step.name
                    else f"{entry.source.step}, which itself depends on {step.name}"
                )
                yield Finding(
                    entry.path,
                    f"the input reads {entry.source}, an output of {origin}; remove this "
                    "cycle of steps",
                    code=FindingCode.CYCLE,
                )


def _input(graph: Graph, step: Step, entry: Input) -> Iterator[Finding]:
    if entry.source is None:
        if not entry.optional:
            yield Finding(
                entry.path,
                f"input '{entry.tensor.name}' of step '{step.name}' is not connected; set "
                "the from field of this input",
                code=FindingCode.NOT_CONNECTED,
            )
        return
    origin = entry.source.step
    names = [PIPELINE, *(other.name for other in graph.steps)]
    if origin not in names:
        yield Finding(
            entry.path,
            _no_step(graph, origin, f".{entry.source.tensor}", names),
            code=FindingCode.UNKNOWN_STEP,
        )
        return
    made = graph.resolve(entry.source)
    if made is None:
        what, owner = (
            ("input", "the pipeline") if origin == PIPELINE else ("output", f"step {origin!r}")
        )
        yield Finding(
            entry.path,
            f"{owner} has no {what} {entry.source.tensor!r}{_has(graph, entry.source)}",
            code=FindingCode.UNKNOWN_TENSOR,
        )
        return
    if origin == PIPELINE and made.name in graph.optional_inputs and not entry.optional:
        yield Finding(
            entry.path,
            f"the input reads {entry.source}, which requests can omit, but input "
            f"'{entry.tensor.name}' of step '{step.name}' is required; "
            f"{_make_both_alike(step)}",
            code=FindingCode.OPTIONAL_MISMATCH,
        )
    yield from _fits(graph, step, entry, made)


def _make_both_alike(step: Step) -> str:
    """Return the remedy if a required input reads an optional one."""
    remove = "remove optional from the pipeline's input"
    if step.role is Role.TOKENIZER or step.repeats == TOKENIZER:
        return remove
    return f"set optional: Enabled also on this input, or {remove}"


def _has(graph: Graph, reference: Reference) -> str:
    """Return which tensors the named step, or the pipeline, has instead, to follow other text."""
    step = graph.step(reference.step)
    tensors: tuple[Tensor, ...] = graph.inputs if step is None else step.outputs
    names = [tensor.name for tensor in tensors]
    if not names:
        return "; it has none"
    similar = did_you_mean(reference.tensor, names, before=f"{reference.step}.")
    kind = "inputs" if step is None else "outputs"
    return f"; use one of its {kind}: {', '.join(names)}{similar}"


def full_dims(dims: tuple[int, ...], batched: bool) -> tuple[int, ...]:
    """Return the shape with the batch axis."""
    return (-1, *dims) if batched else dims


def _fits(graph: Graph, step: Step, entry: Input, made: Tensor) -> Iterator[Finding]:
    """Types and shapes of both sides.

    Triton compares whole shapes as soon as one side has no batch axis (ensemble_utils.cc).
    """
    assert entry.source is not None
    read = entry.tensor
    origin = graph.step(entry.source.step)
    makes = graph.max_batch_size > 0 if origin is None else origin.max_batch_size > 0
    reads = step.max_batch_size > 0
    if made.data_type is not read.data_type:
        yield Finding(
            entry.path,
            f"inconsistent data type: {read.name} reads {read.data_type.value}, but {entry.source}"
            f" is {made.data_type.value}; declare the same dataType for both",
            code=FindingCode.DATA_TYPE_MISMATCH,
        )
    same = makes == reads
    left, right = (
        (made.dims, read.dims)
        if same
        else (full_dims(made.dims, makes), full_dims(read.dims, reads))
    )
    note = "" if same else " (with the batch axis, since only one side batches)"
    if len(left) != len(right):
        yield Finding(
            entry.path,
            f"inconsistent shape: {read.name} has dims {list(right)}, but {entry.source} has"
            f" {list(left)}{note}; both must have the same number of dims"
            + _axis_of_rows(entry, made, makes, reads),
            code=FindingCode.SHAPE_MISMATCH,
        )
    elif any(a != b and -1 not in (a, b) for a, b in zip(left, right, strict=True)):
        yield Finding(
            entry.path,
            f"inconsistent shape: {read.name} has dims {list(right)}, but {entry.source} has"
            f" {list(left)}{note}; the dims must match, except where one of them is -1 (any"
            " length)",
            code=FindingCode.SHAPE_MISMATCH,
        )


def _axis_of_rows(entry: Input, made: Tensor, makes: bool, reads: bool) -> str:
    """Return a suggestion if one side has one dim more.

    The axis of rows was written where it is added, or left out where it is not.
    """
    read = entry.tensor
    if makes and reads:
        longer, name = (
            (read.dims, read.name)
            if len(read.dims) > len(made.dims)
            else (made.dims, str(entry.source))
        )
        if abs(len(read.dims) - len(made.dims)) == 1 and longer[0] == -1:
            return (
                f"; dims describe one row, so if the first -1 of {name} is the batch axis, "
                f"use {list(longer[1:])}"
            )
        return ""
    left, right = full_dims(made.dims, makes), full_dims(read.dims, reads)
    short, name = (right, read.name) if len(right) < len(left) else (left, str(entry.source))
    if abs(len(left) - len(right)) == 1:
        return (
            f"; with maxBatchSize 0, dims are the whole shape, rows first; use {[-1, *short]} for"
            f" {name}, or set maxBatchSize"
        )
    return ""


def _read(graph: Graph) -> list[Reference]:
    """Return every tensor that a step or a client reads."""
    fed = [
        entry.source for step in graph.steps for entry in step.inputs if entry.source is not None
    ]
    return [*fed, *(output.source for output in graph.outputs)]


def _unread(graph: Graph) -> Iterator[Finding]:
    """Find steps that do not contribute to the output, which Triton rejects.

    An ensemble step needs both maps, and every tensor that is written must be read.
    """
    references = _read(graph)
    read = {reference.step for reference in references}
    # An unresolved reference was meant for one of the steps, so only the reference is reported.
    lost = any(graph.resolve(reference) is None for reference in references)
    for step in graph.steps:
        if step.name not in read and not lost:
            own = [f"{step.name}.{tensor.name}" for tensor in step.outputs]
            example = ", ".join(own) or (
                f"{TOKENIZER}.input_ids" if step.role is Role.TOKENIZER else ""
            )
            yield Finding(
                step.path,
                f"the outputs of step '{step.name}' are not used by any step or by the "
                "pipeline's outputs; "
                + (
                    f"connect an output with from: {example}, or list an output in ensemble.outputs"
                    if example
                    else "declare its outputs, and connect an output with a from field"
                ),
                code=FindingCode.UNUSED,
            )
        elif step.inputs and all(entry.source is None for entry in step.inputs):
            yield Finding(
                f"{step.path}.inputs",
                f"no input of step '{step.name}' is connected; set the from field of at "
                "least one input",
                code=FindingCode.NOT_CONNECTED,
            )


def _public(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    declared = {tensor.name: index for index, tensor in enumerate(pipeline.spec.ensemble.inputs)}
    for tensor in graph.inputs:
        path = (
            f"spec.ensemble.inputs[{declared[tensor.name]}]"
            if tensor.name in declared
            else "spec.tokenizer.inputs.text"
        )
        if any(output.tensor.name == tensor.name for output in graph.outputs):
            yield Finding(
                path,
                f"{tensor.name!r} is also an output of the pipeline; choose another name for the"
                " input",
                code=FindingCode.DUPLICATE,
            )
        if tensor.name in declared and Reference(PIPELINE, tensor.name) not in _read(graph):
            yield Finding(
                path,
                f"no step reads input '{tensor.name}'; remove that input, or set from: "
                f"pipeline.{tensor.name} in a step",
                code=FindingCode.UNUSED,
            )
    spelt: dict[str, str] = {}
    for tensor in graph.inputs:
        other = spelt.setdefault(tensor.name.lower(), tensor.name)
        if other != tensor.name and tensor.name not in declared:
            reader = next(
                entry.path
                for step in graph.steps
                for entry in step.inputs
                if entry.source == Reference(PIPELINE, tensor.name)
            )
            yield Finding(
                reader,
                f"pipeline.{tensor.name} differs from the input {other} only in case; use "
                f"pipeline.{other}",
                code=FindingCode.UNKNOWN_TENSOR,
            )
    for output in graph.outputs:
        yield from _output(graph, output)
    answered: dict[Reference, str] = {}
    for output in graph.outputs:
        if output.source in answered:
            yield Finding(
                output.path,
                f"{output.source} is already the output {answered[output.source]!r}, and "
                "Triton maps each tensor only once; remove one of the two outputs",
                code=FindingCode.DUPLICATE,
            )
        answered.setdefault(output.source, output.tensor.name)


def _output(graph: Graph, output: PublicTensor) -> Iterator[Finding]:
    source = output.source
    if source.step == PIPELINE:
        yield Finding(
            output.path,
            f"{source} is an input of the pipeline, but an output must come from a step; use"
            " STEP.OUTPUT",
            code=FindingCode.UNKNOWN_STEP,
        )
        return
    origin = graph.step(source.step)
    if origin is None:
        known = [step.name for step in graph.steps]
        yield Finding(
            output.path,
            _no_step(graph, source.step, f".{source.tensor}", known),
            code=FindingCode.UNKNOWN_STEP,
        )
    elif graph.resolve(source) is None:
        yield Finding(
            output.path,
            f"step {source.step!r} has no output {source.tensor!r}{_has(graph, source)}",
            code=FindingCode.UNKNOWN_TENSOR,
        )
