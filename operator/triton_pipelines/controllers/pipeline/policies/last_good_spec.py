"""Reconcile the last good spec while the current one cannot be acted on. Pure.

A spec that is invalid, or whose source or TLS Secret cannot be used, does not change running pods.
Objects that are deleted or edited in the meantime are still restored.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from triton_pipelines.api import names
from triton_pipelines.api.base import Finding
from triton_pipelines.api.conditions import Reason
from triton_pipelines.api.parse import parse, read_of
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.controllers.pipeline.chain import Context, Resolve
from triton_pipelines.controllers.pipeline.compiled_pipeline import CompiledPipeline
from triton_pipelines.controllers.pipeline.reconciled_spec import Blocked, ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import FIELDS_WITHOUT_ROLLOUT, Object, Snapshot
from triton_pipelines.controllers.pipeline.state import json_object
from triton_pipelines.controllers.pipeline.status import stalled
from triton_pipelines.controllers.pipeline.text_cache import TextCache

from .revision import WAITING_SECONDS

# A longer spec is not recorded: a ConfigMap holds 1 MiB in all, and this one is written with each
# change of a count. A longer record is not the operator's.
KEPT_MAX: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Stalled:
    """Nothing can be compiled, and no revision is known that could be kept."""

    status: Mapping[str, Any]
    requeue_after: float | None = None
    """Seconds; ``None``: only a change of the spec helps."""
    reasons: tuple[str, ...] = ()
    """Why a tuning run ends, unless the spec is invalid."""


def decide(
    snapshot: Snapshot,
    context: Context,
    now: dt.datetime,
    compiled: CompiledPipeline | list[Finding],
) -> tuple[Snapshot, ReconciledSpec | Stalled]:
    """Reconcile the current spec, or the last good one while that cannot be acted on.

    The deployed revision then stays, and is scaled, suspended and repaired as ever. The snapshot
    that is returned is the one with that spec.
    """
    if not isinstance(compiled, CompiledPipeline):
        status = stalled(snapshot, Reason.INVALID_SPEC, compiled, now)
        kept = _last_good(snapshot, context, status, invalid=True)
        return kept or (snapshot, Stalled(status))
    if not snapshot.is_spec_blocked:
        return snapshot, ReconciledSpec(compiled)
    status = _blocked_status(snapshot, now)
    if (kept := _last_good(snapshot, context, status, invalid=False)) is not None:
        return kept
    if revision := kept_revision(snapshot):
        return with_acted_hash(snapshot), ReconciledSpec(compiled, Blocked(revision, status))
    reason = "the spec is blocked, and the revision that was measured no longer exists"
    return snapshot, Stalled(status, WAITING_SECONDS, (reason,))


def _blocked_status(snapshot: Snapshot, now: dt.datetime) -> dict[str, Any]:
    """Return the status while something that the spec names cannot be used."""
    if snapshot.image_problem:
        # Waiting does not help: the spec or the cluster has to change.
        text = snapshot.image_problem
        return stalled(snapshot, Reason.SOURCE_UNAVAILABLE, text, now, final=True)
    if snapshot.missing_sources:
        text = "; ".join(snapshot.missing_sources.values())
        return stalled(snapshot, Reason.SOURCE_UNAVAILABLE, text, now)
    return stalled(snapshot, Reason.INVALID_CERTIFICATE, snapshot.certificate_problem, now)


def _last_good(
    snapshot: Snapshot, context: Context, status: Mapping[str, Any], *, invalid: bool
) -> tuple[Snapshot, ReconciledSpec] | None:
    """Return the last good spec, if its revision can be kept."""
    found = compile_last_good(snapshot, context.resolve)
    if found is None:
        return None
    last, compiled = found
    revision = kept_revision(last, compiled.revision.name)
    if not revision:
        return None
    return last, ReconciledSpec(compiled, Blocked(revision, status, invalid=invalid))


def last_good_data(
    pipeline: InferencePipeline, snapshot: Snapshot, *, is_blocked: bool
) -> dict[str, str]:
    """Return the record of the spec that is acted on, with the hashes of its ConfigMap sources.

    ``held``: it is not the current spec, so the record stays.
    """
    if is_blocked:
        return (
            {names.KEY_ACCEPTED: snapshot.last_good_document} if snapshot.last_good_document else {}
        )
    spec = pipeline.model_dump(mode="json", by_alias=True, exclude_defaults=True)["spec"]
    text = json.dumps(
        {"spec": spec, "digests": dict(snapshot.digests)}, sort_keys=True, separators=(",", ":")
    )
    return {names.KEY_ACCEPTED: text} if len(text.encode()) <= KEPT_MAX else {}


def last_good_after(snapshot: Snapshot, applied: Sequence[Object]) -> str:
    """Return the last good spec that the process remembers after an iteration with these writes.

    A spec that is too long to be recorded replaces the previous one all the same.
    """
    live = [
        item["data"]
        for item in applied
        if (item["kind"], item["metadata"]["name"]) == ("ConfigMap", names.live_name(snapshot.name))
    ]
    return str(live[0].get(names.KEY_ACCEPTED, "")) if live else snapshot.last_good_document


def with_acted_hash(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the hash of the last good spec: a failed revision is not retried."""
    return replace(snapshot, acted_spec_hash=snapshot.state().revision.spec)


def last_good_snapshot(snapshot: Snapshot) -> Snapshot | None:
    """Return the snapshot with the last good spec and the current :data:`FIELDS_WITHOUT_ROLLOUT`.

    ``None`` if no such spec is known.
    """
    document = snapshot.last_good_document
    found = json_object(document if len(document) <= KEPT_MAX else None)
    spec, digests = found.get("spec"), found.get("digests")
    if not isinstance(spec, dict) or not isinstance(digests, dict):
        return None
    state = snapshot.state()
    # If only a source is missing, the current spec is that spec, in the form that the API server
    # has.
    same = state.revision.spec == snapshot.spec_hash
    current: Mapping[str, Any] = snapshot.pipeline.get("spec") or {}
    rest = current if same else spec
    spec = {key: value for key, value in rest.items() if key not in FIELDS_WITHOUT_ROLLOUT} | {
        key: spec[key] for key in FIELDS_WITHOUT_ROLLOUT if key in spec
    }
    # The default images of that spec are recorded under its generation.
    metadata = {**snapshot.pipeline["metadata"], "generation": state.revision.generation}
    hashes = {step: digest for step, digest in digests.items() if isinstance(digest, str)}
    last = replace(
        with_acted_hash(snapshot),
        pipeline={**snapshot.pipeline, "metadata": metadata, "spec": spec},
        digests=hashes,
    )
    if (updated := _with_current(last, FIELDS_WITHOUT_ROLLOUT, current)) is not None:
        return updated
    for key in FIELDS_WITHOUT_ROLLOUT:
        last = _with_current(last, (key,), current) or last
    return last


def _with_current(
    last: Snapshot, fields: Sequence[str], current: Mapping[str, Any]
) -> Snapshot | None:
    """Return the last good spec with fields of the current one; ``None`` if that is invalid."""
    before = last.pipeline["spec"]
    spec = {name: value for name, value in before.items() if name not in fields}
    spec |= {name: current[name] for name in fields if name in current}
    if spec == before:
        return last
    pipeline = {**last.pipeline, "spec": spec}
    return replace(last, pipeline=pipeline) if _is_valid(json.dumps(read_of(pipeline))) else None


def _parses(text: str | None) -> bool:
    pipeline, findings = parse(json.loads(text or ""))
    return pipeline is not None and not findings


# Each iteration reads the last good spec several times.
_is_valid = TextCache(_parses, 4 * 1024**2)


def kept_revision(snapshot: Snapshot, compiled: str = "") -> str:
    """Return the revision that stays desired: the deployed one, which may be gone or edited.

    Empty if nothing is known from which its pods could be created. ``made``: a revision that can be
    rendered again.
    """
    state, deployed = snapshot.state(), snapshot.deployed_revision()
    last, rollout = state.revision.desired, state.rollout
    known: list[str] = [last, deployed, last, compiled]
    if rollout.target(last) != deployed:
        known = known[1:]
    return next(
        (one for one in known if one and _can_run(snapshot, rollout.target(one), compiled)), ""
    )


def _can_run(snapshot: Snapshot, revision: str, compiled: str) -> bool:
    return revision == compiled or snapshot.revision_record(revision) is not None


def compile_last_good(
    snapshot: Snapshot, resolve: Resolve
) -> tuple[Snapshot, CompiledPipeline] | None:
    """Return the last good spec, compiled; ``None`` if none is known or it no longer compiles."""
    last = last_good_snapshot(snapshot)
    compiled = resolve(last) if last is not None else None
    return (last, compiled) if last is not None and isinstance(compiled, CompiledPipeline) else None


def effective_spec(
    snapshot: Snapshot, compiled: CompiledPipeline | list[Finding], resolve: Resolve
) -> tuple[Snapshot, CompiledPipeline] | None:
    """Return the effective spec: the current one if it compiles, else the last one that did.

    ``None`` if neither exists.
    """
    current = (snapshot, compiled) if isinstance(compiled, CompiledPipeline) else None
    return (
        current
        if current is not None and not snapshot.is_spec_blocked
        else compile_last_good(snapshot, resolve) or current
    )
