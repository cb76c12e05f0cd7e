"""Report informative findings of the loader as warnings in the status. Pure."""

from __future__ import annotations

from typing import Final

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.loadreport import INFORMATIVE, LoadReason

from .snapshot import Snapshot

# Most published tokenizers have truncation or padding settings of their own. The resource overrides
# them by contract, so that is not worth a warning.
TOLD: Final = INFORMATIVE - {LoadReason.TOKENIZER_SETTINGS_IGNORED}


def loader_warnings(snapshot: Snapshot, revision: str) -> list[Finding]:
    """Return the informative findings of the pods of ``revision``, each once.

    Until a pod of the revision has loaded anything, the reported findings hold: a recreated pod
    alone changes nothing.
    """
    pods = sorted(
        (pod for pod in snapshot.pods if pod.revision == revision), key=lambda pod: pod.name
    )
    reports = [report for pod in pods if (report := pod.load_report()) is not None and report.ok]
    if not reports:
        return _said(snapshot) if snapshot.status.get("revision") == revision else []
    said = {(item.path, item.message) for item in _said(snapshot)}
    found: dict[tuple[str, str], str] = {}
    for report in reports:
        for item in report.findings:
            if item.reason in TOLD:
                # If pods word the same finding differently, for example with other numbers, the one
                # reported before stays for as long as a pod repeats it.
                path, text = item.field or item.step or "", f"{item.reason.value}: {item.message}"
                if (path, item.reason.value) not in found or (path, text) in said:
                    found[path, item.reason.value] = text
    return [Finding(path, text, Severity.WARNING) for (path, _), text in sorted(found.items())]


def _said(snapshot: Snapshot) -> list[Finding]:
    reasons = {reason.value for reason in TOLD}
    said = [
        (str(item.get("path", "")), str(item.get("message", "")))
        for item in snapshot.status.get("warnings") or ()
    ]
    return [
        Finding(path, message, Severity.WARNING)
        for path, message in said
        if message.partition(":")[0] in reasons
    ]
