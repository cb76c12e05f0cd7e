"""What a spec asks for: parsed, built with the padding that is known to be right for it, checked and rendered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from triton_pipelines.api.base import Finding
from triton_pipelines.api.parse import parse
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.pipeline import Graph, Options, build, check
from triton_pipelines.pipeline.fingerprint import cost_fingerprint
from triton_pipelines.pipeline.graph import MeasuredPadding
from triton_pipelines.pipeline.tokens import left_to_auto
from triton_pipelines.render import Revision, render
from triton_pipelines.render.errors import RefusedError, RenderError
from triton_pipelines.tuning.knobs import changed

from . import measured, padding
from .observed import Observed


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the spec asks for, checked and rendered."""

    pipeline: InferencePipeline
    graph: Graph
    revision: Revision


def resolve(observed: Observed, options: Options) -> Wanted | list[Finding]:
    """What the spec asks for, or everything that is wrong with it."""
    pipeline, findings = parse(observed.pipeline)
    if pipeline is None or findings:
        return findings
    options = _pinned(pipeline, observed, options)
    choice = measured.recorded(observed).get(cost_fingerprint(pipeline, options, observed.digests)) if left_to_auto(pipeline.spec.tokenizer) else None
    if choice is None:
        return _judged(pipeline, options, observed)
    made = _judged(pipeline, options, observed, choice.for_build())
    if isinstance(made, Wanted) and not choice.barred:
        return made
    # What is remembered never makes a good spec a wrong one; what was taken back is not tried again.
    ruled = _judged(pipeline, options, observed)
    return made if isinstance(made, Wanted) and isinstance(ruled, Wanted) and _stays_back(made, ruled, observed) else ruled


def _stays_back(made: Wanted, ruled: Wanted, observed: Observed) -> bool:
    """Whether the revision of a barred choice stays the one that is asked for, and taken back, until the spec changes: where Auto's rule would
    make a third one of this spec, which nobody has tried. Where it makes the one that serves, all is well with that."""
    memory = observed.memory()
    back = (memory.failed_revision, memory.failed_spec) == (made.revision.name, observed.spec_hash)
    return back and ruled.revision.name != memory.restored


def _judged(pipeline: InferencePipeline, options: Options, observed: Observed, choice: MeasuredPadding | None = None) -> Wanted | list[Finding]:
    refused = padding.recorded(observed)
    made = _made(pipeline, options, refused, observed, choice)
    if isinstance(made, Wanted) and (found := padding.reported(pipeline, made.graph, made.revision.name, observed)):
        # The next best padding; an explicit Ragged becomes a finding.
        return _made(pipeline, options, refused | found, observed, choice)
    return made


def _made(
    pipeline: InferencePipeline, options: Options, refused: Mapping[str, str], observed: Observed, choice: MeasuredPadding | None = None
) -> Wanted | list[Finding]:
    graph = build(pipeline, options, refused, choice)
    findings = check(pipeline, graph, options)
    if findings:
        return findings
    try:
        return Wanted(pipeline, graph, render(pipeline, graph, options, observed.digests))
    except RefusedError as error:
        return error.findings
    except RenderError as error:
        return [Finding("spec", str(error))]


def _pinned(pipeline: InferencePipeline, observed: Observed, options: Options) -> Options:
    """The default server image stays what it was until the spec changes, whatever a new operator release brings."""
    memory = observed.memory()
    record = observed.revision_record(memory.wanted)
    if record is None or memory.generation != observed.generation or pipeline.spec.server.image is not None:
        return options
    image = record["serverImage"]
    return replace(options, server_image=image, family_images=dict.fromkeys(options.family_images, image))


def recommended(pipeline: InferencePipeline, patch: Mapping[str, Any], observed: Observed, options: Options) -> str:
    """The revision that a tuning run's patch makes; "" where it makes none."""
    try:
        patched = changed(pipeline, patch)
    except ValueError:
        return ""
    made = _made(patched, options, padding.recorded(observed), observed)
    return made.revision.name if isinstance(made, Wanted) else ""
