"""The metadata of a served model, as the server describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BYTES = "BYTES"


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """A tensor as the server describes it."""

    name: str
    """Name of the tensor."""
    data_type: str
    """Triton's type name."""
    shape: tuple[int, ...]
    """Shape including the batch axis; -1: any length."""
    optional: bool = False
    """Whether a request may omit it."""

    def __str__(self) -> str:
        return f"{self.name} {self.data_type}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """A served model as the server describes it."""

    inputs: tuple[TensorMetadata, ...]
    """Inputs, in the server's order."""
    outputs: tuple[str, ...]
    """Names of the outputs."""
    batched: bool
    """Whether the first axis of every tensor is the batch axis."""
    decoupled: bool = False
    """Whether it answers with a stream of responses."""
    steps: tuple[str, ...] = ()
    """Models of an ensemble's steps."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> ModelMetadata:
        """Return the metadata from the answers to ``/v2/models/MODEL`` and ``…/config``.

        Args:
            metadata: the model's metadata.
            config: its config; may be empty.

        Raises:
            KeyError: the metadata lacks a field.
            TypeError: the metadata has another structure.
            ValueError: a field has an invalid value.
        """
        optional = {item["name"] for item in config.get("input") or () if item.get("optional")}
        inputs = tuple(
            TensorMetadata(
                str(item["name"]),
                str(item["datatype"]),
                tuple(map(int, item.get("shape", (-1, 1)))),
                item["name"] in optional,
            )
            for item in metadata["inputs"]
        )
        batched = (
            int(config["max_batch_size"]) > 0
            if "max_batch_size" in config
            else all(item.shape[:1] == (-1,) for item in inputs)
        )
        decoupled = bool((config.get("model_transaction_policy") or {}).get("decoupled"))
        steps = dict.fromkeys(
            str(item["model_name"])
            for item in (config.get("ensemble_scheduling") or {}).get("step") or ()
        )
        return cls(
            inputs,
            tuple(str(item["name"]) for item in metadata["outputs"]),
            batched,
            decoupled,
            tuple(steps),
        )
