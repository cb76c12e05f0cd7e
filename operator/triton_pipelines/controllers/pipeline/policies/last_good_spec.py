"""What goes on while the spec asks for something that cannot be had: the last spec that could be acted on, and its revision. Pure.

An invalid spec, or one whose source is missing, changes nothing of what runs; what somebody deletes or edits meanwhile is mended all the same.
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
from triton_pipelines.api.parse import parse
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.controllers.pipeline.chain import Context, Resolve
from triton_pipelines.controllers.pipeline.compiled_pipeline import CompiledPipeline
from triton_pipelines.controllers.pipeline.reconciled_spec import Blocked, ReconciledSpec
from triton_pipelines.controllers.pipeline.snapshot import FIELDS_WITHOUT_ROLLOUT, Object, Snapshot
from triton_pipelines.controllers.pipeline.state import json_object
from triton_pipelines.controllers.pipeline.status import stalled

from .revision import WAITING_SECONDS

# A longer spec is not kept beside the counts: a ConfigMap holds 1 MiB in all, and this one is written with each change of a count.
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
    if not snapshot.missing_sources:
        return snapshot, ReconciledSpec(compiled)
    text = "; ".join(snapshot.missing_sources.values())
    status = stalled(snapshot, Reason.SOURCE_UNAVAILABLE, text, now)
    if (kept := _last_good(snapshot, context, status, invalid=False)) is not None:
        return kept
    if revision := kept_revision(snapshot):
        return with_acted_hash(snapshot), ReconciledSpec(compiled, Blocked(revision, status))
    why = "a source is missing, and nothing is left of the revision that was measured"
    return snapshot, Stalled(status, WAITING_SECONDS, (why,))


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
    pipeline: InferencePipeline, snapshot: Snapshot, *, held: bool
) -> dict[str, str]:
    """What the live ConfigMap holds of the spec that is acted on, with the hashes of its ConfigMap sources. ``held``: it is not the present one,
    so that what is recorded stays."""
    if held:
        return (
            {names.KEY_ACCEPTED: snapshot.last_good_document} if snapshot.last_good_document else {}
        )
    spec = pipeline.model_dump(mode="json", by_alias=True, exclude_defaults=True)["spec"]
    text = json.dumps(
        {"spec": spec, "digests": dict(snapshot.digests)}, sort_keys=True, separators=(",", ":")
    )
    return {names.KEY_ACCEPTED: text} if len(text.encode()) <= KEPT_MAX else {}


def last_good_after(snapshot: Snapshot, applied: Sequence[Object]) -> str:
    """What the running process remembers of the last spec that was acted on, after a pass with these writes. One that is not recorded, being
    too long, takes the place of the one before all the same: nobody wants that any more."""
    live = [
        item["data"]
        for item in applied
        if (item["kind"], item["metadata"]["name"]) == ("ConfigMap", names.live_name(snapshot.name))
    ]
    return str(live[0].get(names.KEY_ACCEPTED, "")) if live else snapshot.last_good_document


def with_acted_hash(snapshot: Snapshot) -> Snapshot:
    """The same pipeline whose present spec cannot be acted on: what failed of the last one that could be is not tried again for it."""
    state = snapshot.state()
    # A memory without that hash is an earlier release's, which forgot what had failed with the first pass over another spec.
    return replace(snapshot, acted_spec_hash=state.revision.spec or state.rollout.failed_spec)


def last_good_snapshot(snapshot: Snapshot) -> Snapshot | None:
    """The same pipeline with the last spec that could be acted on, and of the present one what is no other wish; ``None`` where none is known."""
    found = json_object(snapshot.last_good_document)
    spec, digests = found.get("spec"), found.get("digests")
    if not isinstance(spec, dict) or not isinstance(digests, dict):
        return None
    state = snapshot.state()
    # Where only a source is gone, the present one is that spec, in the form in which the API server holds it.
    same = state.revision.spec == snapshot.spec_hash
    present: Mapping[str, Any] = snapshot.pipeline.get("spec") or {}
    rest = present if same else spec
    spec = {key: value for key, value in rest.items() if key not in FIELDS_WITHOUT_ROLLOUT} | {
        key: spec[key] for key in FIELDS_WITHOUT_ROLLOUT if key in spec
    }
    # The images that were taken for that spec are those of its generation.
    metadata = {**snapshot.pipeline["metadata"], "generation": state.revision.generation}
    hashes = {step: digest for step, digest in digests.items() if isinstance(digest, str)}
    last = replace(
        with_acted_hash(snapshot),
        pipeline={**snapshot.pipeline, "metadata": metadata, "spec": spec},
        digests=hashes,
    )
    for key in FIELDS_WITHOUT_ROLLOUT:
        last = _with_present(last, key, present)
    return last


def _with_present(last: Snapshot, key: str, present: Mapping[str, Any]) -> Snapshot:
    """The last spec with one field of the present one, unless that is what is wrong with it."""
    spec = {name: value for name, value in last.pipeline["spec"].items() if name != key} | (
        {key: present[key]} if key in present else {}
    )
    if spec == last.pipeline["spec"]:
        return last
    pipeline = {**last.pipeline, "spec": spec}
    made, findings = parse(pipeline)
    return last if made is None or findings else replace(last, pipeline=pipeline)


def kept_revision(snapshot: Snapshot, made: str = "") -> str:
    """The revision that stays wanted: the one that is deployed, which may be gone or edited; "" where nothing is known that its pods could be
    made of. ``made``: a revision that can be made anew."""
    state, deployed = snapshot.state(), snapshot.deployed_revision()
    last, rollout = state.revision.desired, state.rollout
    known: list[str] = [last, deployed, last, made]
    if rollout.target(last) != deployed:
        known = known[1:]
    return next((one for one in known if one and _can_run(snapshot, rollout.target(one), made)), "")


def _can_run(snapshot: Snapshot, revision: str, made: str) -> bool:
    return revision == made or snapshot.revision_record(revision) is not None


def compile_last_good(
    snapshot: Snapshot, resolve: Resolve
) -> tuple[Snapshot, CompiledPipeline] | None:
    """The last spec that could be acted on: the pipeline with it, and what it asks for; ``None`` where none is known, or this release takes
    it no longer."""
    last = last_good_snapshot(snapshot)
    made = resolve(last) if last is not None else None
    return (last, made) if last is not None and isinstance(made, CompiledPipeline) else None


def effective_spec(
    snapshot: Snapshot, wanted: CompiledPipeline | list[Finding], resolve: Resolve
) -> tuple[Snapshot, CompiledPipeline] | None:
    """What a pass goes by: the present spec, ``wanted``, or the last one that could be acted on; ``None`` where there is neither."""
    present = (snapshot, wanted) if isinstance(wanted, CompiledPipeline) else None
    return (
        present
        if present is not None and not snapshot.missing_sources
        else compile_last_good(snapshot, resolve) or present
    )
