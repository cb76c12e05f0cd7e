"""Read which implementation runs the tokenizer of a recorded revision. Pure.

A release of the operator may change the default. Running pipelines keep what they run, as they keep
their default image. The load plan of a revision shows the implementation, for every release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from triton_pipelines.api import names
from triton_pipelines.api.tokenizer import TokenizerImplementation
from triton_pipelines.compile.graph.defaults import TOKENIZER
from triton_pipelines.compile.graph.options import DEFAULT_TOKENIZER

from .snapshot import Snapshot
from .state import json_object
from .text_cache import TextCache


@dataclass(frozen=True, slots=True)
class RecordedTokenizer:
    """The implementation of a recorded revision whose spec names none, if it is not the default."""

    implementation: TokenizerImplementation
    revision: str = ""
    """The only revision that keeps it; empty if the spec has not changed, so that any does."""


def recorded_tokenizer(snapshot: Snapshot) -> RecordedTokenizer | None:
    """Return the implementation that the pipeline keeps.

    While the spec does not change, it is that of the desired revision, else that of the revision
    that last served. ``None`` if it is the default, if the spec names one, and without a record.
    """
    tokenizer = (snapshot.pipeline.get("spec") or {}).get("tokenizer")
    if not isinstance(tokenizer, dict) or {"implementation", "python"} & tokenizer.keys():
        return None
    state = snapshot.state()
    last = state.revision
    is_same_spec = bool(last.desired) and (
        snapshot.generation == last.generation or snapshot.spec_hash == last.spec
    )
    served = state.rollout.verified or snapshot.deployed_revision()
    revision = last.desired if is_same_spec else served
    record = snapshot.child("ConfigMap", names.revision_name(snapshot.name, revision))
    implementation = _implementation_of(((record or {}).get("data") or {}).get(names.KEY_PLAN))
    if implementation is None or implementation is DEFAULT_TOKENIZER:
        return None
    return RecordedTokenizer(implementation, "" if is_same_spec else revision)


def _parse_plan(text: str | None) -> TokenizerImplementation | None:
    """Return the implementation of a revision with this load plan, or ``None`` if unreadable."""
    plan = json_object(text)
    libraries = plan.get("libraries", [])
    if not plan or not isinstance(libraries, list):
        return None
    steps = [item.get("step") for item in libraries if isinstance(item, dict)]
    return TokenizerImplementation.NATIVE if TOKENIZER in steps else TokenizerImplementation.PYTHON


# A plan has a few KB: there is room for those of 1,000 pipelines. An edited one may have 1 MiB.
_implementation_of: Final = TextCache(_parse_plan, 3 * 1024**2)
