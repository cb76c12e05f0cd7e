"""Rules over a model's tensors: names, types, dims, reshape, formats, batch inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from triton_pipelines.compile.model_config_proto import model_config_pb2 as pb

from .backend_identity import Identity
from .stricter_rules import MAX_ELEMENTS
from .violations import RuleId, ViolationCollector, listed, shape

VARIABLE: Final = -1
_IMAGE_RANK: Final = 3
_IMAGE_FORMATS: Final = (pb.ModelInput.FORMAT_NHWC, pb.ModelInput.FORMAT_NCHW)
_BATCH_TYPES: Final = (pb.TYPE_INT32, pb.TYPE_FP32)


def check(config: Any, identity: Identity, findings: ViolationCollector) -> None:
    """Check all rules of this module."""
    for side, tensors in (("input", config.input), ("output", config.output)):
        seen: dict[str, int] = {}
        for index, tensor in enumerate(tensors):
            path = f"{side}[{index}]"
            _tensor(tensor, path, config.max_batch_size, identity, findings)
            if tensor.name and (first := seen.setdefault(tensor.name, index)) != index:
                findings.add(
                    f"{path}.name",
                    RuleId.TENSOR_NAME_TWICE,
                    f"{side}[{first}] already has the name {tensor.name!r}; rename one of "
                    "the two tensors",
                )
    for index, tensor in enumerate(config.input):
        if tensor.format in _IMAGE_FORMATS and len(tensor.dims) != _IMAGE_RANK:
            name = pb.ModelInput.Format.Name(tensor.format)
            findings.add(
                f"input[{index}].format",
                RuleId.FORMAT,
                f"{name} requires 3 dims, but {tensor.name!r} has {len(tensor.dims)}; use 3 dims,"
                " or omit format",
            )
    _batch_io(config, findings)


def type_name(data_type: int) -> str:
    """Return the name of an element type without its prefix, such as FP32."""
    try:
        return str(pb.DataType.Name(data_type)).removeprefix("TYPE_")
    except ValueError:
        return str(data_type)


def _tensor(
    tensor: Any, path: str, max_batch_size: int, identity: Identity, findings: ViolationCollector
) -> None:
    if not tensor.name:
        findings.add(
            f"{path}.name",
            RuleId.TENSOR_NAME,
            "the tensor has no name; set the tensor's name in the model",
        )
    shown = repr(tensor.name) if tensor.name else "the tensor"
    if tensor.data_type == pb.TYPE_INVALID:
        findings.add(
            f"{path}.data_type",
            RuleId.DATA_TYPE,
            f"{shown} has no data type; set data_type, for example to TYPE_FP32",
        )
    if not tensor.dims:
        findings.add(
            f"{path}.dims",
            RuleId.DIMS,
            f"{shown} has no dims; set its shape without the batch dimension, [1] for one value",
        )
    valid = _sizes(tensor.dims, f"{path}.dims", RuleId.DIMS, shown, findings)
    if tensor.HasField("reshape"):
        valid = (
            _sizes(tensor.reshape.shape, f"{path}.reshape.shape", RuleId.RESHAPE, shown, findings)
            and valid
        )
        if not tensor.reshape.shape and max_batch_size == 0:
            findings.add(
                f"{path}.reshape",
                RuleId.RESHAPE,
                f"{shown}: an empty shape requires a model that batches, but max_batch_size is 0;"
                " set a shape",
            )
        elif valid and tensor.dims:
            _reshape(tensor, path, shown, findings)
    _formats(tensor, path, shown, identity, findings)


def _formats(
    tensor: Any, path: str, shown: str, identity: Identity, findings: ViolationCollector
) -> None:
    """Check shape tensors and formats that only TensorRT models have."""
    if tensor.is_shape_tensor and not identity.tensorrt:
        findings.add(
            f"{path}.is_shape_tensor",
            RuleId.SHAPE_TENSOR,
            f"{shown}: only TensorRT models (platform tensorrt_plan) have shape tensors; "
            "remove is_shape_tensor",
        )
    if tensor.is_non_linear_format_io:
        if not identity.tensorrt:
            findings.add(
                f"{path}.is_non_linear_format_io",
                RuleId.NON_LINEAR_FORMAT,
                f"{shown}: only TensorRT models (platform tensorrt_plan) have such formats; "
                "remove the format",
            )
        elif len(tensor.dims) != _IMAGE_RANK:
            findings.add(
                f"{path}.is_non_linear_format_io",
                RuleId.NON_LINEAR_FORMAT,
                f"{shown}: a non-linear format requires 3 dims, not {len(tensor.dims)}; use "
                "3 dims, or omit the format",
            )


def _sizes(
    dims: Sequence[int], path: str, rule: RuleId, shown: str, findings: ViolationCollector
) -> bool:
    wrong = [index for index, dim in enumerate(dims) if dim < 1 and dim != VARIABLE]
    for index in wrong:
        findings.add(
            f"{path}[{index}]",
            rule,
            f"{shown}: {dims[index]} is not a valid size; use at least 1, or -1 for a variable"
            " size",
        )
    if not wrong and math.prod(abs(dim) for dim in dims) > MAX_ELEMENTS:
        findings.add(
            path,
            RuleId.DIMS_SIZE,
            f"{shown}: {shape(dims)} has more than {MAX_ELEMENTS} elements; use smaller dims",
        )
        return False
    return not wrong


def _reshape(tensor: Any, path: str, shown: str, findings: ViolationCollector) -> None:
    dims, target = list(tensor.dims), list(tensor.reshape.shape)
    sizes, expected = _runs(dims), _runs(target)
    if not target and sizes == [1]:
        return
    if len(sizes) != len(expected):
        findings.add(
            f"{path}.reshape.shape",
            RuleId.RESHAPE,
            f"{shown}: {shape(target)} has {len(expected) - 1} variable sizes, but dims"
            f" {shape(dims)} have {len(sizes) - 1}; use the same number in both",
        )
    elif sizes != expected or not target:
        findings.add(
            f"{path}.reshape.shape",
            RuleId.RESHAPE,
            f"{shown}: {shape(target)} and dims {shape(dims)} have different numbers of elements;"
            " the products before, between and after each -1 must be equal",
        )


def _runs(dims: Sequence[int]) -> list[int]:
    """Return the products of the sizes before, between and after the variable ones."""
    runs = [1]
    for dim in dims:
        if dim == VARIABLE:
            runs.append(1)
        else:
            runs[-1] *= dim
    return runs


def _batch_io(config: Any, findings: ViolationCollector) -> None:
    inputs, outputs = (
        [tensor.name for tensor in config.input],
        [tensor.name for tensor in config.output],
    )
    for index, batch in enumerate(config.batch_input):
        path = f"batch_input[{index}]"
        _sources(batch, path, RuleId.BATCH_INPUT, inputs, findings)
        if batch.data_type not in _BATCH_TYPES:
            findings.add(
                f"{path}.data_type",
                RuleId.BATCH_INPUT,
                f"{type_name(batch.data_type)} is not allowed here; use TYPE_INT32 or TYPE_FP32",
            )
    for index, batch in enumerate(config.batch_output):
        path = f"batch_output[{index}]"
        _sources(batch, path, RuleId.BATCH_OUTPUT, inputs, findings)
        for place, target in enumerate(batch.target_name):
            spot = f"{path}.target_name[{place}]"
            if target not in outputs:
                findings.add(
                    spot,
                    RuleId.BATCH_OUTPUT,
                    f"the model has no output {target!r}; use one of its outputs: "
                    f"{listed(outputs)}",
                )
            elif target in batch.target_name[:place]:
                findings.add(
                    spot,
                    RuleId.BATCH_OUTPUT,
                    f"output {target!r} is listed twice; remove one of the two entries",
                )


def _sources(
    batch: Any, path: str, rule: RuleId, inputs: Sequence[str], findings: ViolationCollector
) -> None:
    if len(batch.source_input) != 1:
        findings.add(
            f"{path}.source_input",
            rule,
            "source_input must list exactly one input of the model, not "
            f"{len(batch.source_input)}; list one input",
        )
    for index, source in enumerate(batch.source_input):
        if source not in inputs:
            findings.add(
                f"{path}.source_input[{index}]",
                rule,
                f"the model has no input {source!r}; use one of its inputs: {listed(inputs)}",
            )
