"""Build a model, a further step or an auxiliary model as a step of the graph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from triton_pipelines.api.base import Switch
from triton_pipelines.api.batching import DynamicBatching
from triton_pipelines.api.instances import InstanceKind, InstanceResources
from triton_pipelines.api.loadplan import FetchKind
from triton_pipelines.api.optimization import Precision
from triton_pipelines.api.python import Runner
from triton_pipelines.api.steps import Platform, StepFields
from triton_pipelines.api.tensors import TokenTensor
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .declared_steps import DeclaredStep
from .defaults import (
    BACKENDS,
    DEFAULT_MAX_BATCH_SIZE,
    ENGINE_FILE,
    FILE_NAMES,
    STRATEGY_PARAMETER,
    VERSION_FOLDER,
    VLLM_OUTPUTS,
)
from .fetches import inline_code, model_fetches, python_parameters
from .graph import Fetch, Implementation, Input, Role, Step, Tensor
from .instance_groups import StepInstances, moved_to_cpu, one_group, several_groups
from .options import Options
from .repeated_steps import tokenizer_names
from .step_context import StepContext
from .step_inputs import step_inputs
from .tokenizer_settings import prefixed
from .warmup import warmup_samples

# Values with which the runner may pad a shorter request in a batch with a longer one. The mask
# hides them.
_PAD_VALUE = {
    TokenTensor.INPUT_IDS: 0,
    TokenTensor.ATTENTION_MASK: 0,
    TokenTensor.TOKEN_TYPE_IDS: 0,
}
# A postprocess, runner or other python process: interpreter, numpy (38 MB measured for numpy only)
# and its library.
FIXED_RESOURCES = InstanceResources(cpu="100m", memory="256Mi")


def max_batch_size(fields: StepFields) -> int:
    """Return the rows in a batch: as written, none for vLLM, else 64."""
    if fields.max_batch_size is not None:
        return fields.max_batch_size
    return 0 if fields.platform is Platform.VLLM else DEFAULT_MAX_BATCH_SIZE


def implementation_of(fields: StepFields, options: Options) -> Implementation:
    """Return the implementation that runs the step.

    The operator may substitute its runner for a backend that is missing from the server image.
    """
    python = fields.python
    if python is not None and python.runner is Runner.ONNX_RUNTIME:
        return Implementation.ONNX_RUNNER
    if python is not None:
        return Implementation.CODE
    if fields.platform is Platform.ONNX and Platform.ONNX.value in options.substitute_runner:
        return Implementation.ONNX_RUNNER
    return Implementation.BACKEND


def model_step(declared: DeclaredStep, context: StepContext) -> Step:
    """Return the step of a declared model, with every default resolved."""
    fields, model_name = declared.fields, declared.model_name
    implementation = implementation_of(fields, context.options)
    python = implementation is not Implementation.BACKEND
    batch = max_batch_size(fields)
    inputs = step_inputs(fields, declared.path, batch, python, context)
    default_file = _default_file(fields, implementation)
    fetches = model_fetches(declared, context.spec, implementation, default_file)
    file_name = _file_name(fetches)
    instances = _instances(declared.role, implementation, fields, context.spec)
    return Step(
        name=declared.name,
        role=declared.role,
        model_name=model_name,
        implementation=implementation,
        platform="" if python or fields.platform in (None, Platform.VLLM) else str(fields.platform),
        backend="python" if python else _backend(fields),
        max_batch_size=batch,
        inputs=inputs,
        outputs=_outputs(fields),
        instances=instances,
        resources=fields.resources_per_instance
        or (InstanceResources() if instances.scaled else FIXED_RESOURCES),
        batching=None if fields.sequence_batching else _batching(fields),
        sequences=fields.sequence_batching,
        parameters=_parameters(fields, model_name, implementation, inputs, file_name, context),
        fetches=fetches,
        file_name=file_name,
        default_file=default_file,
        code=inline_code(fields.python),
        path=declared.path,
        files=_files(fields, model_name, context),
        version_policy=fields.version_policy,
        version=fields.version,
        warmup=warmup_samples(
            fields, batch, inputs, context, python=python, on_cpu=instances.on_cpu
        ),
        accelerator=None if python else _accelerator(fields, model_name, context.options),
        lengths=fields.lengths,
        decoupled=fields.decoupled is Switch.ENABLED
        or (fields.decoupled is None and fields.platform is Platform.VLLM),
        config_patch=fields.config_patch,
    )


def _outputs(fields: StepFields) -> tuple[Tensor, ...]:
    """Return the declared outputs; those of the vLLM backend are known."""
    if not fields.outputs and fields.platform is Platform.VLLM:
        return VLLM_OUTPUTS
    return tuple(Tensor(one.name, one.data_type, one.dims, one.reshape) for one in fields.outputs)


def _backend(fields: StepFields) -> str:
    """Return the name of Triton's backend that runs the step."""
    return BACKENDS[fields.platform] if fields.platform else str(fields.backend)


def _default_file(fields: StepFields, implementation: Implementation) -> str | None:
    """Return the usual name of the model's file; ``None`` if the backend has none."""
    if implementation is Implementation.ONNX_RUNNER:
        return "model.onnx"
    return FILE_NAMES.get(fields.platform) if fields.platform else None


def _file_name(fetches: Sequence[Fetch]) -> str | None:
    """Return the name of the model's file as the loader stores it; ``None`` if it is unknown."""
    own = [item for item in fetches if not item.slot]
    model = next((item.file for item in own if item.kind is FetchKind.MODEL), None)
    files = (item.target.rsplit("/", 1)[-1] for item in own if item.kind is FetchKind.FILE)
    return model or next(files, None)


def _batching(fields: StepFields) -> DynamicBatching | None:
    """Return the dynamic batcher of the step; ``None`` if it is off."""
    if fields.dynamic_batching is not None:
        return None if fields.dynamic_batching.mode is Switch.DISABLED else fields.dynamic_batching
    # The vLLM engine batches by itself; without a batch axis there is nothing to batch.
    return (
        None
        if fields.platform is Platform.VLLM or max_batch_size(fields) == 0
        else DynamicBatching()
    )


def _instances(
    role: Role, implementation: Implementation, fields: StepFields, spec: PipelineSpec
) -> StepInstances:
    """Return the instances of the step."""
    declared = fields.instances
    default = _default_kind(role, fields, spec)
    substituted = (
        implementation is Implementation.ONNX_RUNNER and fields.platform is not Platform.PYTHON
    )
    if declared.groups:
        instances = several_groups(declared.groups, default)
        return moved_to_cpu(instances) if substituted else instances
    kind = InstanceKind.CPU if substituted else declared.kind or default
    return one_group(
        kind,
        declared.bounds(scaled=False),
        gpus=declared.gpus if kind is InstanceKind.GPU else (),
        profiles=declared.profiles if implementation is Implementation.BACKEND else (),
        host_policy=declared.host_policy,
    )


def _default_kind(role: Role, fields: StepFields, spec: PipelineSpec) -> InstanceKind:
    """Return the kind of instances whose resource does not set one."""
    if fields.instances.ranged or (fields.platform is Platform.PYTHON and role is not Role.MODEL):
        return InstanceKind.CPU
    if fields.platform is Platform.VLLM:
        return InstanceKind.MODEL
    return InstanceKind.CPU if spec.server.gpu.count == 0 else InstanceKind.GPU


def _parameters(
    fields: StepFields,
    model_name: str,
    implementation: Implementation,
    inputs: Sequence[Input],
    file_name: str | None,
    context: StepContext,
) -> dict[str, str]:
    """Return the parameters of the config: those of the user, then those of the operator."""
    parameters = dict(fields.parameters)
    if implementation is Implementation.ONNX_RUNNER:
        parameters |= prefixed(
            {
                "model_file": file_name or "model.onnx",
                "pad_inputs": json.dumps(_pad_values(inputs, context)),
            }
        )
    parameters |= python_parameters(fields.python)
    if fields.batch_strategy is not None and fields.batch_strategy.path is not None:
        parameters[STRATEGY_PARAMETER] = (
            f"{context.options.models_path}/{model_name}/{fields.batch_strategy.path}"
        )
    return parameters


def _accelerator(
    fields: StepFields, model_name: str, options: Options
) -> tuple[tuple[str, str], ...] | None:
    """Return the settings of TensorRT inside the ONNX Runtime backend.

    The names are those of that backend (onnxruntime_backend README).
    """
    settings = fields.optimization.tensorrt if fields.optimization else None
    if settings is None:
        return None
    result = {"precision_mode": (settings.precision or Precision.FP32).value}
    if settings.workspace_mebibytes is not None:
        result["max_workspace_size_bytes"] = str(settings.workspace_mebibytes * 1024**2)
    if settings.engine_cache is Switch.ENABLED:
        # Never in the model's folder: a newer file there makes the next count change a full reload.
        result |= {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": f"{options.engines_path}/{model_name}",
        }
    if settings.calibration_table is not None:
        # ONNX Runtime looks up a relative path in the engine cache.
        table = f"{options.models_path}/{model_name}/{VERSION_FOLDER}/{settings.calibration_table}"
        result |= {"int8_calibration_table_name": table, "int8_use_native_calibration_table": "0"}
    return tuple(sorted(result.items()))


def _pad_values(inputs: Sequence[Input], context: StepContext) -> dict[str, int]:
    """Return the inputs that the runner may pad across requests, with the value that pads them.

    Only inputs whose mask hides the padding may be padded.
    """
    tokens, tokenizers = context.tokens, tokenizer_names(context.spec)
    kinds: dict[str, Any] = {
        entry.tensor.name: tokens[entry.source.tensor].kind
        for entry in inputs
        if entry.source is not None
        and entry.source.step in tokenizers
        and entry.source.tensor in tokens
    }
    if TokenTensor.ATTENTION_MASK not in kinds.values():
        return {}
    return {name: _PAD_VALUE[kind] for name, kind in kinds.items() if kind in _PAD_VALUE}


def _files(fields: StepFields, model_name: str, context: StepContext) -> Mapping[str, str]:
    """Return the files that the renderer writes: the arguments of the vLLM engine."""
    if fields.platform is not Platform.VLLM:
        return {}
    arguments = dict(fields.vllm.engine_args) if fields.vllm else {}
    if fields.source is not None or context.spec.source is not None:
        # The weights are next to this file. A model that the user names takes precedence.
        arguments.setdefault(
            "model", f"{context.options.models_path}/{model_name}/{VERSION_FOLDER}"
        )
    # Sorted: the API server keeps the keys of such a mapping in an order of its own.
    return {ENGINE_FILE: json.dumps(arguments, indent=1, ensure_ascii=False, sort_keys=True) + "\n"}
