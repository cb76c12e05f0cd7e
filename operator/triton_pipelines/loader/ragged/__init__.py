"""Rewrite an ONNX encoder so that Triton can batch requests of different length.

A stock encoder takes ``[rows, tokens]`` matrices, and Triton's ONNX Runtime backend puts only
requests of the same shape into a batch. The adapted graph takes the tokens of all rows in one flat
tensor per input, and the rows' lengths in another. It pads by itself, with standard operators, to
the longest row of the batch. Clients see no difference. A graph that cannot be adapted without
changing outputs is refused with the reasons.

The rest of the loader uses only :func:`adapt_file`, its two results and :func:`not_understood`.
The import contract "The ragged adapter has one entrance" in pyproject.toml keeps it so.
"""

from triton_pipelines.loader.ragged.eligibility import AdaptationRefusal
from triton_pipelines.loader.ragged.file_adapter import AdaptedFile, adapt_file, not_understood

__all__ = ["AdaptationRefusal", "AdaptedFile", "adapt_file", "not_understood"]
