"""Compile a spec: parse it, build it with the best known padding, check and render it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.health import InferenceHealth
from triton_pipelines.api.parse import parse
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Graph, Options, build, check
from triton_pipelines.compile.graph.effective_padding import MeasuredPadding
from triton_pipelines.compile.graph.example_request import example_bytes, probe_blocker
from triton_pipelines.compile.graph.fingerprint import cost_fingerprint
from triton_pipelines.compile.graph.padding_choice import uses_auto_padding
from triton_pipelines.compile.graph.resource_patch import patch_pipeline
from triton_pipelines.compile.render import Revision, render
from triton_pipelines.compile.render.errors import RefusedError, RenderError

from . import padding_choices, ragged_fallback
from .snapshot import Snapshot

LARGE_EXAMPLE_BYTES: Final = 256 * 1024
"""A probe has about four copies of its request: arrays, tensors, message and sent data."""


@dataclass(frozen=True, slots=True)
class LazyRevision:
    """A revision of which only the name is kept.

    The content is most of its size. It is rendered again, to the same bytes, when it is read.
    """

    name: str
    render: Callable[[], Revision] = field(compare=False, repr=False)

    @property
    def template(self) -> dict[str, Any]:
        """The pod template."""
        return self.render().template

    @property
    def data(self) -> dict[str, str]:
        """Content of the revision's ConfigMap."""
        return self.render().data


@dataclass(frozen=True)
class CompiledPipeline:
    """A spec that was checked and rendered."""

    pipeline: InferencePipeline
    graph: Graph
    revision: Revision | LazyRevision
    server_image: str
    """Image of Triton in the revision's pods."""

    @cached_property
    def runs_inference(self) -> bool:
        """Whether ready pods are verified by a test inference, and not by their readiness only."""
        health = self.pipeline.spec.health
        return health.inference is InferenceHealth.AUTO and not (
            probe_blocker(self.pipeline, self.graph)
        )

    @cached_property
    def has_large_example(self) -> bool:
        """Whether the request of the test inference takes so much memory that few run at a time."""
        size = example_bytes(self.pipeline, self.graph) if self.runs_inference else 0
        return size > LARGE_EXAMPLE_BYTES


@dataclass(frozen=True, slots=True)
class CompileInputs:
    """All inputs of a compilation other than the spec and the operator's options.

    Equal inputs compile to equal results.
    """

    digests: Mapping[str, str]
    """Hashes of ConfigMap sources by step."""
    image: str | None = None
    """Default server image that this spec was first compiled with; ``None`` if it was not."""
    choices: padding_choices.VerifiedPaddings = field(default_factory=dict)
    """Measured padding modes."""
    ragged_rejections: Mapping[str, str] = field(default_factory=dict)
    """What the loader could not adapt to ragged batches, as recorded."""
    reports: ragged_fallback.Reports = ()
    """The same, as pods report it now."""
    failed: str = ""
    """Revision of this spec that was rolled back; empty without one."""
    restored: str = ""
    """Revision that was restored in its place; empty without one."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> CompileInputs:
        """Read it from a snapshot."""
        state = snapshot.state()
        revision, rollout = state.revision, state.rollout
        record = (
            snapshot.revision_record(revision.desired)
            if revision.generation == snapshot.generation
            else None
        )
        return cls(
            digests=dict(snapshot.digests),
            image=record["serverImage"] if record is not None else None,
            choices=padding_choices.recorded(snapshot),
            ragged_rejections=ragged_fallback.recorded(snapshot),
            reports=ragged_fallback.ragged_unsupported(snapshot),
            failed=rollout.failed_revision
            if rollout.failed_revision and rollout.failed_spec == snapshot.spec_hash
            else "",
            restored=rollout.restored,
        )


def resolve(snapshot: Snapshot, options: Options) -> CompiledPipeline | list[Finding]:
    """Return the compiled spec, or every finding."""
    pipeline, findings = parse(snapshot.pipeline)
    return (
        findings
        if pipeline is None or findings
        else compile_parsed(pipeline, CompileInputs.of(snapshot), options)
    )


def compile_parsed(
    pipeline: InferencePipeline, inputs: CompileInputs, options: Options
) -> CompiledPipeline | list[Finding]:
    """Compile a spec that was parsed without findings; depends only on the arguments.

    Returns:
        The compiled pipeline, or every finding.
    """
    options = _with_recorded_image(pipeline, inputs, options)
    choice = (
        inputs.choices.get(cost_fingerprint(pipeline, options, inputs.digests))
        if inputs.choices and uses_auto_padding(pipeline.spec.tokenizer)
        else None
    )
    if choice is None:
        return _compile_with_fallback(pipeline, options, inputs)
    compiled = _compile_with_fallback(pipeline, options, inputs, choice.as_measured())
    if isinstance(compiled, CompiledPipeline) and not choice.revert_reason:
        return compiled
    # A recorded measurement never makes a valid spec invalid, and a padding that was rolled back is
    # not tried again.
    by_rule = _compile_with_fallback(pipeline, options, inputs)
    return (
        compiled
        if isinstance(compiled, CompiledPipeline)
        and isinstance(by_rule, CompiledPipeline)
        and _stays_rolled_back(compiled, by_rule, inputs)
        else by_rule
    )


def _stays_rolled_back(
    compiled: CompiledPipeline, by_rule: CompiledPipeline, inputs: CompileInputs
) -> bool:
    """Return whether the revision of a rejected padding stays desired until the spec changes.

    It stays, rolled back, if Auto's rule would create a third revision of this spec, which has
    not been tried. If the rule creates the revision that serves now, that one is used.
    """
    return inputs.failed == compiled.revision.name and by_rule.revision.name != inputs.restored


def _compile_with_fallback(
    pipeline: InferencePipeline,
    options: Options,
    inputs: CompileInputs,
    choice: MeasuredPadding | None = None,
) -> CompiledPipeline | list[Finding]:
    compiled = _render(pipeline, options, inputs.ragged_rejections, inputs.digests, choice)
    if isinstance(compiled, CompiledPipeline) and (
        found := ragged_fallback.reported(
            pipeline, compiled.graph, compiled.revision.name, inputs.reports
        )
    ):
        # Use the next best padding; an explicit Ragged becomes a finding.
        return _render(
            pipeline, options, {**inputs.ragged_rejections, **found}, inputs.digests, choice
        )
    return compiled


def _render(
    pipeline: InferencePipeline,
    options: Options,
    ragged_rejections: Mapping[str, str],
    digests: Mapping[str, str],
    choice: MeasuredPadding | None = None,
) -> CompiledPipeline | list[Finding]:
    graph = build(pipeline, options, ragged_rejections, choice)
    findings = check(pipeline, graph, options)
    if findings:
        return findings
    try:
        revision = render(pipeline, graph, options, digests)
    except RefusedError as error:
        return error.findings
    except RenderError as error:
        return [Finding("spec", str(error), code=FindingCode.RENDER_FAILED)]
    return CompiledPipeline(pipeline, graph, revision, revision.server_image)


def _with_recorded_image(
    pipeline: InferencePipeline, inputs: CompileInputs, options: Options
) -> Options:
    """Return options that keep the default server image until the spec changes.

    A new operator release therefore does not roll pipelines out.
    """
    if inputs.image is None or pipeline.spec.server.image is not None:
        return options
    return replace(
        options,
        server_image=inputs.image,
        family_images=dict.fromkeys(options.family_images, inputs.image),
    )


def recommended_revision(
    pipeline: InferencePipeline, patch: Mapping[str, Any], snapshot: Snapshot, options: Options
) -> str:
    """Return the revision that a tuning run's patch creates; empty if it creates none."""
    try:
        patched = patch_pipeline(pipeline, patch)
    except ValueError:
        return ""
    compiled = _render(patched, options, ragged_fallback.recorded(snapshot), snapshot.digests)
    return compiled.revision.name if isinstance(compiled, CompiledPipeline) else ""
