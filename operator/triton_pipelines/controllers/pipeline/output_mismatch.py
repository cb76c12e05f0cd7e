"""Detect outputs whose type, shape or number of rows differs from the declaration. Pure.

Such a mismatch blocks a new revision, and is a warning on one that serves. Triton passes such
outputs on, and clients that read the actual shape can use them. New code is best rejected before
clients depend on it; a pipeline that has served such outputs must not break because a newer probe
detects more than that of the previous release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.conditions import ConditionType, Reason, condition_of
from triton_pipelines.api.finding_codes import FindingCode

from .snapshot import Snapshot

PATH: Final = "spec.health.inference"
PREFIX: Final = "the output of a test inference differs from its declaration: "


def count_new_mismatches(snapshot: Snapshot) -> tuple[Snapshot, tuple[str, ...]]:
    """Return the snapshot with new mismatches as failed inferences, and the other mismatches.

    A mismatch is not new if pods of the revision that last served the whole pipeline have it too.
    The same holds if it was recorded before and a later revision, or another rendering of the same
    spec, has it as well.
    """
    recorded, verified = snapshot.state().warnings.mismatches, _verified_revision(snapshot)
    served = {
        snapshot.probes[pod.uid].mismatch
        for pod in snapshot.pods
        if pod.revision == verified and pod.uid in snapshot.probes
    }
    known = {*served, *recorded}
    failed = {
        uid: replace(probe, inference_error=probe.mismatch)
        for uid, probe in snapshot.probes.items()
        if probe.mismatch and probe.mismatch not in known
    }
    was_probed = any(
        probe.inference_error is not None and not probe.is_reported
        for probe in snapshot.probes.values()
    )
    # Until a pod has answered, the recorded mismatches hold: recreated pods alone change nothing.
    found = (
        {probe.mismatch for probe in snapshot.probes.values() if probe.mismatch in known} - {""}
        if was_probed
        else set(recorded)
    )
    if failed:
        snapshot = replace(snapshot, probes={**snapshot.probes, **failed})
    return snapshot, tuple(sorted(found))


def mismatch_warnings(mismatches: Sequence[str]) -> list[Finding]:
    """Return the warnings of mismatches that do not block a revision."""
    return [
        Finding(PATH, PREFIX + text, Severity.WARNING, code=FindingCode.OUTPUT_MISMATCH)
        for text in mismatches
    ]


def _verified_revision(snapshot: Snapshot) -> str:
    """Return the revision that last served the whole pipeline.

    Without a live ConfigMap, as after it was deleted, it is the serving one that the status
    reports, unless its test inferences fail.
    """
    if snapshot.live_data():
        return snapshot.state().rollout.verified
    ready = condition_of(snapshot.status, ConditionType.READY)
    if ready.get("reason") in (None, Reason.INFERENCE_FAILED):
        return ""
    return str(snapshot.status.get("servingRevision") or "")
