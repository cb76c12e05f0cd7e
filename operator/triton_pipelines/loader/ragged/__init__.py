"""Rewrites an ONNX encoder so that Triton's ONNX Runtime backend can batch requests of different length.

A stock encoder takes ``[rows, tokens]`` matrices, and Triton puts only requests of equal shape into a batch. The adapted graph takes
the tokens of all rows in one flat tensor per input, and the rows' lengths beside it; it pads by itself, with standard operators,
to the longest row that really came. Clients see no difference. What cannot be adapted without changing answers is refused in words.
"""

from triton_pipelines.loader.ragged.adapt import adapt
from triton_pipelines.loader.ragged.adapt_file import Adapted, adapt_file
from triton_pipelines.loader.ragged.eligibility import Adaptable, Obstacle, Refusal, examine

__all__ = ["Adaptable", "Adapted", "Obstacle", "Refusal", "adapt", "adapt_file", "examine"]
