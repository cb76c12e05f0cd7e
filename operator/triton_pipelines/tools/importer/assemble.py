"""A pipeline of a model repository: its steps as fields, what is left as configPatch, and what cannot be said at all as notes."""

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
from .config_difference import differences, patch_of
from .import_notes import Note, Report, Weight
from .model_files import Files, Meter
from .model_selection import Choice, choose
from .rendered_steps import Own, own
from .repository import Model, Repository
from .step_roles import SLOTS, Call, calls_of, free_name, in_data_order, name_calls, references
from .yaml_document import Draft, slug

_ORDER = (TOKENIZER, MODEL, "steps", POSTPROCESS, "auxiliaryModels", "ensemble", "server")
# Backends whose engine is on a GPU whatever the kind of its instances says.
_GPU_BACKENDS = ("tensorrt", "tensorrtllm", "vllm")


def import_models(
    repository: Repository,
    wanted: str | None,
    prefix: str,
    meter: Meter,
    without: Collection[str] = (),
) -> tuple[Draft, Report]:
    """The resource of one pipeline of a repository, with comments, and everything that is to be said.

    Args:
        repository: as it was read.
        wanted: the ensemble, or the model that clients call; None where there is only one.
        prefix: where the repository's folder will lie, as a source's address.
        meter: progress of reading files.
        without: models to leave out.

    Raises :class:`~.notes.ConfigError` for what is no pipeline at all.
    """
    report = Report(list(repository.notes))
    choice = choose(repository, wanted, without)
    report.extend(choice.notes)
    _move_batching(choice, report)
    files = Files(prefix, report, meter)
    draft = Draft(slug(choice.public.name, NAME_MAX))
    if choice.public.ensemble:
        _ensemble(draft, choice, files)
    else:
        _entered(draft, choice, files)
    _auxiliary(draft, choice, files)
    if choice.left:
        report.info(choice.public.origin, f"not part of it, and left out: {', '.join(choice.left)}")
    _server(draft, choice)
    if choice.public.config.response_cache.enable:
        draft.spec["ensemble"]["responseCache"] = "Enabled"
    draft.spec = {key: draft.spec[key] for key in _ORDER if key in draft.spec}
    _complete(draft, choice, report)
    for note in report.notes:
        if note.path:
            draft.say(note.path, str(note))
        elif note.weight is not Weight.INFO:
            draft.head.append(str(note))
    return draft, report


def _entered(draft: Draft, choice: Choice, files: Files) -> None:
    """A model that clients call by itself, and the operator's own tokenizer where its code calls that."""
    spec = draft.spec
    tokenizer = next((model for model in choice.auxiliary if own(model) is Own.TOKENIZER), None)
    if tokenizer is not None:
        spec[TOKENIZER] = step_fields.tokenizer(tokenizer, {}, files)
    spec[MODEL] = _named(
        choice.public, step_fields.step_fields(choice.public, f"spec.{MODEL}", {}, files, -1), MODEL
    )
    spec["ensemble"] = {"entryPoint": MODEL}


def _auxiliary(draft: Draft, choice: Choice, files: Files) -> None:
    """What is loaded beside the steps."""
    taken = {*SLOTS, *(item["name"] for item in draft.spec.get("steps", ()))}
    placed = [
        model
        for model in choice.auxiliary
        if own(model) is not Own.TOKENIZER or TOKENIZER not in draft.spec
    ]
    for index, model in enumerate(placed):
        path, name = f"spec.auxiliaryModels[{index}]", free_name(model.name, taken)
        taken.add(name)
        made = {
            "name": name,
            **({"modelName": model.name} if model.name != name else {}),
            **step_fields.step_fields(model, path, {}, files, -1),
        }
        draft.spec.setdefault("auxiliaryModels", []).append(made)
        if model.name in choice.uncalled:
            files.report.info(
                model.origin,
                "no step calls it; it is served beside, as in the repository (--without leaves it out)",
                path,
            )


def _named(model: Model, made: dict[str, Any], default: str) -> dict[str, Any]:
    return made if model.name == default else {"modelName": model.name, **made}


def _move_batching(choice: Choice, report: Report) -> None:
    """Batching that stands on an ensemble, where Triton refuses it, goes to the steps that have none: that is what was meant."""
    meant = choice.public.misplaced
    if meant is None:
        return
    where = f"{choice.public.origin}: {meant.WhichOneof('scheduling_choice')}"
    why = "an ensemble has no queue of its own, and Triton does not load a config with both this and ensemble_scheduling: batching belongs to the steps"
    without = [
        model
        for model in choice.steps
        if model.config.WhichOneof("scheduling_choice") is None
        and model.backend != "vllm"
        and model.config.max_batch_size > 0
    ]
    if meant.WhichOneof("scheduling_choice") != "dynamic_batching" or not without:
        report.lost(where, f"{why}; every step keeps its own")
        return
    for model in without:
        model.config.dynamic_batching.CopyFrom(meant.dynamic_batching)
        kept = [
            size
            for size in meant.dynamic_batching.preferred_batch_size
            if size <= model.config.max_batch_size
        ]
        del model.config.dynamic_batching.preferred_batch_size[:]
        model.config.dynamic_batching.preferred_batch_size.extend(kept)
    report.changed(
        where,
        f"{why}. The settings were moved to what had none: {', '.join(model.name for model in without)}",
    )


def _ensemble(draft: Draft, choice: Choice, files: Files) -> None:
    """Every step into its place, and the public face."""
    config = choice.public.config
    calls = calls_of(choice.public, choice.steps)
    name_calls(calls, choice.public)
    by_name = {call.name: call for call in calls}
    spec = draft.spec
    if TOKENIZER in by_name:
        call = by_name[TOKENIZER]
        spec[TOKENIZER] = step_fields.tokenizer(call.model, references(call, calls), files)
    if MODEL in by_name:
        call = by_name[MODEL]
        made = step_fields.step_fields(
            call.model, f"spec.{MODEL}", references(call, calls), files, call.version
        )
        spec[MODEL] = _named(call.model, made, MODEL)
    further = [
        call for call in in_data_order(calls) if call.name not in (TOKENIZER, MODEL, POSTPROCESS)
    ]
    for index, call in enumerate(further):
        made = step_fields.step_fields(
            call.model, f"spec.steps[{index}]", references(call, calls), files, call.version
        )
        named = {
            "name": call.name,
            **({"modelName": call.model.name} if call.model.name != call.name else {}),
        }
        spec.setdefault("steps", []).append({**named, **made})
    if POSTPROCESS in by_name:
        call = by_name[POSTPROCESS]
        spec[POSTPROCESS] = step_fields.postprocess(call.model, references(call, calls), files)
    for call in calls:
        _misfits(call, files.report)
    spec["ensemble"] = _face(draft.name, config, calls)


def _misfits(call: Call, report: Report) -> None:
    kind = own(call.model)
    if kind in (Own.TOKENIZER, Own.POSTPROCESS) and call.name != str(kind):
        report.lost(
            call.model.origin,
            f"a pipeline has one {kind} of the operator's own; write this one's model.py yourself, or split the pipeline",
        )


def _face(name: str, config: Any, calls: Sequence[Call]) -> dict[str, Any]:
    """``ensemble``: name, inputs and outputs in their order."""
    face: dict[str, Any] = {} if config.name == name else {"modelName": config.name}
    face["inputs"] = [
        {
            "name": item.name,
            "dataType": schedulers.data_type(item.data_type),
            "dims": list(item.dims),
        }
        for item in config.input
    ]
    made = {
        tensor: f"{call.name}.{output}" for call in calls for output, tensor in call.writes.items()
    }
    face["outputs"] = [
        {"name": item.name, "from": made.get(item.name, f"pipeline.{item.name}")}
        for item in config.output
    ]
    if config.max_batch_size != min(
        (call.model.config.max_batch_size for call in calls), default=0
    ):
        face["maxBatchSize"] = config.max_batch_size
    if config.ensemble_scheduling.max_inflight_requests:
        face["maxInflightRequests"] = config.ensemble_scheduling.max_inflight_requests
    return face


def _server(draft: Draft, choice: Choice) -> None:
    """How many GPUs the configs speak of."""
    models = [
        model for model in (choice.public, *choice.steps, *choice.auxiliary) if not model.ensemble
    ]
    groups = [group for model in models for group in model.config.instance_group]
    highest = max((gpu for group in groups for gpu in group.gpus), default=0)
    on_cpu = all(group.kind == type(group).Kind.Value("KIND_CPU") for group in groups)
    if on_cpu and not any(model.backend in _GPU_BACKENDS for model in models):
        draft.spec["server"] = {"gpu": {"count": 0}}
    elif highest:
        draft.spec["server"] = {"gpu": {"count": highest + 1}}
        draft.say("spec.server.gpu.count", f"The configs name GPUs up to {highest}.")


def _at(draft: Draft, path: str) -> dict[str, Any]:
    """The fields of the step at a path such as ``spec.steps[0]``."""
    value: Any = draft.document
    for key, index in re.findall(r"([a-zA-Z]+)(?:\[(\d+)\])?", path):
        value = value[key][int(index)] if index else value[key]
    assert isinstance(value, dict)
    return value


def _graph(draft: Draft) -> Graph | None:
    pipeline, findings = parse(draft.document)
    return None if pipeline is None or findings else build(pipeline, Options())


def _complete(draft: Draft, choice: Choice, report: Report) -> None:
    """Warm-up and ``configPatch``, and then the comparison of what would be rendered with what stands in the repository."""
    if (graph := _graph(draft)) is None:
        report.info(
            choice.public.origin,
            "the resource is not valid yet, so it was not compared with the repository",
        )
        return
    models = {model.name: model for model in (choice.public, *choice.steps, *choice.auxiliary)}
    for step in graph.models:
        _warmup(draft, step, models[step.model_name])
    graph = _graph(draft) or graph
    for step in graph.models:
        model = models[step.model_name]
        base = parse_config(step_config(step))
        _own_words(base, model, step, report)
        if found := patch_of(base, model.config):
            _at(draft, step.path)["configPatch"] = found
    graph = _graph(draft) or graph
    for step in graph.models:
        got = parse_config(step_config(step))
        findings = (
            patch(got, step.config_patch, f"{step.path}.configPatch") if step.config_patch else []
        )
        report.extend(
            Note(models[step.model_name].origin, str(finding), Weight.LOST, step.path)
            for finding in findings
        )
        _compare(got, models[step.model_name], step.path, report)
    if graph.entry is None:
        _compare(
            _plain(parse_config(ensemble_config(graph))),
            replace(choice.public, config=_plain(choice.public.config)),
            "spec.ensemble",
            report,
        )


def _compare(got: Any, model: Model, path: str, report: Report) -> None:
    for place, wanted, held in differences(got, model.config):
        if not (
            place == "instance_group[1]"
            or (place.startswith("instance_group[") and len(model.config.instance_group) > 1)
        ):
            report.lost(f"{model.origin}: {place}", f"{wanted} became {held}", path)


def _warmup(draft: Draft, step: Step, model: Model) -> None:
    """Inferences before serving: as the operator's default has them, at other batch sizes, or left to configPatch."""
    spec = _at(draft, step.path)
    wanted = list(model.config.model_warmup)
    if step.path in (f"spec.{TOKENIZER}", f"spec.{POSTPROCESS}") or _samples(step) == wanted:
        return
    if (
        wanted
        and (sizes := sorted({sample.batch_size for sample in wanted}))
        and model.config.WhichOneof("scheduling_choice") != "sequence_batching"
    ):
        spec["warmup"] = {"batchSizes": sizes}
        graph = _graph(draft)
        again = (
            next((other for other in graph.models if other.path == step.path), None)
            if graph is not None
            else None
        )
        if again is not None and _samples(again) == wanted:
            return
    spec["warmup"] = {"mode": "Disabled"}
    if not wanted:
        draft.say(
            f"{step.path}.warmup",
            "The config has none. Without this line new instances would run inferences before they serve.",
        )


def _samples(step: Step) -> list[Any]:
    return list(parse_config(step_config(step)).model_warmup)


def _own_words(base: Any, model: Model, step: Step, report: Report) -> None:
    """Take over into the repository's side what the operator says in its own words: places of files, what vLLM completes by itself."""
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
                f"{config.parameters[key].string_value} is where the operator lays it: {base.parameters[key].string_value}",
                f"{step.path}.{about}",
            )
            config.parameters[key].CopyFrom(base.parameters[key])
    if (
        STRATEGY_PARAMETER in config.parameters
        and STRATEGY_PARAMETER not in base.parameters
        and step.path != f"spec.{TOKENIZER}"
    ):
        # The operator gives the library the name under which Triton looks for it.
        del config.parameters[STRATEGY_PARAMETER]
    ours, theirs = (
        base.optimization.execution_accelerators,
        config.optimization.execution_accelerators,
    )
    if base.optimization.HasField("execution_accelerators") and ours != theirs:
        cache = dict(theirs.gpu_execution_accelerator[0].parameters).get("trt_engine_cache_path")
        if cache:
            report.changed(
                f"{model.origin}: trt_engine_cache_path",
                f"{cache} is chosen by the operator, outside of the model's folder",
                f"{step.path}.optimization",
            )
        theirs.CopyFrom(ours)
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
        and _one_group(model)
    ):
        del groups[1:]
        groups[0].CopyFrom(first)


def _one_group(model: Model) -> bool:
    """Whether all groups of instances could be put together."""
    return not schedulers.instances(model.config)[1]


def _plain(config: Any) -> Any:
    """An ensemble with its inner tensors named after who makes them, and its steps in order of their names: neither means anything."""
    copy = model_config_pb2.ModelConfig()
    copy.CopyFrom(config)
    public = {tensor.name for tensor in (*config.input, *config.output)}
    names = {
        tensor: f"{step.model_name}.{output}"
        for step in config.ensemble_scheduling.step
        for output, tensor in step.output_map.items()
        if tensor not in public
    }
    steps = sorted(config.ensemble_scheduling.step, key=lambda step: str(step.model_name))
    del copy.ensemble_scheduling.step[:]
    for step in steps:
        made = copy.ensemble_scheduling.step.add(
            model_name=step.model_name,
            model_version=step.model_version,
            model_namespace=step.model_namespace,
        )
        for key, tensor in step.input_map.items():
            made.input_map[key] = names.get(tensor, tensor)
        for key, tensor in step.output_map.items():
            made.output_map[key] = names.get(tensor, tensor)
    return copy
