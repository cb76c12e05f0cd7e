"""Report informative findings of the loader as warnings in the status. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from triton_pipelines.api.base import Finding, Severity
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.loadreport import INFORMATIVE, LoadReason

from .report_state import WarningsState
from .snapshot import Snapshot

# Most published tokenizers have truncation or padding settings of their own. The resource overrides
# them by contract, so that is not worth a warning.
REPORTED: Final = INFORMATIVE - {LoadReason.TOKENIZER_SETTINGS_IGNORED}


def loader_warnings(
    snapshot: Snapshot, revision: str, recorded: WarningsState
) -> Sequence[Finding]:
    """Return the informative findings of the pods of ``revision``, each once.

    Until a pod of the revision has loaded anything, the recorded findings hold: a recreated pod
    alone changes nothing.
    """
    pods = sorted(
        (pod for pod in snapshot.pods if pod.revision == revision), key=lambda pod: pod.name
    )
    reports = [report for pod in pods if (report := pod.load_report()) is not None and report.ok]
    before = recorded.loader if recorded.loader_revision == revision else ()
    if not reports:
        return before
    reported = {(item.path, item.message) for item in before}
    found: dict[tuple[str, str], str] = {}
    for report in reports:
        for item in report.findings:
            if item.reason in REPORTED:
                # If the messages of pods differ, for example in numbers, the one reported before
                # stays for as long as a pod repeats it.
                path, text = item.field or item.step or "", f"{item.reason.value}: {item.message}"
                if (path, item.reason.value) not in found or (path, text) in reported:
                    found[path, item.reason.value] = text
    return [
        Finding(path, text, Severity.WARNING, code=FindingCode.LOADER_WARNING)
        for (path, _), text in sorted(found.items())
    ]
