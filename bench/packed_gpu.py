"""A packed model step in PyTorch for Triton's python backend: no padding is computed.

The tokens of all rows lie one behind the other. Everything but attention works on single tokens,
and attention runs by the offsets of the rows, so that each sees only itself. The step tries three
ways at the start and takes the first that gives the answers of the last: PyTorch's memory-efficient
kernel, a jagged tensor, and all tokens with a mask that separates the rows.

Parameters of config.pbtxt: ``heads``, ``precision`` (tf32, fp32 or fp16), ``weights`` (safetensors
file in the version folder, tensors named as in Hugging Face's BERT checkpoints). Inputs:
``input_ids`` and ``attention_mask``, INT64 [rows, tokens], unpadded. Output: ``logits`` FP32.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# Appended, so that the image's own packages win.
sys.path += [folder for folder in os.environ.get("TRITONPIPE_SITE", "").split(os.pathsep) if folder]

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from safetensors.torch import load_file
from torch.nn import functional

EPSILON = 1e-12
WARM_UP = (3, 64, 5, 512, 40)
"""Lengths of rows that choose how attention runs."""
MOST_APART = 0.05
"""How far logits of two ways may be apart, in half precision."""


class TritonPythonModel:
    """The interface Triton's python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights and find out how attention can run."""
        config = json.loads(args["model_config"])["parameters"]
        values = {key: entry["string_value"] for key, entry in config.items()}
        on_gpu = args["model_instance_kind"] == "GPU"
        self._device = torch.device(f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu")
        torch.backends.cuda.matmul.allow_tf32 = values["precision"] == "tf32"
        self._heads = int(values["heads"])
        file = Path(args["model_repository"]) / args["model_version"] / values["weights"]
        half = values["precision"] == "fp16"
        loaded = load_file(str(file), device=str(self._device))
        self._weights = {name: one.half() if half else one.float() for name, one in loaded.items()}
        self._layers = sum(
            name.endswith("output.dense.weight") and ".attention." not in name for name in loaded
        )
        self._attend = self._masked
        rows = [np.arange(length) % 30 + 1 for length in WARM_UP]
        expected, warned = self._logits(rows), []
        for way in (self._efficient, self._jagged):
            self._attend = way
            try:
                apart = float(np.abs(self._logits(rows) - expected).max())
                if apart <= MOST_APART:
                    break
                warned.append(f"{way.__name__}: logits {apart:.3g} apart")
            except Exception as error:
                warned.append(f"{way.__name__}: {str(error).splitlines()[0]}")
            self._attend = self._masked
        where = torch.cuda.get_device_name(self._device) if on_gpu else "CPU"
        pb_utils.Logger.log_info(
            f"packed step: torch {torch.__version__} on {self._device}: {where}, attention "
            f"{self._attend.__name__} {warned}"
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request, in order."""
        arrays = [
            pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
            for request in requests
        ]
        logits = self._logits([row for array in arrays for row in array])
        ends = np.cumsum([len(array) for array in arrays])[:-1]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("logits", np.ascontiguousarray(part))])
            for part in np.split(logits, ends)
        ]

    def _logits(self, rows: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Logits [rows, classes] of rows of token ids."""
        lengths = np.array([len(row) for row in rows])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        owners = np.repeat(np.arange(len(rows)), lengths)
        # One copy to the GPU for everything.
        packed = np.zeros((3, max(len(places), len(offsets))), np.int64)
        packed[0, : len(places)], packed[1, : len(places)] = np.concatenate(rows), places
        packed[2, : len(places)] = owners
        with torch.no_grad():
            moved = torch.from_numpy(packed).to(self._device)[:, : len(places)]
            starts = torch.from_numpy(offsets).to(self._device)
            hidden = self._encode(moved[0], moved[1], moved[2], starts, int(lengths.max()))
            sums = torch.zeros(len(rows), hidden.shape[1], device=self._device)
            sums.index_add_(0, moved[2], hidden.float())
            means = (sums / starts.diff()[:, None]).to(hidden.dtype)
            return np.asarray(self._linear("classifier", means).float().cpu().numpy())

    def _encode(self, ids: Any, places: Any, owners: Any, starts: Any, longest: int) -> Any:
        table = "embeddings.{}_embeddings.weight"
        x = functional.embedding(ids, self._weights[table.format("word")])
        x = x + functional.embedding(places, self._weights[table.format("position")])
        x = self._norm("embeddings.LayerNorm", x + self._weights[table.format("token_type")][0])
        for layer in range(self._layers):
            name = f"encoder.layer.{layer}"
            query, key, value = (
                self._linear(f"{name}.attention.self.{part}", x).unflatten(1, (self._heads, -1))
                for part in ("query", "key", "value")
            )
            mixed = self._attend(query, key, value, owners, starts, longest)
            attended = self._linear(f"{name}.attention.output.dense", mixed)
            x = self._norm(f"{name}.attention.output.LayerNorm", x + attended)
            inner = functional.gelu(self._linear(f"{name}.intermediate.dense", x))
            x = self._norm(
                f"{name}.output.LayerNorm", x + self._linear(f"{name}.output.dense", inner)
            )
        return x

    def _efficient(
        self, query: Any, key: Any, value: Any, owners: Any, starts: Any, longest: int
    ) -> Any:
        """Attention [tokens, width] of each row over itself: PyTorch's kernel takes offsets."""
        ends, none = starts.int(), None
        mixed = torch.ops.aten._efficient_attention_forward(
            query[None], key[None], value[None], none, ends, ends, longest, longest, 0.0, 0
        )[0]
        return mixed[0].flatten(1)

    def _jagged(
        self, query: Any, key: Any, value: Any, owners: Any, starts: Any, longest: int
    ) -> Any:
        """The same with jagged tensors."""
        jagged = (
            torch.nested.nested_tensor_from_jagged(
                one, starts, min_seqlen=1, max_seqlen=longest
            ).transpose(1, 2)
            for one in (query, key, value)
        )
        mixed = functional.scaled_dot_product_attention(*jagged).transpose(1, 2)
        return mixed.values().flatten(1)

    def _masked(
        self, query: Any, key: Any, value: Any, owners: Any, starts: Any, longest: int
    ) -> Any:
        """The same over all tokens, with a mask that separates the rows."""
        own = (owners[:, None] == owners[None, :])[None, None]
        heads = (one.transpose(0, 1)[None] for one in (query, key, value))
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=own)
        return mixed[0].transpose(0, 1).flatten(1)

    def _linear(self, name: str, x: Any) -> Any:
        return functional.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, x: Any) -> Any:
        scale, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], scale, bias, EPSILON)
