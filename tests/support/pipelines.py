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


def write_pipeline(
    repository: Path,
    *,
    padding: str = "Ragged",
    truncation: str = "LongestFirst",
    pooling: bool = False,
    count: int = 1,
    delay_us: int = 0,
    is_native: bool = False,
) -> None:
    """Write a classifier, or with ``pooling`` an embedding, with ``count`` tokenizers.

    The classifier returns PROBABILITIES, LABEL and SCORE (top 2). The embedding is the normalized
    mean. ``delay_us`` is how long the tokenizer waits to batch requests. The tokenizer is the
    Python step, unless ``is_native``.
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
    code: dict[str, str | bytes] = {"model.py": runtime.source("tokenizer")}
    if is_native:
        text = text.replace('backend: "python"', f'backend: "{names.NATIVE_TOKENIZER_BACKEND}"')
        code = {names.NATIVE_TOKENIZER_LIBRARY: native.install().read_bytes()}
    version = write_model(repository, TOKENIZER, text, code)
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
