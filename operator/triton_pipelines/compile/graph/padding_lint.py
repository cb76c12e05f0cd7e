"""Warn about padding and shapes that cost compute or prevent batching."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.optimization import MAX_TOKENS
from triton_pipelines.api.tokenizer import Padding, Tokenizer
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import listed

from .defaults import DEFAULT_MAX_LENGTH
from .effective_padding import PaddingChoice
from .graph import Graph, Implementation, Input, Step
from .lint_findings import warning


def lint_padding(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Warn about padding that wastes compute, prevents batching or breaks a length limit."""
    spec = pipeline.spec.tokenizer
    # Custom code chooses the lengths itself.
    if graph.padding is None or graph.tokenizer is None or spec is None or spec.python is not None:
        return
    readers = graph.token_readers
    yield from _padding_cost(graph.padding, readers)
    for step in readers:
        yield from _lengths(spec, graph.padding.chosen, step)


def _padding_cost(padding: PaddingChoice, readers: Sequence[Step]) -> Iterator[Finding]:
    """Warn if padding Longest wastes compute or prevents batching, unless it was measured."""
    if padding.chosen is not Padding.LONGEST or padding.measured:
        return
    equal = [
        step
        for step in readers
        if step.implementation is Implementation.BACKEND
        and not any(entry.ragged for entry in step.inputs)
    ]
    if equal:
        yield warning(
            "spec.tokenizer.padding",
            "with Longest, almost every request has a different length, but "
            f"{equal[0].name} batches only requests of the same length; use Fixed or Auto to "
            "batch all requests, or Bucketed to batch requests in the same bucket",
            code=FindingCode.PADDING_PREVENTS_BATCHING,
        )
    if any(step.implementation is Implementation.ONNX_RUNNER for step in readers):
        yield warning(
            "spec.tokenizer.padding",
            "Longest computes padding that Ragged avoids; omit padding to use Auto",
            code=FindingCode.PADDING_COSTS_COMPUTE,
        )


def _lengths(spec: Tokenizer, padding: Padding, step: Step) -> Iterator[Finding]:
    """Warn about rows that are longer or shorter than a step accepts."""
    longest = spec.max_length or DEFAULT_MAX_LENGTH
    low = (step.lengths.min if step.lengths else None) or 1
    high = (step.lengths.max if step.lengths else None) or MAX_TOKENS
    for index, bucket in enumerate(spec.buckets):
        if not low <= bucket <= high:
            yield warning(
                f"spec.tokenizer.buckets[{index}]",
                f"{bucket} is outside {step.path}.lengths ({low} to {high}), so batches of "
                "this length fail; remove this bucket",
                code=FindingCode.LENGTH_OUT_OF_RANGE,
            )
    if longest > high:
        yield warning(
            "spec.tokenizer.maxLength",
            f"{longest} exceeds {step.path}.lengths.max ({high}), so longer texts fail; set "
            f"tokenizer.maxLength to {high}",
            code=FindingCode.LENGTH_OUT_OF_RANGE,
        )
    if padding in (Padding.RAGGED, Padding.LONGEST) and low > 1:
        yield warning(
            f"{step.path}.lengths.min",
            f"{padding.value} does not pad short texts to {low} tokens; use Bucketed or Fixed",
            code=FindingCode.LENGTH_OUT_OF_RANGE,
        )


def lint_shapes(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Warn about variable-length tensors from custom code that a backend cannot batch.

    The backend batches only requests of the same shape, and the code decides the length.
    """
    tokenizer = pipeline.spec.tokenizer
    custom_tokenizer = tokenizer is not None and tokenizer.python is not None
    for step in graph.steps:
        if step.implementation is not Implementation.BACKEND or step.max_batch_size == 0:
            continue
        by_origin: dict[str, list[Input]] = {}
        for entry in step.inputs:
            made = graph.resolve(entry.source) if entry.source else None
            origin = graph.step(entry.source.step) if entry.source else None
            # The operator's tokenizer pads its tensors, and lint_padding checks the padding.
            if (
                origin is not None
                and (origin.name not in graph.tokenizers or custom_tokenizer)
                and made is not None
                and made.variable
                and not entry.ragged
            ):
                by_origin.setdefault(origin.name, []).append(entry)
        for name, entries in by_origin.items():
            shape, vary = ("shape", "varies") if len(entries) == 1 else ("shapes", "vary")
            yield warning(
                entries[0].path,
                f"the {shape} of {listed([str(entry.source) for entry in entries])} {vary} between "
                f"requests, but {step.backend} batches only requests of the same shape, so "
                f"few requests share a batch; return a fixed shape from step {name!r}, and declare "
                f"it in the step's outputs",
                code=FindingCode.SHAPES_PREVENT_BATCHING,
            )
