"""A replacement for Triton's ``triton_python_backend_utils``.

The original exists only inside a Triton process.

It holds what the runtime files use, with the real module's names; tests/integration/triton runs the
same files in a real Triton.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_NUMPY = {
    "TYPE_BOOL": np.bool_,
    "TYPE_INT64": np.int64,
    "TYPE_INT32": np.int32,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError:
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG = range(4)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class InferenceResponse:
    def __init__(
        self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None
    ) -> None:
        self._tensors, self._error = output_tensors or [], error

    def error(self) -> TritonError | None:
        return self._error

    def arrays(self) -> dict[str, np.ndarray]:
        assert self._error is None, self._error.message()
        return {tensor.name(): tensor.as_numpy() for tensor in self._tensors}


class InferenceRequest:
    def __init__(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = [Tensor(name, array) for name, array in inputs.items()]

    def inputs(self) -> list[Tensor]:
        return self._inputs


class Logger:
    lines: list[str] = []  # noqa: RUF012 what the model logged, read and cleared by tests

    @classmethod
    def log_warn(cls, text: str) -> None:
        cls.lines.append(text)


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


def triton_string_to_numpy(data_type: str) -> Any:
    return _NUMPY[data_type]


def load_runtime(step: str) -> types.ModuleType:
    """Import ``runtime/<step>/model.py`` with this module in the place of Triton's."""
    sys.modules.setdefault("triton_python_backend_utils", sys.modules[__name__])
    return importlib.import_module(f"triton_pipelines.runtime.{step}.model")


def start_model(
    step: str,
    folder: Path,
    config: dict[str, Any],
    parameters: Mapping[str, str],
    kind: str = "CPU",
) -> Any:
    """An initialized ``TritonPythonModel``; ``folder`` is the model folder with version 1 in it.

    ``kind``: that of the instance.
    """
    model = load_runtime(step).TritonPythonModel()
    config = {
        **config,
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
    model.initialize(
        {
            "model_config": json.dumps(config),
            "model_repository": str(folder),
            "model_version": "1",
            "model_instance_kind": kind,
        }
    )
    return model


def texts(*rows: str | bytes) -> np.ndarray:
    """A BYTES tensor [rows, 1] as Triton hands it to a python model."""
    array = np.empty((len(rows), 1), dtype=np.object_)
    array[:, 0] = [row.encode() if isinstance(row, str) else row for row in rows]
    return array
