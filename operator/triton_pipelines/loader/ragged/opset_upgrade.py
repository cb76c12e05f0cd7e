"""Convert older graphs to the operators that the adapter needs."""

from __future__ import annotations

from typing import Any, Final

from onnx import version_converter
from onnx.external_data_helper import uses_external_data

from triton_pipelines.loader.onnx_graph.graph_walk import STANDARD, opset
from triton_pipelines.loader.ragged.eligibility import FIXED, OPSET, AdaptationRefusal

OLDEST: Final = 11
"""Oldest opset that exporters of encoders have used by default, and that the tests convert."""
CONVERTED_MAX: Final = 512 << 20
"""Maximum bytes of a model that is converted.

The converter holds several copies at once, and the loader has 2 GiB.
"""


def upgraded(model: Any) -> Any | AdaptationRefusal:
    """Return ``model`` if its opset is new enough, else its conversion to :data:`OPSET`.

    A conversion has to be verified by comparing outputs. If it is not possible, the refusal is
    returned.
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
        # The converter has no common error type for what it does not support.
        return too_old(version)


def too_old(version: int) -> AdaptationRefusal:
    """Return the refusal of a graph whose opset is not, or cannot be, converted."""
    return AdaptationRefusal.of(
        f"opset {version} is too old",
        f"export the model with opset {OPSET} or later, or {FIXED}",
    )
