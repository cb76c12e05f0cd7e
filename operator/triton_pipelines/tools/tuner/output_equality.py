"""Whether answers stay what they were under another setting. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from triton_pipelines.tools.loadgen import Array

OutputTensors = Mapping[str, Array]

# By how much a number may differ, absolutely and relative to it: kernels for other shapes add in another order. Half precision keeps 11 bits.
TOLERANCE = 1e-4
HALF_TOLERANCE = 1e-2


def output_difference(before: Sequence[OutputTensors], after: Sequence[OutputTensors]) -> str:
    """How answers to the same requests differ, in words; empty: they are equal."""
    for one, other in zip(before, after, strict=True):
        if one.keys() != other.keys():
            return f"answers hold {', '.join(sorted(other))} instead of {', '.join(sorted(one))}"
        for name in sorted(one):
            if said := _differs(np.asarray(one[name]), np.asarray(other[name])):
                return f"answers in {name} are not the same: {said}"
    return ""


def _differs(one: Array, other: Array) -> str:
    if one.shape != other.shape:
        return f"shape {list(other.shape)} instead of {list(one.shape)}"
    if one.dtype.kind in "OSUbiu":
        return "" if np.array_equal(one, other) else "other values"
    allowed = TOLERANCE if one.dtype.itemsize >= np.dtype(np.float32).itemsize else HALF_TOLERANCE
    first, second = one.astype(np.float64), other.astype(np.float64)
    if np.allclose(first, second, rtol=allowed, atol=allowed, equal_nan=True):
        return ""
    return f"they differ by up to {float(np.nanmax(np.abs(first - second))):.2g}"
