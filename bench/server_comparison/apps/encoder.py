"""Texts to sentence embeddings with tokenizers and ONNX Runtime, the model code of every server.

It stands alone: the other servers' environments have neither the product nor its tests. Settings
are environment variables, because every server starts its own worker processes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

MODEL_FOLDER, PORT, MAX_REQUESTS = "MODEL_FOLDER", "SERVER_PORT", "SERVER_MAX_REQUESTS"
"""Environment variables; the last one is the limit of servers that count requests, not texts."""
RUN_ROWS = "SERVER_RUN_ROWS"
"""Environment variable: most texts in one run of the model."""
TUNED_RUN_ROWS = 4
"""The fastest value on CPU for texts of mixed length: more rows compute more padding."""
MAX_ROWS = 32
"""Most texts in a batch."""
MAX_DELAY_MS = 2
"""How long a request waits for others to share a run with."""
MAX_LENGTH = 256
WORKERS = 2
"""Processes with a model each."""


class Encoder:
    """One copy of the model, with one thread."""

    def __init__(self) -> None:
        """Read the model and its tokenizer from the folder that MODEL_FOLDER names."""
        folder = Path(os.environ[MODEL_FOLDER])
        self._run_rows = int(os.environ.get(RUN_ROWS, TUNED_RUN_ROWS))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_LENGTH)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self._session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one embedding of unit length per text.

        Texts of similar length share a run, so that little of it is padding.
        """
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        order = sorted(range(len(tokens)), key=lambda index: len(tokens[index]))
        size = self._run_rows
        runs = [order[first : first + size] for first in range(0, len(order), size)]
        found = np.concatenate([self._run([tokens[index] for index in run]) for run in runs])
        embeddings = np.empty_like(found)
        embeddings[order] = found
        return embeddings

    def encode_requests(self, requests: Sequence[Sequence[str]]) -> list[NDArray[np.float32]]:
        """Return the embeddings of each request of a batch."""
        found = self.encode([text for texts in requests for text in texts])
        ends = np.cumsum([len(texts) for texts in requests])
        return list(np.split(found, ends[:-1]))

    def _run(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Return the embeddings of rows, padded to the longest of them."""
        ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
        mask = np.zeros_like(ids)
        for row, own in enumerate(rows):
            ids[row, : len(own)], mask[row, : len(own)] = own, 1
        feed = {"input_ids": ids, "attention_mask": mask}
        hidden: Any = self._session.run(None, feed)[0]
        weights = mask[:, :, None].astype(np.float32)
        means = (hidden * weights).sum(1) / weights.sum(1)
        return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True), np.float32)
