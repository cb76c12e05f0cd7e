"""What goes on while the spec asks for something that cannot be had: the last spec that could be acted on, and its revision. Pure.

An invalid spec, or one whose source is missing, changes nothing of what runs; what somebody deletes or edits meanwhile is mended all the same.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from triton_pipelines.api import names
from triton_pipelines.api.v1alpha1 import InferencePipeline

from .observed import Observed, json_object
from .rollout import target_of

# A longer spec is not kept beside the counts: a ConfigMap holds 1 MiB in all, and this one is written with each change of a count.
KEPT_MAX: Final = 256 * 1024


def accepted_data(pipeline: InferencePipeline, observed: Observed, *, held: bool) -> dict[str, str]:
    """What the live ConfigMap holds of the spec that is acted on, with the hashes of its ConfigMap sources. ``held``: it is not the present one,
    so that what is recorded stays."""
    if held:
        return {names.KEY_ACCEPTED: observed.accepted} if observed.accepted else {}
    spec = pipeline.model_dump(mode="json", by_alias=True, exclude_defaults=True)["spec"]
    text = json.dumps({"spec": spec, "digests": dict(observed.digests)}, sort_keys=True, separators=(",", ":"))
    return {names.KEY_ACCEPTED: text} if len(text.encode()) <= KEPT_MAX else {}


def last_accepted(observed: Observed) -> Observed | None:
    """The same pipeline with the last spec that could be acted on; ``None`` where none is known."""
    found = json_object(observed.accepted)
    spec, digests = found.get("spec"), found.get("digests")
    if not isinstance(spec, dict) or not isinstance(digests, dict):
        return None
    # The images that were taken for that spec are those of its generation.
    metadata = {**observed.pipeline["metadata"], "generation": observed.memory().generation}
    hashes = {step: digest for step, digest in digests.items() if isinstance(digest, str)}
    return replace(observed, pipeline={**observed.pipeline, "metadata": metadata, "spec": spec}, digests=hashes, missing_sources={})


def kept_revision(observed: Observed, made: str = "") -> str:
    """The revision that stays wanted: the one that is deployed, which may be gone or edited; "" where nothing is known that its pods could be
    made of. ``made``: a revision that can be made anew."""
    memory, deployed = observed.memory(), observed.deployed_revision()
    known: list[str] = [memory.wanted, deployed, memory.wanted, made]
    if target_of(memory, memory.wanted) != deployed:
        known = known[1:]
    return next((one for one in known if one and _can_run(observed, target_of(memory, one), made)), "")


def _can_run(observed: Observed, revision: str, made: str) -> bool:
    return revision == made or observed.revision_record(revision) is not None
