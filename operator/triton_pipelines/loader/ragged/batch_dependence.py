"""Operators whose output for a row depends on the other rows of its batch, or on chance."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from triton_pipelines.loader.onnx_graph.graph_walk import STANDARD

_DYNAMIC_QUANTIZATION: Final = frozenset(
    {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}
)
_RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN"})
_SEQUENCE_LENS: Final = 4
"""Place of the optional input ``sequence_lens`` of the recurrent operators."""
_RANDOM: Final = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
    }
)


class BatchDependence(Enum):
    """Why an operator cannot run on ragged batches; the value is the reason for people."""

    DYNAMIC_QUANTIZATION = (
        "its scale is computed over the whole batch (dynamic quantization), so a row's output"
        " depends on the other rows"
    )
    RECURRENT = "a recurrent layer without sequence_lens reads the padding at the end of a row"
    RANDOM = "its values are random"
    TRAINING_MODE = "in training mode, it normalizes over the batch"

    @property
    def advice(self) -> str:
        """What the user can do about it."""
        if self is BatchDependence.DYNAMIC_QUANTIZATION:
            return "use the model without dynamic quantization, or quantize it statically"
        return "export the model without this operator"


def batch_dependent_operators(model_nodes: Iterable[Any]) -> dict[str, BatchDependence]:
    """Return the operator types among the nodes that depend on the batch or on chance."""
    found: dict[str, BatchDependence] = {}
    for node in model_nodes:
        dependence = _dependence(node)
        if dependence is not None:
            found[node.op_type] = dependence
    return found


def _dependence(node: Any) -> BatchDependence | None:
    if node.op_type in _DYNAMIC_QUANTIZATION:
        return BatchDependence.DYNAMIC_QUANTIZATION
    if node.domain not in STANDARD:
        return None
    if node.op_type in _RECURRENT:
        has_lengths = len(node.input) > _SEQUENCE_LENS and node.input[_SEQUENCE_LENS]
        return None if has_lengths else BatchDependence.RECURRENT
    if node.op_type in _RANDOM:
        return BatchDependence.RANDOM
    if node.op_type == "BatchNormalization" and any(
        attribute.name == "training_mode" and attribute.i for attribute in node.attribute
    ):
        return BatchDependence.TRAINING_MODE
    return None
