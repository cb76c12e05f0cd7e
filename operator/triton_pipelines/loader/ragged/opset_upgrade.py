"""Older graphs in the operators that the adapter needs."""

from __future__ import annotations

from typing import Any, Final

from onnx import version_converter
from onnx.external_data_helper import uses_external_data

from triton_pipelines.loader.onnx_graph.graph_walk import STANDARD, opset
from triton_pipelines.loader.ragged.eligibility import FIXED, OPSET, AdaptationRefusal

OLDEST: Final = 11
"""The oldest that exporters of encoders have used as their default, and that the tests convert."""
CONVERTED_MAX: Final = 512 << 20
"""Bytes of a model that the converter is given.

It holds several copies at once, and the loader has 2 GiB.
"""


def upgraded(model: Any) -> Any | AdaptationRefusal:
    """``model`` itself where its opset is new enough, else converted to :data:`OPSET`, or why not.

    What is converted has to be proven by numbers.
    """
    version = opset(model)
    if version >= OPSET:
        return model
    external = any(uses_external_data(tensor) for tensor in model.graph.initializer)
    foreign = any(entry.domain not in STANDARD for entry in model.opset_import)
    if (
        version < OLDEST
        or external
        or foreign
        or len(model.functions)
        or model.ByteSize() > CONVERTED_MAX
    ):
        return too_old(version)
    try:
        return version_converter.convert_version(model, OPSET)
    except MemoryError:
        raise
    except Exception:
        # The converter has no one kind of error for what it cannot do.
        return too_old(version)


def too_old(version: int) -> AdaptationRefusal:
    """The refusal of a graph in an opset that is not, or cannot be, converted."""
    return AdaptationRefusal.of(
        f"opset {version} is too old",
        f"export the model with opset {OPSET} or newer, or {FIXED}",
    )
