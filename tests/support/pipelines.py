"""A small text pipeline as a Triton model repository with handwritten configs.

Its models are tokenizer, ONNX runner, postprocess and ensemble.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from e2e.local import native
from tests.support import tinymodel
from tests.support.triton import triton_server, write_model
from triton_pipelines import runtime
from triton_pipelines.api import names
from triton_pipelines.triton.local_server import LocalTriton

ENSEMBLE, TOKENIZER, MODEL, POSTPROCESS = "pipeline", "tokenizer", "model", "postprocess"
LABELS = ("negative", "neutral", "positive")
MAX_LENGTH = 32
PADDINGS = ("Ragged", "Fixed", "Bucketed", "Longest")
# A tokenizer as a user may write it: padded to the longest row of the request.
CUSTOM_TOKENIZER = f"""
import os, pathlib, sys
sys.path += os.environ["TRITONPIPE_SITE"].split(os.pathsep)
import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

class TritonPythonModel:
    def initialize(self, args):
        folder = pathlib.Path(args["model_repository"]) / args["model_version"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation({MAX_LENGTH})
        self.tokenizer.enable_padding(pad_id=0)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().ravel()
        try:
            rows = self.tokenizer.encode_batch([text.decode() for text in texts])
        except UnicodeDecodeError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        ids, mask = [row.ids for row in rows], [row.attention_mask for row in rows]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("input_ids", np.array(ids, np.int64)),
                pb_utils.Tensor("attention_mask", np.array(mask, np.int64)),
            ]
        )
"""


def tensor(name: str, data_type: str, dims: str) -> str:
    return f'{{ name: "{name}" data_type: {data_type} dims: [ {dims} ] }}'


def config(
    name: str,
    inputs: list[str],
    outputs: list[str],
    parameters: dict[str, str],
    *,
    count: int = 1,
    max_batch_size: int = 64,
    ragged: bool = False,
) -> str:
    """Return config.pbtxt of a python model.

    ``ragged`` lets requests of different length share a batch.
    """
    inputs = (
        [text.replace(" }", " allow_ragged_batch: true }") for text in inputs] if ragged else inputs
    )
    lines = [
        f'name: "{name}"',
        'backend: "python"',
        f"max_batch_size: {max_batch_size}",
        f"input [ {', '.join(inputs)} ]",
        f"output [ {', '.join(outputs)} ]",
        f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]",
        "dynamic_batching { }",
        *(
            (
                f'parameters {{ key: "tritonpipe.{key}" value: {{ string_value: '
                f"{json.dumps(value)} }} }}"
            )
            for key, value in parameters.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def ensemble(
    text: str, outputs: list[str], steps: list[tuple[str, dict[str, str], dict[str, str]]]
) -> str:
    """config.pbtxt of the ensemble; a step is its model, input map and output map."""

    def maps(kind: str, pairs: dict[str, str]) -> str:
        return " ".join(
            f'{kind} {{ key: "{key}" value: "{value}" }}' for key, value in pairs.items()
        )

    body = " ".join(
        (
            f'step {{ model_name: "{model}" model_version: -1 {maps("input_map", reads)} '
            f"{maps('output_map', writes)} }}"
        )
        for model, reads, writes in steps
    )
    return (
        f'name: "{ENSEMBLE}"\nplatform: "ensemble"\nmax_batch_size: 64\n'
        f"input [ {tensor(text, 'TYPE_STRING', '1')} ]\noutput [ {', '.join(outputs)} ]\n"
        f"ensemble_scheduling {{ {body} }}\n"
    )


def tokenizer_parameters(padding: str, truncation: str) -> dict[str, str]:
    return {
        "max_length": str(MAX_LENGTH),
        "truncation": truncation,
        "padding": padding,
        "buckets": "8,16",
        "outputs": json.dumps({"input_ids": "InputIds", "attention_mask": "AttentionMask"}),
    }


def write_tokenizer(repository: Path, name: str, text: str) -> Path:
    """Write the native tokenizer with a :func:`config`; return the version folder."""
    library = native.library().read_bytes()
    text = text.replace('backend: "python"', f'backend: "{names.NATIVE_TOKENIZER_BACKEND}"')
    return write_model(repository, name, text, {names.NATIVE_TOKENIZER_LIBRARY: library})


def write_pipeline(
    repository: Path,
    *,
    padding: str = "Ragged",
    truncation: str = "LongestFirst",
    pooling: bool = False,
    count: int = 1,
    delay_us: int = 0,
    is_custom: bool = False,
) -> None:
    """Write a classifier, or with ``pooling`` an embedding, with ``count`` tokenizers.

    The classifier returns PROBABILITIES, LABEL and SCORE (top 2). The embedding is the normalized
    mean. ``delay_us`` is how long the tokenizer waits to batch requests. With ``is_custom``, the
    tokenizer is :data:`CUSTOM_TOKENIZER`, which has neither ``padding`` nor ``truncation``.
    """
    ids = [tensor("input_ids", "TYPE_INT64", "-1"), tensor("attention_mask", "TYPE_INT64", "-1")]
    probabilities = [
        tensor("PROBABILITIES", "TYPE_FP32", str(len(LABELS))),
        tensor("LABEL", "TYPE_STRING", "2"),
        tensor("SCORE", "TYPE_FP32", "2"),
    ]
    answers = [tensor("EMBEDDING", "TYPE_FP32", str(tinymodel.WIDTH))] if pooling else probabilities
    hidden = tensor("hidden", "TYPE_FP32", f"-1, {tinymodel.WIDTH}")
    logits = tensor("logits", "TYPE_FP32", str(tinymodel.CLASSES))

    text = config(
        TOKENIZER,
        [tensor("TEXT", "TYPE_STRING", "1")],
        ids,
        tokenizer_parameters(padding, truncation),
        count=count,
    )
    if delay_us:
        text = text.replace(
            "dynamic_batching { }",
            f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}",
        )
    if is_custom:
        version = write_model(repository, TOKENIZER, text, {"model.py": CUSTOM_TOKENIZER})
    else:
        version = write_tokenizer(repository, TOKENIZER, text)
    tinymodel.tokenizer().save(str(version / "tokenizer.json"))

    pads = {"pad_inputs": json.dumps({"input_ids": 0, "attention_mask": 0})}
    version = write_model(
        repository,
        MODEL,
        config(MODEL, ids, [hidden, logits], pads, ragged=True),
        {"model.py": runtime.source("onnx_runner")},
    )
    (version / "model.onnx").write_bytes(tinymodel.graph().SerializeToString())

    if pooling:
        parameters = {
            "type": "MeanPooling",
            "input": "hidden",
            "mask": "attention_mask",
            "normalize": "Enabled",
        }
        reads = {"hidden": "hidden", "attention_mask": "attention_mask"}
        inputs = [hidden, ids[1]]
    else:
        parameters = {
            "type": "Softmax",
            "input": "logits",
            "labels": json.dumps(LABELS),
            "top_k": "2",
        }
        reads = {"logits": "logits"}
        inputs = [logits]
    write_model(
        repository,
        POSTPROCESS,
        config(POSTPROCESS, inputs, answers, parameters, ragged=pooling),
        {"model.py": runtime.source("postprocess")},
    )
    results = ["EMBEDDING"] if pooling else ["PROBABILITIES", "LABEL", "SCORE"]
    both = {"input_ids": "input_ids", "attention_mask": "attention_mask"}
    write_model(
        repository,
        ENSEMBLE,
        ensemble(
            "TEXT",
            answers,
            [
                (TOKENIZER, {"TEXT": "TEXT"}, both),
                (MODEL, both, {"hidden": "hidden"} if pooling else {"logits": "logits"}),
                (POSTPROCESS, reads, {name: name for name in results}),
            ],
        ),
    )


@contextlib.contextmanager
def native_tokenizer_server(repository: Path) -> Iterator[LocalTriton]:
    """Run a real tritonserver with the pipeline's tokenizer; the native library is in place."""
    native.install()
    write_pipeline(repository)
    with triton_server(repository, [TOKENIZER]) as running:
        yield running
