"""Model repositories for the serving benchmarks.

There is one ensemble per padding mode, each with its own tokenizer and model step, on one server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench import real_step
from e2e.models import tree
from tests.support.pipelines import ENSEMBLE, config, ensemble, tensor, write_tokenizer
from tests.support.triton import triton_server, write_model
from triton_pipelines import runtime
from triton_pipelines.tools.loadgen import (
    LoadResult,
    LoadSpec,
    LoadSummary,
    LoadTarget,
    TextLengths,
    generate_texts,
    run_blocking,
    summarize,
)
from triton_pipelines.triton.local_server import LocalTriton

LAUNCH_US, TOKEN_US = 2000.0, 1.5
"""The simulated GPU step: 2 ms a run and 1.5 us for each token computed.

On an H100 this is between BERT-base in TensorFloat-32 (3.6 ms, 0.8 us) and in FP32 (2.1 ms,
4.3 us); MiniLM takes 1.1 to 1.8 ms and at most 0.64 us (``docs/benchmarks/gpu-step-times.md``).
"""
MAX_BATCH = 64
MAX_LENGTH = 512
BUCKETS = "16,32,48,64,96,128,256"
LENGTHS = TextLengths(median=32, sigma=0.6, cap=512)
TEXTS = 512
STAND_IN = (
    f"simulated GPU step: waits {LAUNCH_US / 1000:g} ms per execution plus {TOKEN_US:g} µs per "
    "token it would compute, padding included"
)
MODEL_FILE = tree.SENTIMENT_MODEL
RUNNER, PACKED_GPU = "Runner", "PackedGpu"
"""Modes of a real step: the product's ONNX runner, and PyTorch without padding."""
WEIGHTS = "model.safetensors"
BOTH = {"input_ids": "input_ids", "attention_mask": "attention_mask"}


@dataclass(frozen=True)
class Variant:
    """One ensemble.

    Attributes:
        name: of the ensemble; its models are NAME-tokenizer and NAME-model.
        padding: of the tokenizer.
        mode: of the simulated step, or ``Runner``: the real model by the ONNX runner, or
            ``PackedGpu``: the real model by PyTorch without padding.
        ragged: whether requests of different length share a batch of the model step.
        parameters: further ones of the model step.
        max_batch: most rows of a batch of the model step.
        tokenizers: number of tokenizer instances.
    """

    name: str
    padding: str = "Ragged"
    mode: str = "Together"
    ragged: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    max_batch: int = MAX_BATCH
    tokenizers: int = 1


def workload(seed: int = 1) -> list[str]:
    """Texts of lognormal lengths."""
    return generate_texts(LENGTHS.sample(TEXTS, seed), seed)


def described() -> str:
    """The workload in words."""
    return (
        f"texts of lognormal length (median {LENGTHS.median:g} tokens, sigma {LENGTHS.sigma:g}, "
        f"at most {LENGTHS.cap}), one per request"
    )


@contextmanager
def served(
    variants: Sequence[Variant], *, batching: Mapping[str, str] | None = None
) -> Iterator[LocalTriton]:
    """A real Triton with all of them.

    ``batching``: model → its ``dynamic_batching`` block, where it is not an empty one.
    """
    with TemporaryDirectory(prefix="tritonpipe-bench-") as folder:
        repository = Path(folder)
        files = _files()
        for variant in variants:
            _write(repository, variant, files, batching or {})
        with triton_server(
            repository, [variant.name for variant in variants], deadline_s=180
        ) as server:
            yield server


@dataclass(frozen=True)
class _Files:
    """Content of the variants' files."""

    tokenizer: bytes
    """tokenizer.json."""
    model: bytes
    """The real model, model.onnx."""
    kind: str
    """Kind of the instances of a real model step."""


def _files() -> _Files:
    if real_step.is_real():
        return _Files(real_step.checkpoint().tokenizer, real_step.model(), real_step.kind())
    models = tree.build()
    words = models / tree.TOKENIZER_FOLDER / "tokenizer.json"
    return _Files(words.read_bytes(), (models / MODEL_FILE).read_bytes(), "KIND_CPU")


def _write(repository: Path, variant: Variant, files: _Files, batching: Mapping[str, str]) -> None:
    ids = [tensor(name, "TYPE_INT64", "-1") for name in BOTH]
    tokenizer, model = f"{variant.name}-tokenizer", f"{variant.name}-model"

    def batched(name: str, text: str) -> str:
        own = batching.get(name, "")
        return text.replace("dynamic_batching { }", f"dynamic_batching {{ {own} }}")

    parameters = {
        "max_length": str(MAX_LENGTH),
        "padding": variant.padding,
        "buckets": BUCKETS,
        "outputs": json.dumps({"input_ids": "InputIds", "attention_mask": "AttentionMask"}),
    }
    texts_in = [tensor("TEXT", "TYPE_STRING", "1")]
    text = config(
        tokenizer,
        texts_in,
        ids,
        parameters,
        count=variant.tokenizers,
        max_batch_size=MAX_BATCH,
    )
    version = write_tokenizer(repository, tokenizer, batched(tokenizer, text))
    (version / "tokenizer.json").write_bytes(files.tokenizer)
    is_real = variant.mode in (RUNNER, PACKED_GPU)
    output, width = ("logits", "2") if is_real else ("scores", "1")
    outputs = [tensor(output, "TYPE_FP32", width)]
    own = dict(variant.parameters) if variant.mode == RUNNER else {}
    text = config(model, ids, outputs, own, max_batch_size=variant.max_batch, ragged=variant.ragged)
    text = text.replace("KIND_CPU", files.kind) if is_real else text
    text = batched(model, text + _parameters(variant))
    write_model(repository, model, text, _code(variant, files))
    steps = [(tokenizer, {"TEXT": "TEXT"}, BOTH), (model, BOTH, {output: output})]
    whole = ensemble("TEXT", outputs, steps).replace(
        f'name: "{ENSEMBLE}"', f'name: "{variant.name}"'
    )
    write_model(
        repository,
        variant.name,
        whole.replace("max_batch_size: 64", f"max_batch_size: {variant.max_batch}"),
    )


def _parameters(variant: Variant) -> str:
    """Return the parameters of a step that is not the runner, as config.pbtxt has them."""
    if variant.mode == RUNNER:
        return ""
    own = {"mode": variant.mode, "launch_us": f"{LAUNCH_US}", "token_us": f"{TOKEN_US}"}
    if variant.mode == PACKED_GPU:
        heads = real_step.checkpoint().config.num_attention_heads
        own = {"heads": str(heads), "precision": real_step.PRECISION, "weights": WEIGHTS}
    return "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in {**own, **variant.parameters}.items()
    )


def _code(variant: Variant, files: _Files) -> dict[str, str | bytes]:
    """Return the files of the model step's version folder."""
    runner = runtime.source("onnx_runner")
    if variant.mode == RUNNER:
        return {"model.py": runner, "model.onnx": files.model}
    if variant.mode == PACKED_GPU:
        code = Path(__file__).with_name("packed_gpu.py").read_text()
        return {"model.py": code, WEIGHTS: real_step.safetensors()}
    return {
        "model.py": Path(__file__).with_name("simulated_gpu.py").read_text(),
        "runner.py": runner,
    }


def measured(server: LocalTriton, model: str, spec: LoadSpec, rows: Sequence[str]) -> LoadResult:
    """One load over HTTP, a text per request."""
    requests = [{"TEXT": np.array([[text.encode()]], dtype=np.object_)} for text in rows]
    return run_blocking(LoadTarget(server.http_url, model, requests), spec)


def load(server: LocalTriton, model: str, spec: LoadSpec, rows: Sequence[str]) -> LoadSummary:
    """Its figures."""
    return summarize(measured(server, model, spec, rows))
