"""Build and check steps that run the model of another step once more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.repeated_steps import RepeatedStep
from triton_pipelines.api.suggestions import did_you_mean
from triton_pipelines.api.v1alpha1 import InferencePipeline, PipelineSpec

from .defaults import TOKENIZER
from .graph import Graph, Reference, Role, Step


def tokenizer_names(spec: PipelineSpec) -> frozenset[str]:
    """Return the names of the steps that run the tokenizer."""
    repeated = (one.name for one in spec.repeated_steps if one.step == TOKENIZER)
    return frozenset({TOKENIZER, *repeated})


def repeated_steps(spec: PipelineSpec, steps: Sequence[Step]) -> list[Step]:
    """Return the repeated steps; those of an unknown step are left to the checks."""
    by_name = {step.name: step for step in steps}
    return [
        _repeated(declared, by_name[declared.step], f"spec.repeatedSteps[{index}]")
        for index, declared in enumerate(spec.repeated_steps)
        if declared.step in by_name
    ]


def _repeated(declared: RepeatedStep, original: Step, path: str) -> Step:
    places = {one.name: index for index, one in enumerate(declared.inputs)}
    sources = {one.name: Reference.parse(one.from_) for one in declared.inputs}
    inputs = tuple(
        replace(
            entry,
            source=sources.get(entry.tensor.name),
            path=f"{path}.inputs[{places[entry.tensor.name]}]"
            if entry.tensor.name in places
            else f"{path}.inputs",
        )
        for entry in original.inputs
    )
    return replace(
        original,
        name=declared.name,
        role=Role.STEP,
        inputs=inputs,
        path=path,
        fetches=(),
        repeats=original.name,
    )


def check_repeated(pipeline: InferencePipeline, graph: Graph) -> Iterator[Finding]:
    """Yield repeated steps whose step or inputs do not exist, or that are padded differently."""
    spec = pipeline.spec
    originals = {step.name: step for step in graph.steps if step.repeats is None}
    for index, declared in enumerate(spec.repeated_steps):
        path = f"spec.repeatedSteps[{index}]"
        original = originals.get(declared.step)
        if original is None:
            yield _unknown_step(declared, f"{path}.step", spec, list(originals))
            continue
        if original.sequences is not None:
            yield Finding(
                f"{path}.step",
                f"step '{declared.step}' has sequenceBatching, so Triton would mix the "
                "requests of both steps in one sequence; declare a step with a separate "
                "model",
                code=FindingCode.FIELD_COMBINATION,
            )
        names = [entry.tensor.name for entry in original.inputs]
        for place, given in enumerate(declared.inputs):
            if given.name not in names:
                yield Finding(
                    f"{path}.inputs[{place}].name",
                    f"step '{declared.step}' has no input {given.name!r}; use one of its inputs: "
                    f"{', '.join(names)}{did_you_mean(given.name, names)}",
                    code=FindingCode.UNKNOWN_TENSOR,
                )
    yield from _tokens(graph, originals)


def _unknown_step(
    declared: RepeatedStep, path: str, spec: PipelineSpec, known: list[str]
) -> Finding:
    others = {
        **dict.fromkeys((one.name for one in spec.repeated_steps), "a repeated step itself"),
        **dict.fromkeys((one.name for one in spec.auxiliary_models), "an auxiliary model"),
    }
    problem = (
        f"{declared.step!r} is {others[declared.step]}"
        if declared.step in others
        else f"step {declared.step!r} does not exist"
    )
    return Finding(
        path,
        f"{problem}; use one of: {', '.join(known)}{did_you_mean(declared.step, known)}",
        code=FindingCode.UNKNOWN_STEP,
    )


def _tokens(graph: Graph, originals: dict[str, Step]) -> Iterator[Finding]:
    """Yield inputs that read tokens in only one of two steps that run the same model.

    Rows of tokens are padded, or the file is adapted to ragged batches, for the whole model.
    """
    tokenizer = graph.tokenizer
    if tokenizer is None or tokenizer.tokenizer is None:
        return
    for step in graph.steps:
        original = originals.get(step.repeats or "")
        if original is None:
            continue
        for entry, first in zip(step.inputs, original.inputs, strict=True):
            sources = [one.source for one in (entry, first) if one.source is not None]
            read = {source.step in graph.tokenizers for source in sources}
            if len(read) > 1:
                yield Finding(
                    entry.path,
                    f"the input reads {entry.source}, but the same input of step "
                    f"'{original.name}' reads {first.source}; connect both inputs to "
                    "tokens, or neither",
                    code=FindingCode.FIELD_COMBINATION,
                )
