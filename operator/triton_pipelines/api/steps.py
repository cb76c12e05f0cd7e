"""The steps of a pipeline as a user writes them: tokenizer and model."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from .base import ApiModel, Dimension, Quantity, Rule, Switch, TensorName, TensorReference, Text, TritonName
from .batching import MAX_BATCH, DynamicBatching
from .source import Source

MAX_TOKENS = 1_048_576
MAX_INSTANCES = 256


class DataType(StrEnum):
    """Tensor element types, named as Triton's protocol names them (STRING is BYTES on the wire)."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BF16 = "BF16"
    STRING = "STRING"


class TokenTensor(StrEnum):
    """What a tokenizer output carries."""

    INPUT_IDS = "InputIds"
    ATTENTION_MASK = "AttentionMask"
    TOKEN_TYPE_IDS = "TokenTypeIds"  # noqa: S105 - not a password
    SPECIAL_TOKENS_MASK = "SpecialTokensMask"
    OFFSETS = "Offsets"
    LENGTHS = "Lengths"


class Padding(StrEnum):
    """In which shape tokens leave the tokenizer; all modes give the same answers."""

    AUTO = "Auto"
    RAGGED = "Ragged"
    FIXED = "Fixed"
    BUCKETED = "Bucketed"
    LONGEST = "Longest"


class Truncation(StrEnum):
    """What happens to a text longer than maxLength."""

    LONGEST_FIRST = "LongestFirst"
    REFUSE = "Refuse"


def _preferred_fit(step: Tokenizer | Model) -> bool:
    limit = step.max_batch_size
    batching = step.dynamic_batching
    return limit is None or batching is None or all(size <= limit for size in batching.preferred_batch_sizes)


_PREFERRED_RULE = Rule(
    cel="!has(self.maxBatchSize) || !has(self.dynamicBatching) || !has(self.dynamicBatching.preferredBatchSizes)"
    " || self.dynamicBatching.preferredBatchSizes.all(size, size <= self.maxBatchSize)",
    message="each of dynamicBatching.preferredBatchSizes must be at most maxBatchSize",
    holds=_preferred_fit,
    field="dynamicBatching.preferredBatchSizes",
)


class TokenizerInputs(ApiModel):
    """Which inputs of the pipeline the tokenizer reads."""

    text: Annotated[TensorName, Field(description="Name of the pipeline's text input (BYTES, shape [n, 1]).")] = "TEXT"


class TokenizerOutput(ApiModel):
    """One output tensor of the tokenizer."""

    name: Annotated[TensorName, Field(description="Name of the tensor in Triton.")]
    tensor: Annotated[TokenTensor | None, Field(description="What it carries. Left out: told by a usual name such as input_ids, in any case.")] = None
    data_type: Annotated[
        Literal[DataType.INT32, DataType.INT64] | None,
        Field(description="INT64 or INT32. Left out: that of the input that reads it, else INT64."),
    ] = None


class ScaledInstances(ApiModel):
    """Instance count of a CPU step: where it starts, and the bounds within which it may move."""

    initial: Annotated[
        int | None, Field(ge=1, le=MAX_INSTANCES, description="Count that a new pipeline starts with. Default 1, or min where that is higher.")
    ] = None
    min: Annotated[int | None, Field(ge=1, le=MAX_INSTANCES, description="Lowest count. Default 1.")] = None
    max: Annotated[
        int | None,
        Field(
            ge=1, le=MAX_INSTANCES, description="Highest count; CPU and memory limits are sized for it. Default 4, or initial where that is higher."
        ),
    ] = None

    rules = (
        Rule(
            cel="(has(self.min) ? self.min : 1) <= (has(self.initial) ? self.initial : has(self.min) ? self.min : 1)",
            message="instances.initial must be at least instances.min",
            holds=lambda i: i.low <= i.start,
            field="initial",
        ),
        Rule(
            cel="!has(self.max) || (has(self.initial) ? self.initial : has(self.min) ? self.min : 1) <= self.max",
            message="instances.max must be at least instances.initial and instances.min",
            holds=lambda i: i.start <= i.high,
            field="max",
        ),
    )

    @property
    def low(self) -> int:
        """Lowest count."""
        return self.min if self.min is not None else 1

    @property
    def start(self) -> int:
        """Count of a new pipeline."""
        return self.initial if self.initial is not None else self.low

    @property
    def high(self) -> int:
        """Highest count."""
        return self.max if self.max is not None else max(4, self.start)


class InstanceResources(ApiModel):
    """What one more instance may use."""

    cpu: Annotated[Quantity, Field(description="CPU of one instance.")] = "1"
    memory: Annotated[Quantity, Field(description="Memory of one instance.")] = "400Mi"


class Tokenizer(ApiModel):
    """The CPU step that turns text into tokens, with the Rust tokenizers library."""

    model_name: Annotated[TritonName, Field(description="Name in the model repository.")] = "tokenizer"
    source: Annotated[
        Source | None, Field(description="A folder with tokenizer.json (or vocab.txt with its configuration), or the file. Default: spec.source.")
    ] = None
    inputs: Annotated[TokenizerInputs, Field(description="Pipeline inputs that it reads.")] = TokenizerInputs()
    outputs: Annotated[
        tuple[TokenizerOutput, ...],
        Field(
            max_length=16,
            description="Its output tensors. Default: those that later steps read, by their usual names.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    max_length: Annotated[int | None, Field(ge=1, le=MAX_TOKENS, description="Longest row, in tokens. Default 512.")] = None
    truncation: Annotated[Truncation, Field(description="LongestFirst cuts a longer text; Refuse answers that request with an error.")] = (
        Truncation.LONGEST_FIRST
    )
    special_tokens: Annotated[Switch, Field(description="Enabled: the tokenizer's own special tokens are added.")] = Switch.ENABLED
    padding: Annotated[
        Padding | None,
        Field(
            description="Ragged (each request keeps its own length), Fixed (to maxLength), Bucketed (to the next bucket), Longest (to the longest of the tokenizer's batch), or Auto, the default."
        ),
    ] = None
    buckets: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_TOKENS)], ...],
        Field(
            max_length=32,
            description="Lengths of padding Bucketed, ascending; maxLength is always the last.",
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    max_batch_size: Annotated[int | None, Field(ge=1, le=MAX_BATCH, description="Most rows in a batch. Default: the model's.")] = None
    dynamic_batching: Annotated[DynamicBatching | None, Field(description="Batching of this step. Default: on.")] = None
    instances: Annotated[ScaledInstances, Field(description="How many tokenizer processes a pod runs.")] = ScaledInstances()
    resources_per_instance: Annotated[
        InstanceResources, Field(description="What one more instance may use; sizes the pod's requests and limits.")
    ] = InstanceResources()

    rules = (
        _PREFERRED_RULE,
        Rule(
            cel="!has(self.buckets) || self.buckets.all(b, b <= (has(self.maxLength) ? self.maxLength : 512))",
            message="each of buckets must be at most maxLength (512 where it is left out)",
            holds=lambda t: all(b <= (t.max_length or 512) for b in t.buckets),
            field="buckets",
        ),
        Rule(
            cel="!has(self.buckets) || self.buckets.isSorted() && self.buckets.all(b, self.buckets.exists_one(o, o == b))",
            message="buckets must be ascending, each once",
            holds=lambda t: all(a < b for a, b in zip(t.buckets, t.buckets[1:], strict=False)),
            field="buckets",
        ),
        Rule(
            cel="(has(self.buckets) && size(self.buckets) > 0) == (has(self.padding) && self.padding == 'Bucketed')",
            message="buckets go with padding Bucketed, and padding Bucketed needs them",
            holds=lambda t: bool(t.buckets) == (t.padding is Padding.BUCKETED),
            field="buckets",
        ),
    )


class Platform(StrEnum):
    """What runs the model's file."""

    ONNX = "onnxruntime_onnx"
    TENSORRT = "tensorrt_plan"
    PYTORCH = "pytorch_libtorch"
    PYTHON = "python"


class Runner(StrEnum):
    """Own python-backend runners that come with the operator."""

    ONNX_RUNTIME = "OnnxRuntime"


class InlineCode(ApiModel):
    """Own code of a python step."""

    inline: Annotated[
        str,
        Field(min_length=1, max_length=65536, description="A full Triton model.py. It runs with the rights of the pod; the operator can forbid it."),
    ]


class Python(ApiModel):
    """How a step of platform python runs: own code, or a runner that comes with the operator."""

    code: Annotated[InlineCode | None, Field(description="Own model.py.")] = None
    runner: Annotated[Runner | None, Field(description="OnnxRuntime: runs an ONNX file with the onnxruntime package of the server image.")] = None

    rules = (
        Rule(
            cel="has(self.code) != has(self.runner)",
            message="exactly one of python.code and python.runner is needed",
            holds=lambda p: (p.code is None) != (p.runner is None),
        ),
    )


class ModelOutput(ApiModel):
    """One output tensor of the model."""

    name: Annotated[TensorName, Field(description="Name of the tensor in the model's file.")]
    data_type: Annotated[DataType, Field(description="Element type.")]
    dims: Annotated[
        tuple[Dimension, ...],
        Field(
            min_length=1,
            max_length=16,
            description="Shape of one row, without the batch axis; -1: any length.",
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ]


class ModelInput(ModelOutput):
    """One input tensor of the model."""

    from_: Annotated[
        TensorReference | None,
        Field(alias="from", description="The tensor it reads: STEP.OUTPUT or pipeline.INPUT. A tokenizer's usual name needs none."),
    ] = None


class InstanceKind(StrEnum):
    """Where instances run."""

    GPU = "GPU"
    CPU = "CPU"


class ModelInstances(ApiModel):
    """Instances of the model."""

    count: Annotated[int, Field(ge=1, le=MAX_INSTANCES, description="Instances per GPU (kind GPU) or in all (kind CPU).")] = 1
    kind: Annotated[InstanceKind | None, Field(description="Default GPU; CPU where server.gpu.count is 0.")] = None


class Model(ApiModel):
    """The GPU step."""

    model_name: Annotated[TritonName, Field(description="Name in the model repository.")] = "model"
    platform: Annotated[Platform, Field(description="What runs the file.")]
    source: Annotated[Source | None, Field(description="The model's file, or a folder that holds it. Default: spec.source.")] = None
    python: Annotated[Python | None, Field(description="Needed for platform python, forbidden otherwise.")] = None
    inputs: Annotated[
        tuple[ModelInput, ...],
        Field(
            max_length=64,
            description="Input tensors. Default: the tokenizer's outputs.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = ()
    outputs: Annotated[
        tuple[ModelOutput, ...],
        Field(
            min_length=1,
            max_length=64,
            description="Output tensors.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    max_batch_size: Annotated[int | None, Field(ge=1, le=MAX_BATCH, description="Most rows in a batch. Default 64.")] = None
    dynamic_batching: Annotated[DynamicBatching | None, Field(description="Batching of this step. Default: on.")] = None
    instances: Annotated[ModelInstances, Field(description="Copies of the model.")] = ModelInstances()
    parameters: Annotated[
        dict[Annotated[str, Field(max_length=128)], Text], Field(max_length=64, description="Triton model parameters, passed on as written.")
    ] = {}

    rules = (
        _PREFERRED_RULE,
        Rule(
            cel="(self.platform == 'python') == has(self.python)",
            message="python is needed for platform python and forbidden for every other platform",
            holds=lambda m: (m.platform is Platform.PYTHON) == (m.python is not None),
            field="python",
        ),
    )
