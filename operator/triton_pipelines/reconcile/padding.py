"""What the loader could not adapt to ragged batches: read from its reports, and remembered beside the counts. Pure.

A refusal belongs to a file and how it is read, not to a revision: an unrelated change of the spec does not send pods into the same
refusal again, another file or another declaration is tried anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triton_pipelines.api import names
from triton_pipelines.api.loadreport import INFORMATIVE, Reason
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.pipeline.adapting import Refusals, refusal_key
from triton_pipelines.pipeline.graph import Graph

from .observed import Observed, json_object

# Longest reason that is kept; the loader's report is 4096 bytes in all, and status.padding.reason has 512 characters.
REASON_MAX = 300


def recorded(observed: Observed) -> dict[str, str]:
    """Refusals that earlier passes wrote down; what an edit by hand made unreadable counts as none, and is found again."""
    known: Mapping[str, Any] = json_object(observed.live_data().get(names.KEY_PADDING))
    return {key: reason for key, reason in known.items() if isinstance(reason, str)}


def reported(pipeline: InferencePipeline, graph: Graph, revision: str, observed: Observed) -> dict[str, str]:
    """Refusals in the loader's reports of the pods of ``revision``; only where nothing else is wrong with what was loaded."""
    fields = {step.name: step for step in pipeline.spec.steps} | ({"model": pipeline.spec.model} if pipeline.spec.model else {})
    adapted = {step.name for step in graph.models if step.flat}
    found: dict[str, str] = {}
    for pod in observed.pods:
        report = pod.load_report() if pod.revision == revision else None
        failures = [item for item in report.findings if item.reason not in INFORMATIVE] if report is not None and not report.ok else []
        if any(item.reason is not Reason.NOT_RAGGED for item in failures):
            continue
        for item in failures:
            if item.step in adapted and item.step in fields:
                found[refusal_key(fields[item.step], pipeline.spec)] = _short(item.message)
    return found


def _short(text: str) -> str:
    return text if len(text) <= REASON_MAX else text[: REASON_MAX - 2].rstrip() + " …"


def data(refused: Refusals) -> dict[str, str]:
    """What the live ConfigMap holds of them: nothing where there are none."""
    return {names.KEY_PADDING: json.dumps(dict(sorted(refused.items())), ensure_ascii=False)} if refused else {}
