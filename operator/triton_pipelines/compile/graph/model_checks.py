"""Check models, further steps and auxiliary models: placement, parameters, files and versions."""

from __future__ import annotations

from collections.abc import Iterator

from triton_pipelines.api.base import Finding, Switch
from triton_pipelines.api.finding_codes import FindingCode
from triton_pipelines.api.names import RUNTIME_PARAMETER_PREFIX
from triton_pipelines.api.python import Runner
from triton_pipelines.api.source import SourceSpec
from triton_pipelines.api.steps import Platform, StepFields
from triton_pipelines.api.v1alpha1 import InferencePipeline
from triton_pipelines.api.wording import counted

from .defaults import ENVIRONMENT_PARAMETER, STRATEGY_PARAMETER
from .fetches import names_file
from .graph import Graph, Implementation, Step
from .options import Options
from .server_checks import FIXED_COUNTS


def check_models(pipeline: InferencePipeline, graph: Graph, options: Options) -> Iterator[Finding]:
    """Yield what is wrong with the model, further steps and auxiliary models, and custom code."""
    spec = pipeline.spec
    fields: dict[str, StepFields] = {} if spec.model is None else {"spec.model": spec.model}
    fields |= {f"spec.steps[{index}]": step for index, step in enumerate(spec.steps)}
    fields |= {
        f"spec.auxiliaryModels[{index}]": step for index, step in enumerate(spec.auxiliary_models)
    }
    for step in graph.models:
        if step.implementation is Implementation.CODE and not options.custom_code_allowed:
            yield Finding(
                f"{step.path}.python.code",
                "this operator forbids custom code (--custom-code=forbid); use a model "
                "file, or ask the operator's administrator to set --custom-code=allow",
                code=FindingCode.FORBIDDEN,
            )
        if step.path in fields:
            declared = fields[step.path]
            yield from _placement(declared, step, pipeline)
            yield from _parameters(declared, step)
            yield from _needed_files(declared, step)
            yield from _versions(declared, step)
            yield from _strategy(declared, step)


def _placement(fields: StepFields, step: Step, pipeline: InferencePipeline) -> Iterator[Finding]:
    """Yield instances that cannot run where they are placed, or cannot be scaled."""
    gpu = pipeline.spec.server.gpu
    no_gpu = gpu.count == 0
    for group in step.instances.groups:
        path = f"{step.path}.{group.field}"
        if fields.platform is Platform.TENSORRT and group.kind in ("KIND_CPU", "KIND_MODEL"):
            yield Finding(
                "spec.server.gpu.count" if no_gpu else f"{path}.kind",
                f"a TensorRT plan runs only on GPUs; request a GPU, and omit {group.field}.kind",
                code=FindingCode.GPU_UNAVAILABLE,
            )
        # A rule of the resource covers the kind of the model's only group.
        covered = step.path == "spec.model" and not fields.instances.groups
        if group.kind == "KIND_GPU" and no_gpu and not covered:
            yield Finding(
                f"{path}.kind",
                "kind GPU requires a GPU, but server.gpu.count is 0; set kind to CPU, or request a"
                " GPU",
                code=FindingCode.GPU_UNAVAILABLE,
            )
        for index in group.gpus:
            if gpu.claim_template is None and not no_gpu and index >= gpu.count:
                yield Finding(
                    f"{path}.gpus",
                    f"GPU {index} does not exist, because a pod has only "
                    f"{counted(gpu.count, 'GPU')}, counted from 0; raise server.gpu.count",
                    code=FindingCode.GPU_UNAVAILABLE,
                )
    if fields.instances.ranged and pipeline.spec.server.auto_complete is Switch.ENABLED:
        yield Finding(f"{step.path}.instances", FIXED_COUNTS, code=FindingCode.NOT_SCALABLE)


def _parameters(fields: StepFields, step: Step) -> Iterator[Finding]:
    """Yield parameters that another field or the operator sets."""
    path = f"{step.path}.parameters"
    for key in fields.parameters:
        if key == STRATEGY_PARAMETER:
            yield Finding(
                path,
                f"{key} is set by batchStrategy, which also provides the library; use"
                " batchStrategy instead",
                code=FindingCode.FIELD_COMBINATION,
            )
        if (
            key == ENVIRONMENT_PARAMETER
            and fields.python is not None
            and fields.python.environment is not None
        ):
            yield Finding(
                path,
                f"{key} is also set by python.environment; remove one of the two settings",
                code=FindingCode.FIELD_COMBINATION,
            )
        if key.startswith(RUNTIME_PARAMETER_PREFIX):
            yield Finding(
                path,
                f"{key!r} is reserved, because names that start with {RUNTIME_PARAMETER_PREFIX!r}"
                " belong to the operator; choose another name",
                code=FindingCode.RESERVED,
            )


def _needed_files(fields: StepFields, step: Step) -> Iterator[Finding]:
    """Yield sources and model names that a step's platform or runner needs, or cannot use."""
    if step.implementation is Implementation.ONNX_RUNNER and step.source is None:
        yield Finding(
            f"{step.path}.source",
            "required, because the runner needs an ONNX file; add the source of the file",
            code=FindingCode.REQUIRED,
        )
    python = fields.python
    if python is not None and python.runner is Runner.ONNX_RUNTIME:
        for part, given in (("files", python.files), ("environment", python.environment)):
            if given:
                yield Finding(
                    f"{step.path}.python.{part}",
                    "the field is allowed only with custom code; remove this field",
                    code=FindingCode.FIELD_COMBINATION,
                )
                break
    if (
        fields.platform in (Platform.ONNX, Platform.TENSORRT, Platform.PYTORCH)
        and step.source is None
        and step.path != "spec.model"
    ):
        yield Finding(
            f"{step.path}.source",
            f"required, because platform {fields.platform.value} loads a model file; add the"
            " source of the file",
            code=FindingCode.REQUIRED,
        )
    named = fields.vllm is not None and "model" in fields.vllm.engine_args
    if fields.platform is Platform.VLLM and step.source is None and not named:
        yield Finding(
            f"{step.path}.vllm.engineArgs",
            "engineArgs does not set model; set model to a name that vLLM knows, or add a "
            "source with the weights",
            code=FindingCode.REQUIRED,
        )


def _versioned_source(fields: StepFields, step: Step) -> SourceSpec | None:
    """Return the source that may have numbered versions: of custom code, that of its model.py."""
    python = fields.python
    if python is not None and python.code is not None:
        return python.code.source
    return step.source


def _versions(fields: StepFields, step: Step) -> Iterator[Finding]:
    policy, source = fields.version_policy, _versioned_source(fields, step)
    pinned = fields.version is not None and fields.version != 1
    if policy is not None and not policy.default and (source is None or names_file(source)):
        yield Finding(
            f"{step.path}.versionPolicy",
            "versionPolicy requires a source directory with version directories, but a "
            "single file is always version 1; remove versionPolicy, or use a directory as "
            "the source",
            code=FindingCode.VERSION_MISMATCH,
        )
    if pinned and (source is None or names_file(source)):
        yield Finding(
            f"{step.path}.version",
            f"version {fields.version} does not exist, because a single file is always "
            "version 1; remove the version field",
            code=FindingCode.VERSION_MISMATCH,
        )
    if (
        policy is not None
        and fields.version is not None
        and policy.specific
        and fields.version not in policy.specific
    ):
        served = ", ".join(map(str, sorted(policy.specific)))
        yield Finding(
            f"{step.path}.version",
            f"version {fields.version} is not served, because versionPolicy.specific serves "
            f"only {served}; add {fields.version} to versionPolicy.specific, or request "
            "another version",
            code=FindingCode.VERSION_MISMATCH,
        )


def _strategy(fields: StepFields, step: Step) -> Iterator[Finding]:
    if fields.batch_strategy is None:
        return
    if fields.batch_strategy.path is not None and step.source is None:
        yield Finding(
            f"{step.path}.batchStrategy.path",
            "the path is a library in the model's directory, but the step has no source; "
            "add source",
            code=FindingCode.REQUIRED,
        )
    if step.max_batch_size == 0:
        yield Finding(
            f"{step.path}.batchStrategy",
            "batchStrategy has no effect when maxBatchSize is 0; remove batchStrategy",
            code=FindingCode.NO_EFFECT,
        )
