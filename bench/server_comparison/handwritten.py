"""The ensemble as tutorials build it by hand: tokenizer, model and pooling, a model each.

The tokenizer pads all texts of its batch to the longest, and only requests of equal shape share a
run of the model. The model step is the ONNX runner, which also stands in for Triton's own backend
in the pipeline that it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.server_comparison.apps.encoder import MAX_DELAY_MS, MAX_ROWS, WORKERS
from e2e.models import minilm, tree
from tests.support.pipelines import ENSEMBLE, config, ensemble, tensor
from tests.support.triton import triton_server, write_model
from triton_pipelines import runtime
from triton_pipelines.triton.local_server import LocalTriton

NAME = "handwritten"
TOKENIZER, MODEL, POOLING = "tokenizer", "encoder", "pooling"
IDS, MASK, HIDDEN, OUTPUT = (
    minilm.INPUT_IDS,
    minilm.ATTENTION_MASK,
    minilm.HIDDEN_STATE,
    "EMBEDDING",
)
TOKENIZER_CODE = """
import os

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"])
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.enable_padding()

    def execute(self, requests):
        texts = [
            [text.decode() for text in tensor.as_numpy().ravel()]
            for tensor in (pb_utils.get_input_tensor_by_name(one, "TEXT") for one in requests)
        ]
        found = self.tokenizer.encode_batch_fast([text for own in texts for text in own])
        ids = np.array([one.ids for one in found], np.int64)
        mask = np.array([one.attention_mask for one in found], np.int64)
        ends = np.cumsum([len(own) for own in texts])[:-1]
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("input_ids", rows), pb_utils.Tensor("attention_mask", marks)]
            )
            for rows, marks in zip(np.split(ids, ends), np.split(mask, ends))
        ]
"""
POOLING_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            hidden = pb_utils.get_input_tensor_by_name(request, "last_hidden_state").as_numpy()
            mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()
            weights = mask[:, :, None].astype(np.float32)
            means = (hidden * weights).sum(1) / weights.sum(1)
            means /= np.linalg.norm(means, axis=1, keepdims=True)
            tensor = pb_utils.Tensor("EMBEDDING", means)
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""


@contextmanager
def served(files: Path, folder: Path) -> Iterator[LocalTriton]:
    """Serve it on a Triton of its own."""
    write_repository(files, folder)
    with triton_server(folder, [NAME], deadline_s=180) as server:
        yield server


def write_repository(files: Path, folder: Path) -> None:
    """Write the four models of the ensemble."""
    text = [tensor("TEXT", "TYPE_STRING", "1")]
    tokens = [tensor(name, "TYPE_INT64", "-1") for name in (IDS, MASK)]
    hidden = [tensor(HIDDEN, "TYPE_FP32", "-1, 384")]
    output = [tensor(OUTPUT, "TYPE_FP32", "384")]
    words = (files / tree.TOKENIZER_FOLDER / "tokenizer.json").read_bytes()
    delay = f"dynamic_batching {{ max_queue_delay_microseconds: {MAX_DELAY_MS * 1000} }}"

    def limits(count: int) -> dict[str, Any]:
        return {"count": count, "max_batch_size": MAX_ROWS}

    write_model(
        folder,
        TOKENIZER,
        config(TOKENIZER, text, tokens, {}, **limits(1)).replace("dynamic_batching { }", delay),
        {"model.py": TOKENIZER_CODE, "tokenizer.json": words},
    )
    write_model(
        folder,
        MODEL,
        config(MODEL, tokens, hidden, {}, **limits(WORKERS)),
        {
            "model.py": runtime.source("onnx_runner"),
            "model.onnx": (files / tree.EMBEDDING_MODEL).read_bytes(),
        },
    )
    write_model(
        folder,
        POOLING,
        config(POOLING, [*hidden, tokens[1]], output, {}, **limits(1)),
        {"model.py": POOLING_CODE},
    )
    both = {IDS: IDS, MASK: MASK}
    steps = [
        (TOKENIZER, {"TEXT": "TEXT"}, both),
        (MODEL, both, {HIDDEN: HIDDEN}),
        (POOLING, {HIDDEN: HIDDEN, MASK: MASK}, {OUTPUT: OUTPUT}),
    ]
    whole = ensemble("TEXT", output, steps).replace(f'name: "{ENSEMBLE}"', f'name: "{NAME}"')
    write_model(folder, NAME, whole.replace("max_batch_size: 64", f"max_batch_size: {MAX_ROWS}"))
