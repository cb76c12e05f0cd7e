"""Compile a spec: parse it, build it with the best known padding, check and render it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from triton_pipelines.api.base import Finding
from triton_pipelines.api.parse import parse
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Graph, Options, build, check
from triton_pipelines.compile.graph.fingerprint import cost_fingerprint
from triton_pipelines.compile.graph.graph import MeasuredPadding
from triton_pipelines.compile.graph.padding_choice import uses_auto_padding
from triton_pipelines.compile.graph.resource_patch import patch_pipeline
from triton_pipelines.compile.render import Revision, render
from triton_pipelines.compile.render.errors import RefusedError, RenderError

from . import padding_choices, ragged_fallback
from .snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class LazyRevision:
    """A revision of which only the name is kept.

    The content is most of its size. It is rendered again, to the same bytes, when it is read.
    """

    name: str
    make: Callable[[], Revision] = field(compare=False, repr=False)

    @property
    def template(self) -> dict[str, Any]:
        """The pod template."""
        return self.make().template

    @property
    def data(self) -> dict[str, str]:
        """Content of the revision's ConfigMap."""
        return self.make().data


@dataclass(frozen=True, slots=True)
class CompiledPipeline:
    """A spec that was checked and rendered."""

    pipeline: InferencePipeline
    graph: Graph
    revision: Revision | LazyRevision


@dataclass(frozen=True, slots=True)
class Known:
    """All inputs of a compilation other than the spec and the operator's options.

    Equal inputs compile to equal results.
    """

    digests: Mapping[str, str]
    """Hashes of ConfigMap sources by step."""
    image: str | None = None
    """Default server image that this spec was first compiled with; ``None`` if it was not."""
    choices: padding_choices.Choices = field(default_factory=dict)
    """Measured padding modes."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """What the loader could not adapt to ragged batches, as recorded."""
    reports: ragged_fallback.Reports = ()
    """The same, as pods report it now."""
    failed: str = ""
    """Revision of this spec that was rolled back; empty without one."""
    restored: str = ""
    """Revision that was restored in its place; empty without one."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Known:
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
            refused=ragged_fallback.recorded(snapshot),
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
        else compile_parsed(pipeline, Known.of(snapshot), options)
    )


def compile_parsed(
    pipeline: InferencePipeline, known: Known, options: Options
) -> CompiledPipeline | list[Finding]:
    """Compile a spec that was parsed without findings; depends only on the arguments.

    Returns:
        The compiled pipeline, or every finding.
    """
    options = _pinned(pipeline, known, options)
    choice = (
        known.choices.get(cost_fingerprint(pipeline, options, known.digests))
        if uses_auto_padding(pipeline.spec.tokenizer)
        else None
    )
    if choice is None:
        return _judged(pipeline, options, known)
    made = _judged(pipeline, options, known, choice.for_build())
    if isinstance(made, CompiledPipeline) and not choice.barred:
        return made
    # A recorded measurement never makes a valid spec invalid, and a padding that was rolled back is
    # not tried again.
    ruled = _judged(pipeline, options, known)
    return (
        made
        if isinstance(made, CompiledPipeline)
        and isinstance(ruled, CompiledPipeline)
        and _stays_back(made, ruled, known)
        else ruled
    )


def _stays_back(made: CompiledPipeline, ruled: CompiledPipeline, known: Known) -> bool:
    """Return whether the revision of a rejected padding stays desired until the spec changes.

    It stays, rolled back, if Auto's rule would create a third revision of this spec, which nobody
    has tried. If the rule creates the revision that serves now, that one is used.
    """
    return known.failed == made.revision.name and ruled.revision.name != known.restored


def _judged(
    pipeline: InferencePipeline,
    options: Options,
    known: Known,
    choice: MeasuredPadding | None = None,
) -> CompiledPipeline | list[Finding]:
    made = _made(pipeline, options, known.refused, known.digests, choice)
    if isinstance(made, CompiledPipeline) and (
        found := ragged_fallback.reported(pipeline, made.graph, made.revision.name, known.reports)
    ):
        # Use the next best padding; an explicit Ragged becomes a finding.
        return _made(pipeline, options, {**known.refused, **found}, known.digests, choice)
    return made


def _made(
    pipeline: InferencePipeline,
    options: Options,
    refused: Mapping[str, str],
    digests: Mapping[str, str],
    choice: MeasuredPadding | None = None,
) -> CompiledPipeline | list[Finding]:
    graph = build(pipeline, options, refused, choice)
    findings = check(pipeline, graph, options)
    if findings:
        return findings
    try:
        return CompiledPipeline(pipeline, graph, render(pipeline, graph, options, digests))
    except RefusedError as error:
        return error.findings
    except RenderError as error:
        return [Finding("spec", str(error))]


def _pinned(pipeline: InferencePipeline, known: Known, options: Options) -> Options:
    """Return options that keep the default server image until the spec changes.

    A new operator release therefore does not roll pipelines out.
    """
    if known.image is None or pipeline.spec.server.image is not None:
        return options
    return replace(
        options,
        server_image=known.image,
        family_images=dict.fromkeys(options.family_images, known.image),
    )


def recommended(
    pipeline: InferencePipeline, patch: Mapping[str, Any], snapshot: Snapshot, options: Options
) -> str:
    """Return the revision that a tuning run's patch creates; empty if it creates none."""
    try:
        patched = patch_pipeline(pipeline, patch)
    except ValueError:
        return ""
    made = _made(patched, options, ragged_fallback.recorded(snapshot), snapshot.digests)
    return made.revision.name if isinstance(made, CompiledPipeline) else ""
