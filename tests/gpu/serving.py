"""Turn the tier's pipeline from a document into a running Triton.

It uses the product's own parsing, rendering and loading, and keeps the step's kind.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from e2e.local import native
from tests.gpu.encoder import CLASSES, WEIGHTS, Shape
from triton_pipelines.cli.documents import load_pipeline
from triton_pipelines.compile.graph import Options
from triton_pipelines.compile.render import render
from triton_pipelines.loader.main import run as load
from triton_pipelines.loader.options import LoadOptions
from triton_pipelines.loader.uris import SourceMap

PIPELINE, MODEL = "torch-encoder", "model"
CODE = Path(__file__).with_name("torch_encoder.py")
SOURCE = "https://models.example.com/encoder"
ROWS = 64
"""Most rows in a batch."""


def document(shape: Shape, kind: str) -> dict[str, Any]:
    """The InferencePipeline, as a user would write it; ``kind``: GPU or CPU."""
    return {
        "apiVersion": "tritonpipelines.io/v1alpha1",
        "kind": "InferencePipeline",
        "metadata": {"name": PIPELINE},
        "spec": {
            "tokenizer": {
                "source": {"uri": f"{SOURCE}/tokenizer.json"},
                "instances": {"initial": 2},
            },
            "model": {
                "platform": "python",
                "source": {"uri": f"{SOURCE}/{WEIGHTS}"},
                "python": {"code": {"inline": CODE.read_text()}},
                "outputs": [{"name": "logits", "dataType": "FP32", "dims": [CLASSES]}],
                "inputs": [
                    {"name": "input_ids", "dataType": "INT64", "dims": [-1]},
                    {"name": "attention_mask", "dataType": "INT64", "dims": [-1]},
                ],
                "maxBatchSize": ROWS,
                "instances": {"kind": kind},
                "parameters": {"heads": str(shape.num_attention_heads), "weights": WEIGHTS},
            },
        },
    }


def lay_out(folder: Path, checkpoint: Path, shape: Shape, kind: str) -> Path:
    """Validate, render and load the pipeline as a pod's init container would.

    Returns the model repository.
    """
    native.install()
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document(shape, kind), sort_keys=False))
    rendering = Options()
    pipeline, graph = load_pipeline(file, rendering)
    revision = folder / "revision"
    revision.mkdir()
    for key, content in render(pipeline, graph, rendering).data.items():
        (revision / key).write_text(content, encoding="utf-8")
    options = LoadOptions(revision=revision, live=folder / "live", root=folder, termination=None)
    code = load(replace(options, source_map=SourceMap.parse([f"{SOURCE}/={checkpoint.as_uri()}/"])))
    assert code == 0, "the loader's reasons stand above"
    return options.models
