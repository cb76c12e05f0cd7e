"""Convert one model of a repository to the fields of a step, tokenizer or postprocess."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from triton_pipelines.api.names import PATH_MODELS, RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.optimization import Precision
from triton_pipelines.api.steps import Platform
from triton_pipelines.compile.graph.defaults import (
    BACKENDS,
    ENGINE_FILE,
    ENVIRONMENT_PARAMETER,
    FILE_NAMES,
    STRATEGY_PARAMETER,
    VERSION_FOLDER,
)
from triton_pipelines.runtime import source as runtime_source

from . import schedulers
from .config_defaults import drop_equivalent_policy
from .import_notes import ModelRepositoryError
from .model_files import CODE, FileSources
from .rendered_steps import (
    RuntimeStep,
    parameters,
    postprocess_fields,
    runtime_step_of,
    tokenizer_fields,
)
from .repository import RepositoryModel

# Limits of model.parameters (api: StepFields); the rest goes through configPatch.
_MAX_KEY, _MAX_VALUE, _MAX_PARAMETERS = 128, 1024, 64
_ACCELERATOR_KEYS = frozenset(
    {
        "precision_mode",
        "max_workspace_size_bytes",
        "trt_engine_cache_enable",
        "trt_engine_cache_path",
        "int8_calibration_table_name",
        "int8_use_native_calibration_table",
    }
)
MEBIBYTE = 1024**2
Fields = dict[str, Any]


def step_fields(
    model: RepositoryModel, path: str, wires: Mapping[str, str], files: FileSources, version: int
) -> Fields:
    """Return the fields of a model or step.

    Args:
        model: the model.
        path: field of the resource, such as ``spec.model``.
        wires: the tensor that each input reads, as a reference.
        files: sources of its files.
        version: version that the ensemble calls; -1 for the latest.
    """
    config = model.config
    files.report_other_files(model, path)
    platform = _platform(model)
    fields: Fields = (
        {"platform": platform.value} if platform is not None else {"backend": model.backend}
    )
    policy = schedulers.version_policy(config)
    versions = policy is not None or version > 0
    fields |= _content(model, platform, path, files, versions=versions)
    python = platform is Platform.PYTHON
    fields |= _tensors(config, wires, python=python)
    if config.max_batch_size or platform is not Platform.VLLM:
        fields["maxBatchSize"] = config.max_batch_size
    fields |= _batching(config, vllm=platform is Platform.VLLM)
    has_folder = fields.get("source") == files.folder(model)
    if (strategy := files.strategy(model, has_folder=has_folder)) is not None:
        fields["batchStrategy"] = strategy
    fields["instances"] = schedulers.instances(model.config)
    if python and path != "spec.model" and fields["instances"] == {"count": 1, "kind": "CPU"}:
        del fields["instances"]
    if policy is not None:
        fields["versionPolicy"] = policy
    if version > 0:
        fields["version"] = version
    fields |= _runtime_fields(config, platform)
    if parameters := _parameters(config, fields):
        fields["parameters"] = parameters
    return fields


def _tensors(config: Any, wires: Mapping[str, str], *, python: bool) -> Fields:
    """Return ``inputs`` and ``outputs``."""
    fields: Fields = {}
    if config.input:
        fields["inputs"] = _inputs(config, wires, python=python)
    if config.output:
        fields["outputs"] = _outputs(config)
    return fields


def _inputs(config: Any, wires: Mapping[str, str], *, python: bool) -> list[Fields]:
    return [
        {
            **schedulers.tensor(item, python=python),
            **({"from": wires[item.name]} if item.name in wires else {}),
        }
        for item in config.input
    ]


def _outputs(config: Any) -> list[Fields]:
    return [schedulers.tensor(item) for item in config.output]


def _runtime_fields(config: Any, platform: Platform | None) -> Fields:
    """Return ``optimization`` and ``decoupled``."""
    fields: Fields = {}
    accelerator = accelerator_fields(config)
    if accelerator is not None and platform is Platform.ONNX:
        fields["optimization"] = {"tensorrt": accelerator}
    if config.model_transaction_policy.decoupled:
        fields["decoupled"] = "Enabled"
    elif platform is Platform.VLLM and config.input:
        fields["decoupled"] = "Disabled"
    return fields


def tokenizer(model: RepositoryModel, wires: Mapping[str, str], files: FileSources) -> Fields:
    """Return the fields of the tokenizer: the built-in one, or custom code."""
    config = model.config
    files.report_other_files(model, "spec.tokenizer")
    fields: Fields = {} if model.name == "tokenizer" else {"modelName": model.name}
    if runtime_step_of(model) is RuntimeStep.TOKENIZER:
        files.report.extend(drop_equivalent_policy(model))
        fields |= {
            "source": files.one(model, f"{VERSION_FOLDER}/tokenizer.json"),
            **tokenizer_fields(model),
        }
    else:
        fields |= _custom_code(model, "spec.tokenizer", files)
        texts = [item.name for item in config.input]
        fields["inputs"] = dict(zip(("text", "textPair"), texts, strict=False))
        fields["outputs"] = _outputs(config)
    read: Fields = fields.get("inputs") or {"text": "TEXT"}
    for key in ("text", "textPair"):
        name = str(read.get(key, ""))
        if name in wires and wires[name] != f"pipeline.{name}":
            fields["inputs"] = read = {**read, f"{key}From": wires[name]}
    fields["maxBatchSize"] = config.max_batch_size
    fields |= _batching(config, vllm=False)
    fields["instances"] = _tokenizer_instances(model, files)
    return fields


def postprocess(model: RepositoryModel, wires: Mapping[str, str], files: FileSources) -> Fields:
    """Return the fields of the postprocess: the built-in one, or custom code."""
    config = model.config
    files.report_other_files(model, "spec.postprocess")
    fields: Fields = {} if model.name == "postprocess" else {"modelName": model.name}
    if runtime_step_of(model) is RuntimeStep.POSTPROCESS:
        files.report.extend(drop_equivalent_policy(model))
        _same_code(model, "postprocess", files, "spec.postprocess")
        fields |= postprocess_fields(model, wires)
    else:
        fields |= _custom_code(model, "spec.postprocess", files)
        fields["inputs"] = _inputs(config, wires, python=True)
        fields["outputs"] = _outputs(config)
    fields |= _batching(config, vllm=False)
    instances = schedulers.instances(model.config)
    return (
        fields if instances == {"count": 1, "kind": "CPU"} else {**fields, "instances": instances}
    )


def _custom_code(model: RepositoryModel, path: str, files: FileSources) -> Fields:
    return {"type": "Python", "python": files.python(model, f"{path}.python", versions=False)}


def _platform(model: RepositoryModel) -> Platform | None:
    """Return the platform; ``None`` for backends without one."""
    return next(
        (platform for platform, backend in BACKENDS.items() if backend == model.backend), None
    )


def _content(
    model: RepositoryModel,
    platform: Platform | None,
    path: str,
    files: FileSources,
    *,
    versions: bool,
) -> Fields:
    """Return the fields for the step's content: source, code or engine arguments."""
    match platform:
        case Platform.PYTHON if runtime_step_of(model) is RuntimeStep.RUNNER:
            _same_code(model, "onnx_runner", files, path)
            name = parameters(model).get("model_file", FILE_NAMES[Platform.ONNX])
            default = FILE_NAMES[Platform.ONNX]
            # The runner's own model.py is next to the file; it comes from the operator.
            lone = name == default and not versions and not set(model.versions) - {1}
            source = (
                files.one(model, f"{VERSION_FOLDER}/{name}")
                if lone
                else files.folder(model) | ({} if name == default else {"fileName": name})
            )
            return {"source": source, "python": {"runner": "OnnxRuntime"}}
        case Platform.PYTHON:
            return {"python": files.python(model, f"{path}.python", versions=versions)}
        case Platform.VLLM:
            return _engine(model, path, files, versions=versions)
        case None:
            return (
                {"source": files.folder(model)} if any(model.versions.values()) or versions else {}
            )
        case _:
            return {"source": files.main(model, FILE_NAMES[platform], versions=versions)}


def _engine(model: RepositoryModel, path: str, files: FileSources, *, versions: bool) -> Fields:
    text = model.text(ENGINE_FILE)
    place = f"{model.name}/{model.latest or 1}/{ENGINE_FILE}"
    if text is None:
        raise ModelRepositoryError(
            f"{place}: the file with the engine arguments is missing; copy the file into "
            "the directory"
        )
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise ModelRepositoryError(f"{place}: invalid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ModelRepositoryError(
            f"{place}: must be a JSON object with the arguments of the engine"
        )
    weights = str(arguments.get("model", ""))
    if not weights:
        raise ModelRepositoryError(
            f"{place}: model is missing, and vLLM requires it; set model to the name or the "
            "path of the weights"
        )
    if (
        weights == f"{PATH_MODELS}/{model.name}/{VERSION_FOLDER}"
        or versions
        or len(model.versions.get(model.latest or 0, ())) > 1
    ):
        if weights.rstrip("/").endswith(f"/{model.name}/{model.latest or 1}"):
            del arguments["model"]
        return {"source": files.folder(model), "vllm": {"engineArgs": arguments}}
    if weights.startswith("/"):
        files.report.info(
            f"{place}: model",
            f"{weights} must be in the server's image, or on a volume of podTemplate; or set"
            " source to the weights",
            f"{path}.vllm",
        )
    return {"vllm": {"engineArgs": arguments}}


def _same_code(model: RepositoryModel, kind: str, files: FileSources, path: str) -> None:
    """Add a note if the code of a built-in step differs from this release; it is replaced."""
    text = model.text(CODE)
    if text is not None and text != runtime_source(kind):
        files.report.changed(
            f"{model.name}/{model.latest}/{CODE}",
            ("the file differs from the version in this release, which the operator uses instead"),
            path,
        )


def _batching(config: Any, *, vllm: bool) -> Fields:
    kind = config.WhichOneof("scheduling_choice")
    if kind == "sequence_batching":
        return {"sequenceBatching": schedulers.sequence_batching(config.sequence_batching)}
    if kind is None:
        return (
            {} if vllm or config.max_batch_size == 0 else {"dynamicBatching": {"mode": "Disabled"}}
        )
    fields = schedulers.dynamic_batching(config.dynamic_batching)
    # If left out, it is on, except for vLLM and for steps without batches.
    return {"dynamicBatching": fields} if fields or vllm or config.max_batch_size == 0 else {}


def _tokenizer_instances(model: RepositoryModel, files: FileSources) -> Fields:
    """Return the instances of the tokenizer, which is scaled and so has one group on CPU."""
    path = "spec.tokenizer.instances"
    groups = model.config.instance_group
    merged = schedulers.merged_group(model.config)
    instances = schedulers.instance_group(groups[0]) if merged is None else merged
    if merged is None:
        listed = ", ".join(
            f"{type(group).Kind.Name(group.kind)}{list(group.gpus) or ''} with count {group.count}"
            for group in groups
        )
        files.report.lost(
            f"{model.origin}: instance_group",
            f"live scaling requires one instance group, but the config has {len(groups)} "
            f"({listed}); only the first group was imported",
            path,
        )
    elif len(groups) > 1:
        files.report.info(
            f"{model.origin}: instance_group",
            f"{len(groups)} identical instance groups were merged into one",
            path,
        )
    if instances["kind"] == "Auto":
        instances["kind"] = "CPU"
        files.report.changed(
            f"{model.origin}: instance_group",
            "kind is missing, so Triton would run the tokenizer on every GPU; KIND_CPU is used "
            "instead",
            path,
        )
    if instances["kind"] == "CPU":
        # The initial count: the operator may change it (default: between 1 and 4).
        instances = {
            "initial": instances.pop("count"),
            **{key: value for key, value in instances.items() if key != "kind"},
        }
    return instances


def accelerator_fields(config: Any) -> Fields | None:
    """Return ``optimization.tensorrt``.

    ``None`` if there is no such accelerator, or if the fields cannot express it.
    """
    accelerators = config.optimization.execution_accelerators
    listed = accelerators.gpu_execution_accelerator
    if (
        len(listed) != 1
        or accelerators.cpu_execution_accelerator
        or listed[0].name != "tensorrt"
        or set(listed[0].parameters) - _ACCELERATOR_KEYS
    ):
        return None
    parameters = dict(listed[0].parameters)
    precision, space = (
        parameters.get("precision_mode", Precision.FP32.value),
        parameters.get("max_workspace_size_bytes", str(MEBIBYTE)),
    )
    table = parameters.get("int8_calibration_table_name")
    if (
        precision not in set(Precision)
        or not space.isdigit()
        or int(space) % MEBIBYTE
        or int(space) < MEBIBYTE
        or (precision == "INT8") != bool(table)
    ):
        return None
    if parameters.get("trt_engine_cache_enable", "0") not in (
        "0",
        "1",
        "true",
        "false",
    ) or parameters.get("int8_use_native_calibration_table", "0") not in (
        "0",
        "false",
    ):
        return None
    fields: Fields = {"precision": precision}
    if parameters.get("trt_engine_cache_enable") in ("1", "true"):
        fields["engineCache"] = "Enabled"
    if table:
        fields["calibrationTable"] = table.rsplit("/", 1)[-1]
    if "max_workspace_size_bytes" in parameters:
        fields["workspaceMebibytes"] = int(space) // MEBIBYTE
    return fields


def _parameters(config: Any, fields: Fields) -> dict[str, str]:
    """Return the model's parameters without those of the operator and of other fields."""
    written = {ENVIRONMENT_PARAMETER} if "environment" in fields.get("python", {}) else set()
    if "batchStrategy" in fields:
        written.add(STRATEGY_PARAMETER)
    parameters = {
        key: value.string_value
        for key, value in sorted(config.parameters.items())
        if not key.startswith(RUNTIME_PARAMETER_PREFIX)
        and key not in written
        and len(key) <= _MAX_KEY
        and len(value.string_value) <= _MAX_VALUE
    }
    return dict(list(parameters.items())[:_MAX_PARAMETERS])
