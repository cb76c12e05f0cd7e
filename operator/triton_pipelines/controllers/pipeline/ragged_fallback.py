"""Record what the loader could not adapt to ragged batches, as read from its reports. Pure.

A rejection belongs to a file and how it is read, not to a revision. After an unrelated change of
the spec, pods do not meet the same rejection again; another file or another declaration is tried
again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.loadreport import INFORMATIVE, LoadFinding, LoadReason
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.compile.graph.effective_padding import PaddingChoice
from triton_pipelines.compile.graph.graph import Graph
from triton_pipelines.compile.graph.ragged_eligibility import RaggedRejections, rejection_key

from .snapshot import Snapshot
from .state import json_object

# Longest rejection that is kept (the loader's report is 4096 bytes in all), and the size limit of
# status.padding.reason.
REJECTION_MAX = 300
STATUS_REASON_MAX = 512
# Auto's choice until the cost of the step is measured.
UNMEASURED = "; this mode was chosen by a fixed rule and has not been measured yet"
# Room for a measurement next to the reason, and for its request in that.
NOTE_MAX = 300
REQUEST_MAX = 40


# Revision of a pod, and what its loader found.
Reports = tuple[tuple[str, tuple[LoadFinding, ...]], ...]


def recorded(snapshot: Snapshot) -> dict[str, str]:
    """Return the rejections that earlier reconcile iterations recorded.

    A record that a manual edit has made unreadable counts as none, and is found again.
    """
    known: Mapping[str, Any] = json_object(snapshot.live_data().get(names.KEY_PADDING))
    return {key: reason for key, reason in known.items() if isinstance(reason, str)}


def ragged_unsupported(snapshot: Snapshot) -> Reports:
    """Return revision and findings of each pod whose file the loader could not adapt.

    Pods with other findings on what was loaded are left out.
    """
    padding_status = []
    for pod in (*snapshot.pods, *snapshot.preflight_pods):
        report = pod.load_report()
        failures = (
            tuple(item for item in report.findings if item.reason not in INFORMATIVE)
            if report is not None and not report.ok
            else ()
        )
        if failures and all(item.reason is LoadReason.RAGGED_UNSUPPORTED for item in failures):
            padding_status.append((pod.revision, failures))
    return tuple(padding_status)


def reported(
    pipeline: InferencePipeline, graph: Graph, revision: str, reports: Reports
) -> dict[str, str]:
    """Return the rejections among ``reports`` of pods of ``revision``."""
    fields = {step.name: step for step in pipeline.spec.steps} | (
        {"model": pipeline.spec.model} if pipeline.spec.model else {}
    )
    adapted = {step.name for step in graph.models if step.flat}
    found: dict[str, str] = {}
    for item in (
        item
        for padding_status, failures in reports
        if padding_status == revision
        for item in failures
    ):
        if item.step in adapted and item.step in fields:
            found[rejection_key(fields[item.step], pipeline.spec)] = shorten(item.message)
    return found


def padding_status(
    choice: PaddingChoice, run: Mapping[str, Any], current: bool, other: str = ""
) -> dict[str, str]:
    """Return ``status.padding``: the padding in force, and which rule or measurement chose it.

    Args:
        choice: The padding in force.
        run: ``status.tuning`` of the last run.
        current: Whether that run measured or recommended the desired revision.
        other: A note on measured paddings that are not in force.
    """
    request = shorten(str(run.get("request") or ""), REQUEST_MAX)
    figures = str(run.get("padding") or "") if current and run.get("state") == "Succeeded" else ""
    if choice.measured or (choice.automatic and other):
        note = other
    elif figures:
        note = f"; tuning run {request!r} measured: {figures}"
    else:
        note = UNMEASURED if choice.automatic else ""
    note = shorten(note, NOTE_MAX)
    return {
        "chosen": choice.chosen.value,
        "reason": shorten(choice.reason, STATUS_REASON_MAX - len(note)) + note,
    }


def shorten(text: str, most: int = REJECTION_MAX) -> str:
    """Return the text, cut to the available room."""
    return text if len(text) <= most else text[: most - 2].rstrip() + " …"


def data(rejections: RaggedRejections) -> dict[str, str]:
    """Return the rejections as data of the live ConfigMap; empty without any."""
    return (
        {names.KEY_PADDING: json.dumps(dict(sorted(rejections.items())), ensure_ascii=False)}
        if rejections
        else {}
    )
