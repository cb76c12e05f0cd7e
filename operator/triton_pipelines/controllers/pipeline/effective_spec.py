"""What each pipeline asks for and goes by, worked out once for as long as nothing of what decides it changes; for all parts of the operator. No I/O.

Most of a pass over a pipeline of which nothing has changed was rendering it again. Kept are the last two specs of each pipeline (the present
one, and beside an invalid one the last that could be acted on), and of each what it came to with the last two contents of its sources, without
the revisions' content: what is not needed in a quiet pass is made again where it is. Compared is all that the result is made of, so there is
nothing by which it could be out of date.
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

from .compiled_pipeline import CompiledPipeline, Known, LazyRevision, compile_parsed
from .config_map_sources import config_map_sources
from .policies.last_good_spec import effective_spec
from .snapshot import Object, Snapshot

Key = tuple[str, str]
# Specs that are kept of one pipeline, and of each what it came to with other contents of its sources.
KEPT: Final = 2


@dataclass(frozen=True, slots=True)
class EffectiveSpec:
    """What a pipeline goes by: the spec that is acted on, and the graph of it as it is to run. ``uid``: of the pipeline; ``present``: whether it
    is the spec as it stands, and not the last one that could be acted on."""

    uid: str
    pipeline: InferencePipeline
    graph: Graph
    present: bool = True


@dataclass(slots=True)
class Spec:
    """A spec as it is read. ``digest``: of its document; ``pipeline``: ``None`` where it cannot be acted on for its ``findings``; ``sources``: those that are ConfigMaps."""

    digest: bytes
    pipeline: InferencePipeline | None
    findings: tuple[Finding, ...]
    sources: tuple[Fetch, ...]
    _made: list[tuple[Known, CompiledPipeline | tuple[Finding, ...]]] = field(default_factory=list)

    @classmethod
    def of(cls, raw: Object, digest: bytes) -> Spec:
        """Read a raw pipeline."""
        pipeline, findings = parse(raw)
        usable = pipeline if not findings else None
        return cls(
            digest,
            usable,
            tuple(findings),
            tuple(config_map_sources(usable)) if usable is not None else (),
        )

    def compile(self, known: Known, options: Options) -> CompiledPipeline | list[Finding]:
        """What it asks for, or all that is wrong with it; from last time where nothing has changed."""
        if self.pipeline is None:
            return list(self.findings)
        found = next((result for then, result in self._made if then == known), None)
        if found is not None:
            return found if isinstance(found, CompiledPipeline) else list(found)
        made = compile_parsed(self.pipeline, known, options)
        result = tuple(made) if isinstance(made, list) else _without_content(made, known, options)
        # While a source is missing the last spec that could be acted on is this one, too, with the hash that the source had.
        others = [item for item in self._made if item[0].digests != known.digests]
        self._made = [(known, result), *others][:KEPT]
        return made


@dataclass(slots=True)
class Resolver:
    """Works out what specs ask for, and remembers it. ``options``: the operator's. One event loop's thread only."""

    options: Options
    _read: dict[Key, list[Spec]] = field(default_factory=dict, init=False)
    _effective: dict[Key, EffectiveSpec] = field(default_factory=dict, init=False)

    def read(self, raw: Object) -> Spec:
        """The spec of a raw pipeline."""
        key, digest = _key(raw), _digest(raw)
        known = self._read.get(key, [])
        spec = next((one for one in known if one.digest == digest), None) or Spec.of(raw, digest)
        self._read[key] = [spec, *(one for one in known if one is not spec)][:KEPT]
        return spec

    def resolve(self, snapshot: Snapshot) -> CompiledPipeline | list[Finding]:
        """What :func:`~.wanted.resolve` says."""
        return self.read(snapshot.pipeline).compile(Known.of(snapshot), self.options)

    def effective_spec(
        self, snapshot: Snapshot, wanted: CompiledPipeline | list[Finding]
    ) -> tuple[Snapshot, CompiledPipeline] | None:
        """What a pass goes by (:func:`~.policies.last_good_spec.effective_spec`), and everybody from then on; where that is nothing, what went before stays."""
        asked = effective_spec(snapshot, wanted, self.resolve)
        if asked is not None:
            uid = str(snapshot.pipeline["metadata"].get("uid") or "")
            self._effective[_key(snapshot.pipeline)] = EffectiveSpec(
                uid, asked[1].pipeline, asked[1].graph, present=asked[0] is snapshot
            )
        return asked

    def effective(self, raw: Object) -> EffectiveSpec | None:
        """What a pipeline goes by; ``None`` before the first pass over it, and where it has never had a spec that could be acted on."""
        found = self._effective.get(_key(raw))
        return (
            found
            if found is not None and found.uid == str(raw["metadata"].get("uid") or "")
            else None
        )

    def forget(self, key: Key) -> None:
        """A pipeline is gone."""
        self._read.pop(key, None)
        self._effective.pop(key, None)


def _without_content(made: CompiledPipeline, known: Known, options: Options) -> CompiledPipeline:
    """The same with the name of its revision alone. Its content is needed only where the cluster lacks it."""
    return replace(
        made,
        revision=LazyRevision(
            made.revision.name, partial(_revision, made.pipeline, known, options)
        ),
    )


def _revision(pipeline: InferencePipeline, known: Known, options: Options) -> Revision:
    made = compile_parsed(pipeline, known, options)
    assert isinstance(made, CompiledPipeline), "equal arguments come to equal results"
    assert isinstance(made.revision, Revision)
    return made.revision


def _digest(raw: Object) -> bytes:
    """Of all that is read of it, as text: to Python true, 1 and 1.0 are the same, to Triton they are not."""
    return hashlib.sha256(json.dumps(read_of(raw), default=str).encode()).digest()


def _key(raw: Object) -> Key:
    metadata = raw["metadata"]
    return str(metadata.get("namespace") or ""), str(metadata["name"])
