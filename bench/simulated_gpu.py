"""A simulated GPU model step for Triton's python backend.

It waits for as long as a GPU would compute, including padding. Parameters of config.pbtxt: ``mode``
is Together (one run, as wide as its longest row), Sorted (the runs that the ONNX runner would make)
or Packed (no padding); ``launch_us`` is the time per run and ``token_us`` the time per computed
token. The runner's file must be next to this one as ``runner.py``.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from runner import cheapest_runs  # type: ignore[import-not-found]


class TritonPythonModel:
    """The interface Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters."""
        parameters = {
            key: value["string_value"]
            for key, value in json.loads(args["model_config"])["parameters"].items()
        }
        self._mode = parameters["mode"]
        self._launch = float(parameters["launch_us"]) * 1e-6
        self._token = float(parameters["token_us"]) * 1e-6

    def execute(self, requests: list[Any]) -> list[Any]:
        """Waits; every row is answered with a zero."""
        begin = time.perf_counter()
        shapes = [
            pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy().shape
            for request in requests
        ]
        wait = self._seconds(shapes) - (time.perf_counter() - begin)
        if wait > 0:
            time.sleep(wait)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("scores", np.zeros((shape[0], 1), np.float32))]
            )
            for shape in shapes
        ]

    def _seconds(self, shapes: list[tuple[int, int]]) -> float:
        if self._mode == "Packed":
            return self._launch + self._token * sum(rows * length for rows, length in shapes)
        rows_by_length: dict[int, int] = {}
        for rows, length in shapes:
            rows_by_length[length] = rows_by_length.get(length, 0) + rows
        runs = (
            [list(rows_by_length)]
            if self._mode == "Together"
            else cheapest_runs(rows_by_length, round(self._launch / self._token))
        )
        return sum(
            self._launch + self._token * max(run) * sum(rows_by_length[length] for length in run)
            for run in runs
        )
