"""Compare the outputs of two settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from triton_pipelines.tools.loadgen import Array

OutputTensors = Mapping[str, Array]

# Tolerated difference, absolute and relative: kernels for other shapes add in another order. Half
# precision keeps 11 bits.
TOLERANCE = 1e-4
HALF_TOLERANCE = 1e-2


def output_difference(before: Sequence[OutputTensors], after: Sequence[OutputTensors]) -> str:
    """Return how the outputs for the same requests differ, as text; empty: they are equal."""
    for one, other in zip(before, after, strict=True):
        if one.keys() != other.keys():
            return (
                f"the outputs of the response ({', '.join(sorted(other))}) differ from the "
                f"expected outputs ({', '.join(sorted(one))})"
            )
        for name in sorted(one):
            if mismatch := _mismatch(np.asarray(one[name]), np.asarray(other[name])):
                return f"output {name!r} differs: {mismatch}"
    return ""


def _mismatch(one: Array, other: Array) -> str:
    if one.shape != other.shape:
        return f"shape {list(other.shape)} instead of {list(one.shape)}"
    if one.dtype.kind in "OSUbiu":
        return "" if np.array_equal(one, other) else "the values are not equal"
    allowed = TOLERANCE if one.dtype.itemsize >= np.dtype(np.float32).itemsize else HALF_TOLERANCE
    first, second = one.astype(np.float64), other.astype(np.float64)
    if np.allclose(first, second, rtol=allowed, atol=allowed, equal_nan=True):
        return ""
    return f"values differ by up to {float(np.nanmax(np.abs(first - second))):.2g}"
