"""Assemble the resource of a pipeline from a model repository.

Steps become fields, the rest of their configs becomes configPatch, and what the resource cannot
express becomes a note.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from tritonclient.grpc import model_config_pb2

from triton_pipelines.api.parse import parse
from triton_pipelines.api.v1alpha1 import NAME_MAX
from triton_pipelines.compile.graph import Graph, Options, build
from triton_pipelines.compile.graph.defaults import (
    ENVIRONMENT_PARAMETER,
    MODEL,
    POSTPROCESS,
    STRATEGY_PARAMETER,
    TOKENIZER,
)
from triton_pipelines.compile.graph.graph import Step
from triton_pipelines.compile.render.config_patch import patch
from triton_pipelines.compile.render.model_config import ensemble_config, step_config
from triton_pipelines.compile.render.model_config import parse as parse_config

from . import schedulers, step_fields
from .config_difference import differences, patch_between
from .import_notes import ImportNote, ImportReport, NoteSeverity
from .model_files import FileProgress, FileSources
from .model_selection import PipelineModels, select_models
from .rendered_steps import RuntimeStep, runtime_step_of
from .repository import ModelRepository, RepositoryModel
from .resource_validity import make_valid
from .step_roles import SLOTS, StepCall, calls_of, free_name, in_data_order, name_calls, references
from .yaml_document import ResourceDraft, slug

_ORDER = (TOKENIZER, MODEL, "steps", POSTPROCESS, "auxiliaryModels", "ensemble", "server")
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
            f"not part of this pipeline, left out: {', '.join(selection.unused)}",
        )
    _add_server(draft, selection)
    if image is not None:
        draft.spec["server"] = {"image": image, **draft.spec.get("server", {})}
    if selection.entry.config.response_cache.enable:
        draft.spec["ensemble"]["responseCache"] = "Enabled"
    draft.spec = {key: draft.spec[key] for key in _ORDER if key in draft.spec}
    _complete_draft(draft, selection, report)
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
        MODEL,
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
                "no step calls it; it is served as an auxiliary model, as in the repository"
                " (--without leaves it out)",
                path,
            )


def _with_model_name(
    model: RepositoryModel, fields: dict[str, Any], default: str
) -> dict[str, Any]:
    return fields if model.name == default else {"modelName": model.name, **fields}


def _move_batching(selection: PipelineModels, report: ImportReport) -> None:
    """Move batching of an ensemble, which Triton refuses, to the steps that have none."""
    meant = selection.entry.misplaced
    if meant is None:
        return
    where = f"{selection.entry.origin}: {meant.WhichOneof('scheduling_choice')}"
    why = (
        "an ensemble has no queue, and Triton does not load a config with both this and"
        " ensemble_scheduling; batching belongs to the steps"
    )
    without = [
        model
        for model in selection.steps
        if model.config.WhichOneof("scheduling_choice") is None
        and model.backend != "vllm"
        and model.config.max_batch_size > 0
    ]
    if meant.WhichOneof("scheduling_choice") != "dynamic_batching" or not without:
        report.lost(where, f"{why}; every step keeps its settings")
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
        f"{why}. The settings were moved to steps without batching:"
        f" {', '.join(model.name for model in without)}",
    )


def _add_ensemble(draft: ResourceDraft, selection: PipelineModels, files: FileSources) -> None:
    """Add every step, and the ensemble's inputs and outputs."""
    config = selection.entry.config
    calls = calls_of(selection.entry, selection.steps)
    name_calls(calls, selection.entry)
    by_name = {call.name: call for call in calls}
    spec = draft.spec
    if TOKENIZER in by_name:
        call = by_name[TOKENIZER]
        spec[TOKENIZER] = step_fields.tokenizer(call.model, references(call, calls), files)
    if MODEL in by_name:
        call = by_name[MODEL]
        fields = step_fields.step_fields(
            call.model, f"spec.{MODEL}", references(call, calls), files, call.version
        )
        spec[MODEL] = _with_model_name(call.model, fields, MODEL)
    further = [
        call for call in in_data_order(calls) if call.name not in (TOKENIZER, MODEL, POSTPROCESS)
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
    if POSTPROCESS in by_name:
        call = by_name[POSTPROCESS]
        spec[POSTPROCESS] = step_fields.postprocess(call.model, references(call, calls), files)
    for call in calls:
        _report_extra_runtime_steps(call, files.report)
    spec["ensemble"] = _ensemble_fields(draft.name, config, calls)


def _report_extra_runtime_steps(call: StepCall, report: ImportReport) -> None:
    kind = runtime_step_of(call.model)
    if kind in (RuntimeStep.TOKENIZER, RuntimeStep.POSTPROCESS) and call.name != str(kind):
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


def _complete_draft(draft: ResourceDraft, selection: PipelineModels, report: ImportReport) -> None:
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
        model = models[step.model_name]
        base = parse_config(step_config(step))
        _adopt_operator_values(base, model, step, report)
        if found := patch_between(base, model.config):
            _fields_at(draft, step.path)["configPatch"] = found
    graph = _compiled_graph(draft) or graph
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
            _canonical_ensemble(parse_config(ensemble_config(graph))),
            replace(selection.entry, config=_canonical_ensemble(selection.entry.config)),
            "spec.ensemble",
            report,
        )


def _report_differences(
    rendered: Any, model: RepositoryModel, path: str, report: ImportReport
) -> None:
    for place, desired, actual in differences(rendered, model.config):
        if not (
            place == "instance_group[1]"
            or (place.startswith("instance_group[") and len(model.config.instance_group) > 1)
        ):
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
            "The config has no warm-up. Without this line, new instances would run inferences"
            " before serving.",
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
                f"{config.parameters[key].string_value} becomes"
                f" {base.parameters[key].string_value}, where the operator puts it",
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
    if step.path == f"spec.{TOKENIZER}" and config.instance_group[0].kind == type(
        config.instance_group[0]
    ).Kind.Value("KIND_AUTO"):
        config.instance_group[0].kind = base.instance_group[0].kind
    groups, first = config.instance_group, base.instance_group[0]
    if (
        len(groups) > 1
        and sorted(gpu for group in groups for gpu in group.gpus) == list(first.gpus)
        and _can_merge_groups(model)
    ):
        del groups[1:]
        groups[0].CopyFrom(first)


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
                f"{cache} is replaced; the operator chooses a path outside of the model's folder",
                f"{step.path}.optimization",
            )
        theirs.CopyFrom(ours)


def _can_merge_groups(model: RepositoryModel) -> bool:
    """Return whether all instance groups can be merged into one."""
    return schedulers.instances(model.config).dropped is None


def _canonical_ensemble(config: Any) -> Any:
    """Return an ensemble in a canonical form for comparison.

    Inner tensors are named after their producer and steps are sorted by name: neither the names nor
    the order has a meaning.
    """
    copy = model_config_pb2.ModelConfig()
    copy.CopyFrom(config)
    entry = {tensor.name for tensor in (*config.input, *config.output)}
    names = {
        tensor: f"{step.model_name}.{output}"
        for step in config.ensemble_scheduling.step
        for output, tensor in step.output_map.items()
        if tensor not in entry
    }
    steps = sorted(config.ensemble_scheduling.step, key=lambda step: str(step.model_name))
    del copy.ensemble_scheduling.step[:]
    for step in steps:
        new_step = copy.ensemble_scheduling.step.add(
            model_name=step.model_name,
            model_version=step.model_version,
            model_namespace=step.model_namespace,
        )
        for key, tensor in step.input_map.items():
            new_step.input_map[key] = names.get(tensor, tensor)
        for key, tensor in step.output_map.items():
            new_step.output_map[key] = names.get(tensor, tensor)
    return copy
