"""Check the tokenizer: its outputs and texts, the padding, and the TensorRT profiles it needs."""

from __future__ import annotations

from collections.abc import Iterator

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.suggestions import did_you_mean
from triton_pipelines.api.tensors import INTEGER_TYPES, TokenTensor
from triton_pipelines.api.tokenizer import Padding, Tokenizer, TokenizerType
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import counted

from .defaults import DEFAULT_MAX_LENGTH, USUAL_NAMES
from .effective_padding import PaddingChoice
from .ensemble import ONE_TEXT
from .graph import PIPELINE, Graph, Input, Reference, Step
from .tensorrt_profiles import boxes, uncovered, unfit


def check_tokenizer(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Yield what is wrong with the tokenizer, its tensors and the padding."""
    spec, step = pipeline.spec.tokenizer, graph.tokenizer
    if spec is None or step is None:
        return
    custom = spec.type is TokenizerType.PYTHON
    yield from _declared_outputs(spec, custom)
    if not spec.outputs:
        yield from _undeclared_outputs(graph)
    for tensor in step.outputs:
        if tensor.data_type not in INTEGER_TYPES:
            readers = (
                entry.path
                for other in graph.steps
                for entry in other.inputs
                if entry.source == Reference(step.name, tensor.name)
            )
            yield Finding(
                next(readers, "spec.tokenizer.outputs"),
                f"{tensor.name} is {tensor.data_type.value}, but tokens are INT64 or INT32; "
                "change dataType to INT64 or INT32",
                code=FindingCode.DATA_TYPE_MISMATCH,
            )
    if "KIND_GPU" in step.instances.kinds:
        yield Finding(
            "spec.tokenizer.instances.kind",
            "the tokenizer runs on the CPU, but kind GPU starts one instance per GPU; use CPU, or "
            "omit kind",
            code=FindingCode.GPU_UNAVAILABLE,
        )
    yield from _text_shape(graph, step, custom)
    yield from _padding(pipeline, graph)


def _declared_outputs(spec: Tokenizer, custom: bool) -> Iterator[Finding]:
    """Yield declared outputs of which it is unknown what they carry."""
    for index, output in enumerate(spec.outputs):
        unknown = output.tensor is None and output.name.lower() not in USUAL_NAMES
        if unknown and (not custom or output.dims is None):
            alternative = " if dims is omitted" if custom else ""
            yield Finding(
                f"spec.tokenizer.outputs[{index}].tensor",
                f"required{alternative}, because {output.name!r} is not a known token tensor;"
                f" use one of: {', '.join(TokenTensor)}",
                code=FindingCode.REQUIRED,
            )


def _undeclared_outputs(graph: Graph) -> Iterator[Finding]:
    """Yield inputs that read a token tensor of unknown name."""
    for entry in (entry for reader in graph.steps for entry in reader.inputs):
        source = entry.source
        if source is None or source.step not in graph.tokenizers:
            continue
        if source.tensor.lower() in USUAL_NAMES:
            continue
        # Where the names differ, `from` is written already.
        fix = (
            (
                "set the from field, for example to tokenizer.input_ids, or declare "
                f"{source.tensor} in spec.tokenizer.outputs"
            )
            if source.tensor == entry.tensor.name
            else f"use {', '.join(USUAL_NAMES)}, or an output declared in spec.tokenizer.outputs"
        )
        yield Finding(
            entry.path,
            f"{source.tensor!r} is not a known token tensor; {fix}"
            + did_you_mean(source.tensor, USUAL_NAMES),
            code=FindingCode.UNKNOWN_TENSOR,
        )


def _text_shape(graph: Graph, step: Step, custom: bool) -> Iterator[Finding]:
    if custom:
        return
    for entry in step.inputs:
        made = graph.resolve(entry.source) if entry.source is not None else None
        dims = entry.tensor.dims if made is None else made.dims
        if step.max_batch_size > 0 and dims != ONE_TEXT:
            yield Finding(
                entry.path,
                f"the text has dims {list(dims)}, but with maxBatchSize "
                f"{step.max_batch_size} the tokenizer reads one text per row (dims [1]); "
                f"{_text_remedy(graph, entry)}",
                code=FindingCode.SHAPE_MISMATCH,
            )
    if graph.max_batch_size > 0 and step.max_batch_size == 0:
        yield from _rows_with_texts(graph, step)


def _text_remedy(graph: Graph, entry: Input) -> str:
    """Return what to change so that the tokenizer can read these texts."""
    if entry.source is not None and entry.source.step != PIPELINE:
        return f"change {entry.source.step} to write one text per row"
    if graph.max_batch_size > 0:
        return "omit spec.tokenizer.maxBatchSize to send multiple texts per row"
    return "set spec.tokenizer.maxBatchSize to 0, so that dims include the rows"


def _rows_with_texts(graph: Graph, tokenizer: Step) -> Iterator[Finding]:
    """Yield inputs with one row per row of the request, where each text makes a row.

    Triton rejects a request of a step whose inputs have different numbers of rows.
    """
    texts = [
        str(entry.source.tensor)
        for entry in tokenizer.inputs
        if entry.source is not None and entry.source.step == PIPELINE
    ]
    if not texts:
        return
    for step in graph.steps:
        for entry in step.inputs if step.max_batch_size > 0 else ():
            if entry.source is not None and entry.source.step == PIPELINE:
                yield Finding(
                    entry.path,
                    f"{entry.tensor.name} reads {entry.source} with one row per row of the "
                    f"request, but each text of {' and '.join(texts)} becomes a separate "
                    f"row; declare {texts[0]} with dims [1] in spec.ensemble.inputs, or "
                    f"read {entry.source.tensor} in a step with maxBatchSize: 0",
                    code=FindingCode.SHAPE_MISMATCH,
                )


def _padding(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    yield from _profiles(pipeline, graph)
    if graph.padding is None or graph.padding.chosen is not Padding.RAGGED:
        return
    for path, why in graph.padding.fixed_length.items():
        yield Finding(
            "spec.tokenizer.padding",
            f"Ragged requires steps that accept requests of any length, but {path} does not: {why};"
            " set the field to Fixed, Bucketed or Auto",
            code=FindingCode.PADDING_UNSUPPORTED,
        )


def _profiles(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Check that each TensorRT plan that reads tokens has a profile for every padded batch."""
    for step in graph.steps:
        yield from _unknown_profiles(step) if step.repeats is None else ()
    tokenizer, choice = pipeline.spec.tokenizer, graph.padding
    if tokenizer is None or choice is None or choice.chosen is Padding.AUTO:
        return
    declared = [
        step for step in graph.token_readers if step.lengths is not None and step.lengths.profiles
    ]
    if choice.chosen is Padding.BUCKETED and not (tokenizer.buckets or declared or choice.measured):
        yield Finding(
            "spec.tokenizer.buckets",
            "required for padding Bucketed; list the buckets, or declare lengths.profiles of a"
            " TensorRT plan",
            code=FindingCode.REQUIRED,
        )
    for step in declared:
        yield from _uncovered_lengths(step, tokenizer, choice)


def _unknown_profiles(step: Step) -> Iterator[Finding]:
    count = len(step.lengths.profiles) if step.lengths is not None else 0
    listed = [
        (f"{step.path}.{group.field}.profiles[{place}]", name)
        for group in step.instances.groups
        for place, name in enumerate(group.profiles)
    ]
    for path, name in listed:
        if count and int(name) >= count:
            yield Finding(
                path,
                f"profile {name} does not exist, because {step.path}.lengths.profiles has only "
                f"{counted(count, 'profile')}; use "
                + ("0" if count == 1 else f"a number from 0 to {count - 1}"),
                code=FindingCode.UNKNOWN_PROFILE,
            )


def _uncovered_lengths(
    step: Step, tokenizer: Tokenizer, choice: PaddingChoice
) -> Iterator[Finding]:
    """Yield the batches that no loaded profile of a plan accepts."""
    longest = tokenizer.max_length or DEFAULT_MAX_LENGTH
    profiles, rows = boxes(step.lengths, step.instances.profiles), max(1, step.max_batch_size)

    def finding(path: str, size: int, tokens: int, fix: str) -> Finding:
        loaded = "; ".join(map(str, profiles)) or "none"
        return Finding(
            path,
            f"no profile loaded by {step.path} accepts a batch of {size} rows x {tokens} tokens"
            f" ({loaded}); {fix}",
            code=FindingCode.LENGTH_NOT_COVERED,
        )

    if choice.chosen in (Padding.RAGGED, Padding.LONGEST):
        for tokens, gap in list(uncovered(profiles, longest, rows))[:1]:
            yield finding(
                "spec.tokenizer.padding",
                gap,
                tokens,
                "set padding to Bucketed, or build a plan whose profiles cover all lengths",
            )
        return
    for tokens in choice.buckets or (longest,):
        size = unfit(profiles, tokens, rows)
        if size is None:
            continue
        path = (
            f"spec.tokenizer.buckets[{tokenizer.buckets.index(tokens)}]"
            if tokens in tokenizer.buckets
            else "spec.tokenizer.maxLength"
        )
        yield finding(
            path,
            size,
            tokens,
            "use a length that a profile covers, lower maxBatchSize to that profile's maximum, or"
            " add a profile to instances.profiles",
        )
