"""Build a model, a further step or an auxiliary model as a step of the graph.

Every default of its resource is resolved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from triton_pipelines.api.base import Switch
from triton_pipelines.api.batching import DynamicBatching
from triton_pipelines.api.instances import InstanceKind, InstanceResources
from triton_pipelines.api.loadplan import FetchKind
from triton_pipelines.api.optimization import MAX_TOKENS, Precision
from triton_pipelines.api.python import Runner
from triton_pipelines.api.steps import Platform, StepFields
from triton_pipelines.api.tensors import InputTensor, TokenTensor
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .defaults import (
    BACKENDS,
    DEFAULT_MAX_BATCH_SIZE,
    ENGINE_FILE,
    FILE_NAMES,
    MODEL,
    STRATEGY_FILE,
    STRATEGY_PARAMETER,
    TOKENIZER,
    VERSION_FOLDER,
    VLLM_INPUTS,
    VLLM_OUTPUTS,
    VLLM_REQUIRED,
)
from .graph import (
    Fetch,
    Implementation,
    Input,
    Reference,
    Role,
    Step,
    StepInstances,
    Tensor,
    WarmupSample,
)
from .options import Options
from .source_checks import code_of, file_name_of, names_file, python_fetches, side_source
from .tokenizer_settings import prefixed
from .tokenizer_step import Tokens, python_parameters

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
# Token tensors for which zeros are a request that every model answers: the padding's own values.
WARM_KINDS = frozenset(
    {
        TokenTensor.INPUT_IDS,
        TokenTensor.ATTENTION_MASK,
        TokenTensor.TOKEN_TYPE_IDS,
        TokenTensor.SPECIAL_TOKENS_MASK,
    }
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a step's defaults depend on.

    Tokens and the shape of a row of them, who feeds an input, the operator's options.
    """

    spec: PipelineSpec
    tokens: Tokens
    token_tensors: Sequence[Tensor]
    lengths: tuple[int, ...]
    read: Callable[[InputTensor], Reference | None]
    options: Options


def max_batch_size(fields: StepFields) -> int:
    """Rows in a batch: as written, none for vLLM, else 64."""
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


def model_step(
    name: str, role: Role, model_name: str, path: str, fields: StepFields, around: Surroundings
) -> Step:
    """One step from its fields."""
    implementation = implementation_of(fields, around.options)
    python = implementation is not Implementation.BACKEND
    batch = max_batch_size(fields)
    inputs = _inputs(fields, path, batch, python, around)
    outputs = tuple(
        Tensor(one.name, one.data_type, one.dims, one.reshape) for one in fields.outputs
    )
    if not outputs and fields.platform is Platform.VLLM:
        outputs = VLLM_OUTPUTS
    default_file = (
        "model.onnx"
        if implementation is Implementation.ONNX_RUNNER
        else FILE_NAMES.get(fields.platform)
        if fields.platform
        else None
    )
    fetches = _fetches(name, model_name, path, fields, around.spec, implementation, default_file)
    file_name = next(
        (item.file for item in fetches if not item.slot and item.kind is FetchKind.MODEL), None
    )
    file_name = file_name or next(
        (
            item.target.rsplit("/", 1)[-1]
            for item in fetches
            if not item.slot and item.kind is FetchKind.FILE
        ),
        None,
    )
    instances, scaled = _instances(role, implementation, fields, around.spec)
    return Step(
        name=name,
        role=role,
        model_name=model_name,
        implementation=implementation,
        platform="" if python or fields.platform in (None, Platform.VLLM) else str(fields.platform),
        backend="python"
        if python
        else BACKENDS[fields.platform]
        if fields.platform
        else str(fields.backend),
        max_batch_size=batch,
        inputs=inputs,
        outputs=outputs,
        instances=instances,
        resources=fields.resources_per_instance
        or (InstanceResources() if scaled else FIXED_RESOURCES),
        batching=None if fields.sequence_batching else _batching(fields),
        sequences=fields.sequence_batching,
        parameters=_parameters(fields, model_name, implementation, inputs, file_name, around),
        fetches=fetches,
        file_name=file_name,
        default_file=default_file,
        code=code_of(fields.python),
        path=path,
        files=_files(fields, model_name, around),
        version_policy=fields.version_policy,
        version=fields.version,
        warmup=_warmup(fields, batch, inputs, python, around),
        accelerator=None if python else _accelerator(fields, model_name, around.options),
        lengths=fields.lengths,
        decoupled=fields.decoupled is Switch.ENABLED
        or (fields.decoupled is None and fields.platform is Platform.VLLM),
        config_patch=fields.config_patch,
    )


def _batching(fields: StepFields) -> DynamicBatching | None:
    if fields.dynamic_batching is not None:
        return None if fields.dynamic_batching.mode is Switch.DISABLED else fields.dynamic_batching
    # The vLLM engine batches by itself; without a batch axis there is nothing to batch.
    return (
        None
        if fields.platform is Platform.VLLM or max_batch_size(fields) == 0
        else DynamicBatching()
    )


def _inputs(
    fields: StepFields, path: str, batch: int, python: bool, around: Surroundings
) -> tuple[Input, ...]:
    if fields.inputs:
        return tuple(
            _input(wanted, f"{path}.inputs[{index}]", python, around)
            for index, wanted in enumerate(fields.inputs)
        )
    if fields.platform is Platform.VLLM:
        required = InputTensor(name=VLLM_REQUIRED, data_type=VLLM_INPUTS[0].data_type, dims=(1,))
        return tuple(
            Input(
                tensor,
                around.read(required) if tensor.name == VLLM_REQUIRED else None,
                f"{path}.inputs",
                optional=tensor.name != VLLM_REQUIRED,
            )
            for tensor in VLLM_INPUTS
        )
    result = []
    for tensor in around.token_tensors:
        kind = around.tokens[tensor.name].kind
        axis = 0 if batch > 0 else 1
        # Declared as the file has it (any length), also where every row is padded to one length.
        shape = tuple(
            -1 if index == axis and kind is not TokenTensor.LENGTHS else size
            for index, size in enumerate(tensor.dims)
        )
        read = replace(tensor, dims=shape)
        ragged = python and read.variable and batch > 0
        result.append(
            Input(
                read,
                Reference(TOKENIZER, tensor.name),
                f"spec.tokenizer.outputs ({tensor.name})",
                ragged=ragged,
            )
        )
    return tuple(result)


def _input(wanted: InputTensor, path: str, python: bool, around: Surroundings) -> Input:
    tensor = Tensor(wanted.name, wanted.data_type, wanted.dims, wanted.reshape)
    ragged = wanted.ragged is Switch.ENABLED or (
        wanted.ragged is None and python and tensor.variable and wanted.reshape is None
    )
    return Input(
        tensor, around.read(wanted), path, ragged=ragged, optional=wanted.optional is Switch.ENABLED
    )


def input_of(wanted: InputTensor, path: str, source: Reference | None) -> Input:
    """An input of a step with custom code."""
    tensor = Tensor(wanted.name, wanted.data_type, wanted.dims, wanted.reshape)
    ragged = wanted.ragged is Switch.ENABLED or (
        wanted.ragged is None and tensor.variable and wanted.reshape is None
    )
    return Input(tensor, source, path, ragged=ragged, optional=wanted.optional is Switch.ENABLED)


def _instances(
    role: Role, implementation: Implementation, fields: StepFields, spec: PipelineSpec
) -> tuple[StepInstances, bool]:
    wanted = fields.instances
    counts = wanted.bounds(scaled=False)
    no_gpu = spec.server.gpu.count == 0
    if wanted.kind is not None:
        kind = wanted.kind
    elif wanted.ranged or (fields.platform is Platform.PYTHON and role is not Role.MODEL):
        kind = InstanceKind.CPU
    elif fields.platform is Platform.VLLM:
        kind = InstanceKind.MODEL
    else:
        kind = InstanceKind.CPU if no_gpu else InstanceKind.GPU
    if implementation is Implementation.ONNX_RUNNER and fields.platform is not Platform.PYTHON:
        kind = InstanceKind.CPU
    gpus = wanted.gpus if kind is InstanceKind.GPU else ()
    profiles = wanted.profiles if implementation is Implementation.BACKEND else ()
    return (
        StepInstances(
            f"KIND_{kind.value.upper()}",
            counts,
            gpus,
            profiles,
            wanted.host_policy or "",
        ),
        counts.scaled,
    )


def _fetches(
    name: str,
    model_name: str,
    path: str,
    fields: StepFields,
    spec: PipelineSpec,
    implementation: Implementation,
    default_file: str | None,
) -> tuple[Fetch, ...]:
    result: list[Fetch] = []
    source, where = fields.source, f"{path}.source"
    if (
        source is None
        and spec.source is not None
        and path == f"spec.{MODEL}"
        and implementation is not Implementation.CODE
    ):
        source, where = spec.source, "spec.source"
    if source is not None and implementation is Implementation.CODE:
        result.append(side_source(name, f"{model_name}/{VERSION_FOLDER}", source, where))
    elif source is not None:
        # A folder of the step's own is taken whole; of a shared one, of a hub's repository, or of a
        # web server (which cannot be listed) only the model's file and what that names.
        repository = source.uri.startswith("hf://") and source.path is None
        own = where != "spec.source" and not repository and not source.uri.startswith("https://")
        whole = own or fields.platform is Platform.VLLM or fields.backend is not None
        file = source.file_name or default_file
        if names_file(source):
            target = f"{model_name}/{VERSION_FOLDER}/{default_file or file_name_of(source)}"
            result.append(Fetch(name, "", source, where, FetchKind.FILE, target))
        else:
            result.append(
                Fetch(
                    name,
                    "",
                    source,
                    where,
                    FetchKind.MODEL,
                    model_name,
                    file,
                    whole=whole or file is None,
                )
            )
    if fields.python is not None and implementation is Implementation.CODE:
        result += python_fetches(name, model_name, fields.python, f"{path}.python")
    if fields.batch_strategy is not None and fields.batch_strategy.source is not None:
        strategy = fields.batch_strategy.source
        result.append(
            Fetch(
                name,
                "strategy",
                strategy,
                f"{path}.batchStrategy.source",
                FetchKind.FILE,
                f"{model_name}/{STRATEGY_FILE}",
            )
        )
    return tuple(result)


def _parameters(
    fields: StepFields,
    model_name: str,
    implementation: Implementation,
    inputs: Sequence[Input],
    file_name: str | None,
    around: Surroundings,
) -> dict[str, str]:
    parameters = dict(fields.parameters)
    if implementation is Implementation.ONNX_RUNNER:
        parameters |= prefixed(
            {
                "model_file": file_name or "model.onnx",
                "pad_inputs": json.dumps(_pad_values(inputs, around.tokens)),
            }
        )
    if fields.python is not None and fields.python.environment is not None:
        parameters |= python_parameters(True)
    if fields.batch_strategy is not None and fields.batch_strategy.path is not None:
        parameters[STRATEGY_PARAMETER] = (
            f"{around.options.models_path}/{model_name}/{fields.batch_strategy.path}"
        )
    return parameters


def _accelerator(
    fields: StepFields, model_name: str, options: Options
) -> tuple[tuple[str, str], ...] | None:
    """Return the settings of TensorRT inside the ONNX Runtime backend.

    The names are those of that backend (onnxruntime_backend README).
    """
    wanted = fields.optimization.tensorrt if fields.optimization else None
    if wanted is None:
        return None
    result = {"precision_mode": (wanted.precision or Precision.FP32).value}
    if wanted.workspace_mebibytes is not None:
        result["max_workspace_size_bytes"] = str(wanted.workspace_mebibytes * 1024**2)
    if wanted.engine_cache is Switch.ENABLED:
        # Never in the model's folder: a newer file there makes the next count change a full reload.
        result |= {
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": f"{options.engines_path}/{model_name}",
        }
    if wanted.calibration_table is not None:
        # An absolute path stands for itself where ONNX Runtime would look in the engine cache.
        table = f"{options.models_path}/{model_name}/{VERSION_FOLDER}/{wanted.calibration_table}"
        result |= {"int8_calibration_table_name": table, "int8_use_native_calibration_table": "0"}
    return tuple(sorted(result.items()))


def _pad_values(inputs: Sequence[Input], tokens: Tokens) -> dict[str, int]:
    """Inputs that the runner may pad across requests: only those whose mask hides the padding."""
    kinds: dict[str, Any] = {
        entry.tensor.name: tokens[entry.source.tensor].kind
        for entry in inputs
        if entry.source is not None
        and entry.source.step == TOKENIZER
        and entry.source.tensor in tokens
    }
    if TokenTensor.ATTENTION_MASK not in kinds.values():
        return {}
    return {name: _PAD_VALUE[kind] for name, kind in kinds.items() if kind in _PAD_VALUE}


def _files(fields: StepFields, model_name: str, around: Surroundings) -> Mapping[str, str]:
    if fields.platform is not Platform.VLLM:
        return {}
    arguments = dict(fields.vllm.engine_args) if fields.vllm else {}
    if fields.source is not None or around.spec.source is not None:
        # The weights are next to this file. A model that the user names takes precedence.
        arguments.setdefault("model", f"{around.options.models_path}/{model_name}/{VERSION_FOLDER}")
    # Sorted: the API server keeps the keys of such a mapping in an order of its own.
    return {ENGINE_FILE: json.dumps(arguments, indent=1, ensure_ascii=False, sort_keys=True) + "\n"}


def _warmup(
    fields: StepFields, batch: int, inputs: Sequence[Input], python: bool, around: Surroundings
) -> tuple[WarmupSample, ...]:
    """Return the warmup inferences of a new instance.

    Unless the user configures them, there are warmups only if zeros are known to be valid inputs:
    tokens from our own tokenizer into one of Triton's backends. The lengths and values that a
    tokenizer with custom code produces are unknown.
    """

    def token(entry: Input) -> bool:
        known = (
            around.tokens.get(entry.source.tensor)
            if entry.source is not None and entry.source.step == TOKENIZER
            else None
        )
        return known is not None and known.kind in WARM_KINDS

    asked = fields.warmup is not None and fields.warmup.mode is Switch.ENABLED
    fed = [entry for entry in inputs if not (entry.optional and entry.source is None)]
    ours = around.spec.tokenizer is not None and around.spec.tokenizer.python is None
    by_default = (
        fields.warmup is None
        and ours
        and not python
        and fields.platform is not Platform.VLLM
        and bool(fed)
        and all(map(token, fed))
    )
    if fields.sequence_batching is not None or not (asked or by_default):
        return ()
    preferred = fields.dynamic_batching.preferred_batch_sizes if fields.dynamic_batching else ()
    written = fields.warmup.batch_sizes if fields.warmup else ()
    rows = sorted({*(written or (1, *preferred, batch))}) if batch > 0 else [0]
    lengths = _lengths_taken(fields, around.lengths) if any(map(token, fed)) else (1,)
    samples = []
    for length in lengths:
        for count in rows:
            tensors = tuple(
                replace(entry.tensor, dims=_filled(entry, length if token(entry) else 1))
                for entry in fed
            )
            samples.append(WarmupSample(f"{max(count, 1)}x{length}", count, tensors))
    return tuple(samples)


def _lengths_taken(fields: StepFields, lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths of rows, limited to the range that the model accepts.

    A warmup outside of this range would stop the server.
    """
    low = (fields.lengths.min if fields.lengths else None) or 1
    high = (fields.lengths.max if fields.lengths else None) or MAX_TOKENS
    return tuple(sorted({min(max(length, low), high) for length in lengths}))


def _filled(entry: Input, length: int) -> tuple[int, ...]:
    """Return the dims with a size for every -1.

    The last open axis of a token tensor is the length; other open axes are one.
    """
    dims = list(entry.tensor.dims)
    free = [axis for axis, size in enumerate(dims) if size == -1]
    for axis in free:
        dims[axis] = length if axis == free[-1] else 1
    return tuple(dims)
