"""Answers of another type, shape or number of rows than declared: what keeps a new revision from serving, and is a warning of one that serves. Pure.

Triton hands such answers on, and clients that go by what came get on with them. Code that is new is better told before clients get used to it;
whoever has served so is not broken by a look that sees more than the last release's did.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from triton_pipelines.api.base import Finding, Severity

from .snapshot import Snapshot

PATH: Final = "spec.health.inference"
WORDS: Final = "a test inference is answered otherwise than declared: "


def count_new_mismatches(snapshot: Snapshot, proven: str) -> tuple[Snapshot, list[Finding]]:
    """The same with each mismatch of a pod that counts as a failed inference, and warnings of those that do not: what pods of ``proven`` answer,
    the revision that last served the whole pipeline, and what was warned of before and a later revision, or another render of the same
    spec, answers as well."""
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
    # Until a pod has answered, what was said holds: pods that are made anew are no news.
    found = (
        {probe.mismatch for probe in snapshot.probes.values() if probe.mismatch in known} - {""}
        if asked
        else said
    )
    warnings = [Finding(PATH, WORDS + text, Severity.WARNING) for text in sorted(found)]
    return replace(snapshot, probes={**snapshot.probes, **failed}) if failed else snapshot, warnings


def _said(snapshot: Snapshot) -> set[str]:
    said = [
        str(item.get("message", ""))
        for item in snapshot.status.get("warnings") or ()
        if item.get("path") == PATH
    ]
    return {text.removeprefix(WORDS) for text in said if text.startswith(WORDS)}
