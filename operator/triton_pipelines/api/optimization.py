"""Settings of how a backend runs a model's file.

They cover versions, warm-up, TensorRT inside ONNX Runtime, vLLM's engine and the token range.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from .base import ApiModel, FieldRule, Passthrough, Switch
from .batching import BatchSize, BatchSizes
from .open_fields import FORM, OpenForm
from .tensors import AS_SET, ATOMIC

MAX_TOKENS = 1_048_576
TABLE_PATTERN = r"^[A-Za-z0-9_][-A-Za-z0-9_.]*$"


class AllVersions(ApiModel):
    """Every numbered version."""


class VersionPolicy(ApiModel):
    """Which numbered versions of a model are served.

    Triton runs the instance count for each of them.
    """

    latest: Annotated[
        int | None,
        Field(ge=1, le=64, description="Number of most recent versions to serve."),
    ] = None
    all: Annotated[AllVersions | None, Field(description="Serves every version. Set it to {}.")] = (
        None
    )
    specific: Annotated[
        tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], ...],
        Field(
            max_length=64,
            description="These versions.",
            json_schema_extra=AS_SET,
        ),
    ] = ()

    rules = (
        FieldRule(
            cel=(
                "(has(self.latest) ? 1 : 0) + (has(self.all) ? 1 : 0) + (has(self.specific) &&"
                " size(self.specific) > 0 ? 1 : 0) == 1"
            ),
            message=(
                "exactly one of versionPolicy.latest, versionPolicy.all and versionPolicy.specific"
                " is required"
            ),
            holds=lambda p: (p.latest is not None) + (p.all is not None) + bool(p.specific) == 1,
        ),
    )

    @property
    def default(self) -> bool:
        """Return whether it is equal to Triton's own default."""
        return self.latest == 1


class Warmup(ApiModel):
    """Inferences that a new instance runs before it serves requests.

    As a result, no client waits for lazy initialization.
    """

    mode: Annotated[
        Switch,
        Field(
            description=(
                "If Disabled, instances are not warmed up. Triton 24.10 exits if a warm-up "
                "fails, so enable it only for inputs that are known to work."
            )
        ),
    ] = Switch.ENABLED
    batch_sizes: Annotated[
        BatchSizes,
        Field(
            description=(
                "Number of rows in each inference. Default: 1, the preferred batch sizes and, "
                "on GPUs, maxBatchSize."
            )
        ),
    ] = ()

    rules = (
        FieldRule(
            cel="!has(self.mode) || self.mode != 'Disabled' || !has(self.batchSizes)",
            message=("allowed only with mode Enabled; remove batchSizes, or set mode to Enabled"),
            holds=lambda w: w.mode is Switch.ENABLED or not w.batch_sizes,
            field="batchSizes",
        ),
    )


class Precision(StrEnum):
    """Number formats of TensorRT engines."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    INT8 = "INT8"


class TensorRT(ApiModel):
    """TensorRT inside the ONNX Runtime backend."""

    precision: Annotated[
        Precision | None,
        Field(description="FP32 (the default), FP16, BF16, or INT8 with a calibration table."),
    ] = None
    engine_cache: Annotated[
        Switch | None,
        Field(
            description=(
                "If Enabled, engines are cached outside the model directory (on "
                "server.modelCache if that is set). Default: Disabled."
            )
        ),
    ] = None
    calibration_table: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=128,
            pattern=TABLE_PATTERN,
            description=(
                "Name of the calibration table for INT8. The file must be next to the model's file."
            ),
        ),
    ] = None
    workspace_mebibytes: Annotated[
        int | None,
        Field(ge=1, le=1_048_576, description="Maximum workspace memory of an engine, in MiB."),
    ] = None

    rules = (
        FieldRule(
            cel="(has(self.precision) && self.precision == 'INT8') == has(self.calibrationTable)",
            message="required for precision INT8 and not allowed otherwise",
            holds=lambda t: (t.precision is Precision.INT8) == (t.calibration_table is not None),
            field="calibrationTable",
        ),
    )


class Optimization(ApiModel):
    """Optimizations that the backend applies to the file. For other settings, use configPatch."""

    tensorrt: Annotated[TensorRT | None, Field(description="Runs the ONNX file with TensorRT.")] = (
        None
    )


class LengthProfile(ApiModel):
    """One optimization profile of a TensorRT plan: the rows and tokens that a batch can have."""

    min: Annotated[
        int | None,
        Field(ge=1, le=MAX_TOKENS, description="Minimum number of tokens in a row. Default: 1."),
    ] = None
    max: Annotated[
        int, Field(ge=1, le=MAX_TOKENS, description="Maximum number of tokens in a row.")
    ]
    min_batch_size: Annotated[
        BatchSize | None, Field(description="Minimum number of rows in a batch. Default: 1.")
    ] = None
    max_batch_size: Annotated[BatchSize, Field(description="Maximum number of rows in a batch.")]

    rules = (
        FieldRule(
            cel="!has(self.min) || self.min <= self.max",
            message="the max of a profile must be at least its min",
            holds=lambda p: p.min is None or p.min <= p.max,
            field="max",
        ),
        FieldRule(
            cel="!has(self.minBatchSize) || self.minBatchSize <= self.maxBatchSize",
            message="the maxBatchSize of a profile must be at least its minBatchSize",
            holds=lambda p: p.min_batch_size is None or p.min_batch_size <= p.max_batch_size,
            field="maxBatchSize",
        ),
    )


class TokenLengths(ApiModel):
    """Token range that a model's file accepts."""

    min: Annotated[
        int | None,
        Field(ge=1, le=MAX_TOKENS, description="Minimum number of tokens in a row. Default: 1."),
    ] = None
    max: Annotated[
        int | None, Field(ge=1, le=MAX_TOKENS, description="Maximum number of tokens in a row.")
    ] = None
    profiles: Annotated[
        tuple[LengthProfile, ...],
        Field(
            max_length=16,
            description=(
                "Optimization profiles of a TensorRT plan, in order. Replaces min and max. "
                "Every padded length must fit a profile in instances.profiles (default: the "
                "first profile) with up to maxBatchSize rows."
            ),
            json_schema_extra=ATOMIC,
        ),
    ] = ()

    rules = (
        FieldRule(
            cel=(
                "!(has(self.profiles) && size(self.profiles) > 0) || !(has(self.min) ||"
                " has(self.max))"
            ),
            message=(
                "must not be combined with lengths.min and lengths.max; remove"
                " profiles, or min and max"
            ),
            holds=lambda r: not r.profiles or (r.min is None and r.max is None),
            field="profiles",
        ),
        FieldRule(
            cel="!has(self.min) || !has(self.max) || self.min <= self.max",
            message="must be at least lengths.min",
            holds=lambda r: r.min is None or r.max is None or r.min <= r.max,
            field="max",
        ),
    )


class Vllm(ApiModel):
    """The vLLM engine."""

    engine_args: Annotated[
        Passthrough,
        Field(
            description=(
                "Fields of vLLM's AsyncEngineArgs. They are written to model.json unchanged. "
                "Omit model if source contains the weights."
            ),
            json_schema_extra={FORM: OpenForm.ENGINE_ARGS},
        ),
    ]
