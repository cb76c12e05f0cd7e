"""Cache the compiled specs of each pipeline. No I/O.

Rendering was most of the time of a reconcile iteration over an unchanged pipeline. The cache holds
the last two specs of each pipeline (the current one and, if that is invalid, the last good one).
For each spec it holds the results for the last two contents of its sources, without the content of
the revisions: an iteration without changes does not need it, and it can be rendered again. The key
of an entry is everything that the result depends on, so an entry cannot be out of date.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from triton_pipelines.api.base import Finding
from triton_pipelines.api.parse import parse, read_of
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph import Graph, Options
from triton_pipelines.compile.graph.graph import Fetch
from triton_pipelines.compile.render import Revision

from .compiled_pipeline import CompiledPipeline, CompileInputs, LazyRevision, compile_parsed
from .config_map_sources import config_map_sources
from .snapshot import Object, Snapshot

Key = tuple[str, str]
# Specs kept for one pipeline, and results kept for each spec, by the content of its sources.
KEPT: Final = 2


@dataclass(frozen=True, slots=True)
class EffectiveSpec:
    """The spec of a pipeline that the operator acts on, and the graph that should run."""

    uid: str
    """UID of the pipeline."""
    pipeline: InferencePipeline
    graph: Graph
    server_image: str
    """Image of Triton in its pods."""

    @classmethod
    def of(cls, raw: Object, compiled: CompiledPipeline) -> EffectiveSpec:
        """Return the compiled spec of a raw pipeline as its effective one."""
        uid = str(raw["metadata"].get("uid") or "")
        return cls(uid, compiled.pipeline, compiled.graph, compiled.server_image)


@dataclass(frozen=True, slots=True)
class SpecIdentity:
    """Identity of a spec's document, for caches."""

    digest: bytes
    """Hash of the document."""
    size: int
    """Bytes of the document as JSON."""


@dataclass(slots=True)
class ParsedSpec:
    """A parsed spec."""

    identity: SpecIdentity
    """Identity of its document."""
    pipeline: InferencePipeline | None
    """``None`` if it cannot be acted on because of ``findings``."""
    findings: tuple[Finding, ...]
    sources: tuple[Fetch, ...]
    """Sources that are ConfigMaps."""
    _results: list[tuple[CompileInputs, CompiledPipeline | tuple[Finding, ...]]] = field(
        default_factory=list
    )

    @classmethod
    def of(cls, raw: Object, identity: SpecIdentity) -> ParsedSpec:
        """Read a raw pipeline."""
        pipeline, findings = parse(raw)
        valid = pipeline if not findings else None
        return cls(
            identity,
            valid,
            tuple(findings),
            tuple(config_map_sources(valid)) if valid is not None else (),
        )

    @classmethod
    def rejected(cls, identity: SpecIdentity, finding: Finding) -> ParsedSpec:
        """Return a spec that cannot be acted on."""
        return cls(identity, None, (finding,), ())

    def known(self, inputs: CompileInputs) -> CompiledPipeline | tuple[Finding, ...] | None:
        """Return the cached result for these inputs, or ``None``."""
        return next(
            (result for then, result in self._results if _is_same(then, result, inputs)), None
        )

    def compile(self, inputs: CompileInputs, options: Options) -> CompiledPipeline | list[Finding]:
        """Return the compiled spec or all its findings, from the cache if no input has changed."""
        if self.pipeline is None:
            return list(self.findings)
        found = self.known(inputs)
        if found is not None:
            return found if isinstance(found, CompiledPipeline) else list(found)
        compiled = compile_parsed(self.pipeline, inputs, options)
        self.keep(inputs, compiled, options)
        return compiled

    def keep(
        self,
        inputs: CompileInputs,
        compiled: CompiledPipeline | list[Finding],
        options: Options,
    ) -> None:
        """Cache the result of a compilation."""
        result = (
            tuple(compiled)
            if isinstance(compiled, list)
            else _without_content(compiled, inputs, options)
        )
        # While a source is missing, the last good spec is this one as well, compiled with the hash
        # that the source had.
        other_results = [item for item in self._results if item[0].digests != inputs.digests]
        self._results = [(inputs, result), *other_results][:KEPT]


@dataclass(slots=True)
class Resolver:
    """Compiles specs and caches the results; for the event loop's thread only."""

    options: Options
    """Options of the operator."""
    _read: dict[Key, list[ParsedSpec]] = field(default_factory=dict, init=False)

    def read(self, raw: Object) -> ParsedSpec:
        """Return the spec of a raw pipeline."""
        identity = identity_of(raw)
        return self.keep(raw, self.known(raw, identity) or ParsedSpec.of(raw, identity))

    def known(self, raw: Object, identity: SpecIdentity) -> ParsedSpec | None:
        """Return the cached spec of a raw pipeline with this identity, or ``None``."""
        known = self._read.get(_key(raw), ())
        return next((entry for entry in known if entry.identity == identity), None)

    def keep(self, raw: Object, spec: ParsedSpec) -> ParsedSpec:
        """Cache the spec of a raw pipeline as the latest one, and return it."""
        key = _key(raw)
        others = (entry for entry in self._read.get(key, ()) if entry is not spec)
        self._read[key] = [spec, *others][:KEPT]
        return spec

    def resolve(self, snapshot: Snapshot) -> CompiledPipeline | list[Finding]:
        """Return the result of :func:`~.compiled_pipeline.resolve`, from the cache if possible."""
        return self.read(snapshot.pipeline).compile(CompileInputs.of(snapshot), self.options)

    def forget(self, key: Key) -> None:
        """Drop the specs of a deleted pipeline."""
        self._read.pop(key, None)


def _is_same(
    then: CompileInputs, result: CompiledPipeline | tuple[Finding, ...], inputs: CompileInputs
) -> bool:
    """Return whether ``inputs`` compile to the result of ``then``.

    The default image of a first compilation is recorded, and an input from then on.
    """
    if then.image is None and isinstance(result, CompiledPipeline):
        return inputs in (then, replace(then, image=result.server_image))
    return then == inputs


def _without_content(
    compiled: CompiledPipeline, inputs: CompileInputs, options: Options
) -> CompiledPipeline:
    """Return the same with only the name of its revision.

    The content is needed only if it is missing in the cluster.
    """
    return replace(
        compiled,
        revision=LazyRevision(
            compiled.revision.name, partial(_revision, compiled.pipeline, inputs, options)
        ),
    )


def _revision(pipeline: InferencePipeline, inputs: CompileInputs, options: Options) -> Revision:
    compiled = compile_parsed(pipeline, inputs, options)
    assert isinstance(compiled, CompiledPipeline), "equal arguments give equal results"
    assert isinstance(compiled.revision, Revision)
    return compiled.revision


def identity_of(raw: Object) -> SpecIdentity:
    """Return the identity of all that is read of the resource, as text.

    In Python ``True``, 1 and 1.0 are equal; to Triton they are not.
    """
    text = json.dumps(read_of(raw), default=str).encode()
    return SpecIdentity(hashlib.sha256(text).digest(), len(text))


def _key(raw: Object) -> Key:
    metadata = raw["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])
