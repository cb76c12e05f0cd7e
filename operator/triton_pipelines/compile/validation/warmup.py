"""Rules over ``model_warmup``.

What Triton checks of the requests that it makes itself before a new instance serves.
"""

from __future__ import annotations

import math
import posixpath
from typing import Any, Final

from triton_pipelines.compile.model_config_proto import model_config_pb2 as pb

from .sequences import item_bytes
from .server_facts import Release, ServerFacts
from .stricter_rules import MAX_ELEMENTS, MAX_WARMUP_REQUESTS
from .tensors import VARIABLE, type_name
from .violations import RuleId, ViolationCollector, keyed, listed, shape

_CORRELATION_CHECKED_SINCE: Final[Release] = (25, 1)


def check(config: Any, facts: ServerFacts, findings: ViolationCollector) -> None:
    """Check the warm-up of one model; ``flow`` checks that an ensemble has none."""
    if config.HasField("ensemble_scheduling"):
        return
    # A passive instance is never warmed up.
    if config.instance_group and all(group.passive for group in config.instance_group):
        return
    tensors: dict[str, Any] = {}
    for tensor in config.input:
        tensors.setdefault(tensor.name, tensor)
    for index, sample in enumerate(config.model_warmup):
        path = f"model_warmup[{index}]"
        if sample.batch_size == 0:
            continue
        if sample.batch_size * max(sample.count, 1) > MAX_WARMUP_REQUESTS:
            findings.add(
                f"{path}.batch_size",
                RuleId.WARMUP_SIZE,
                f"{sample.batch_size} requests, repeated {max(sample.count, 1)} times, are "
                f"too many; use at most {MAX_WARMUP_REQUESTS} in total",
            )
        for name in sorted(sample.inputs):
            _input(
                name, sample.inputs[name], keyed(f"{path}.inputs", name), tensors, facts, findings
            )
        _required(sample, path, config, tensors, findings)
        if facts.release >= _CORRELATION_CHECKED_SINCE and _string_correlation_id(config):
            findings.add(
                path,
                RuleId.WARMUP,
                "a warm-up request has a numeric correlation ID, but the model requires"
                " TYPE_STRING; omit the warm-up",
            )


def _required(
    sample: Any, path: str, config: Any, tensors: dict[str, Any], findings: ViolationCollector
) -> None:
    required = [name for name, tensor in tensors.items() if not tensor.optional]
    missing = [name for name in required if name not in sample.inputs]
    if not missing:
        return
    given = sum(name in tensors for name in sample.inputs)
    rule = (
        RuleId.WARMUP
        if given < sum(not tensor.optional for tensor in config.input)
        else RuleId.WARMUP_REQUIRED
    )
    findings.add(
        f"{path}.inputs", rule, f"input {listed(missing)} of the model is missing; add that input"
    )


def _input(
    name: str,
    given: Any,
    path: str,
    tensors: dict[str, Any],
    facts: ServerFacts,
    findings: ViolationCollector,
) -> None:
    source = given.WhichOneof("input_data_type")
    if source is None:
        findings.add(
            path,
            RuleId.WARMUP,
            f"{name!r} has no data; set zero_data, random_data or input_data_file",
        )
    tensor, valid = tensors.get(name), _valid_sizes(name, given, path, findings)
    if math.prod(max(dim, 1) for dim in given.dims) > MAX_ELEMENTS:
        findings.add(
            f"{path}.dims",
            RuleId.WARMUP_SIZE,
            f"{name!r}: {shape(given.dims)} has more than {MAX_ELEMENTS} elements; use smaller"
            " dims",
        )
    if given.data_type == pb.TYPE_INVALID and tensor is None:
        findings.add(
            f"{path}.data_type",
            RuleId.WARMUP_SIZE,
            f"{name!r} has no data type; set data_type, for example to TYPE_FP32",
        )
    if tensor is not None:
        _fits_model(name, given, tensor, path, valid, findings)
    if source == "input_data_file":
        _file(name, given, path, facts, findings)


def _valid_sizes(name: str, given: Any, path: str, findings: ViolationCollector) -> bool:
    """Return whether every size is a number of at least 1, and report the others."""
    valid = True
    for index, dim in enumerate(given.dims):
        if dim == VARIABLE:
            valid = False
            findings.add(
                f"{path}.dims[{index}]",
                RuleId.WARMUP,
                f"{name!r}: a warm-up cannot have a variable size; use a number",
            )
        elif dim < 1:
            valid = False
            findings.add(
                f"{path}.dims[{index}]",
                RuleId.WARMUP_SIZE,
                f"{name!r}: {dim} is not a valid size; use at least 1",
            )
    return valid


def _fits_model(
    name: str, given: Any, tensor: Any, path: str, valid: bool, findings: ViolationCollector
) -> None:
    """Report an element type or shape that differs from the model's."""
    if given.data_type != tensor.data_type:
        findings.add(
            f"{path}.data_type",
            RuleId.WARMUP,
            f"{name!r} is {type_name(given.data_type)}, but the model requires "
            f"{type_name(tensor.data_type)}; use the data type of the model",
        )
    fits = len(given.dims) == len(tensor.dims) and all(
        expected in (VARIABLE, dim) for dim, expected in zip(given.dims, tensor.dims, strict=True)
    )
    if valid and not fits:
        findings.add(
            f"{path}.dims",
            RuleId.WARMUP,
            f"{name!r}: {shape(given.dims)} does not match the model's dims {shape(tensor.dims)};"
            " use a matching shape without the batch dimension",
        )


def _file(
    name: str, given: Any, path: str, facts: ServerFacts, findings: ViolationCollector
) -> None:
    files = facts.files.get(findings.model)
    if files is None:
        return
    target = posixpath.normpath(f"warmup/{given.input_data_file}")
    expected = math.prod(max(dim, 0) for dim in given.dims) * item_bytes(given.data_type)
    if target not in files:
        findings.add(
            f"{path}.input_data_file",
            RuleId.WARMUP,
            f"{name!r}: the model's directory has no file {target!r}; add the file, or use "
            "zero_data",
        )
    elif files[target] < expected:
        findings.add(
            f"{path}.input_data_file",
            RuleId.WARMUP,
            f"{name!r}: {target!r} has {files[target]} bytes, but {shape(given.dims)} requires"
            f" {expected}; replace the file, or correct dims",
        )


def _string_correlation_id(config: Any) -> bool:
    corrid = pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
    return any(
        control.kind == corrid and control.data_type == pb.TYPE_STRING
        for tensor in config.sequence_batching.control_input
        for control in tensor.control
    )
