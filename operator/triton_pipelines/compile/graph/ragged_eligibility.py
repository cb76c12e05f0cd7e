"""Decide whether the loader may adapt an ONNX file to batches of different lengths.

Measured with Triton's ONNX Runtime backend (2.51): such a graph receives the rows of all requests
end to end with the length of each, and nothing is padded. An unmodified graph only ever receives
requests of the same length. The loader inspects the file and has the last word: files that it
rejects are recorded as :data:`RaggedRejections`, and the pipeline then uses the next best padding.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from triton_pipelines.api.base import Switch
from triton_pipelines.api.instances import InstanceKind
from triton_pipelines.api.steps import Platform, StepFields
from triton_pipelines.api.tensors import DataType, TokenTensor
from triton_pipelines.api.v1alpha1 import PipelineSpec

from .graph import Input, Tensor
from .ragged_config import ragged_obstacles

# Rejected so far: key of the file's location and use (:func:`rejection_key`) → the loader's
# message.
RaggedRejections = Mapping[str, str]

# Values that fill the shorter rows inside the graph; the mask hides them.
PAD_VALUE = {
    TokenTensor.INPUT_IDS: 0,
    TokenTensor.ATTENTION_MASK: 0,
    TokenTensor.TOKEN_TYPE_IDS: 0,
    TokenTensor.SPECIAL_TOKENS_MASK: 1,
}
# Parts of a config that the adapted form writes itself.
_OWN = frozenset(
    {
        "input",
        "output",
        "batchInput",
        "batchOutput",
        "maxBatchSize",
        "dynamicBatching",
        "batch_input",
        "batch_output",
        "max_batch_size",
    }
)


def on_cpu(fields: StepFields, spec: PipelineSpec) -> bool:
    """Return whether a step in one of Triton's backends runs on CPU."""
    if None not in fields.instances.kinds:
        return fields.instances.kinds == {InstanceKind.CPU}
    return spec.server.gpu.count == 0 or fields.instances.ranged


def rejection_key(fields: StepFields, spec: PipelineSpec) -> str:
    """Return the key of a rejection by the loader: the file and how it is read.

    The key changes with the source and with the tensors, so that the loader then tries again.
    """
    identity: dict[str, Any] = fields.model_dump(
        mode="json", by_alias=True, include={"source", "inputs", "outputs", "version_policy"}
    )
    if fields.source is None and spec.source is not None:
        identity["source"] = spec.source.model_dump(mode="json", by_alias=True)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def adaptation_blocker(
    fields: StepFields, spec: PipelineSpec, kinds: Mapping[str, TokenTensor | None]
) -> str:
    """Return why an ONNX step cannot be adapted, as far as the resource shows; "" if it can.

    Args:
        fields: The step as declared.
        spec: The spec of the pipeline.
        kinds: What each input from the tokenizer contains, by the name of the input. Other inputs
            are not listed.
    """
    if fields.platform is not Platform.ONNX:
        return (
            f"{fields.platform.value if fields.platform else fields.backend} batches only "
            "requests of the same shape"
        )
    accelerated = fields.optimization is not None and fields.optimization.tensorrt is not None
    patched = sorted(_OWN & set(fields.config_patch or {}))
    versions = fields.version is not None or (
        fields.version_policy is not None and not fields.version_policy.default
    )
    for applies, reason in (
        (
            accelerated,
            "TensorRT inside ONNX Runtime would build an engine for each shape of the padded batch",
        ),
        (
            fields.dynamic_batching is not None and fields.dynamic_batching.mode is Switch.DISABLED,
            "its batching is disabled",
        ),
        (fields.sequence_batching is not None, "it has sequenceBatching"),
        (
            spec.server.auto_complete is Switch.ENABLED,
            "server.autoComplete would change its inputs",
        ),
        (versions, "its source contains multiple versions"),
        (bool(patched), f"configPatch sets {', '.join(patched)}"),
        (
            TokenTensor.ATTENTION_MASK not in kinds.values(),
            "it does not read an attention mask, which would hide padding",
        ),
    ):
        if applies:
            return reason
    return _odd_tensor(fields, kinds)


def _odd_tensor(fields: StepFields, kinds: Mapping[str, TokenTensor | None]) -> str:
    for entry in fields.inputs:
        if entry.ragged is not None or entry.optional is Switch.ENABLED:
            return f"its input {entry.name} sets ragged or optional"
        if -1 in entry.dims and kinds.get(entry.name) not in PAD_VALUE:
            return f"its input {entry.name} has a different length"
    odd = sorted(name for name, kind in kinds.items() if kind in (None, TokenTensor.OFFSETS))
    if odd:
        return f"its input {odd[0]} does not have one value per token"
    # Undeclared inputs have the form of the tokenizer's outputs.
    inputs = [Tensor(one.name, one.data_type, one.dims, one.reshape) for one in fields.inputs]
    inputs = inputs or [
        Tensor(name, DataType.INT64, (-1,)) for name, kind in kinds.items() if kind in PAD_VALUE
    ]
    outputs = [Tensor(one.name, one.data_type, one.dims, one.reshape) for one in fields.outputs]
    return next(ragged_obstacles(inputs, outputs, 1), "")


def pads(inputs: Sequence[Input], kinds: Mapping[str, TokenTensor | None]) -> dict[str, int]:
    """Return the inputs that become flat, each with the value that fills shorter rows."""
    return {
        entry.tensor.name: PAD_VALUE[kind]
        for entry in inputs
        if (kind := kinds.get(entry.tensor.name)) is not None and kind in PAD_VALUE
    }
