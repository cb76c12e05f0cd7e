"""The small ONNX model of the image sample, which finds the prevailing color.

The input is FP32 ``[batch, 3, 224, 224]``, the output ``logits`` ``[batch, 3]``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper

from e2e.models.graph import Graph
from e2e.models.minilm import LOGITS

PIXELS: Final = "pixel_values"
COLOURS: Final = ("red", "green", "blue")
SIZE: Final = 224
# How far a color must exceed the mean of the others to count. There is one kernel per color over
# the three channels.
OPPONENTS: Final = np.array([[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]], np.float32)
SCALE: Final = 2.0
# Windows of 3 x 3 pixels, so far apart.
STRIDE: Final = 7


def build_colours() -> Any:
    """Build a convolution, a rectifier and a mean over the image.

    The convolution is 3 x 3 with the same weight everywhere, at every seventh pixel.
    """
    graph = Graph()
    kernel = graph.constant(
        "kernel", np.repeat(OPPONENTS / 9.0, 9).reshape(3, 3, 3, 3).astype(np.float32)
    )
    mapped = graph.node(
        "Relu",
        [
            graph.node(
                "Conv", [PIXELS, kernel], "convolved", kernel_shape=[3, 3], strides=[STRIDE, STRIDE]
            )
        ],
        "rectified",
    )
    pooled = graph.node("Flatten", [graph.node("GlobalAveragePool", [mapped], "pooled")], "flat")
    graph.node("Mul", [pooled, graph.scalar("scale", SCALE)], LOGITS)
    inputs = [helper.make_tensor_value_info(PIXELS, TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])]
    return graph.model(
        "colours",
        inputs,
        [helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["batch", len(COLOURS)])],
    )
