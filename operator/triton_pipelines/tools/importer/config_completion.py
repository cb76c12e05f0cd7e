"""Complete a draft by comparing what it renders with the repository.

Warm-up and configPatch are added to the steps; differences that remain become notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triton_pipelines.api.parse import parse
from triton_pipelines.compile.graph import Graph, Options, build
from triton_pipelines.compile.graph.defaults import (
    ENVIRONMENT_PARAMETER,
    POSTPROCESS,
    STRATEGY_PARAMETER,
    TOKENIZER,
)
from triton_pipelines.compile.graph.graph import Step
from triton_pipelines.compile.render.config_patch import patch
from triton_pipelines.compile.render.model_config import ensemble_config, step_config
from triton_pipelines.compile.render.model_config import parse as parse_config

from . import schedulers
from .canonical_ensemble import canonical_ensemble
from .config_difference import differences, patch_between
from .import_notes import ImportNote, ImportReport, NoteSeverity
from .model_selection import PipelineModels
from .repository import RepositoryModel
from .yaml_document import ResourceDraft


def _fields_at(draft: ResourceDraft, path: str) -> dict[str, Any]:
    """Return the fields of the step at a path such as ``spec.steps[0]``."""
    value: Any = draft.document
    for key, index in re.findall(r"([a-zA-Z]+)(?:\[(\d+)\])?", path):
        value = value[key][int(index)] if index else value[key]
    assert isinstance(value, dict)
    return value


def _compiled_graph(draft: ResourceDraft) -> Graph | None:
    pipeline, findings = parse(draft.document)
    return None if pipeline is None or findings else build(pipeline, Options())


def complete_draft(draft: ResourceDraft, selection: PipelineModels, report: ImportReport) -> None:
    """Add warm-up and ``configPatch``, then compare what would be rendered with the repository."""
    if (graph := _compiled_graph(draft)) is None:
        report.info(
            selection.entry.origin,
            "the resource is not valid yet, so it was not compared with the repository",
        )
        return
    models = {
        model.name: model for model in (selection.entry, *selection.steps, *selection.auxiliary)
    }
    for step in graph.models:
        _add_warmup(draft, step, models[step.model_name])
    graph = _compiled_graph(draft) or graph
    for step in graph.models:
        _add_config_patch(draft, step, models[step.model_name], report)
    _compare(_compiled_graph(draft) or graph, selection, models, report)


def _add_config_patch(
    draft: ResourceDraft, step: Step, model: RepositoryModel, report: ImportReport
) -> None:
    """Add the part of a step's config that the fields of the resource do not produce."""
    base = parse_config(step_config(step))
    _adopt_operator_values(base, model, step, report)
    if found := patch_between(base, model.config):
        _fields_at(draft, step.path)["configPatch"] = found


def _compare(
    graph: Graph,
    selection: PipelineModels,
    models: Mapping[str, RepositoryModel],
    report: ImportReport,
) -> None:
    """Report how the configs that would be rendered differ from those of the repository."""
    for step in graph.models:
        rendered = parse_config(step_config(step))
        findings = (
            patch(rendered, step.config_patch, f"{step.path}.configPatch")
            if step.config_patch
            else []
        )
        report.extend(
            ImportNote(models[step.model_name].origin, str(finding), NoteSeverity.LOST, step.path)
            for finding in findings
        )
        _report_differences(rendered, models[step.model_name], step.path, report)
    if graph.entry is None:
        _report_differences(
            canonical_ensemble(parse_config(ensemble_config(graph))),
            replace(selection.entry, config=canonical_ensemble(selection.entry.config)),
            "spec.ensemble",
            report,
        )


def _report_differences(
    rendered: Any, model: RepositoryModel, path: str, report: ImportReport
) -> None:
    for place, desired, actual in differences(rendered, model.config):
        # Groups of a tokenizer that are left out are reported already.
        left_out = len(rendered.instance_group) < len(model.config.instance_group)
        if not (left_out and place.startswith("instance_group[")):
            report.lost(f"{model.origin}: {place}", f"{desired} became {actual}", path)


def _add_warmup(draft: ResourceDraft, step: Step, model: RepositoryModel) -> None:
    """Add warm-up where it is not the default: other batch sizes, or left to configPatch."""
    spec = _fields_at(draft, step.path)
    desired = list(model.config.model_warmup)
    if (
        step.path in (f"spec.{TOKENIZER}", f"spec.{POSTPROCESS}")
        or _warmup_samples(step) == desired
    ):
        return
    if (
        desired
        and (sizes := sorted({sample.batch_size for sample in desired}))
        and model.config.WhichOneof("scheduling_choice") != "sequence_batching"
    ):
        spec["warmup"] = {"batchSizes": sizes}
        graph = _compiled_graph(draft)
        again = (
            next((other for other in graph.models if other.path == step.path), None)
            if graph is not None
            else None
        )
        if again is not None and _warmup_samples(again) == desired:
            return
    spec["warmup"] = {"mode": "Disabled"}
    if not desired:
        draft.comment(
            f"{step.path}.warmup",
            "The config has no warm-up. Without this line, new instances would run inferences "
            "before they serve requests.",
        )


def _warmup_samples(step: Step) -> list[Any]:
    return list(parse_config(step_config(step)).model_warmup)


def _adopt_operator_values(
    base: Any, model: RepositoryModel, step: Step, report: ImportReport
) -> None:
    """Adopt values in the repository's config that the operator sets differently on purpose.

    These are the paths of files, and what vLLM completes by itself.
    """
    config = model.config
    for key, about in (
        (ENVIRONMENT_PARAMETER, "python.environment"),
        (STRATEGY_PARAMETER, "batchStrategy"),
    ):
        if (
            key in base.parameters
            and key in config.parameters
            and base.parameters[key] != config.parameters[key]
        ):
            report.info(
                f"{model.origin}: parameters[{key}]",
                f"{config.parameters[key].string_value} becomes "
                f"{base.parameters[key].string_value}, where the operator stores it",
                f"{step.path}.{about}",
            )
            config.parameters[key].CopyFrom(base.parameters[key])
    if (
        STRATEGY_PARAMETER in config.parameters
        and STRATEGY_PARAMETER not in base.parameters
        and step.path != f"spec.{TOKENIZER}"
    ):
        # The operator stores the library under the name that Triton looks for.
        del config.parameters[STRATEGY_PARAMETER]
    _adopt_accelerators(base, model, step, report)
    if model.backend == "vllm" and not config.input:
        config.input.extend(base.input)
        config.output.extend(base.output)
        config.model_transaction_policy.CopyFrom(base.model_transaction_policy)
    _merge_groups(base, model)
    if step.path == f"spec.{TOKENIZER}" and config.instance_group[0].kind == type(
        config.instance_group[0]
    ).Kind.Value("KIND_AUTO"):
        config.instance_group[0].kind = base.instance_group[0].kind


def _merge_groups(base: Any, model: RepositoryModel) -> None:
    """Merge the instance groups of a tokenizer into one, as its resource has it."""
    groups = model.config.instance_group
    merged = schedulers.merged_group(model.config)
    if len(groups) > len(base.instance_group) and merged is not None:
        del groups[1:]
        groups[0].count = merged["count"]


def _adopt_accelerators(
    base: Any, model: RepositoryModel, step: Step, report: ImportReport
) -> None:
    """Adopt the operator's accelerator settings, whose cache is at another path."""
    config = model.config
    ours, theirs = (
        base.optimization.execution_accelerators,
        config.optimization.execution_accelerators,
    )
    if base.optimization.HasField("execution_accelerators") and ours != theirs:
        cache = dict(theirs.gpu_execution_accelerator[0].parameters).get("trt_engine_cache_path")
        if cache:
            report.changed(
                f"{model.origin}: trt_engine_cache_path",
                f"{cache} was replaced, because the operator chooses a path outside the "
                "model's directory",
                f"{step.path}.optimization",
            )
        theirs.CopyFrom(ours)
