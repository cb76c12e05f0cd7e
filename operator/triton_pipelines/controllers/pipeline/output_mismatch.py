"""Detect outputs whose type, shape or number of rows differs from the declaration. Pure.

Such a mismatch blocks a new revision, and is a warning on one that serves. Triton passes such
outputs on, and clients that read the actual shape get on with them. New code is best rejected
before clients depend on it; a pipeline that has served such outputs must not break because a newer
probe detects more than that of the previous release.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from triton_pipelines.api.base import Finding, Severity

from .snapshot import Snapshot

PATH: Final = "spec.health.inference"
PREFIX: Final = "the output of a test inference differs from its declaration: "


def count_new_mismatches(snapshot: Snapshot, proven: str) -> tuple[Snapshot, list[Finding]]:
    """Return the snapshot with new mismatches as failed inferences, and warnings of the others.

    A mismatch is only a warning if pods of ``proven``, the revision that last served the whole
    pipeline, have it too. The same holds if it was reported before and a later revision, or another
    rendering of the same spec, has it as well.
    """
    said = _said(snapshot)
    served = {
        snapshot.probes[pod.uid].mismatch
        for pod in snapshot.pods
        if pod.revision == proven and pod.uid in snapshot.probes
    }
    known = served | said
    failed = {
        uid: replace(probe, inference_error=probe.mismatch)
        for uid, probe in snapshot.probes.items()
        if probe.mismatch and probe.mismatch not in known
    }
    asked = any(probe.inference_error is not None for probe in snapshot.probes.values())
    # Until a pod has answered, the reported mismatches hold: recreated pods alone change nothing.
    found = (
        {probe.mismatch for probe in snapshot.probes.values() if probe.mismatch in known} - {""}
        if asked
        else said
    )
    warnings = [Finding(PATH, PREFIX + text, Severity.WARNING) for text in sorted(found)]
    return replace(snapshot, probes={**snapshot.probes, **failed}) if failed else snapshot, warnings


def _said(snapshot: Snapshot) -> set[str]:
    said = [
        str(item.get("message", ""))
        for item in snapshot.status.get("warnings") or ()
        if item.get("path") == PATH
    ]
    return {text.removeprefix(PREFIX) for text in said if text.startswith(PREFIX)}
