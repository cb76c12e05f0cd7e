"""Assemble the resource of a pipeline from a model repository.

Steps become fields, the rest of their configs becomes configPatch, and what the resource cannot
express becomes a note.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from triton_pipelines.api.base import Switch
from triton_pipelines.api.v1alpha1 import NAME_MAX
from triton_pipelines.api.wording import counted
from triton_pipelines.compile.graph.defaults import (
    MODEL,
    POSTPROCESS,
    TOKENIZER,
)

from . import schedulers, step_fields
from .config_completion import (
    complete_draft,
)
from .import_notes import ImportReport, NoteSeverity
from .model_files import FileProgress, FileSources
from .model_selection import PipelineModels, select_models
from .rendered_steps import RuntimeStep, runtime_step_of
from .repository import ModelRepository, RepositoryModel
from .resource_validity import make_valid
from .step_calls import SLOTS, StepCall, calls_of, in_data_order, references
from .step_roles import free_name, make_required, name_calls
from .yaml_document import ResourceDraft, slug

_ORDER = (
    TOKENIZER,
    MODEL,
    "steps",
    "repeatedSteps",
    POSTPROCESS,
    "auxiliaryModels",
    "ensemble",
    "server",
)
# Backends whose engine is on a GPU, whatever the kind of its instances.
_GPU_BACKENDS = ("tensorrt", "tensorrtllm", "vllm")


def import_models(
    repository: ModelRepository,
    name: str | None,
    prefix: str,
    meter: FileProgress,
    without: Collection[str] = (),
    image: str | None = None,
) -> tuple[ResourceDraft, ImportReport]:
    """Return the resource of one pipeline with comments, and the notes on it.

    Args:
        repository: the parsed repository.
        name: the ensemble, or the model that clients call; ``None`` if there is only one.
        prefix: source address that the repository's folder will have.
        meter: progress of reading files.
        without: models to leave out.
        image: image of the server; ``None`` for the operator's default.

    Raises:
        ModelRepositoryError: the repository contains no such pipeline, it is invalid, or no
            resource can express it.
    """
    report = ImportReport(list(repository.notes))
    selection = select_models(repository, name, without)
    report.extend(selection.notes)
    _move_batching(selection, report)
    files = FileSources(prefix, report, meter)
    draft = ResourceDraft(slug(selection.entry.name, NAME_MAX))
    if selection.entry.ensemble:
        _add_ensemble(draft, selection, files)
    else:
        _add_single_model(draft, selection, files)
    _add_auxiliary_models(draft, selection, files)
    if selection.unused:
        report.info(
            selection.entry.origin,
            counted(
                len(selection.unused),
                "model that is not part of this pipeline was omitted: ",
                "models that are not part of this pipeline were omitted: ",
            )
            + ", ".join(selection.unused),
        )
    _add_server(draft, selection)
    if image is not None:
        draft.spec["server"] = {"image": image, **draft.spec.get("server", {})}
    if selection.entry.config.response_cache.enable:
        draft.spec["ensemble"]["responseCache"] = "Enabled"
    draft.spec = {key: draft.spec[key] for key in _ORDER if key in draft.spec}
    complete_draft(draft, selection, report)
    make_valid(draft, selection, report)
    for note in report.sorted():
        if note.path:
            draft.comment(note.path, str(note))
        elif note.severity is not NoteSeverity.INFO:
            draft.header.append(str(note))
    return draft, report


def _add_single_model(draft: ResourceDraft, selection: PipelineModels, files: FileSources) -> None:
    """Add a model that clients call directly, and the built-in tokenizer if its code calls that."""
    spec = draft.spec
    tokenizer = next(
        (model for model in selection.auxiliary if runtime_step_of(model) is RuntimeStep.TOKENIZER),
        None,
    )
    if tokenizer is not None:
        spec[TOKENIZER] = step_fields.tokenizer(tokenizer, {}, files)
    spec[MODEL] = _with_model_name(
        selection.entry,
        step_fields.step_fields(selection.entry, f"spec.{MODEL}", {}, files, -1),
    )
    spec["ensemble"] = {"entryPoint": MODEL}


def _add_auxiliary_models(
    draft: ResourceDraft, selection: PipelineModels, files: FileSources
) -> None:
    """Add the models that are loaded in addition to the steps."""
    taken = {*SLOTS, *(item["name"] for item in draft.spec.get("steps", ()))}
    placed = [
        model
        for model in selection.auxiliary
        if runtime_step_of(model) is not RuntimeStep.TOKENIZER or TOKENIZER not in draft.spec
    ]
    for index, model in enumerate(placed):
        path, name = f"spec.auxiliaryModels[{index}]", free_name(model.name, taken)
        taken.add(name)
        fields = {
            "name": name,
            **({"modelName": model.name} if model.name != name else {}),
            **step_fields.step_fields(model, path, {}, files, -1),
        }
        draft.spec.setdefault("auxiliaryModels", []).append(fields)
        if model.name in selection.uncalled:
            files.report.info(
                model.origin,
                "no step calls this model, so it is served as an auxiliary model; to "
                "exclude the model, use --without",
                path,
            )


def _with_model_name(model: RepositoryModel, fields: dict[str, Any]) -> dict[str, Any]:
    return fields if model.name == MODEL else {"modelName": model.name, **fields}


def _move_batching(selection: PipelineModels, report: ImportReport) -> None:
    """Move batching of an ensemble, which Triton refuses, to the steps that have none."""
    meant = selection.entry.misplaced
    if meant is None:
        return
    where = f"{selection.entry.origin}: {meant.WhichOneof('scheduling_choice')}"
    why = "Triton rejects this field in an ensemble"
    without = [
        model
        for model in selection.steps
        if model.config.WhichOneof("scheduling_choice") is None
        and model.backend != "vllm"
        and model.config.max_batch_size > 0
    ]
    if meant.WhichOneof("scheduling_choice") != "dynamic_batching" or not without:
        report.lost(where, f"{why}, so the field was removed; all steps keep their own settings")
        return
    for model in without:
        model.config.dynamic_batching.CopyFrom(meant.dynamic_batching)
        sizes = [
            size
            for size in meant.dynamic_batching.preferred_batch_size
            if size <= model.config.max_batch_size
        ]
        del model.config.dynamic_batching.preferred_batch_size[:]
        model.config.dynamic_batching.preferred_batch_size.extend(sizes)
    report.changed(
        where,
        f"{why}, so the settings were moved to each step that had no batching settings: "
        f"{', '.join(model.name for model in without)}",
    )


def _add_ensemble(draft: ResourceDraft, selection: PipelineModels, files: FileSources) -> None:
    """Add every step, and the ensemble's inputs and outputs."""
    config = selection.entry.config
    calls = calls_of(selection.entry, {model.name: model for model in selection.steps})
    name_calls(calls, selection.entry)
    by_name = {call.name: call for call in calls if call.repeats is None}
    spec = draft.spec
    if TOKENIZER in by_name:
        call = by_name[TOKENIZER]
        spec[TOKENIZER] = step_fields.tokenizer(call.model, references(call, calls), files)
    if MODEL in by_name:
        call = by_name[MODEL]
        fields = step_fields.step_fields(
            call.model, f"spec.{MODEL}", references(call, calls), files, call.version
        )
        spec[MODEL] = _with_model_name(call.model, fields)
    further = [
        call
        for call in in_data_order(calls)
        if call.repeats is None and call.name not in (TOKENIZER, MODEL, POSTPROCESS)
    ]
    for index, call in enumerate(further):
        fields = step_fields.step_fields(
            call.model, f"spec.steps[{index}]", references(call, calls), files, call.version
        )
        named = {
            "name": call.name,
            **({"modelName": call.model.name} if call.model.name != call.name else {}),
        }
        spec.setdefault("steps", []).append({**named, **fields})
    for call in in_data_order(calls):
        if call.repeats is not None:
            spec.setdefault("repeatedSteps", []).append(
                _repeated_step(call, references(call, calls))
            )
    if POSTPROCESS in by_name:
        call = by_name[POSTPROCESS]
        spec[POSTPROCESS] = step_fields.postprocess(call.model, references(call, calls), files)
    for call in calls:
        _report_extra_runtime_steps(call, files.report)
    make_required(calls, selection.entry, files.report)
    spec["ensemble"] = _ensemble_fields(draft.name, config, calls)


def _repeated_step(call: StepCall, wires: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a step that runs the model of another one."""
    return {
        "name": call.name,
        "step": call.repeats,
        "inputs": [
            {"name": item.name, "from": wires[item.name]}
            for item in call.model.config.input
            if item.name in wires
        ],
    }


def _report_extra_runtime_steps(call: StepCall, report: ImportReport) -> None:
    kind = runtime_step_of(call.model)
    built_in = kind in (RuntimeStep.TOKENIZER, RuntimeStep.POSTPROCESS)
    if built_in and call.repeats is None and call.name != str(kind):
        report.lost(
            call.model.origin,
            f"a pipeline has at most one built-in {kind}; write a model.py for this one,"
            " or split the pipeline",
        )


def _ensemble_fields(name: str, config: Any, calls: Sequence[StepCall]) -> dict[str, Any]:
    """Return the fields of ``ensemble``: name, inputs and outputs in their order."""
    fields: dict[str, Any] = {} if config.name == name else {"modelName": config.name}
    fields["inputs"] = [
        {
            "name": item.name,
            "dataType": schedulers.data_type(item.data_type),
            "dims": list(item.dims),
            **({"optional": Switch.ENABLED.value} if item.optional else {}),
        }
        for item in config.input
    ]
    references_by_tensor = {
        tensor: f"{call.name}.{output}" for call in calls for output, tensor in call.writes.items()
    }
    fields["outputs"] = [
        {"name": item.name, "from": references_by_tensor.get(item.name, f"pipeline.{item.name}")}
        for item in config.output
    ]
    if config.max_batch_size != min(
        (call.model.config.max_batch_size for call in calls), default=0
    ):
        fields["maxBatchSize"] = config.max_batch_size
    if config.ensemble_scheduling.max_inflight_requests:
        fields["maxInflightRequests"] = config.ensemble_scheduling.max_inflight_requests
    return fields


def _add_server(draft: ResourceDraft, selection: PipelineModels) -> None:
    """Add the number of GPUs that the configs refer to."""
    models = [
        model
        for model in (selection.entry, *selection.steps, *selection.auxiliary)
        if not model.ensemble
    ]
    groups = [group for model in models for group in model.config.instance_group]
    highest = max((gpu for group in groups for gpu in group.gpus), default=0)
    on_cpu = all(group.kind == type(group).Kind.Value("KIND_CPU") for group in groups)
    if on_cpu and not any(model.backend in _GPU_BACKENDS for model in models):
        draft.spec["server"] = {"gpu": {"count": 0}}
    elif highest:
        draft.spec["server"] = {"gpu": {"count": highest + 1}}
        draft.comment("spec.server.gpu.count", f"The configs refer to GPUs up to number {highest}.")
