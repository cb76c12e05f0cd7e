"""The steps of a pipeline as a user writes them: model, further steps, auxiliary models."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from .base import ApiModel, FieldRule, Passthrough, Switch, Text, TritonName
from .batch_strategy import BatchStrategy
from .batching import DynamicBatching, MaxBatchSize
from .instances import InstanceResources, ModelInstances
from .open_fields import FORM, OpenForm
from .optimization import Optimization, TokenLengths, VersionPolicy, Vllm, Warmup
from .python import Python
from .sequence_batching import SequenceBatching
from .source import ModelSource
from .step_names import NAME_IS_FREE, StepName
from .tensors import InputTensor, OutputTensor, TensorList

BACKEND_PATTERN = r"^[a-z0-9_]+$"


class Platform(StrEnum):
    """What runs the model's file."""

    ONNX = "onnxruntime_onnx"
    TENSORRT = "tensorrt_plan"
    PYTORCH = "pytorch_libtorch"
    PYTHON = "python"
    VLLM = "vllm"


class StepFields(ApiModel):
    """What the model, further steps and auxiliary models have in common."""

    platform: Annotated[
        Platform | None,
        Field(
            description=(
                "Platform that runs the file: onnxruntime_onnx, tensorrt_plan, pytorch_libtorch, "
                "python or vllm."
            )
        ),
    ] = None
    backend: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=64,
            pattern=BACKEND_PATTERN,
            description=(
                "Another backend of the server image, such as dali or fil. Replaces platform."
            ),
        ),
    ] = None
    source: Annotated[
        ModelSource | None,
        Field(
            description=(
                "The model file, its directory or a directory of numbered versions. Default: "
                "spec.source."
            )
        ),
    ] = None
    python: Annotated[
        Python | None,
        Field(description="Custom code. Required for platform python, not allowed otherwise."),
    ] = None
    vllm: Annotated[
        Vllm | None, Field(description="Arguments of the engine, for platform vllm.")
    ] = None
    inputs: Annotated[
        TensorList[InputTensor],
        Field(
            description=(
                "Input tensors. Default: the tokenizer's outputs; for platform vllm, the "
                "inputs of the backend."
            )
        ),
    ] = ()
    outputs: Annotated[
        TensorList[OutputTensor],
        Field(description="Output tensors. Required except for platform vllm."),
    ] = ()
    max_batch_size: Annotated[
        MaxBatchSize | None,
        Field(
            description=(
                "Maximum rows per batch. 0 means no batching: dims include the batch axis."
                " Default: 64, or 0 for vllm."
            )
        ),
    ] = None
    dynamic_batching: Annotated[
        DynamicBatching | None,
        Field(
            description=(
                "Dynamic batching of this step. Enabled by default, unless sequenceBatching is set."
            )
        ),
    ] = None
    sequence_batching: Annotated[
        SequenceBatching | None,
        Field(
            description=(
                "Batching of requests that belong to a sequence. Cannot be combined with "
                "dynamicBatching."
            )
        ),
    ] = None
    batch_strategy: Annotated[
        BatchStrategy | None,
        Field(description="Custom batching library, in addition to dynamicBatching."),
    ] = None
    instances: Annotated[
        ModelInstances, Field(description="Instances of the step in each pod.")
    ] = ModelInstances()
    resources_per_instance: Annotated[
        InstanceResources | None,
        Field(
            description=(
                "Resources of one instance of a Python step; the pod's are computed from them."
                " Default: 100m and 256Mi, or 1 CPU and 400Mi if the step is "
                "scaled."
            )
        ),
    ] = None
    version_policy: Annotated[
        VersionPolicy | None,
        Field(
            description=(
                "Versions to serve, if the source is a directory of numbered versions. Default: the"
                " latest."
            )
        ),
    ] = None
    version: Annotated[
        int | None,
        Field(
            ge=1,
            le=2**31 - 1,
            description="Version that the pipeline calls. Default: the latest served version.",
        ),
    ] = None
    warmup: Annotated[
        Warmup | None,
        Field(
            description=(
                "Inferences that a new instance runs before it serves requests. Enabled by "
                "default if the step runs in one of Triton's backends and reads only token "
                "tensors."
            )
        ),
    ] = None
    optimization: Annotated[
        Optimization | None,
        Field(description="Optimizations that the backend applies to the file."),
    ] = None
    lengths: Annotated[
        TokenLengths | None,
        Field(
            description=(
                "Range of row lengths that the file accepts, in tokens, such as the profile of "
                "a TensorRT plan."
            )
        ),
    ] = None
    decoupled: Annotated[
        Switch | None,
        Field(
            description=(
                "If Enabled, the step can send any number of responses to a request. Default: "
                "Disabled, or Enabled for vllm."
            )
        ),
    ] = None
    parameters: Annotated[
        dict[Annotated[str, Field(max_length=128)], Text],
        Field(max_length=64, description="Model parameters, which are passed to Triton unchanged."),
    ] = {}
    config_patch: Annotated[
        Passthrough | None,
        Field(
            description=(
                "Additional fields of Triton's ModelConfig, in protobuf JSON. They are merged "
                "last: lists are replaced, maps are merged, and null clears a field. Settings "
                "with a dedicated field are rejected here."
            ),
            json_schema_extra={FORM: OpenForm.MODEL_CONFIG},
        ),
    ] = None

    rules: ClassVar[tuple[FieldRule, ...]] = (
        FieldRule(
            cel="has(self.platform) != has(self.backend)",
            message="exactly one of platform and backend is required",
            holds=lambda m: (m.platform is None) != (m.backend is None),
            field="platform",
        ),
        FieldRule(
            cel=(
                "!has(self.backend) || !(self.backend in ['python', 'vllm', 'onnxruntime',"
                " 'tensorrt', 'pytorch', 'ensemble'])"
            ),
            message=(
                "this backend is selected with platform; remove backend and set platform to python,"
                " vllm, onnxruntime_onnx, tensorrt_plan or pytorch_libtorch (an ensemble is the"
                " pipeline itself)"
            ),
            holds=lambda m: (
                m.backend
                not in ("python", "vllm", "onnxruntime", "tensorrt", "pytorch", "ensemble")
            ),
            field="backend",
        ),
        FieldRule(
            cel="(has(self.platform) && self.platform == 'python') == has(self.python)",
            message="required for platform python and not allowed for other platforms",
            holds=lambda m: (m.platform is Platform.PYTHON) == (m.python is not None),
            field="python",
        ),
        FieldRule(
            cel="!has(self.vllm) || has(self.platform) && self.platform == 'vllm'",
            message="allowed only with platform vllm",
            holds=lambda m: m.vllm is None or m.platform is Platform.VLLM,
            field="vllm",
        ),
        FieldRule(
            cel=(
                "has(self.outputs) && size(self.outputs) > 0 || has(self.platform) &&"
                " self.platform == 'vllm'"
            ),
            message="required; list each output tensor with dataType and dims",
            holds=lambda m: bool(m.outputs) or m.platform is Platform.VLLM,
            field="outputs",
        ),
        FieldRule(
            cel=(
                "!has(self.maxBatchSize) || !has(self.dynamicBatching) ||"
                " !has(self.dynamicBatching.preferredBatchSizes) ||"
                " self.dynamicBatching.preferredBatchSizes.all(size, size <= self.maxBatchSize)"
            ),
            message=(
                "each value of dynamicBatching.preferredBatchSizes must be at most maxBatchSize"
            ),
            holds=lambda m: preferred_fit(m.max_batch_size, m.dynamic_batching),
            field="dynamicBatching.preferredBatchSizes",
        ),
        FieldRule(
            cel="!(has(self.dynamicBatching) && has(self.sequenceBatching))",
            message=(
                "dynamicBatching and sequenceBatching cannot be combined; remove one of the two"
            ),
            holds=lambda m: m.dynamic_batching is None or m.sequence_batching is None,
            field="sequenceBatching",
        ),
        FieldRule(
            cel="!has(self.batchStrategy) || !has(self.sequenceBatching)"
            " && !(has(self.dynamicBatching) && has(self.dynamicBatching.mode) &&"
            " self.dynamicBatching.mode == 'Disabled')",
            message=(
                "allowed only with dynamicBatching in mode Enabled, and not with sequenceBatching"
            ),
            holds=lambda m: (
                m.batch_strategy is None
                or (
                    m.sequence_batching is None
                    and (m.dynamic_batching is None or m.dynamic_batching.mode is Switch.ENABLED)
                )
            ),
            field="batchStrategy",
        ),
        FieldRule(
            cel=(
                "!(has(self.instances) && has(self.instances.profiles) &&"
                " size(self.instances.profiles) > 0) || has(self.platform) && self.platform =="
                " 'tensorrt_plan'"
            ),
            message="allowed only with platform tensorrt_plan",
            holds=lambda m: not m.instances.profiles or m.platform is Platform.TENSORRT,
            field="instances.profiles",
        ),
        FieldRule(
            cel=(
                "!(has(self.instances) && has(self.instances.groups) &&"
                " self.instances.groups.exists(g, has(g.profiles) && size(g.profiles) > 0)) ||"
                " has(self.platform) && self.platform == 'tensorrt_plan'"
            ),
            message="profiles of instances.groups are allowed only with platform tensorrt_plan",
            holds=lambda m: (
                not any(group.profiles for group in m.instances.groups)
                or m.platform is Platform.TENSORRT
            ),
            field="instances.groups",
        ),
        FieldRule(
            cel=(
                "!(has(self.lengths) && has(self.lengths.profiles) && size(self.lengths.profiles)"
                " > 0) || has(self.platform) && self.platform == 'tensorrt_plan'"
            ),
            message=(
                "allowed only with platform tensorrt_plan; use lengths.min and"
                " lengths.max for other platforms"
            ),
            holds=lambda m: (
                m.lengths is None or not m.lengths.profiles or m.platform is Platform.TENSORRT
            ),
            field="lengths.profiles",
        ),
        FieldRule(
            cel=(
                "!has(self.optimization) || !has(self.optimization.tensorrt) || has(self.platform)"
                " && self.platform == 'onnxruntime_onnx'"
            ),
            message=(
                "allowed only with platform onnxruntime_onnx, because it"
                " configures TensorRT in the ONNX Runtime backend"
            ),
            holds=lambda m: (
                m.optimization is None
                or m.optimization.tensorrt is None
                or m.platform is Platform.ONNX
            ),
            field="optimization.tensorrt",
        ),
        FieldRule(
            cel=(
                "!has(self.sequenceBatching) || !has(self.instances) || !(has(self.instances.min)"
                " || has(self.instances.max) || has(self.instances.initial))"
            ),
            message=(
                "a step with sequenceBatching cannot be scaled live, because its state would be"
                " lost; use instances.count instead"
            ),
            holds=lambda m: m.sequence_batching is None or not m.instances.ranged,
            field="instances",
        ),
    )


def preferred_fit(limit: int | None, batching: DynamicBatching | None) -> bool:
    """Return whether no preferred size exceeds the step's own ``maxBatchSize``."""
    return (
        limit is None
        or batching is None
        or all(size <= limit for size in batching.preferred_batch_sizes)
    )


class ModelSpec(StepFields):
    """The GPU step."""

    model_name: Annotated[TritonName, Field(description="Name in the model repository.")] = "model"


class StepSpec(StepFields):
    """An additional step of the pipeline.

    Examples: image or audio preprocessing, a second model, or a step that joins branches.
    """

    name: Annotated[
        StepName,
        Field(
            description=(
                "Name for from fields and the status: a DNS label. The names tokenizer, model,"
                " postprocess and pipeline are reserved."
            )
        ),
    ]
    model_name: Annotated[
        TritonName | None, Field(description="Name in the model repository. Default: name.")
    ] = None

    rules: ClassVar[tuple[FieldRule, ...]] = (
        NAME_IS_FREE,
        *StepFields.rules,
    )
