"""Run an ONNX model in the loader on generated rows."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from triton_pipelines.api import names
from triton_pipelines.loader.onnx_graph.graph_walk import dims, element_type, inputs
from triton_pipelines.loader.onnx_weights import open_with_mapped_weights

Array = NDArray[Any]
Outputs = Mapping[str, Array]
Run = Callable[[Mapping[str, Array]], Outputs]
"""A model as a function from named input arrays to named output arrays."""

REFERENCE_MAX: Final = 4 << 30
"""Bytes of weights up to which ONNX's own evaluator is used.

The weights stay in their files and are mapped. Each of a dozen runs reads all of them, and what
does not fit into the loader's 2 GiB comes from the disk each time.
"""
LONGEST: Final = 2048
"""Tokens of the longest row that is run.

The attention scores of a layer grow with the square of the length: with 16 heads in FP32 they take
0.25 GiB here and 4 GiB for 8192 tokens, and several layers' scores exist at once. A loader that is
killed for its memory cannot write a report.
"""


class Evaluator(StrEnum):
    """What runs a model."""

    ONNX_RUNTIME = "ONNX Runtime"
    REFERENCE = "the reference evaluator of ONNX"
    NONE = "nothing"


@dataclass(frozen=True)
class GraphInput:
    """An input of a stock graph."""

    name: str
    """Name in the graph."""
    dtype: np.dtype[Any]
    """Element type."""
    per_token: bool
    """Whether the input holds one value per token."""
    shape: tuple[int, ...]
    """Shape of one row; empty for an input with one value per token."""


def graph_inputs(model: Any, per_token: Collection[str]) -> tuple[GraphInput, ...]:
    """Return the inputs of a stock graph; read them before the graph is adapted.

    Args:
        model: an ``onnx.ModelProto``.
        per_token: names of the inputs with one value per token.
    """
    return tuple(
        GraphInput(
            name,
            onnx.helper.tensor_dtype_to_np_dtype(element_type(value)),
            name in per_token,
            ()
            if name in per_token
            else tuple(int(dim) for dim in (dims(value) or ())[1:] if isinstance(dim, int)),
        )
        for name, value in inputs(model.graph).items()
    )


def generate_rows(
    graph_inputs: Sequence[GraphInput],
    lengths: Sequence[int],
    sizes: Mapping[str, int],
    masks: Collection[str],
) -> list[dict[str, Array]]:
    """Return one random request per length: input → array of shape [1, tokens] or [1, …].

    The first row has the lowest values and the last row the highest, so that the tables of the
    graph are tried up to their ends.

    Args:
        graph_inputs: inputs of the stock graph.
        lengths: tokens of each row.
        sizes: input → number of values that its table holds; 2 where absent.
        masks: inputs that are masks; they get :func:`mask_value`.
    """
    random = np.random.default_rng(0)
    rows = []
    for number, length in enumerate(lengths):
        row: dict[str, Array] = {}
        for item in graph_inputs:
            if not item.per_token:
                row[item.name] = further_values(random, item, 1)
            elif item.name in masks:
                row[item.name] = np.full((1, length), mask_value(item.name), item.dtype)
            else:
                size = sizes.get(item.name, 2)
                values = random.integers(0, size, (1, length))
                if number in (0, len(lengths) - 1):
                    values[0, -1] = 0 if number == 0 else size - 1
                row[item.name] = values.astype(item.dtype)
        rows.append(row)
    return rows


def further_values(random: np.random.Generator, item: GraphInput, rows: int) -> Array:
    """Return values of an input that the tokenizer does not fill: 0 and 1 if these are integers."""
    shape = (rows, *item.shape)
    values = random.uniform(0, 1, shape) if item.dtype.kind == "f" else random.integers(0, 2, shape)
    return values.astype(item.dtype)


def mask_value(name: str) -> int:
    """Return what a mask holds for ordinary tokens: 1, but 0 in ``special_tokens_mask``."""
    return 0 if "special" in name.lower() else 1


def accepts(run: Run, row: Mapping[str, Array]) -> bool:
    """Return whether the model runs on a row.

    Raises:
        MemoryError: the run did not fit into memory, which says nothing about the row.
    """
    try:
        run(row)
    except MemoryError:
        raise
    except Exception:
        return False
    return True


def choose_evaluator(weights: int) -> Evaluator:
    """Return what can run a model with ``weights`` bytes of weights in this process."""
    try:
        _import_onnxruntime()
    except ImportError:
        return Evaluator.REFERENCE if weights <= REFERENCE_MAX else Evaluator.NONE
    return Evaluator.ONNX_RUNTIME


def open_model(path: Path, evaluator: Evaluator) -> Run:
    """Return the model of a file as a function."""
    if evaluator is Evaluator.REFERENCE:
        return open_with_mapped_weights(path)
    onnxruntime = _import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(names, dict(feed)), strict=True))


def _import_onnxruntime() -> Any:
    """Import ONNX Runtime without its telemetry, which it decides on when it is imported."""
    os.environ[names.ENV_ORT_TELEMETRY] = "1"
    return importlib.import_module("onnxruntime")
