"""Make sure that no invalid resource is written.

What the resource's server does not know is removed from ``configPatch`` and reported. Anything else
that the resource cannot express is an error that names the file of the repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from triton_pipelines.api.base import Finding
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.parse import parse
from triton_pipelines.compile.graph import Options, build, check
from triton_pipelines.compile.render import review

from .import_notes import ImportReport, InexpressibleRepositoryError
from .model_selection import PipelineModels
from .yaml_document import ResourceDraft

_STEP: Final = re.compile(
    r"spec\.(tokenizer|model|postprocess|steps|auxiliaryModels)(?:\[(\d+)\])?"
)
_PATCH: Final = re.compile(r"\.configPatch\.([A-Za-z_]+)")
_INFLIGHT: Final = "spec.ensemble.maxInflightRequests"
_CAMEL: Final = re.compile(r"_([a-z])")


def make_valid(draft: ResourceDraft, selection: PipelineModels, report: ImportReport) -> None:
    """Remove from ``configPatch`` what validation rejects, with a note on each.

    Raises:
        InexpressibleRepositoryError: the resource is invalid for another reason.
    """
    while findings := _findings(draft.document):
        removed = [_removed(draft, finding, selection, report) for finding in findings]
        if not any(removed):
            raise InexpressibleRepositoryError("\n".join(_messages(draft, findings, selection)))


def _findings(document: dict[str, Any]) -> list[Finding]:
    """Return what ``tritonpipe validate`` would report as errors."""
    pipeline, findings = parse(document)
    if pipeline is None or findings:
        return list(findings)
    options = Options()
    graph = build(pipeline, options)
    return check(pipeline, graph, options) or review(pipeline, graph, options)


def _step(draft: ResourceDraft, path: str) -> dict[str, Any] | None:
    """Return the fields of the step that a field of the resource belongs to."""
    match = _STEP.match(path)
    if match is None:
        return None
    value = draft.spec.get(match[1])
    if isinstance(value, list):
        index = int(match[2] or 0)
        value = value[index] if index < len(value) else None
    return value if isinstance(value, dict) else None


def _origin(draft: ResourceDraft, path: str, selection: PipelineModels) -> str:
    """Return the config that a field of the resource was made from."""
    if path.startswith("spec.server."):
        return "--image"
    fields = _step(draft, path)
    if fields is None:
        return selection.entry.origin
    match = _STEP.match(path)
    name = fields.get("modelName") or fields.get("name") or (match[1] if match else "")
    models = (*selection.steps, *selection.auxiliary, selection.entry)
    return next((model.origin for model in models if model.name == name), selection.entry.origin)


def _removed(
    draft: ResourceDraft, finding: Finding, selection: PipelineModels, report: ImportReport
) -> bool:
    """Remove the field of ``configPatch`` that a finding is about; return whether it was there."""
    if finding.path == _INFLIGHT and finding.code == FindingCode.UNSUPPORTED_RELEASE:
        del draft.spec["ensemble"]["maxInflightRequests"]
        report.lost(
            f"{selection.entry.origin}: ensemble_scheduling.max_inflight_requests",
            f"{finding.message} with --image",
            "spec.ensemble",
        )
        return True
    match, fields = _PATCH.search(finding.path), _step(draft, finding.path)
    if match is None or fields is None:
        return False
    patch = fields.get("configPatch", {})
    key = next((name for name in (match[1], _CAMEL.sub(_upper, match[1])) if name in patch), None)
    if key is None:
        return False
    del patch[key]
    if not patch:
        del fields["configPatch"]
    step = finding.path.partition(".configPatch")[0]
    report.lost(
        f"{_origin(draft, finding.path, selection)}: {match[1]}",
        f"{finding.message} (--image sets the release)",
        step,
    )
    return True


def _upper(match: re.Match[str]) -> str:
    return match[1].upper()


def _messages(
    draft: ResourceDraft, findings: Iterable[Finding], selection: PipelineModels
) -> list[str]:
    return [
        f"{_origin(draft, finding.path, selection)}: an InferencePipeline cannot represent "
        f"this setting: {finding.path}: {finding.message}"
        for finding in findings
    ]
