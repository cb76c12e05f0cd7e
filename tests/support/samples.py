"""Samples that are served, and clients of them for any tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from e2e.suite.pipelines import GOLDEN
from tests.support.serving import Served

Array = np.ndarray[Any, Any]


class Client:
    """A sample that is served, and NVIDIA's HTTP client of it."""

    def __init__(self, running: Served) -> None:
        self.served = running
        self.address = running.endpoint.http.removeprefix("http://")
        self._http = tritonclient.http.InferenceServerClient(self.address, network_timeout=60)

    def ask(self, inputs: Mapping[str, Array], **options: Any) -> dict[str, Array]:
        """Return outputs by name, in the model's order; texts are arrays of bytes.

        Raises:
            InferenceServerException: the server answered with an error.
        """
        tensors = []
        for name, values in inputs.items():
            tensor = tritonclient.http.InferInput(
                name, list(values.shape), tritonclient.utils.np_to_triton_dtype(values.dtype)
            )
            tensor.set_data_from_numpy(values)
            tensors.append(tensor)
        answer = self._http.infer(self.served.model, tensors, **options)
        return {
            output["name"]: answer.as_numpy(output["name"]) for output in self.metadata()["outputs"]
        }

    def metadata(self) -> dict[str, Any]:
        """The model's metadata."""
        found: dict[str, Any] = self._http.get_model_metadata(self.served.model)
        return found

    def close(self) -> None:
        """Close its connections."""
        self._http.close()


def column(*rows: str | bytes) -> Array:
    """Texts as clients send them: BYTES [n, 1]."""
    return np.array(
        [[row.encode() if isinstance(row, str) else row] for row in rows], dtype=np.object_
    )


def on(name: str) -> pytest.MarkDecorator:
    """Tests against manifests/samples/NAME.yaml."""
    return pytest.mark.parametrize("sample", [name], indirect=True)


def cases(name: str) -> list[dict[str, Any]]:
    """The golden cases of a file in tests/golden/models."""
    found: list[dict[str, Any]] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))[
        "cases"
    ]
    return found
