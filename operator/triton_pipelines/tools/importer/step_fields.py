"""One model of a repository as the fields of a step, of the tokenizer or of the postprocess."""

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
from .import_notes import ConfigError
from .model_files import CODE, Files
from .rendered_steps import Own, own, parameters, postprocess_fields, tokenizer_fields
from .repository import Model

# Limits of model.parameters (api: StepFields); what is beyond goes through configPatch.
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
    model: Model, path: str, wires: Mapping[str, str], files: Files, version: int
) -> Fields:
    """Fields of a model or further step at ``path``; ``wires``: input → what it reads; ``version``: what the ensemble asks for, -1 for the latest."""
    config = model.config
    files.beside(model, path)
    platform = _platform(model)
    made: Fields = (
        {"platform": platform.value} if platform is not None else {"backend": model.backend}
    )
    policy = schedulers.version_policy(config)
    versions = policy is not None or version > 0
    made |= _content(model, platform, path, files, versions=versions)
    python = platform is Platform.PYTHON
    if config.input:
        made["inputs"] = [
            {
                **schedulers.tensor(item, python=python),
                **({"from": wires[item.name]} if item.name in wires else {}),
            }
            for item in config.input
        ]
    if config.output:
        made["outputs"] = [schedulers.tensor(item) for item in config.output]
    if config.max_batch_size or platform is not Platform.VLLM:
        made["maxBatchSize"] = config.max_batch_size
    made |= _batching(config, vllm=platform is Platform.VLLM)
    if (strategy := files.strategy(model)) is not None:
        made["batchStrategy"] = strategy
    made["instances"] = _instances(model, path, files)
    if python and path != "spec.model" and made["instances"] == {"count": 1, "kind": "CPU"}:
        del made["instances"]
    if policy is not None:
        made["versionPolicy"] = policy
    if version > 0:
        made["version"] = version
    if (accelerator := accelerator_fields(config)) is not None and platform is Platform.ONNX:
        made["optimization"] = {"tensorrt": accelerator}
    if config.model_transaction_policy.decoupled:
        made["decoupled"] = "Enabled"
    elif platform is Platform.VLLM and config.input:
        made["decoupled"] = "Disabled"
    if kept := _parameters(config, made):
        made["parameters"] = kept
    return made


def tokenizer(model: Model, wires: Mapping[str, str], files: Files) -> Fields:
    """Fields of the tokenizer: the operator's own, or somebody's code that turns text into tokens."""
    config = model.config
    files.beside(model, "spec.tokenizer")
    made: Fields = {} if model.name == "tokenizer" else {"modelName": model.name}
    if own(model) is Own.TOKENIZER:
        _same_code(model, "tokenizer", files, "spec.tokenizer")
        made |= {
            "source": files.one(model, f"{VERSION_FOLDER}/tokenizer.json"),
            **tokenizer_fields(model),
        }
    else:
        made |= {
            "type": "Python",
            "python": files.python(model, "spec.tokenizer.python", versions=False),
        }
        texts = [item.name for item in config.input]
        made["inputs"] = dict(zip(("text", "textPair"), texts, strict=False))
        made["outputs"] = [schedulers.tensor(item) for item in config.output]
    read: Fields = made.get("inputs") or {"text": "TEXT"}
    for key in ("text", "textPair"):
        name = str(read.get(key, ""))
        if name in wires and wires[name] != f"pipeline.{name}":
            made["inputs"] = read = {**read, f"{key}From": wires[name]}
    made["maxBatchSize"] = config.max_batch_size
    made |= _batching(config, vllm=False)
    instances = _instances(model, "spec.tokenizer", files)
    if instances["kind"] == "Auto":
        instances["kind"] = "CPU"
        files.report.changed(
            f"{model.origin}: instance_group",
            "names no kind: Triton would run a tokenizer on every GPU; KIND_CPU is what is meant",
            "spec.tokenizer.instances",
        )
    if instances["kind"] == "CPU":
        # Where it starts: the operator may move the count (default: between 1 and 4).
        instances = {
            "initial": instances.pop("count"),
            **{key: value for key, value in instances.items() if key != "kind"},
        }
    made["instances"] = instances
    return made


def postprocess(model: Model, wires: Mapping[str, str], files: Files) -> Fields:
    """Fields of the postprocess: the operator's own, or somebody's code."""
    config = model.config
    files.beside(model, "spec.postprocess")
    made: Fields = {} if model.name == "postprocess" else {"modelName": model.name}
    if own(model) is Own.POSTPROCESS:
        _same_code(model, "postprocess", files, "spec.postprocess")
        made |= postprocess_fields(model, wires)
    else:
        made |= {
            "type": "Python",
            "python": files.python(model, "spec.postprocess.python", versions=False),
        }
        made["inputs"] = [
            {
                **schedulers.tensor(item, python=True),
                **({"from": wires[item.name]} if item.name in wires else {}),
            }
            for item in config.input
        ]
        made["outputs"] = [schedulers.tensor(item) for item in config.output]
    made |= _batching(config, vllm=False)
    instances = _instances(model, "spec.postprocess", files)
    return made if instances == {"count": 1, "kind": "CPU"} else {**made, "instances": instances}


def _platform(model: Model) -> Platform | None:
    """The platform; None for backends that have none of their own."""
    return next(
        (platform for platform, backend in BACKENDS.items() if backend == model.backend), None
    )


def _content(
    model: Model, platform: Platform | None, path: str, files: Files, *, versions: bool
) -> Fields:
    """Source, code or engine arguments."""
    match platform:
        case Platform.PYTHON if own(model) is Own.RUNNER:
            _same_code(model, "onnx_runner", files, path)
            name = parameters(model).get("model_file", FILE_NAMES[Platform.ONNX])
            default = FILE_NAMES[Platform.ONNX]
            # The runner's own model.py lies beside the file, and comes from the operator.
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


def _engine(model: Model, path: str, files: Files, *, versions: bool) -> Fields:
    text = model.text(ENGINE_FILE)
    place = f"{model.name}/{model.latest or 1}/{ENGINE_FILE}"
    if text is None:
        files.report.lost(
            place, "is not there: it holds the arguments of the engine", f"{path}.vllm"
        )
        return {"vllm": {"engineArgs": {}}}
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{place}: is no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ConfigError(f"{place}: must be a JSON object with the arguments of the engine")
    weights = str(arguments.get("model", ""))
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
            f"{weights} has to be in the server's image, or on a volume of podTemplate; or name the weights in source",
            f"{path}.vllm",
        )
    return {"vllm": {"engineArgs": arguments}}


def _same_code(model: Model, kind: str, files: Files, path: str) -> None:
    """Say where the code of a runtime step is not this release's own: the operator writes it anew."""
    text = model.text(CODE)
    if text is not None and text != runtime_source(kind):
        files.report.changed(
            f"{model.name}/{model.latest}/{CODE}",
            "is not this release's own; the operator writes its own in that place",
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
    # Left out it is on, but for vLLM and for steps without batches.
    return {"dynamicBatching": fields} if fields or vllm or config.max_batch_size == 0 else {}


def _instances(model: Model, path: str, files: Files) -> Fields:
    fields, lost = schedulers.instances(model.config)
    if lost:
        files.report.lost(f"{model.origin}: instance_group", lost, f"{path}.instances")
    elif len(model.config.instance_group) > 1:
        files.report.info(
            f"{model.origin}: instance_group",
            f"{len(model.config.instance_group)} alike groups are one of as many instances",
            f"{path}.instances",
        )
    return fields


def accelerator_fields(config: Any) -> Fields | None:
    """``optimization.tensorrt``; None where there is no such accelerator, or one that its fields cannot say."""
    accelerators = config.optimization.execution_accelerators
    listed = accelerators.gpu_execution_accelerator
    if (
        len(listed) != 1
        or accelerators.cpu_execution_accelerator
        or listed[0].name != "tensorrt"
        or set(listed[0].parameters) - _ACCELERATOR_KEYS
    ):
        return None
    held = dict(listed[0].parameters)
    precision, space = (
        held.get("precision_mode", Precision.FP32.value),
        held.get("max_workspace_size_bytes", str(MEBIBYTE)),
    )
    table = held.get("int8_calibration_table_name")
    if (
        precision not in set(Precision)
        or not space.isdigit()
        or int(space) % MEBIBYTE
        or int(space) < MEBIBYTE
        or (precision == "INT8") != bool(table)
    ):
        return None
    if held.get("trt_engine_cache_enable", "0") not in ("0", "1", "true", "false") or held.get(
        "int8_use_native_calibration_table", "0"
    ) not in (
        "0",
        "false",
    ):
        return None
    fields: Fields = {"precision": precision}
    if held.get("trt_engine_cache_enable") in ("1", "true"):
        fields["engineCache"] = "Enabled"
    if table:
        fields["calibrationTable"] = table.rsplit("/", 1)[-1]
    if "max_workspace_size_bytes" in held:
        fields["workspaceMebibytes"] = int(space) // MEBIBYTE
    return fields


def _parameters(config: Any, made: Fields) -> dict[str, str]:
    """Parameters that ``parameters`` can hold: not the operator's own, nor those that other fields write."""
    written = {ENVIRONMENT_PARAMETER} if "environment" in made.get("python", {}) else set()
    if "batchStrategy" in made:
        written.add(STRATEGY_PARAMETER)
    kept = {
        key: value.string_value
        for key, value in sorted(config.parameters.items())
        if not key.startswith(RUNTIME_PARAMETER_PREFIX)
        and key not in written
        and len(key) <= _MAX_KEY
        and len(value.string_value) <= _MAX_VALUE
    }
    return dict(list(kept.items())[:_MAX_PARAMETERS])
