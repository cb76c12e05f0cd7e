"""The CPU step that turns text into tokens, as a user writes it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from .base import (
    ApiModel,
    Dimension,
    FieldRule,
    Passthrough,
    Switch,
    TensorName,
    TensorReference,
    TritonName,
)
from .batching import DynamicBatching, MaxBatchSize
from .instances import InstanceResources, StepCopies
from .open_fields import FORM, OpenForm
from .optimization import MAX_TOKENS
from .python import CustomCode
from .source import SourceSpec
from .steps import preferred_fit
from .tensors import ATOMIC, BY_NAME, MAX_DIMS, DataType, TokenTensor


class TokenizerType(StrEnum):
    """What turns text into tokens."""

    HUGGING_FACE = "HuggingFace"
    PYTHON = "Python"


class Padding(StrEnum):
    """The shape in which the tokenizer returns tokens; all modes give the same results."""

    AUTO = "Auto"
    RAGGED = "Ragged"
    FIXED = "Fixed"
    BUCKETED = "Bucketed"
    LONGEST = "Longest"


class Truncation(StrEnum):
    """What happens to a text longer than maxLength."""

    LONGEST_FIRST = "LongestFirst"
    ONLY_FIRST = "OnlyFirst"
    ONLY_SECOND = "OnlySecond"
    REFUSE = "Refuse"


class TokenizerInputs(ApiModel):
    """Which texts the tokenizer reads."""

    text: Annotated[
        TensorName,
        Field(description="Name of the text input (BYTES) of the pipeline and the tokenizer."),
    ] = "TEXT"
    text_from: Annotated[
        TensorReference | None,
        Field(
            description=(
                "Tensor that contains the text, as STEP.OUTPUT of an earlier step. Default: "
                "the pipeline's input of that name."
            )
        ),
    ] = None
    text_pair: Annotated[
        TensorName | None,
        Field(description="Name of the second text input, for text pairs (rerankers, NLI models)."),
    ] = None
    text_pair_from: Annotated[
        TensorReference | None,
        Field(description="Tensor that contains the second text, in the same form as textFrom."),
    ] = None

    rules = (
        FieldRule(
            cel="!has(self.textPairFrom) || has(self.textPair)",
            message=(
                "allowed only with textPair; set textPair to the tokenizer's name for this input"
            ),
            holds=lambda t: t.text_pair_from is None or t.text_pair is not None,
            field="textPairFrom",
        ),
        FieldRule(
            cel="!has(self.textPair) || self.textPair != (has(self.text) ? self.text : 'TEXT')",
            message="text and textPair must be different inputs",
            holds=lambda t: t.text_pair != t.text,
            field="textPair",
        ),
    )


class TokenizerOutput(ApiModel):
    """One output tensor of the tokenizer."""

    name: Annotated[TensorName, Field(description="Name of the tensor in the model.")]
    tensor: Annotated[
        TokenTensor | None,
        Field(
            description=(
                "Content of the tensor. By default, it is derived from a standard name such as "
                "input_ids, regardless of case."
            )
        ),
    ] = None
    data_type: Annotated[
        Literal[DataType.INT32, DataType.INT64] | None,
        Field(
            description=(
                "INT64 or INT32. Default: the type of the input that reads the tensor, or INT64."
            )
        ),
    ] = None
    dims: Annotated[
        tuple[Dimension, ...] | None,
        Field(
            min_length=1,
            max_length=MAX_DIMS,
            description=(
                "Shape of one row. Only for type Python. Default: the shape of its tensor type."
            ),
            json_schema_extra=ATOMIC,
        ),
    ] = None


class Tokenizer(ApiModel):
    """The CPU step that converts text to tokens.

    It uses the Rust tokenizers library or custom code.
    """

    model_name: Annotated[TritonName, Field(description="Name in the model repository.")] = (
        "tokenizer"
    )
    type: Annotated[
        TokenizerType | None,
        Field(
            description=(
                "HuggingFace (the default) runs tokenizer.json with the Rust tokenizers "
                "library, inside the server. Python runs a custom model.py."
            )
        ),
    ] = None
    source: Annotated[
        SourceSpec | None,
        Field(
            description=(
                "The file tokenizer.json, or a directory that contains it (or vocab.txt with its "
                "configuration). Default: spec.source. For type Python: files that the code"
                " reads, stored next to model.py, without a default."
            )
        ),
    ] = None
    python: Annotated[CustomCode | None, Field(description="Custom code, for type Python.")] = None
    inputs: Annotated[TokenizerInputs, Field(description="Text inputs of the tokenizer.")] = (
        TokenizerInputs()
    )
    outputs: Annotated[
        tuple[TokenizerOutput, ...],
        Field(
            max_length=16,
            description=(
                "Output tensors. Required for type Python. Default: the standard tensors that "
                "later steps read."
            ),
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    max_length: Annotated[
        int | None,
        Field(ge=1, le=MAX_TOKENS, description="Maximum length of a row, in tokens. Default: 512."),
    ] = None
    truncation: Annotated[
        Truncation,
        Field(
            description=(
                "LongestFirst truncates the text (of a pair, the longer one), OnlyFirst and"
                " OnlySecond truncate that text of a pair, and Refuse rejects the request."
            )
        ),
    ] = Truncation.LONGEST_FIRST
    special_tokens: Annotated[
        Switch, Field(description="If Enabled, the tokenizer's special tokens are added.")
    ] = Switch.ENABLED
    padding: Annotated[
        Padding | None,
        Field(
            description=(
                "Ragged keeps the length of each request; Fixed pads to "
                "maxLength, Bucketed to the next bucket, and Longest to the longest row in the "
                "tokenizer's batch. Auto (the default) chooses a mode."
            )
        ),
    ] = None
    buckets: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_TOKENS)], ...],
        Field(
            max_length=32,
            description=(
                "Lengths for padding Bucketed, in ascending order. maxLength is always the "
                "last bucket. Default: the maximum lengths of the model's lengths.profiles, if "
                "any."
            ),
            json_schema_extra=ATOMIC,
        ),
    ] = ()
    max_batch_size: Annotated[
        MaxBatchSize | None,
        Field(
            description=(
                "Maximum rows per batch. 0 means no batching: clients send texts of shape [n]."
                " Default: the model's value."
            )
        ),
    ] = None
    dynamic_batching: Annotated[
        DynamicBatching | None,
        Field(description="Dynamic batching of this step. Enabled by default."),
    ] = None
    instances: Annotated[
        StepCopies, Field(description="Number of tokenizer instances in each pod.")
    ] = StepCopies()
    resources_per_instance: Annotated[
        InstanceResources,
        Field(
            description=(
                "Resources of one instance, from which the pod's requests and limits are computed."
            )
        ),
    ] = InstanceResources()
    config_patch: Annotated[
        Passthrough | None,
        Field(
            description="Additional ModelConfig fields, as in model.configPatch.",
            json_schema_extra={FORM: OpenForm.CPU_MODEL_CONFIG},
        ),
    ] = None

    rules = (
        FieldRule(
            cel=(
                "!has(self.maxBatchSize) || !has(self.dynamicBatching) ||"
                " !has(self.dynamicBatching.preferredBatchSizes) ||"
                " self.dynamicBatching.preferredBatchSizes.all(size, size <= self.maxBatchSize)"
            ),
            message=(
                "each value of dynamicBatching.preferredBatchSizes must be at most maxBatchSize"
            ),
            holds=lambda t: preferred_fit(t.max_batch_size, t.dynamic_batching),
            field="dynamicBatching.preferredBatchSizes",
        ),
        FieldRule(
            cel=(
                "!has(self.buckets) || self.buckets.all(b, b <= (has(self.maxLength) ?"
                " self.maxLength : 512))"
            ),
            message="each bucket must be at most maxLength (default: 512)",
            holds=lambda t: all(b <= (t.max_length or 512) for b in t.buckets),
            field="buckets",
        ),
        FieldRule(
            cel=(
                "!has(self.buckets) || self.buckets.isSorted() && self.buckets.all(b,"
                " self.buckets.exists_one(o, o == b))"
            ),
            message="must be in ascending order without duplicates",
            holds=lambda t: all(a < b for a, b in zip(t.buckets, t.buckets[1:], strict=False)),
            field="buckets",
        ),
        FieldRule(
            cel=(
                "!(has(self.buckets) && size(self.buckets) > 0) || has(self.padding) &&"
                " self.padding == 'Bucketed'"
            ),
            message="allowed only with padding Bucketed",
            holds=lambda t: not t.buckets or t.padding is Padding.BUCKETED,
            field="buckets",
        ),
        FieldRule(
            cel="(has(self.type) && self.type == 'Python') == has(self.python)",
            message="required for type Python and not allowed otherwise",
            holds=lambda t: (t.type is TokenizerType.PYTHON) == (t.python is not None),
            field="python",
        ),
        FieldRule(
            cel="!has(self.python) || has(self.outputs) && size(self.outputs) > 0",
            message="required for type Python; list each output tensor",
            holds=lambda t: t.python is None or bool(t.outputs),
            field="outputs",
        ),
        FieldRule(
            cel="has(self.python) || !has(self.outputs) || self.outputs.all(o, !has(o.dims))",
            message=(
                "outputs[].dims is allowed only with type Python; for other types, padding"
                " determines the shape"
            ),
            holds=lambda t: (
                t.python is not None or all(output.dims is None for output in t.outputs)
            ),
            field="outputs",
        ),
        FieldRule(
            cel=(
                "!has(self.truncation) || !(self.truncation in ['OnlyFirst', 'OnlySecond']) ||"
                " has(self.inputs) && has(self.inputs.textPair)"
            ),
            message=(
                "truncation OnlyFirst and OnlySecond require text pairs; set inputs.textPair, or"
                " use LongestFirst or Refuse"
            ),
            holds=lambda t: (
                t.truncation not in (Truncation.ONLY_FIRST, Truncation.ONLY_SECOND)
                or t.inputs.text_pair is not None
            ),
            field="truncation",
        ),
    )
